"""OpenSSH into sandboxes, with the real client: `panda ssh`, and ssh, scp and sftp by ProxyCommand."""
import os
import shutil
import socket
import subprocess

import pytest

from conftest import wait_for
from server import patience
from test_cli import Cli, Terminal

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBvn6vP2Xr9cT2l8oMoiKMZBzZPDWaYzDYnY0dY0Zx5P"


@pytest.fixture
def cli(pandad, tmp_path):
    return Cli(pandad, tmp_path)


@pytest.fixture
def box(cli):
    return cli.create()


class OpenSsh:
    """Plain ssh, scp and sftp with nothing but the lines of `panda ssh --config`."""

    def __init__(self, cli, home, *ids):
        self.cli, self.file = cli, home / "ssh_config"
        self.file.write_text("".join(cli("ssh", "--config", i) for i in ids))

    def with_key(self, key):
        lines = self.file.read_text().splitlines()
        self.file.write_text("".join(f'\tIdentityFile "{key}"\n' if "IdentityFile" in line else line + "\n" for line in lines))

    def try_(self, program, *args, stdin=b"", timeout=60):
        return subprocess.run([program, "-F", self.file, *map(str, args)], input=stdin, capture_output=True, env=self.cli.env,
                              timeout=timeout * patience())

    def __call__(self, *args, **kw):
        r = self.try_(*args, **kw)
        assert r.returncode == 0, r
        return r.stdout.decode()


def host_key(cli, id):
    line = cli("ssh-proxy", "--host-key", id)
    assert line.startswith("* ssh-ed25519 "), line
    return line.split()[2]


def test_commands_have_their_output_input_and_exit_code(cli, box):
    r = cli.try_("ssh", box, "cat; echo no >&2; exit 7", stdin=b"through\0\xff" * 100000)
    assert (r.code, r.out, r.err) == (7, b"through\0\xff" * 100000, b"no\n")
    assert cli("ssh", box, "whoami; pwd").split() == ["root", "/root"]


def test_commands_see_the_sandboxs_own_environment_and_name(cli, pandad):
    id = pandad.create(env={"ODD": 'a "quoted" \\ b', "PLAIN": "1"})
    assert cli("ssh", id, 'echo "$ODD $PLAIN"') == 'a "quoted" \\ b 1\n'
    assert cli("ssh", id, "test $(hostname) = $(getent hosts $(hostname) | awk '{print $2}') && umask") == "0022\n"


