"""diff: what files two machines have different; merge: a child's into its parent's."""
import concurrent.futures
import signal
import subprocess

from conftest import wait_for


def diff(p, id, query=""):
    d = p.do("GET", f"/v1/sandboxes/{id}/diff?{query}")
    return d, *(sorted(c["path"] for c in d[k]) for k in ("added", "changed", "removed"))


def sh(p, id, cmd):
    r = p.sh(id, cmd)
    assert r["exit_code"] == 0, r
    return r["stdout"]


def fork(p, id, n=1):
    return p.do("POST", f"/v1/sandboxes/{id}/fork", {"count": n})["children"]


def test_two_children_of_one_parent(pandad):
    id = pandad.create()
    sh(pandad, id, "mkdir /root/p; cd /root/p; seq 100 >same; seq 100 >edited; echo x >gone; ln -s same link; echo 1 >mode")
    a, b = fork(pandad, id, 2)
    sh(pandad, a, "cd /root/p; sed -i s/^50$/fifty/ edited; rm gone; echo new >new; ln -sf other link; chmod 700 mode")
    _, added, changed, removed = diff(pandad, b, f"to={a}")
    assert added == ["/root/p/new"]
    assert changed == ["/root/p/edited", "/root/p/link", "/root/p/mode"]
    assert removed == ["/root/p/gone"]
    _, added, changed, removed = diff(pandad, b, f"from={a}")  # the other way round
    assert added == ["/root/p/gone"] and removed == ["/root/p/new"]
    # A file that was written anew with the same bytes is the same.
    sh(pandad, b, "cd /root/p; cat same >s2; mv s2 same; touch same")
    assert "/root/p/same" not in diff(pandad, b, f"to={a}")[2]
    # And one of the same size with others is not.
    sh(pandad, b, "cd /root/p; tr 1 2 <same >s2; mv s2 same")
    assert "/root/p/same" in diff(pandad, b, f"to={a}")[2]


def test_against_the_template(pandad):
    id = pandad.create()
    d, added, changed, removed = diff(pandad, id)
    before = set(added + changed + removed)
    sh(pandad, id, "echo x >/root/x; echo more >>/etc/passwd; rm /etc/issue; rm -rf /etc/apt; mkdir /etc/apt; echo 1 >/etc/apt/own")
    d, added, changed, removed = diff(pandad, id)
    assert d["from"] == "" and d["to"] == id and not d["truncated"]
    assert set(added) - before == {"/root/x", "/etc/apt/own"}
    assert set(changed) - before == {"/etc/passwd"}
    assert {"/etc/issue", "/etc/apt/sources.list.d"} & set(removed) >= {"/etc/issue"}
    lower = [r for r in removed if r.startswith("/etc/apt/")]
    assert lower, removed  # what the template had in a directory that was made anew


def test_a_directory_that_went(pandad):
    id = pandad.create()
    a, b = fork(pandad, id, 2)
    sh(pandad, a, "rm -rf /usr/share/doc /usr/share/man; mkdir -p /usr/share/doc/mine; echo 1 >/usr/share/doc/mine/f")
    sh(pandad, b, "echo 2 >/usr/share/doc/theirs; echo x >/usr/share/man/page")
    _, added, changed, removed = diff(pandad, a, f"to={b}")
    assert "/usr/share/doc/theirs" in added and "/usr/share/man/page" in added
    assert "/usr/share/doc/mine/f" in removed and changed == []


def test_unified(pandad, tmp_path):
    id = pandad.create()
    sh(pandad, id, "seq 1 40 >/root/t; head -c 3000 /dev/urandom >/root/bin")
    a, = fork(pandad, id)
    sh(pandad, a, "sed -i -e 3d -e '30a thirty and a half' /root/t; head -c 3000 /dev/urandom >/root/bin")
    d, *_ = diff(pandad, id, f"to={a}&unified=1")
    by = {c["path"]: c for c in d["changed"]}
    assert "unified" not in by["/root/bin"]
    text = by["/root/t"]["unified"]
    assert text.startswith("--- a/root/t\n+++ b/root/t\n@@ -1,6 +1,5 @@\n")
    old = tmp_path / "t"
    old.write_bytes(pandad.do("GET", f"/v1/sandboxes/{id}/fs?path=/root/t"))
    subprocess.run(["patch", "-s", str(old)], input=text.encode(), check=True)
    assert old.read_bytes() == pandad.do("GET", f"/v1/sandboxes/{a}/fs?path=/root/t")
    assert "unified" not in diff(pandad, id, f"to={a}")[0]["changed"][0]


