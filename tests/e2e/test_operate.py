"""What docs/guide/operate.md says is done here: its blocks for nginx and Caddy, its backup, its metrics.

tools/setup unpacks both web servers into $PANDA_CACHE/programs.
"""
import hashlib
import http.client
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.parse
from pathlib import Path

import pytest

from conftest import wait_for
from server import BUILD, TOP, Pandad, free_port, patience
from streams import Events, WebSocket

NAME = "panda.example"
PROGRAMS = Path(os.environ.get("PANDA_CACHE", "/var/cache/panda")) / "programs"
PAGE = (TOP / "docs/guide/operate.md").read_text()
MIB = 1 << 20


def block(info):
    """The one fenced block of the page with these words behind its fence."""
    (text,) = re.findall(rf"^```{info}\n(.*?)^```$", PAGE, re.M | re.S)
    return text


def replaced(text, **pairs):
    for old, new in pairs.values():
        assert text.count(old) == 1, f"{old!r} is not once in the page's block"
        text = text.replace(old, str(new))
    return text


class Tls(http.client.HTTPSConnection):
    """To 127.0.0.1, under the name in the certificate."""

    def connect(self):
        raw = socket.create_connection(("127.0.0.1", self.port), self.timeout)
        self.sock = self._context.wrap_socket(raw, server_hostname=NAME)


class Front(Pandad):
    """A pandad as its users see it: behind a web server, by name, with TLS."""

    def __init__(self, pandad, port, certificate):
        self.key, self.port = pandad.key, port
        self.context = ssl.create_default_context(cafile=certificate)

    def connection(self, timeout):
        return Tls(NAME, self.port, timeout=timeout, context=self.context)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    d = tmp_path_factory.mktemp("tls")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME},DNS:*.{NAME}",
                    "-keyout", d / "key", "-out", d / "cert"], check=True, capture_output=True)
    return d