def test_nothing_of_the_user_is_forwarded(cli, box, tmp_path):
    """ssh itself says what it would do: with the words of `panda ssh`, and with the lines of --config in front of a generous `Host *`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text('#!/bin/sh\nprintf "%s\\n" "$*"\nexec /usr/bin/ssh -G "$@"\n')
    (tmp_path / "bin/ssh").chmod(0o755)
    generous = "Host *\n ForwardAgent yes\n ForwardX11 yes\n ForwardX11Trusted yes\n PermitLocalCommand yes\n GSSAPIDelegateCredentials yes\n"
    ours = OpenSsh(cli, tmp_path, box)
    ours.file.write_text(ours.file.read_text() + generous)
    by_lines = ours("ssh", "-G", box).splitlines()
    cli.env["PATH"] = f"{tmp_path}/bin:{cli.env['PATH']}"
    words, *by_us = cli("ssh", box).splitlines()
    assert words.startswith("-F none ")
    for said in (by_lines, by_us):
        for what in ("forwardagent", "forwardx11", "forwardx11trusted", "permitlocalcommand", "gssapidelegatecredentials"):
            assert f"{what} no" in said, what
    assert not [line for line in by_us if line.startswith(("sendenv", "setenv", "localforward", "remoteforward", "localcommand"))]


def test_who_came_in_is_on_record(cli, box, pandad):
    cli("ssh", box, "true")
    path = f"/v1/sandboxes/{box}/ssh/tunnel"
    entry = wait_for("the record", lambda: [e for e in pandad.do("GET", "/v1/audit")["entries"] if e["path"] == path])[0]
    assert entry["status"] in (101, 499) and pandad.key.startswith(entry["actor"]), entry


def test_plain_openssh_copies_files(cli, box, tmp_path):
    ssh = OpenSsh(cli, tmp_path, box)
    data = os.urandom(3 << 20)
    (tmp_path / "up").write_bytes(data)
    ssh("scp", "-q", tmp_path / "up", f"{box}:/root/there")
    ssh("scp", "-q", f"{box}:/root/there", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    ssh("sftp", "-q", "-b", "-", box, stdin=f"mkdir d\nput {tmp_path}/up d/x\nget d/x {tmp_path}/x2\n".encode())
    assert (tmp_path / "x2").read_bytes() == data
    assert ssh("ssh", box, "sha256sum <there; sha256sum <d/x").count("-") == 2


def test_one_connection_carries_what_editors_want(cli, box, tmp_path, procs):
    """As the remote modes of editors work: a master, many channels at once, ports forwarded both ways."""
    ssh = OpenSsh(cli, tmp_path, box)
    sock = f"/tmp/panda-ssh-{os.getpid()}"  # a path for a socket must be short
    shared = ("-S", sock, "-o", "ControlMaster=no")
    # Inside, something answers; here, something else does.
    here = socket.create_server(("127.0.0.1", 0))
    outside = here.getsockname()[1]
    inside = socket.create_server(("127.0.0.1", 0))  # a port that is free, for ssh to listen on
    local = inside.getsockname()[1]
    inside.close()
    forwards = ["-L", f"127.0.0.1:{local}:127.0.0.1:7100", "-R", f"7200:127.0.0.1:{outside}"]
    master = subprocess.Popen(["ssh", "-F", ssh.file, "-M", "-N", "-S", sock, "-o", "ExitOnForwardFailure=yes", *forwards, box], env=cli.env,
                              stdin=subprocess.DEVNULL)
    procs.append(master)
    try:
        wait_for("the master", lambda: ssh.try_("ssh", "-S", sock, "-O", "check", box).returncode == 0)
        many = [subprocess.Popen(["ssh", "-F", ssh.file, *shared, box, f"cat; echo {i}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=cli.env)
                for i in range(8)]
        said = [p.communicate(b"x" * 200_000, timeout=60)[0] for p in many]
        assert said == [b"x" * 200_000 + b"%d\n" % i for i in range(8)]
        # -L: from here to a port in there
        serve = "import socket; s = socket.create_server(('127.0.0.1', 7100)); print('up', flush=True); c, _ = s.accept(); c.sendall(c.recv(9)[::-1])"
        p = subprocess.Popen(["ssh", "-F", ssh.file, *shared, box, f"python3 -c \"{serve}\""], stdout=subprocess.PIPE, env=cli.env)
        procs.append(p)
        assert p.stdout.readline() == b"up\n"
        with socket.create_connection(("127.0.0.1", local), 30) as c:
            c.sendall(b"olleh")
            assert c.recv(9) == b"hello"
        assert p.wait(30) == 0
        # -R: from in there to a port here
        p = subprocess.Popen(["ssh", "-F", ssh.file, *shared, box,
                              "python3 -c \"import socket; print(socket.create_connection(('127.0.0.1', 7200), 30).recv(9).decode())\""],
                             stdout=subprocess.PIPE, env=cli.env)
        procs.append(p)
        here.settimeout(30)
        with here.accept()[0] as c:
            c.sendall(b"outside")
        assert p.communicate(timeout=30)[0] == b"outside\n"
    finally:
        here.close()
        ssh.try_("ssh", "-S", sock, "-O", "exit", box)
    assert master.wait(20) in (0, 255)


@pytest.mark.skipif(not shutil.which("rsync"), reason="rsync is not installed: tools/setup does that")
def test_rsync_copies_what_has_changed(cli, box, tmp_path):
    ssh = OpenSsh(cli, tmp_path, box)
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    for i in range(20):
        (tree / "deep" / str(i)).write_bytes(os.urandom(3000))
    rsync = ["rsync", "-ac", "--itemize-changes", "-e", f"ssh -F {ssh.file}"]
    for more in b"", b"changed":
        (tree / "deep" / "7").write_bytes(b"seven" + more)
        done = subprocess.run([*rsync, f"{tree}/", f"{box}:/root/tree/"], capture_output=True, env=cli.env, timeout=60)
        assert done.returncode == 0, done
    assert [line.split()[1] for line in done.stdout.decode().splitlines() if line.startswith("<f")] == ["deep/7"]
    subprocess.run([*rsync, f"{box}:/root/tree/", f"{tmp_path}/back/"], check=True, capture_output=True, env=cli.env, timeout=60)
    assert {f.name: f.read_bytes() for f in (tree / "deep").iterdir()} == {f.name: f.read_bytes() for f in (tmp_path / "back/deep").iterdir()}


def test_a_terminal_is_as_large_as_ours_and_can_be_interrupted(cli, box):
    t = Terminal(cli, "ssh", "-t", box, "stty size; exec sh")
    try:
        t.read(b"40 100")
        # in turns: a signal that comes before the shell has started its sleep is only heard after it
        t.type(b"sh -c 'trap \"echo caught; exit\" INT; echo armed; while :; do sleep 0.1; done'\n")
        t.read(b"armed\r\n")  # not the echo of what we typed
        t.type(b"\x03")
        t.read(b"caught\r\n")
        t.type(b"echo $((6*7)); exit 5\n")
        t.read(b"42")
        assert t.end() == 5
    finally:
        t.close()


def test_forks_show_keys_of_their_own_and_let_nobody_in_with_the_parents(cli, box, tmp_path):
    # Somebody is connected while it is forked: sshd is in the snapshot, with the parent's key in its memory.
    open_ = cli.popen("ssh", box, "echo in; cat", stdin=subprocess.PIPE)
    try:
        assert open_.stdout.readline() == b"in\n"
        mine = host_key(cli, box)
        forks = cli("fork", "-n", "2", box).split()
        keys = [host_key(cli, f) for f in forks]
        assert len({mine, *keys}) == 3
        assert host_key(cli, box) == mine
        for f in forks:
            wait_for("the copy of sshd to hang up", lambda: cli.try_("exec", f, "--", "pgrep", "-x", "sshd").code == 1)
            assert cli("exec", f, "--", "sh", "-c", f"grep -rl '{mine[-20:]}' /run /etc/ssh || true") == ""
            assert cli("ssh", f, "hostname").strip() == f
        # The parent's session goes on, and its key does not open a child.
        open_.stdin.write(b"still here\n")
        open_.stdin.close()
        assert open_.stdout.read() == b"still here\n" and open_.wait(180) == 0
    finally:
        open_.kill()
        open_.wait()
    ssh = OpenSsh(cli, tmp_path, forks[0])
    home = tmp_path / ".config/pandastack/ssh"
    assert (home / box).read_bytes() != (home / forks[0]).read_bytes()
    (tmp_path / "known").write_text(f"* ssh-ed25519 {mine}\n")
    r = ssh.try_("ssh", "-o", f"UserKnownHostsFile={tmp_path}/known", "-o", "KnownHostsCommand=none", forks[0], "true")
    assert r.returncode == 255 and b"Host key verification failed" in r.stderr, r
    ssh.with_key(home / box)  # ssh-proxy still names the right one
    r = ssh.try_("ssh", "-o", "BatchMode=yes", forks[0], "true")
    assert r.returncode == 255 and b"Permission denied" in r.stderr, r


def test_a_new_life_has_a_new_key_and_a_new_pandad_the_old_one(new_pandad, tmp_path):
    p = new_pandad()
    cli = Cli(p, tmp_path)
    id = p.create()
    open_ = cli.popen("ssh", id, "echo one; cat", stdin=subprocess.PIPE)
    try:
        assert open_.stdout.readline() == b"one\n"
        first = host_key(cli, id)
        p.kill9()
        assert open_.wait(180) == 255  # cut, and not left hanging
    finally:
        open_.kill()
        open_.communicate()
    p.start()
    wait_for("its sshd to hang up", lambda: p.sh(id, "pgrep -x sshd")["exit_code"] == 1)
    cli.env.update(PANDASTACK_API=p.url, PANDASTACK_API_KEY=p.key)
    assert host_key(cli, id) == first
    snap = p.do("POST", f"/v1/sandboxes/{id}/snapshots", {})["id"]
    p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    assert cli("ssh", id, "echo awake") == "awake\n"  # and that it was woken by
    second = host_key(cli, id)
    other = p.do("POST", "/v1/sandboxes", {"from_snapshot": snap})["id"]
    assert cli("ssh", other, "echo restored") == "restored\n"
    third = host_key(cli, other)
    p.do("POST", f"/v1/sandboxes/{other}/checkpoints", {"name": "here"})
    p.do("POST", f"/v1/sandboxes/{other}/rewind", {"to": "here"})
    assert len({first, second, third, host_key(cli, other)}) == 4


def test_nobody_else_gets_in(cli, box, pandad, tmp_path):
    token = pandad.do("POST", "/v1/me/tokens", {"tenant": "other", "scope": "sandbox"})["token"]
    stranger = Cli(pandad, tmp_path / "stranger", PANDASTACK_API_KEY=token)
    os.makedirs(tmp_path / "stranger")
    for args in (["ssh", box, "id"], ["ssh-proxy", box], ["ssh-proxy", "--host-key", box]):
        r = stranger.try_(*args)
        assert r.code != 0 and b"not found" in r.err and not r.out, r
    up = {"Connection": "Upgrade", "Upgrade": "tcp"}
    path = f"/v1/sandboxes/{box}/ssh/tunnel?key={KEY.replace(' ', '%20')}"
    assert pandad.ask("GET", path, token="", headers=up).status == 401
    assert pandad.ask("GET", path, token=token, headers=up).status == 404
    assert pandad.ask("GET", path).status == 400  # not an upgrade


@pytest.mark.parametrize("key", ["", "ssh-ed25519", KEY + "\nssh-rsa AAAA", 'command="x" ' + KEY, KEY + " comment", "ssh-dss" + KEY[11:],
                                 KEY.replace("A", "%", 1), "ssh-rsa " + "A" * 4000])
def test_what_is_no_key_is_refused(pandad, box, key):
    from urllib.parse import quote
    a = pandad.ask("GET", f"/v1/sandboxes/{box}/ssh/tunnel?key={quote(key)}", headers={"Connection": "Upgrade", "Upgrade": "tcp"})
    assert a.status == 400 and "public key" in a.json["error"], a


def test_a_machine_without_sshd_says_so(cli, box):
    cli("exec", box, "--", "rm", "/usr/sbin/sshd")
    r = cli.try_("ssh", box, "true")
    assert r.code == 255 and b"openssh-server" in r.err, r


def test_a_client_that_vanishes_hangs_up_and_kills_nothing_that_was_meant_to_stay(cli, box):
    t = Terminal(cli, "ssh", "-t", box, "nohup sleep 1000 >/dev/null 2>&1 & echo started; sleep 2000")
    t.read(b"started")
    wait_for("nohup to have done its work", lambda: cli.try_("exec", box, "--", "pgrep", "-xf", "sleep 1000").code == 0)
    t.close()  # kill -9 of ssh, and of the terminal it is on
    wait_for("the session to end", lambda: cli.try_("exec", box, "--", "pgrep", "-xf", "sleep 2000").code == 1)
    assert cli("exec", box, "--", "pgrep", "-xf", "sleep 1000").strip()
