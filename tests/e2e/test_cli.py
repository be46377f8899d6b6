"""The command line against a real pandad: every command, as people and scripts use it."""
import asyncio
import fcntl
import hashlib
import http.server
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading
import time
import urllib.parse
import urllib.request

import pytest

from conftest import Result, wait_for
from server import BUILD, patience

PROGRAM = os.environ.get("PANDA", str(BUILD / "src/cli/panda"))
OWN = 125  # panda's own failures


class Cli:
    def __init__(self, server, tmp_path, **env):
        self.server = server
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("PANDASTACK")}
        self.env.update(PANDASTACK_API=server.url, PANDASTACK_API_KEY=server.key, HOME=str(tmp_path), LC_ALL="C.UTF-8")
        self.env.update(env)

    def popen(self, *args, **kw):
        kw.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen([PROGRAM, *map(str, args)], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)

    def try_(self, *args, stdin=None, timeout=60, **kw):
        p = self.popen(*args, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, **kw)
        try:
            out, err = p.communicate(stdin, timeout * patience())
        finally:
            p.kill()
        return Result(args, p.returncode, out, err)

    def __call__(self, *args, code=0, **kw):
        r = self.try_(*args, **kw)
        assert r.code == code, r
        return r.text

    def json(self, *args, **kw):
        return json.loads(self(*args[:1], "--json", *args[1:], **kw))

    def refused(self, *args, says, **kw):
        r = self.try_(*args, **kw)
        assert r.code == OWN and not r.out, r
        assert says in r.err.decode(), r

    def create(self, *args):
        return self("create", *args).strip()


@pytest.fixture
def cli(pandad, tmp_path):
    return Cli(pandad, tmp_path)


@pytest.fixture
def box(cli):
    return cli.create("--name", "box")


# ---- commands in sandboxes ----

def test_run_passes_everything_on_and_leaves_nothing(cli):
    r = cli.try_("run", "-e", "WORD=hi", "--", "sh", "-c", "cat; echo $WORD; echo err >&2; exit 3", stdin=b"in\n")
    assert (r.code, r.out, r.err) == (3, b"in\nhi\n", b"err\n"), r
    assert cli.json("ls") == []


def test_a_server_behind_a_unix_socket(new_pandad, tmp_path):
    p = new_pandad(listen=f"unix:{tmp_path}/sock")
    assert Cli(p, tmp_path)("run", "--", "echo", "hello") == "hello\n"

    async def ask():
        from pandastack import AsyncClient
        async with AsyncClient(api_key=p.key, api_url=p.url) as c:
            return await c.me()
    assert asyncio.run(ask())["auth_method"] == "token"


def test_run_keeps_when_asked(cli):
    r = cli.try_("run", "--keep", "true")
    assert r.code == 0, r
    assert [sb["id"] for sb in cli.json("ls")] == [r.err.decode().strip()]


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_kills_its_sandbox(cli, sig):
    p = cli.popen("run", "--", "sh", "-c", "echo up; exec sleep 1000")
    assert p.stdout.readline() == b"up\n"
    p.send_signal(sig)
    out, err = p.communicate(timeout=180)
    assert p.returncode == 128 + sig, (out, err)
    assert cli.json("ls") == []


@pytest.mark.parametrize("code", [0, 1, 2, 42, 255])
def test_exit_codes_are_the_commands(cli, box, code):
    assert cli.try_("exec", "box", f"exit {code}").code == code


def test_signals_timeouts_and_missing_programs_have_their_codes(cli, box):
    assert cli.try_("exec", "box", "--", "sh", "-c", "kill -9 $$").code == 137
    r = cli.try_("exec", "--timeout", round(patience()), "box", "--", "sh", "-c", "echo first; sleep 100")
    assert (r.code, r.out) == (124, b"first\n"), r
    assert cli.try_("exec", "box", "--", "no-such-program").code == 127