def nginx(dir, port, pandad, certificate):
    server = replaced(block("nginx"), listen=("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
                      cert=("/etc/panda/tls.pem", certificate / "cert"), key=("/etc/panda/tls.key", certificate / "key"),
                      pandad=("http://127.0.0.1:8080", f"http://127.0.0.1:{pandad.port}"))
    kinds = "client_body", "proxy", "fastcgi", "uwsgi", "scgi"
    paths = "".join(f"{k}_temp_path {dir}/{k};\n" for k in kinds)
    (dir / "nginx.conf").write_text(f"user root;\nworker_processes 1;\npid {dir}/pid;\nevents {{}}\n"
                                    f"http {{\naccess_log off;\n{paths}{server}}}\n")
    return [PROGRAMS / "usr/sbin/nginx", "-p", dir, "-c", dir / "nginx.conf", "-e", "stderr", "-g", "daemon off;"]


def caddy(dir, port, pandad, certificate):
    site = replaced(block("caddy"), names=(f"{NAME}, *.{NAME} {{", f"{NAME}:{port}, *.{NAME}:{port} {{"),
                    cert=("/etc/panda/tls.pem", certificate / "cert"), key=("/etc/panda/tls.key", certificate / "key"),
                    pandad=("127.0.0.1:8080", f"127.0.0.1:{pandad.port}"))
    ours = "{\n\tadmin off\n\tauto_https disable_redirects\n\tdefault_bind 127.0.0.1\n}\n"
    (dir / "Caddyfile").write_text(ours + site)
    return [PROGRAMS / "usr/bin/caddy", "run", "--config", dir / "Caddyfile", "--adapter", "caddyfile"]


@pytest.fixture(scope="module", params=[nginx, caddy], ids=["nginx", "caddy"])
def front(request, server_home, certificate, tmp_path_factory):
    """pandad behind this web server, configured as the page says."""
    dir, port = tmp_path_factory.mktemp(request.param.__name__), free_port()
    p = Pandad(server_home / f"front-{request.param.__name__}", bakes=server_home / "bakes",
               public_url=f"https://{NAME}:{port}", preview_suffix=NAME).start()
    log = dir / "log"
    try:
        command = request.param(dir, port, p, certificate)
        if not command[0].exists():
            pytest.skip(f"{command[0]} is missing: tools/setup fetches it")
        env = dict(os.environ, HOME=str(dir), XDG_DATA_HOME=str(dir), XDG_CONFIG_HOME=str(dir))
        with open(log, "wb") as out:
            server = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            f = Front(p, port, certificate / "cert")

            def answers():
                assert server.poll() is None, log.read_text()
                try:
                    return f.ask("GET", "/healthz", token="").status == 200
                except OSError:
                    return False

            wait_for(f"{request.param.__name__} to answer", answers)
            yield f
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(20 * patience())
            finally:
                server.kill()
                server.wait()
    finally:
        p.close()


@pytest.fixture
def box(front):
    id = front.create()
    yield id
    front.do("DELETE", f"/v1/sandboxes/{id}")


def fs(id, path):
    return f"/v1/sandboxes/{id}/fs?path={urllib.parse.quote(path)}"


def test_answers_and_refusals_come_through_as_they_are(front):
    a = front.ask("GET", "/v1/sandboxes/none", headers={"X-Request-Id": "mine-7"})
    assert (a.status, a.headers["x-request-id"], a.json["request_id"]) == (404, "mine-7", "mine-7")
    assert front.ask("GET", "/v1/sandboxes", token="pds_" + "0" * 32).status == 401


def test_metrics_stay_inside(front):
    a = front.ask("GET", "/metrics", token="")
    assert a.status == 403 and b"pandastack_" not in a.body


def test_large_files_go_both_ways(front, box):
    data = os.urandom(MIB) * 64
    assert front.do("PUT", fs(box, "/root/big"), data)["bytes"] == len(data)
    assert front.sh(box, "sha256sum </root/big")["stdout"].split()[0] == hashlib.sha256(data).hexdigest()
    assert front.do("GET", fs(box, "/root/big")) == data
    # without a length, in chunks
    assert front.do("PUT", fs(box, "/root/chunks"), iter([data[:MIB]] * 3))["bytes"] == 3 * MIB


def test_an_upload_is_passed_on_while_it_comes(front, box):
    """A web server that collects a body first would leave nothing to see in the sandbox."""
    c = front.connection(60 * patience())
    c.putrequest("PUT", fs(box, "/root/slow"))
    c.putheader("Authorization", f"Bearer {front.key}")
    c.putheader("Content-Length", str(4 * MIB))
    c.endheaders()
    c.send(b"x" * 2 * MIB)
    size = "find /root -type f -size +900k | wc -l"
    wait_for("the first half in the sandbox", lambda: front.sh(box, size)["stdout"] == "1\n")
    c.send(b"x" * 2 * MIB)
    assert c.getresponse().status == 200
    c.close()


def test_events_come_one_by_one(front, box):
    """The command waits until its first line was read here: a web server that collects answers would never end this."""
    cmd = "echo first; while ! [ -e /root/go ]; do sleep 0.05; done; echo second"
    e = Events(front, "POST", f"/v1/sandboxes/{box}/exec/stream", {"cmd": cmd, "timeout_seconds": 60 * patience()})
    events = iter(e)
    assert next(events) == ("stdout", {"chunk": "first\n"})
    front.sh(box, "touch /root/go")
    assert next(events) == ("stdout", {"chunk": "second\n"})
    e.close()


def test_a_client_that_goes_ends_its_command(front, box):
    e = Events(front, "POST", f"/v1/sandboxes/{box}/exec/stream", {"cmd": "echo here; sleep 1000"})
    assert next(iter(e)) == ("stdout", {"chunk": "here\n"})
    e.close()
    wait_for("the command to end", lambda: front.sh(box, "pgrep -c -x sleep; true")["stdout"] == "0\n")


def test_a_terminal(front, box):
    w = WebSocket(front, f"/v1/sandboxes/{box}/exec/pty?rows=30&cols=100", host=NAME)
    assert w.status == 101
    w.send(b"stty size\n")
    w.until(b"30 100")
    w.close()


def test_a_port_by_its_host_name_and_by_a_signed_link(front, box):
    front.sh(box, "mkdir /root/www && echo hello >/root/www/index.html")
    front.do("POST", f"/v1/sandboxes/{box}/execs", {"cmd": "exec python3 -m http.server -d /root/www 8000"})
    url = front.do("POST", f"/v1/sandboxes/{box}/ports", {"port": 8000})["preview_url"]
    host = {"Host": f"8000-{front.do('GET', f'/v1/sandboxes/{box}')['preview_name']}.{NAME}"}
    assert url == f"https://{host['Host']}:{front.port}/"
    wait_for("the page", lambda: front.ask("GET", "/", token="", headers=host).body == b"hello\n")
    link = front.do("POST", f"/v1/sandboxes/{box}/preview-token", {"port": 8000})["url"]
    at = urllib.parse.urlsplit(link)
    assert (at.scheme, at.netloc) == ("https", f"{NAME}:{front.port}")
    assert front.ask("GET", at.path, token="").body == b"hello\n"


def test_a_backup_is_taken_and_put_back(new_pandad, tmp_path):
    """The commands of the page; what says systemctl is done to the pandad of this test."""
    p = new_pandad(start=False)
    bakes = p.data / "store"  # files of its own: a link that another pandad drops is a change to tar
    subprocess.run(["cp", "-a", "--sparse=always", bakes, p.home / "copy"], check=True)
    shutil.rmtree(bakes)
    (p.home / "copy").rename(bakes)
    p.start()
    id, volume = p.create(), "kept"
    p.do("POST", "/v1/volumes", {"name": volume, "size_mb": 64})
    p.do("POST", f"/v1/sandboxes/{id}/volumes", {"name": volume, "path": "/data"})
    p.sh(id, "echo disk >/root/d; echo memory >/dev/shm/m; echo volume >/data/v")

    def run(info):
        text = block(f"sh {info}").replace("/var/lib/pandad", str(p.data)).replace("/srv/backup", str(tmp_path))
        for line in text.splitlines():
            if line.startswith("systemctl stop"):
                if p.process.poll() is None:
                    p.stop()
            elif line.startswith("systemctl start"):
                p.start()
            else:
                subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True, env=dict(
                    os.environ, PATH=f"{BUILD}/src/cli:{os.environ['PATH']}", PANDASTACK_API=p.url, PANDASTACK_API_KEY=p.key))

    run("backup")
    assert p.sh(id, "cat /root/d /dev/shm/m /data/v")["stdout"] == "disk\nmemory\nvolume\n"
    p.clear()  # no sandbox, no volume
    p.stop()
    shutil.rmtree(p.data)
    run("restore")
    assert p.sh(id, "cat /root/d /dev/shm/m /data/v")["stdout"] == "disk\nmemory\nvolume\n"


def test_the_metrics_of_the_page_are_there(pandad):
    pandad.do("DELETE", f"/v1/sandboxes/{pandad.create()}")
    given = pandad.ask("GET", "/metrics", token="").body.decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", given, re.M))
    named = set(re.findall(r"\bpandastack_[a-z_]+", PAGE))
    assert len(named) > 10
    for name in named:
        base = re.sub("_bucket$", "", name)
        assert base in types, f"{name} is not in /metrics"
        assert base == name or types[base] == "histogram"