def test_against_a_checkpoint_and_a_snapshot(pandad):
    id = pandad.create(checkpoints="auto")
    sh(pandad, id, "echo 1 >/root/n")
    snap = pandad.do("POST", f"/v1/sandboxes/{id}/snapshots")["id"]
    sh(pandad, id, "echo 2 >/root/n; echo x >/root/x")
    last = pandad.do("GET", f"/v1/sandboxes/{id}/checkpoints")["checkpoints"][0]["id"]
    for other in (last, snap):
        d, added, changed, removed = diff(pandad, id, f"from={other}")
        assert (d["from"], d["to"]) == (other, id)
        assert (added, changed, removed) == (["/root/x"], ["/root/n"], [])
    # Nothing of it is left, and the history has not grown.
    assert pandad.do("GET", f"/v1/sandboxes/{id}/checkpoints")["checkpoints"][0]["id"] == last
    assert len(pandad.processes()) == 1


def test_a_machine_without_tools_and_a_sleeping_one(pandad):
    id = pandad.create()
    a, = fork(pandad, id)
    pandad.do("POST", f"/v1/sandboxes/{a}/exec", {"cmd": "echo y >/root/y; rm -rf /usr/bin /bin /sbin /usr/sbin /lib /usr/lib"})
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    d, added, changed, removed = diff(pandad, id, f"to={a}")
    assert added == ["/root/y"] and "/usr/bin" in removed


def test_only_so_many_at_once(pandad):
    """Each holds a thread of pandad while its guest takes its time."""
    id = pandad.create()
    pandad.signal(id, signal.SIGSTOP)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        try:
            asked = [pool.submit(pandad.ask, "GET", f"/v1/sandboxes/{id}/diff") for _ in range(12)]
            wait_for("four to be refused", lambda: sum(a.done() for a in asked) == 4)
            assert {(a.result().status, a.result().json["code"]) for a in asked if a.done()} == {(429, "too_many")}
        finally:
            pandad.signal(id, signal.SIGCONT)
        assert sorted(a.result().status for a in asked) == [200] * 8 + [429] * 4
    assert pandad.ask("GET", f"/v1/sandboxes/{id}/diff").status == 200


def test_wrong_requests(pandad):
    id = pandad.create()
    assert pandad.ask("GET", f"/v1/sandboxes/{id}/diff?to=x&from=y").status == 400
    assert pandad.ask("GET", f"/v1/sandboxes/{id}/diff?to=nobody").status == 404
    assert pandad.ask("POST", f"/v1/sandboxes/{id}/merge", {}).status == 400
    assert pandad.ask("POST", f"/v1/sandboxes/{id}/merge", {"child": "x"}).status == 404
    assert pandad.ask("POST", f"/v1/sandboxes/{id}/merge", {"child": id}).status == 409


TICK = "sleep 0.02; "  # times of files move in ticks of 10 ms: who writes within the tick of the fork counts as having written before it


def test_merge(pandad):
    id = pandad.create()
    sh(pandad, id, "mkdir /root/p; cd /root/p; echo 1 >a; echo 1 >b; echo 1 >gone; echo 1 >both; echo 1 >mine")
    child, = fork(pandad, id)
    sh(pandad, child, "cd /root/p; echo 2 >a; chmod 711 b; rm gone; mkdir -p d/e; echo 3 >d/e/f; ln -s f d/e/l; rm -rf /etc/apt")
    sh(pandad, id, TICK + "cd /root/p; echo parent >mine; echo p >own")
    dry = pandad.do("POST", f"/v1/sandboxes/{id}/merge", {"child": child, "dry_run": True})
    assert not dry["applied"] and dry["conflicts"] == []
    assert sh(pandad, id, "cat /root/p/a") == "1\n"
    r = pandad.do("POST", f"/v1/sandboxes/{id}/merge", {"child": child})
    assert r["applied"] and r["conflicts"] == []
    assert r["changed"] == ["/root/p/a", "/root/p/b"]
    assert r["removed"] == ["/etc/apt", "/root/p/gone"]
    assert [f for f in r["added"]] == ["/root/p/d", "/root/p/d/e", "/root/p/d/e/f", "/root/p/d/e/l"]
    assert sh(pandad, id, "cd /root/p; cat a mine own d/e/l; stat -c %a b; ls -d gone /etc/apt 2>&1 | grep -c 'No such'") == \
        "2\nparent\np\n3\n711\n2\n"


def test_merge_with_conflicts(pandad):
    id = pandad.create()
    sh(pandad, id, "echo 1 >/root/both; echo 1 >/root/one")
    child, = fork(pandad, id)
    sh(pandad, child, "echo child >/root/both; echo child >/root/one")
    sh(pandad, id, TICK + "echo parent >/root/both")
    r = pandad.do("POST", f"/v1/sandboxes/{id}/merge", {"child": child})
    assert not r["applied"] and r["conflicts"] == ["/root/both"]
    assert sh(pandad, id, "cat /root/both /root/one") == "parent\n1\n"
    r = pandad.do("POST", f"/v1/sandboxes/{id}/merge", {"child": child, "conflicts": "theirs"})
    assert r["applied"] and r["conflicts"] == ["/root/both"]
    assert sh(pandad, id, "cat /root/both /root/one") == "child\nchild\n"