def test_where_as_whom_and_with_what(cli, box):
    assert cli("exec", "-C", "/tmp", "-u", "nobody", "-e", "A=1 2", "box", "pwd; id -un; echo \"$A\"") == "/tmp\nnobody\n1 2\n"
    assert cli("exec", "box", "--", "printf", "%s|", "a b", "$HOME", "") == "a b|$HOME||"


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_a_file_as_stdin_is_neither_cut_nor_left_behind(cli, box, tmp_path, user):
    data = os.urandom(1 << 20)
    (tmp_path / "in").write_bytes(b"skipped" + data)
    with open(tmp_path / "in", "rb") as f:  # too long and too binary to go along with the request
        os.lseek(f.fileno(), 7, os.SEEK_SET)
        p = cli.popen("exec", "-u", user, "box", "--", "sh", "-c", "sha256sum; head -c 20000000 /dev/zero; exit 3", stdin=f)
        out, err = p.communicate(timeout=180)
    assert p.returncode == 3, err
    assert out.partition(b" ")[0].decode() == hashlib.sha256(data).hexdigest()
    assert out.partition(b"\n")[2] == bytes(20000000)
    assert cli("exec", "box", "ls -A /tmp") == ""
    with open(tmp_path / "in", "rb") as f:
        assert cli.popen("exec", "box", "wc -c", stdin=f).communicate(timeout=180)[0].strip() == b"%d" % (len(data) + 7)


def test_no_output_of_a_fed_command_is_lost(cli, box):
    p = cli.popen("exec", "box", "--", "sh", "-c", "seq 1 4000000; read x; head -c 5000000 /dev/zero; exit 3", stdin=subprocess.PIPE)
    wait_for("the command", lambda: any(x["running"] for x in cli.json("ps", "box")))
    head = os.read(p.stdout.fileno(), 10)  # and then not for a while: much more is written than anybody keeps
    assert cli.try_("exec", "box", "pgrep -x seq").code == 0
    out, err = p.communicate(b"go\n", timeout=180)
    out = head + out
    assert p.returncode == 3, err
    lines = out[:-5000000].decode().splitlines()
    assert len(lines) == 4000000 and lines[-1] == "4000000"
    assert out[-5000000:] == bytes(5000000)


def test_much_goes_in_and_comes_out_of_a_pipe(cli, box):
    data = os.urandom(1 << 20) * 24
    p = cli.popen("exec", "box", "--", "cat", stdin=subprocess.PIPE)
    out, err = p.communicate(data, timeout=120)
    assert p.returncode == 0 and out == data, err


def test_large_output_comes_through(cli, box):
    assert len(cli.try_("exec", "box", "head -c 20000000 /dev/zero").out) == 20000000


def test_live_stdin_is_passed_on_as_it_comes(cli, box):
    p = cli.popen("exec", "box", "--", "sh", "-c", "while read x; do echo got $x; done; echo end; exit 6", stdin=subprocess.PIPE)
    for word in b"one", b"two":
        p.stdin.write(word + b"\n")
        p.stdin.flush()
        assert p.stdout.readline() == b"got " + word + b"\n"
    out, err = p.communicate(timeout=180)
    assert (p.returncode, out) == (6, b"end\n"), err


def test_a_reader_that_leaves_ends_the_command(cli, box):
    p = cli.popen("exec", "-n", "box", "--", "yes")
    assert p.stdout.readline() == b"y\n"
    p.stdout.close()
    assert p.wait(180) == 141
    p.stderr.close()
    wait_for("yes to end", lambda: cli.try_("exec", "box", "! pgrep -x yes").code == 0)


def test_json_of_a_command(cli, box):
    r = cli.try_("exec", "--json", "box", "--", "sh", "-c", "cat; exit 4", stdin=b"word")
    assert r.code == 4, r
    assert json.loads(r.out)["stdout"] == "word"


def test_detached_commands_are_listed_attached_and_signalled(cli, box):
    n = cli("exec", "-d", "box", "--", "sh", "-c", "echo start; exec sleep 1000").strip()
    rows = {x["id"]: x for x in cli.json("ps", "box")}
    assert rows[n]["running"] and rows[n]["detached"]
    p = cli.popen("exec", "--attach", n, "box")
    assert p.stdout.readline() == b"start\n"
    cli("exec", "--signal", f"TERM:{n}", "box")
    p.communicate(timeout=180)
    assert p.returncode == 143
    assert "signal 15" in cli("ps", "box")
    assert cli.try_("exec", "--attach", n, "box").out == b"start\n", "and once more, from the start"


