"""Which server and which key."""

import json

import pytest

from pandastack import AuthError, Client, ConfigError, Sandbox
from pandastack._config import LOCAL_URL, parse_url, resolve


def write_file(tmp_path, text):
    d = tmp_path / ".config" / "pandastack"
    d.mkdir(parents=True)
    (d / "config.json").write_text(text)


def env_of(tmp_path, **more):
    return {"HOME": str(tmp_path), **more}


def test_the_key_is_the_argument_then_api_key_then_token_then_the_file(tmp_path):
    write_file(tmp_path, json.dumps({"api_key": "third", "apiKey": "second", "token": "first"}))
    both = env_of(tmp_path, PANDASTACK_API_KEY="key", PANDASTACK_TOKEN="token")
    assert resolve("said", None, both)[0] == "said"
    assert resolve(None, None, both)[0] == "key"
    assert resolve(None, None, env_of(tmp_path, PANDASTACK_TOKEN="token"))[0] == "token"
    assert resolve(None, None, env_of(tmp_path, PANDASTACK_API_KEY=""))[0] == "first"


@pytest.mark.parametrize("name", ["token", "apiKey", "api_key"])
def test_every_spelling_of_the_key_in_the_file(tmp_path, name):
    write_file(tmp_path, json.dumps({name: "k"}))
    assert resolve(None, None, env_of(tmp_path))[0] == "k"


def test_no_key_anywhere_is_no_key(tmp_path):
    assert resolve(None, None, env_of(tmp_path))[0] is None


def test_the_url_is_the_argument_then_the_variable_then_the_file_then_this_host(tmp_path):
    assert resolve("k", None, env_of(tmp_path))[1].url == LOCAL_URL
    write_file(tmp_path, json.dumps({"apiUrl": "http://file:1"}))
    assert resolve("k", None, env_of(tmp_path))[1].url == "http://file:1"
    assert resolve("k", None, env_of(tmp_path, PANDASTACK_API="http://env:2"))[1].url == "http://env:2"
    assert resolve("k", "http://said:3", env_of(tmp_path, PANDASTACK_API="http://env:2"))[1].url == "http://said:3"


@pytest.mark.parametrize("env", [{}, {"PANDASTACK_API_KEY": "k"}, {"PANDASTACK_TOKEN": "k"}])
def test_a_key_goes_to_no_other_host_when_none_is_named(tmp_path, env):
    write_file(tmp_path, json.dumps({"token": "k"}))
    key, target = resolve(None, None, env_of(tmp_path, **env))
    assert (key, target.host) == ("k", "127.0.0.1")


@pytest.mark.parametrize(
    "named,asked,goes",
    [
        ("https://mine.example", "https://mine.example/v1", True),
        ("https://mine.example", "https://MINE.example:8443", True),
        ("http://127.0.0.1:8080", "http://localhost:9090", True),
        ("http://127.0.0.1:8080", "unix:/run/pandad/api", True),
        ("https://mine.example", "https://other.example", False),
        ("http://127.0.0.1:8080", "https://api.pandastack.ai", False),
        ("https://mine.example", "http://127.0.0.1:8080", False),
        (None, "https://asked.example", True),
    ],
)
def test_a_key_in_a_file_is_for_the_host_named_beside_it(tmp_path, named, asked, goes):
    write_file(tmp_path, json.dumps({"token": "k", **({"apiUrl": named} if named else {})}))
    assert resolve(None, asked, env_of(tmp_path))[0] == ("k" if goes else None)
    assert resolve(None, None, env_of(tmp_path, PANDASTACK_API=asked))[0] == ("k" if goes else None)
    # What was said or is in the environment was meant for whatever server was named.
    assert resolve(None, asked, env_of(tmp_path, PANDASTACK_API_KEY="e"))[0] == "e"


def test_a_key_with_a_line_end_inside_is_refused_and_one_at_its_end_is_not(tmp_path):
    assert resolve("pds_x\n", "http://h", env_of(tmp_path))[0] == "pds_x"
    with pytest.raises(ConfigError, match="line end"):
        resolve("pds\r\nX-Evil: 1", "http://h", env_of(tmp_path))


def test_a_broken_file_is_an_error_that_names_it(tmp_path):
    write_file(tmp_path, "{")
    with pytest.raises(ConfigError, match="config.json is not JSON"):
        resolve(None, None, env_of(tmp_path))


@pytest.mark.parametrize(
    "url,want",
    [
        ("http://h:8080", "http://h:8080"),
        ("http://h:8080/", "http://h:8080"),
        ("http://h:8080/v1", "http://h:8080"),
        ("https://h/pre/v1/", "https://h/pre"),
        ("http://[::1]:80", "http://[::1]"),
        ("https://h:443", "https://h"),
    ],
)
def test_urls_with_and_without_v1(url, want):
    assert parse_url(url).url == want


@pytest.mark.parametrize("url", ["h:8080", "ftp://h", "http://", "http://h:x", "http://h/a b", ""])
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ConfigError):
        parse_url(url)


def test_the_default_client_follows_the_environment(server, monkeypatch):
    monkeypatch.setenv("PANDASTACK_API", server.url)
    monkeypatch.setenv("PANDASTACK_TOKEN", "pds_a")
    Sandbox.create()
    monkeypatch.setenv("PANDASTACK_API_KEY", "pds_b")
    Sandbox.create()
    assert [r.headers["authorization"] for r in server.asked()] == ["Bearer pds_a", "Bearer pds_b"]


def test_without_a_key_no_header_is_sent_and_401_says_what_to_do(server):
    server.on("GET", "/v1/me", (401, {"error": "unauthorized", "detail": "missing bearer token", "code": "unauthorized"}))
    with pytest.raises(AuthError, match="unauthorized: missing bearer token; set PANDASTACK_API_KEY"):
        Client(api_url=server.url).me()
    assert "authorization" not in server.asked()[0].headers
