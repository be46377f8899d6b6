"""The same over TLS: certificates are checked, connections are kept."""

import asyncio
import shutil
import ssl
import subprocess

import pytest

from conftest import Server, frame
from pandastack import APIConnectionError, AsyncClient, Client, Sandbox
from pandastack import _ws


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("needs the program openssl to make a certificate")
    d = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", d / "key", "-out", d / "cert"],
        check=True, capture_output=True,
    )
    return d


@pytest.fixture
def tls_server(certificate, monkeypatch):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert", certificate / "key")
    s = Server(context)
    s.url = s.url.replace("http://127.0.0.1", "https://localhost")
    s.on("GET", "/v1/me", {"tenant": "t"})
    yield s
    s.close()


def test_a_certificate_nobody_vouches_for_is_refused(tls_server):
    with pytest.raises(APIConnectionError, match="certificate"):
        Client("k", tls_server.url, timeout=5).me()
    assert tls_server.asked() == []  # so nobody saw the key

    async def go():
        with pytest.raises(APIConnectionError, match="certificate"):
            await AsyncClient("k", tls_server.url, timeout=5).me()

    asyncio.run(go())


def test_requests_share_a_connection(tls_server, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert"))
    with Client("k", tls_server.url, timeout=5) as c:
        for _ in range(5):
            assert c.me() == {"tenant": "t"}
    assert {r.connection for r in tls_server.asked()} == {1}

    async def go():
        async with AsyncClient("k", tls_server.url, timeout=5) as ac:
            for _ in range(5):
                assert await ac.me() == {"tenant": "t"}

    asyncio.run(go())
    assert {r.connection for r in tls_server.asked()} == {1, 2}


def test_a_terminal(tls_server, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert"))

    def shell(r, peer):
        peer.upgrade(r)
        while True:
            f = peer.frame()
            if f is None or f[0] != _ws.BINARY:
                return
            peer.send(frame(_ws.BINARY, f[1] * 3))

    tls_server.on("GET", "/v1/sandboxes/x/exec/pty", shell)
    with Client("k", tls_server.url, timeout=5) as c:
        with Sandbox.from_info(c, {"id": "x"}).terminal() as t:
            for _ in range(20):
                t.send(b"a" * 10000)
                got = b""
                while len(got) < 30000:
                    got += t.receive(5)
                assert got == b"a" * 30000