def test_a_fed_command_survives_kill_9_of_pandad(new_pandad, tmp_path):
    server = new_pandad()
    cli = Cli(server, tmp_path)
    id = cli.create()
    p = cli.popen("exec", id, "--", "sh", "-c", "while read x; do echo got $x; done; exit 6", stdin=subprocess.PIPE)
    p.stdin.write(b"one\n")
    p.stdin.flush()
    assert p.stdout.readline() == b"got one\n"
    server.kill9()
    server.start()
    p.stdin.write(b"two\n")
    p.stdin.flush()
    out, err = p.communicate(timeout=180)
    assert (p.returncode, out) == (6, b"got two\n"), err


# ---- a terminal ----

class Terminal:
    def __init__(self, cli, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(PROGRAM, [PROGRAM, *args], cli.env)
        self.seen = b""
        self.size(40, 100)

    def size(self, rows, cols):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def cooked(self):
        return bool(termios.tcgetattr(self.fd)[3] & termios.ICANON)

    def read(self, until, seconds=60):
        end = time.monotonic() + seconds * patience()
        while until not in self.seen:
            assert select.select([self.fd], [], [], max(0, end - time.monotonic()))[0], f"no {until!r} in {self.seen!r}"
            try:
                self.seen += os.read(self.fd, 4096)
            except OSError:  # the other side is closed
                assert until in self.seen, f"no {until!r} in {self.seen!r}"
        self.seen = self.seen.partition(until)[2]

    def type(self, keys):
        os.write(self.fd, keys)

    def end(self, seconds=60):
        """Its exit code; what it still says is read, so that it can end."""
        end = time.monotonic() + seconds * patience()
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = None
                return os.waitstatus_to_exitcode(status)
            if select.select([self.fd], [], [], 0.02)[0]:
                try:
                    self.seen += os.read(self.fd, 4096)
                except OSError:
                    pass
        raise AssertionError(f"it does not end; last seen: {self.seen!r}")

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal(cli):
    made = []

    def new(*args):
        made.append(Terminal(cli, *args))
        return made[-1]

    yield new
    for t in made:
        t.close()


def test_shell_is_a_terminal_that_follows_ours(box, terminal):
    t = terminal("shell", "box")
    t.read(b"# ")
    assert not t.cooked()
    t.type(b"stty size\r")
    t.read(b"40 100")
    t.size(50, 120)
    t.type(b"until [ \"$(stty size)\" = '50 120' ]; do sleep 0.05; done; exit 7\r")
    assert t.end() == 7
    assert t.cooked()


def test_control_c_goes_to_the_guest(box, terminal):
    t = terminal("shell", "box")
    t.read(b"# ")
    t.type(b"sh -c 'echo go\"\"es; exec sleep 1000'\r")
    t.read(b"goes\r\n")  # it runs: before that the shell itself might take the key
    t.type(b"\x03")
    t.read(b"# ")
    t.type(b"exit $?\r")
    assert t.end() == 130


def test_the_terminal_is_put_back_on_every_way_out(box, terminal, cli):
    t = terminal("shell", "box")
    t.read(b"# ")
    t.type(b"~.")
    assert t.end() == 0 and t.cooked()
    t = terminal("shell", "box")
    t.read(b"# ")
    os.kill(t.pid, signal.SIGTERM)
    assert t.end() == 143 and t.cooked()
    t = terminal("shell", "box")
    t.read(b"# ")
    cli("kill", "box")
    assert t.end() != 0 and t.cooked()


def test_a_command_on_a_terminal(box, terminal):
    t = terminal("exec", "-t", "box", "--", "sh", "-c", "test -t 0 && echo 'a  b'; exit 5")
    t.read(b"a  b")
    assert t.end() == 5


def test_run_on_a_terminal_is_a_sandbox_of_its_own(cli, terminal):
    t = terminal("run", "-it", "--name", "own", "-w", "/srv", "base")
    t.read(b"# ")
    t.type(b"test -t 0 && pwd\r")
    t.read(b"/srv\r\n")
    assert cli.json("get", "own")["status"] == "running"
    t.type(b"exit 6\r")
    assert t.end() == 6
    assert cli.json("ls") == []


def test_a_shell_whose_stdin_ends_at_once_ends(cli, box):
    for args in ("shell",), ("shell", box), ("exec", "-t", box):
        assert cli.try_(*args, timeout=30).code == 0
    assert [s["id"] for s in cli.json("ls")] == [box]


def test_a_detached_run_stays_and_can_be_changed(cli):
    id = cli("run", "-d", "-p", "8000", "base", "python3", "-m", "http.server", "8000").strip()
    wait_for("the port", lambda: [p for p in cli.json("ports", id) if p["port"] == 8000 and p["listening"]])
    assert cli.json("set", id, "--ttl", "2h")["ttl_seconds"] == 7200
    assert cli.json("egress", id, "off")["mode"] == "off"
    assert cli("rm", id).strip() == id


def test_top_refreshes_until_q(box, terminal):
    t = terminal("top")
    t.read(box[:8].encode())
    t.read(b"q quits")
    t.type(b"q")
    assert t.end() == 0 and t.cooked()


# ---- files ----

def test_cp_copies_trees_both_ways(cli, box, tmp_path):
    src = tmp_path / "src"
    (src / "sub").mkdir(parents=True)
    (src / "plain").write_text("one\n")
    (src / "sub" / "sp ace & ü%41").write_bytes(os.urandom(300000))
    (src / "sub" / "run").write_text("#!/bin/sh\necho ran\n")
    (src / "sub" / "run").chmod(0o755)
    (src / "link").symlink_to("plain")
    (src / "empty").mkdir()
    cli("cp", "-r", src, "box:/root/")
    assert cli("exec", "box", "/root/src/sub/run; readlink /root/src/link; stat -c %a /root/src/plain") == "ran\nplain\n644\n"
    cli("cp", "-r", "box:/root/src", tmp_path / "back")
    assert subprocess.run(["diff", "-r", "--no-dereference", src, tmp_path / "back"]).returncode == 0
    assert (tmp_path / "back/sub/run").stat().st_mode & 0o777 == 0o755
    cli.refused("cp", src, "box:/root/x", says="panda cp -r")
    cli.refused("cp", "box:/root/src", tmp_path / "x", says="panda cp -r")


def test_cp_streams(cli, box, tmp_path):
    assert cli.try_("cp", "-", "box:/root/f", stdin=b"piped\0\xff").code == 0
    assert cli.try_("cp", "box:/root/f", "-").out == b"piped\0\xff"
    big = os.urandom(1 << 20) * 32
    (tmp_path / "big").write_bytes(big)
    cli("cp", tmp_path / "big", "box:/root")
    cli("cp", "box:/root/big", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == big


def test_cp_that_fails_leaves_nothing(cli, box, tmp_path):
    (tmp_path / "keep").write_text("mine")
    cli.refused("cp", "box:/no/such", tmp_path / "keep", says="/no/such")
    cli.refused("cp", "-r", "box:/no/such", tmp_path / "keep", says="/no/such")
    cli("exec", "box", "truncate -s 100G /root/huge")
    for end in lambda p: p.send_signal(signal.SIGKILL), lambda p: cli("kill", "box"):
        p = cli.popen("cp", "box:/root/huge", tmp_path / "keep")
        wait_for("bytes", lambda: int(open(f"/proc/{p.pid}/io").read().split("wchar: ")[1].split()[0]) > 100000)
        end(p)
        p.communicate(timeout=180)
        assert p.returncode != 0
        assert (tmp_path / "keep").read_text() == "mine"
        assert [f.name for f in tmp_path.iterdir()] == ["keep"]


class Liar(http.server.BaseHTTPRequestHandler):
    """A server whose guest has file names and a second life that no file system would have."""
    top = [{"name": n, "mode": "f", "is_dir": False, "perm": "4755"} for n in ("../evil", "..", "/etc/evil", "", "good")]
    top += [{"name": "x", "mode": "l", "is_dir": False, "target": "../outside"},
            {"name": "x", "mode": "d", "is_dir": True, "perm": "0755"},
            {"name": "pipe", "mode": "l", "is_dir": False, "target": "../outside/pipe"},
            {"name": "pipe", "mode": "f", "is_dir": False},
            {"name": "\033]0;title\007/", "mode": "f", "is_dir": False}]

    def do_GET(self):
        path = urllib.parse.urlsplit(self.path)
        of = urllib.parse.parse_qs(path.query).get("path", [""])[0]
        body = b"content"
        if path.path.endswith("/fs/stat"):
            body = json.dumps({"is_dir": True, "perm": "0755"}).encode()
        elif path.path.endswith("/fs/dir"):
            deep = [{"name": "stolen", "mode": "f", "is_dir": False}]
            body = json.dumps({"path": of, "entries": self.top if of == "/d" else deep}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *a):
        pass


def test_cp_believes_no_names_of_a_guest(cli, tmp_path):
    liar = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    threading.Thread(target=liar.serve_forever, daemon=True).start()
    try:
        (tmp_path / "outside").mkdir()
        os.mkfifo(tmp_path / "outside/pipe")
        pipe = os.open(tmp_path / "outside/pipe", os.O_RDWR | os.O_NONBLOCK)
        r = cli.try_("cp", "-r", "--url", f"http://127.0.0.1:{liar.server_port}", "01234567-89ab-cdef-0123-456789abcdef:/d",
                     tmp_path / "to")
    finally:
        liar.shutdown()
        liar.server_close()
    assert r.code == OWN and b"\033" not in r.err and b"\007" not in r.err, r
    assert sorted(p.name for p in tmp_path.iterdir()) == ["outside", "to"]
    assert sorted(p.name for p in (tmp_path / "to").iterdir()) == ["good", "pipe", "x"]
    assert [p.name for p in (tmp_path / "outside").iterdir()] == ["pipe"], "a link was followed"
    with pytest.raises(BlockingIOError):
        os.read(pipe, 1)  # nor one to what is written in place: a pipe, a disk
    os.close(pipe)
    assert (tmp_path / "to/pipe").read_text() == "content"
    assert (tmp_path / "to/good").stat().st_mode & 0o7777 == 0o755, "never setuid"


# ---- life ----

def test_fork_tree_is_drawn(cli, box):
    kids = cli("fork", "-n", "2", "box").split()
    grandkid = cli("fork", kids[0]).strip()
    text = cli("tree")
    lines = text.splitlines()
    assert lines[0].startswith(box[:8]) and len(lines) == 4, text
    # Both kids are equally old: either may be the first, with or without the grandkid below.
    assert [l[:3] for l in lines[1:]] in (["├─ ", "│  ", "└─ "], ["├─ ", "└─ ", "   "]), text
    assert any(l.startswith(("│  └─ " + grandkid[:8], "   └─ " + grandkid[:8])) for l in lines), text
    cli.env["LC_ALL"] = "C"
    assert "`- " in cli("tree") and cli("tree").isascii()
    assert {sb["parent_id"] for sb in cli.json("tree")} == {None, box, kids[0]}
    assert cli("exec", "box", "echo the name means the parent") and cli("exec", kids[1][:8], "hostname").strip() == kids[1]


def test_pause_resume_hibernate_wake(cli, box):
    cli("pause", "box")
    cli.refused("exec", "box", "true", says="panda resume")
    cli("resume", "box")
    assert cli("hibernate", "box").strip() == box
    assert cli.json("get", "box")["status"] == "hibernated"
    assert cli("exec", "box", "echo woken") == "woken\n"
    cli("hibernate", "box")
    cli("wake", "box")
    assert [sb["id"] for sb in cli.json("ls", "--status", "running")] == [box]


def test_snapshots_are_made_used_and_removed(cli, box):
    cli("exec", "box", "echo 42 >/dev/shm/answer")
    snap = cli("snapshot", "create", "box", "--name", "ready").strip()
    assert [s["id"] for s in cli.json("snapshot", "ls", "--sandbox", "box")] == [snap]
    new = cli.create("--from", "ready")
    assert cli("exec", new, "cat /dev/shm/answer") == "42\n"
    cli("kill", new)
    cli("snapshot", "rm", snap[:8])
    assert cli.json("snapshot", "ls") == []


def test_kill_takes_several_and_all(cli):
    ids = [cli.create() for _ in range(3)]
    assert cli("kill", ids[0][:13], ids[1]).split() == ids[:2]
    r = cli.try_("kill", ids[0], ids[2])
    assert r.code == OWN and r.text.split() == [ids[2]], "the second was meant, too"
    ids = [cli.create() for _ in range(2)]
    cli.refused("kill", "--all", says="--yes")
    assert sorted(cli.json("kill", "--all", "--yes")) == sorted(ids)
    assert cli.json("ls") == []


def test_kill_all_asks(cli, box, terminal):
    t = terminal("kill", "--all")
    t.read(b"Kill 1 sandbox? [y/N] ")
    t.type(b"n\n")
    assert t.end() == OWN
    t = terminal("kill", "--all")
    t.read(b"[y/N] ")
    t.type(b"y\n")
    assert t.end() == 0
    assert cli.json("ls") == []


def test_create_says_what_was_asked_for(cli):
    id = cli.create("--name", "n", "--ttl", "2h", "--idle", "30m", "--meta", "a=b=c", "--env", "WORD=x y", "--persistent")
    sb = cli.json("get", id)
    assert (sb["ttl_seconds"], sb["persistent"], sb["metadata"]["a"]) == (7200, True, "b=c")
    assert cli("exec", "n", "echo $WORD") == "x y\n"
    assert [s["id"] for s in cli.json("ls", "--meta", "a=b=c")] == [id]
    assert cli.json("ls", "--meta", "a=other") == []
    assert cli("ls", "-q").split() == [id]


def test_volumes(cli):
    cli("volume", "create", "data", "--size", "256")
    first = cli.create("--volume", "data:/w")
    cli("exec", first, "echo kept >/w/f")
    cli.refused("create", "--volume", "data:/w", says=first)
    cli.refused("volume", "rm", "data", says=first)
    assert cli.json("volume", "get", "data")["mounted_by"] == [first]
    cli("kill", first)
    assert cli("run", "--volume", "data:/w:ro", "cat /w/f") == "kept\n"
    cli("volume", "rm", "data")
    assert cli.json("volume", "ls") == []


def test_volumes_of_a_sandbox_that_runs(cli):
    cli("volume", "create", "data", "--size", "64")
    id = cli.create()
    cli("volume", "attach", id, "data:/w")
    assert cli("volume", "resize", "data", "--size", "128") == "data\n"
    cli("exec", id, "echo kept >/w/f")
    assert cli("volume", "snapshot", "data", "monday") == "monday\n"
    assert "monday" in cli("volume", "ls", "data") and "monday" not in cli("volume", "ls") and "monday" in cli("volume", "ls", "--all")
    cli("volume", "create", "clone", "--from", "monday")
    assert cli.json("volume", "get", "clone")["size_mb"] == 128
    assert cli("run", "--volume", "monday:/m:ro", "--volume", "clone:/c", "cat /m/f /c/f") == "kept\nkept\n"
    cli("exec", id, "cd /w; sleep 1000 >/dev/null 2>&1 &")
    cli.refused("volume", "detach", id, "data", says="force")
    cli("volume", "detach", "--force", id, "data")
    assert cli.json("get", id)["volumes"] == []
    cli.refused("volume", "resize", "data", says="--size")
    cli.refused("volume", "attach", id, "data:w", says="NAME:/PATH")
    cli("volume", "rm", "data", "monday", "clone")
    assert cli.json("volume", "ls", "--all") == []


# ---- what there is to know ----

def test_ports_and_links(cli, box):
    n = cli("exec", "-d", "-C", "/etc", "box", "--", "python3", "-m", "http.server", "8000").strip()
    wait_for("the port", lambda: any(p["port"] == 8000 and p["listening"] for p in cli.json("ports", "box")))
    cli("ports", "box", "--add", "9000", "--label", "later")
    assert {p["port"] for p in cli.json("ports", "box")} == {8000, 9000}
    cli("ports", "box", "--rm", "9000")
    url = cli("url", "--ttl", "10m", "box", "8000").strip()
    with urllib.request.urlopen(url + "hostname", timeout=180) as r:  # without a key
        assert r.read()
    cli("exec", "--signal", f"KILL:{n}", "box")


def test_events_follow(cli):
    p = cli.popen("events", "-f", "-n", "0", "--json")
    end = time.monotonic() + 20 * patience()
    while not select.select([p.stdout], [], [], 0)[0]:
        assert time.monotonic() < end, "no event of any run was seen"
        cli("run", "true")
    line = json.loads(p.stdout.readline())
    assert line["type"].startswith("sandbox.")
    p.terminate()
    p.communicate()
    assert "sandbox.deleted" in cli("events", "-n", "100")


def test_logs_answer(cli, box):
    cli("logs", "box")
    cli("logs", "-n", "5", "box")


def test_top_once(cli, box):
    assert box[:8] in cli("top")
    row = cli.json("top")[0]
    assert row["id"] == box and "host_rss_bytes" in row["metrics"]


def test_tokens_and_me(cli, box):
    token = cli("token", "create", "--label", "ci").strip()
    prefix = next(t["prefix"] for t in cli.json("token", "ls") if t["label"] == "ci")
    assert token.startswith(prefix)
    other = dict(cli.env, PANDASTACK_API_KEY=token)
    own, cli.env = cli.env, other
    assert "sandbox" in cli.json("me")["scopes"]
    cli.env = own
    # For an agent: what runs in one sandbox, and nothing else.
    agent = cli("token", "create", "--sandbox", box, "--scope", "exec", "--ttl", "1h").strip()
    cli.env = dict(own, PANDASTACK_API_KEY=agent)
    assert cli("exec", box, "--", "echo", "in").strip() == "in"
    assert [s["id"] for s in cli.json("ls")] == [box]
    cli.refused("kill", box, says="scope sandbox")
    cli.env = own
    rotated = cli("token", "rotate", prefix).strip()
    cli.env = other
    cli.refused("ls", says="does not know this key")
    cli.env = dict(own, PANDASTACK_API_KEY=rotated)
    cli.json("me")
    cli.env = own
    cli("token", "rm", rotated[:12])
    cli.env = dict(own, PANDASTACK_API_KEY=rotated)
    cli.refused("ls", says="does not know this key")


class Mcp:
    """A client that starts its server as a program, and how it talks to it."""

    def __init__(self, cli, *args):
        self.p = cli.popen("mcp", *args, stdin=subprocess.PIPE)
        self.n = 0

    def send(self, message):
        self.p.stdin.write((message if isinstance(message, str) else json.dumps(message)).encode() + b"\n")
        self.p.stdin.flush()

    def ask(self, method, **params):
        self.n += 1
        self.send({"jsonrpc": "2.0", "id": self.n, "method": method, "params": params})
        return self.answer(self.n)

    def answer(self, id):
        a = json.loads(self.p.stdout.readline())
        assert (a["jsonrpc"], a["id"]) == ("2.0", id), a
        return a

    def tool(self, name, **arguments):
        r = self.ask("tools/call", name=name, arguments=arguments)["result"]
        return r["content"][0]["text"], r["isError"]

    def end(self):
        _, err = self.p.communicate(timeout=60 * patience())
        return self.p.returncode, err.decode()


def test_mcp_on_stdin_and_stdout(cli, procs):
    m = Mcp(cli)
    procs.append(m.p)
    hello = m.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "test", "version": "1"})["result"]
    assert hello["protocolVersion"] == "2025-11-25" and "tools" in hello["capabilities"]
    m.send({"jsonrpc": "2.0", "method": "notifications/initialized"})  # nothing comes back: the next line is the next answer
    tools = {t["name"]: t for t in m.ask("tools/list")["result"]["tools"]}
    assert tools["run_command"]["inputSchema"]["required"] == ["sandbox_id", "command"]
    text, failed = m.tool("create_sandbox", template="base")
    assert not failed, text
    id = json.loads(text)["id"]
    text, failed = m.tool("write_file", sandbox_id=id, path="/root/f", content="six times seven\n")
    assert not failed, text
    text, failed = m.tool("run_command", sandbox_id=id, command="cat /root/f; exit 3")
    assert not failed and json.loads(text)["stdout"] == "six times seven\n" and json.loads(text)["exit_code"] == 3
    text, failed = m.tool("run_command", sandbox_id="nope", command="ls")
    assert failed and json.loads(text)["code"] == "sandbox_not_found"
    assert m.ask("tools/call", name="nope")["error"]["code"] == -32602
    assert m.ask("nope")["error"]["code"] == -32601
    for line, code in ("{", -32700), ("[]", -32600), ("\"x\"", -32700):
        m.send(line)
        assert m.answer(None)["error"]["code"] == code
    one = Mcp(cli, id[:8])
    procs.append(one.p)
    assert one.tool("shell", command="cat /root/f") == ("six times seven\n", False)
    assert one.end() == (0, "") and m.end() == (0, "")


