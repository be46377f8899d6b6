"""Going back, comparing, racing and sending snapshots around, from the command line."""
import os
import subprocess

from server import BUILD


def panda(p, *args, code=0, data=None):
    env = dict(os.environ, PANDASTACK_API_KEY=p.key, PANDASTACK_API_URL=p.url, PANDA_URL=p.url, PANDA_API_KEY=p.key)
    r = subprocess.run([str(BUILD / "src/cli/panda"), *args, "--url", p.url], env=env, input=data, capture_output=True, timeout=120)
    assert r.returncode == code, (args, r)
    return r


def text(r):
    return r.stdout.decode()


def test_undo(pandad):
    id = text(panda(pandad, "create", "--checkpoints")).strip()
    pandad.sh(id, "echo 1 >/root/n")
    pandad.sh(id, "echo 2 >/root/n")
    good = text(panda(pandad, "checkpoints", id, "--name", "good")).strip()
    listed = text(panda(pandad, "checkpoints", id)).splitlines()
    assert listed[0].split() == ["STEPS", "ID", "AGE", "SIZE", "NAME"]
    assert good in listed[1] and listed[1].endswith("good") and len(listed) == 4
    panda(pandad, "rewind", id, "2")
    assert pandad.do("GET", f"/v1/sandboxes/{id}/fs?path=/root/n") == b"1\n"
    assert b"no checkpoint" in panda(pandad, "rewind", id, "good", code=125).stderr


def test_race_and_diff(pandad):
    id = text(panda(pandad, "create")).strip()
    pandad.sh(id, "seq 5 >/root/t")
    r = panda(pandad, "race", id, "sleep 9", "sed -i 2d /root/t; echo x >/root/x")
    winner = text(r).strip()
    assert r.stderr.decode().splitlines()[:2] == ["killed sleep 9", "won    sed -i 2d /root/t; echo x >/root/x"]
    assert text(panda(pandad, "diff", id, winner)) == "~ /root/t\n+ /root/x\n"
    assert "@@ -1,5 +1,4 @@\n 1\n-2\n" in text(panda(pandad, "diff", "-u", id, winner))
    pandad.sh(winner, r"""touch "/root/x$(printf '\033[2J\n+ y')" """)
    assert "+ /root/x\n+ /root/x?[2J?+ y\n" in text(panda(pandad, "diff", winner)), "a name is one line of text"
    assert text(panda(pandad, "race", id, "false", code=1)) == ""
    assert b"accept" in panda(pandad, "race", "--accept", "x", id, "true", code=125).stderr


def test_merge_and_promote(pandad):
    id = text(panda(pandad, "create")).strip()
    pandad.sh(id, "echo 1 >/root/a; echo 1 >/root/b")
    one, two = text(panda(pandad, "fork", "-n", "2", id)).split()
    pandad.sh(one, "echo 2 >/root/a; rm /root/b; echo new >/root/c")
    assert text(panda(pandad, "merge", "--dry-run", id, one)) == "- /root/b\n~ /root/a\n+ /root/c\n"
    pandad.sh(id, "echo mine >/root/a")
    r = panda(pandad, "merge", id, one, code=1)
    assert "! /root/a\n" in text(r) and b"--theirs" in r.stderr
    assert pandad.sh(id, "cat /root/a /root/b")["stdout"] == "mine\n1\n"
    panda(pandad, "merge", "--theirs", id, one)
    assert pandad.sh(id, "cat /root/a /root/c; ls /root/b")["stdout"] == "2\nnew\n"
    assert text(panda(pandad, "promote", "--kill-others", one)) == two + "\n"
    assert b"not found" in panda(pandad, "promote", two, code=125).stderr


def test_a_snapshot_travels(pandad, tmp_path):
    id = text(panda(pandad, "create")).strip()
    pandad.sh(id, "echo here >/root/f; sync")
    snap = text(panda(pandad, "snapshot", "create", id, "--name", "s")).strip()
    shown = dict(line.split(None, 1) for line in text(panda(pandad, "snapshot", "get", "s")).splitlines())
    assert (shown["id"], shown["name"], shown["sandbox_id"]) == (snap, "s", id)
    file = tmp_path / "s.tar"
    panda(pandad, "snapshot", "export", snap, str(file))
    assert file.stat().st_size > 1 << 20
    assert b"--force" in panda(pandad, "snapshot", "export", snap, str(file), code=125).stderr
    panda(pandad, "snapshot", "rm", snap)
    again = text(panda(pandad, "snapshot", "import", str(file))).strip()
    two = pandad.create(from_snapshot=again)
    assert pandad.sh(two, "cat /root/f")["stdout"] == "here\n"
    assert text(panda(pandad, "snapshot", "tree")) == f"of {id[:8]}\n  {again[:8]} s\n    sandbox {two[:8]} running\n"
    assert b"no exported snapshot" in panda(pandad, "snapshot", "import", "-", data=b"x" * 1000, code=125).stderr