def test_mcp_without_a_server_says_so_in_its_answers(pandad, tmp_path, procs):
    m = Mcp(Cli(pandad, tmp_path, PANDASTACK_API="http://127.0.0.1:1"))
    procs.append(m.p)
    assert "cannot connect" in m.ask("initialize")["error"]["message"]
    assert m.ask("ping")["error"]["code"] == -32603  # and it stays for the time when there is one
    code, err = m.end()
    assert code == 0 and "is pandad running?" in err


def test_templates_and_version(cli):
    assert any(t["name"] == "base" for t in cli.json("template", "ls"))
    assert cli("template", "get", "base")
    cli.refused("create", "-t", "no-such", says="base")
    v = cli.json("version")
    assert v["server"]["service"] == "pandad"
    assert "pandad" in cli("version")


def test_doctor_knows_the_server(cli, box):
    r = cli.try_("doctor")
    assert r.code in (0, 1), r
    assert "pandad" in r.text and "1 of ours" in r.text, r


def test_the_config_file_is_read(pandad, tmp_path, cli):
    (tmp_path / ".config/pandastack").mkdir(parents=True)
    (tmp_path / ".config/pandastack/config.json").write_text(json.dumps({"token": pandad.key, "apiUrl": pandad.url + "/v1/"}))
    del cli.env["PANDASTACK_API"], cli.env["PANDASTACK_API_KEY"]
    assert cli.json("ls") == []
    cli.env["PANDASTACK_API_KEY"] = "wrong"
    cli.refused("ls", says="does not know this key")
    cli.env["PANDASTACK_API"] = "http://127.0.0.1:9"
    cli.refused("ls", says="is pandad running")


def test_errors_say_the_next_step(cli):
    cli.refused("exec", "nothing", "true", says="`panda ls`")
    cli.refused("get", "01234567-89ab-cdef-0123-456789abcdef", says="`panda ls`")
    r = cli.try_("get", "--json", "01234567-89ab-cdef-0123-456789abcdef")
    assert r.code == OWN and json.loads(r.err)["code"] == "sandbox_not_found", r


def test_completion_of_ids(cli, box):
    script = (". <(\"$0\" completion bash); COMP_WORDS=(panda exec ''); COMP_CWORD=2; PATH=$(dirname \"$0\"):$PATH; _panda; "
              "echo \"${COMPREPLY[*]}\"")
    r = subprocess.run(["bash", "-c", script, PROGRAM], env=cli.env, capture_output=True, text=True, timeout=180)
    assert r.stdout.split() == [box], r


def test_completion_runs_nothing_a_server_says(tmp_path):
    fake = tmp_path / "panda"
    fake.write_text(f"#!/bin/sh\necho 'a1$(touch {tmp_path}/ran) `touch {tmp_path}/ran` b2'\n")
    fake.chmod(0o755)
    script = (". <(\"$0\" completion bash); COMP_WORDS=(panda exec ''); COMP_CWORD=2; PATH=$1:$PATH; _panda; echo \"${COMPREPLY[*]}\"")
    r = subprocess.run(["bash", "-c", script, PROGRAM, tmp_path], capture_output=True, text=True, timeout=180)
    assert "b2" in r.stdout.split(), r
    assert not (tmp_path / "ran").exists()


# ---- TLS ----

@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """PEM files: for this host, and for another one."""
    home = tmp_path_factory.mktemp("certs")
    for name, alt in ("here", "IP:127.0.0.1,DNS:localhost"), ("other", "DNS:other.example"):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                        "-addext", f"subjectAltName={alt}", "-keyout", home / f"{name}.key", "-out", home / f"{name}.pem"],
                       check=True, capture_output=True)
    return home


@pytest.mark.parametrize("name", ["here", "other"])
def test_tls_is_verified(cli, certs, name):
    from server import free_port
    port = free_port()
    p = subprocess.Popen(["openssl", "s_server", "-accept", f"127.0.0.1:{port}", "-cert", certs / f"{name}.pem", "-key",
                          certs / f"{name}.key", "-www", "-quiet"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
    try:
        url = f"https://127.0.0.1:{port}"
        wait_for("the TLS server", lambda: b"cannot connect" not in cli.try_("ls", "--url", url).err)
        cli.refused("ls", "--url", url, says="no TLS")  # signed by nobody the system knows
        says = "not JSON" if name == "here" else "mismatch"
        cli.refused("ls", "--url", url, "--ca-file", certs / f"{name}.pem", says=says)
    finally:
        p.kill()
        p.wait()
