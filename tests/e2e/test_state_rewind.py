"""Checkpoints and rewind: the same sandbox, put back."""
import signal
import threading

from conftest import count, wait_for


def checkpoints(p, id):
    return p.do("GET", f"/v1/sandboxes/{id}/checkpoints")["checkpoints"]


def rewind(p, id, **where):
    return p.do("POST", f"/v1/sandboxes/{id}/rewind", where)


def out(p, id, cmd):
    r = p.sh(id, cmd)
    assert r["exit_code"] == 0, r
    return r["stdout"]


def test_undo_brings_back_memory_disk_and_processes(pandad):
    id = pandad.create(metadata={"k": "v"}, ttl_seconds=3600)
    out(pandad, id, "echo before >/root/f; echo before >/dev/shm/f; sleep 1000 & echo $! >/root/pid")
    before = pandad.do("GET", f"/v1/sandboxes/{id}")
    point = pandad.do("POST", f"/v1/sandboxes/{id}/checkpoints", {"name": "good"}, expect=201)
    assert point["name"] == "good" and not point["automatic"]
    out(pandad, id, "rm -rf /root/f /usr/bin /dev/shm/f; kill $(cat /root/pid); hash -r; echo gone")
    assert pandad.ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "ls"}).status == 400  # not even a shell is left
    r = rewind(pandad, id, to="good")
    assert r["id"] == id and r["checkpoint_id"] == point["id"] and r["status"] == "running"
    assert r["generation"] == point["generation"] + 1
    assert out(pandad, id, "cat /root/f /dev/shm/f; kill -0 $(cat /root/pid) && ls /usr/bin/env") == \
        "before\nbefore\n/usr/bin/env\n"
    assert out(pandad, id, "cat /proc/sys/kernel/hostname").strip() == id
    after = pandad.do("GET", f"/v1/sandboxes/{id}")
    assert after == before


def test_every_command_has_a_checkpoint_before_it(pandad):
    id = pandad.create(checkpoints="auto")
    assert pandad.do("GET", f"/v1/sandboxes/{id}")["checkpoints"] == "auto"
    for i in range(4):
        out(pandad, id, f"echo {i} >>/root/log")
    assert len(checkpoints(pandad, id)) == 4 and all(c["automatic"] for c in checkpoints(pandad, id))
    assert all(c["size_bytes"] < 64 << 20 for c in checkpoints(pandad, id))  # not what they share
    rewind(pandad, id)  # undo the last
    read = pandad.do("GET", f"/v1/sandboxes/{id}/fs?path=/root/log")
    assert read == b"0\n1\n2\n"
    rewind(pandad, id)  # the undo key, pressed again: one more, not the same once more
    assert pandad.do("GET", f"/v1/sandboxes/{id}/fs?path=/root/log") == b"0\n1\n"
    assert out(pandad, id, "echo new >>/root/log; cat /root/log") == "0\n1\nnew\n"
    rewind(pandad, id)
    assert pandad.do("GET", f"/v1/sandboxes/{id}/fs?path=/root/log") == b"0\n1\n"
    rewind(pandad, id, steps=2)
    assert pandad.sh(id, "cat /root/log")["exit_code"] != 0
    a = pandad.ask("POST", f"/v1/sandboxes/{id}/rewind", {"steps": 30})
    assert a.status == 404 and a.json["code"] == "checkpoint_not_found", a


def test_policy_can_be_changed_while_it_lives(pandad):
    id = pandad.create()
    out(pandad, id, "true")
    assert checkpoints(pandad, id) == []
    assert pandad.do("PATCH", f"/v1/sandboxes/{id}/lifecycle", {"checkpoints": "auto"})["checkpoints"] == "auto"
    out(pandad, id, "true")
    assert len(checkpoints(pandad, id)) == 1
    pandad.do("PATCH", f"/v1/sandboxes/{id}/lifecycle", {"checkpoints": "off"})
    out(pandad, id, "true")
    assert len(checkpoints(pandad, id)) == 1
    assert pandad.ask("PATCH", f"/v1/sandboxes/{id}/lifecycle", {"checkpoints": "always"}).status == 400
    assert pandad.ask("POST", "/v1/sandboxes", {"template": "base", "checkpoints": 1}).status == 400


def test_a_history_is_thinned_and_all_of_it_can_be_gone_back_to(pandad):
    id = pandad.create(checkpoints="auto")
    n = 60
    named = None
    for i in range(n):
        out(pandad, id, f"echo {i} >/root/n")
        if i == 5:
            named = pandad.do("POST", f"/v1/sandboxes/{id}/checkpoints", {"name": "five"})["id"]
    have = checkpoints(pandad, id)
    assert 15 <= len(have) <= 32, len(have)
    assert named in [c["id"] for c in have]
    # Back in time, one kept checkpoint after the other: each is older than the one before.
    last = n
    for c in have[::5]:
        rewind(pandad, id, to=c["id"])
        r = pandad.ask("GET", f"/v1/sandboxes/{id}/fs?path=/root/n")
        now = int(r.body) if r.status == 200 else -1
        assert now < last, (now, last)
        last = now
    assert [c["id"] for c in checkpoints(pandad, id)][0] == have[::5][-1]["id"]


def test_a_failed_sandbox_comes_back(pandad):
    id = pandad.create(checkpoints="auto")
    out(pandad, id, "echo here >/root/f; sync")
    out(pandad, id, "true")
    pandad.signal(id, signal.SIGKILL)
    wait_for("its death", lambda: pandad.do("GET", f"/v1/sandboxes/{id}")["status"] == "failed")
    assert rewind(pandad, id)["status"] == "running"
    assert out(pandad, id, "cat /root/f") == "here\n"
    assert "end_reason" not in pandad.do("GET", f"/v1/sandboxes/{id}")


def test_a_paused_sandbox_runs_afterwards(pandad):
    id = pandad.create()
    pandad.do("POST", f"/v1/sandboxes/{id}/checkpoints", {"name": "x"})
    pandad.do("POST", f"/v1/sandboxes/{id}/pause")
    assert rewind(pandad, id, to="x")["status"] == "running"
    assert out(pandad, id, "echo ok") == "ok\n"


def test_what_is_asked_during_a_rewind_waits_for_it(pandad):
    id = pandad.create()
    out(pandad, id, "echo 1 >/root/n")
    pandad.do("POST", f"/v1/sandboxes/{id}/checkpoints", {"name": "one"})
    out(pandad, id, "echo 2 >/root/n")
    seen = []

    def ask():
        for _ in range(20):
            a = pandad.ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "cat /root/n"})
            seen.append((a.status, a.json.get("stdout"), a.json.get("code")))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for t in threads:
        t.start()
    for _ in range(5):
        rewind(pandad, id, to="one")
    for t in threads:
        t.join(60)
    # Open ones are cut and say so; nobody hears of a sandbox that is not there.
    assert {s for s in seen} <= {(200, "1\n", None), (200, "2\n", None), (502, None, "guest_gone")}, set(seen)
    assert (200, "1\n", None) in seen


def test_forks_and_snapshots_of_a_rewound_sandbox(pandad):
    id = pandad.create()
    out(pandad, id, "echo 1 >/root/n")
    pandad.do("POST", f"/v1/sandboxes/{id}/checkpoints", {"name": "one"})
    out(pandad, id, "echo 2 >/root/n")
    rewind(pandad, id, to="one")
    child = pandad.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    assert out(pandad, child, "cat /root/n") == "1\n"
    assert checkpoints(pandad, child) == []
    snap = pandad.do("POST", f"/v1/sandboxes/{id}/snapshots")["id"]
    assert out(pandad, pandad.create(from_snapshot=snap), "cat /root/n") == "1\n"
    pandad.do("POST", f"/v1/sandboxes/{id}/pause")
    pandad.do("POST", f"/v1/sandboxes/{id}/resume")
    assert pandad.ask("GET", f"/v1/sandboxes/{id}/logs").status == 200


def test_hibernation_drops_them_and_the_list_says_so(pandad):
    id = pandad.create(checkpoints="auto")
    out(pandad, id, "echo 1 >/root/n")
    rewind(pandad, id)
    out(pandad, id, "echo 2 >/root/n")
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    listed = pandad.do("GET", f"/v1/sandboxes/{id}/checkpoints")
    assert listed["checkpoints"] == [] and listed["dropped_when"] == "it was hibernated"
    a = pandad.ask("POST", f"/v1/sandboxes/{id}/rewind", {})
    assert a.status == 404 and "hibernated" in a.json["error"], a
    assert out(pandad, id, "cat /root/n") == "2\n"  # wakes, after its second machine
    assert len(checkpoints(pandad, id)) == 1


def test_the_next_pandad_has_the_machine_but_no_checkpoints(new_pandad):
    p = new_pandad()
    id = p.create(checkpoints="auto")
    out(p, id, "echo 1 >/root/n")
    out(p, id, "echo 2 >/root/n")
    rewind(p, id)
    p.kill9()
    p.start()
    assert out(p, id, "cat /root/n") == "1\n"
    listed = p.do("GET", f"/v1/sandboxes/{id}/checkpoints")
    assert listed["policy"] == "auto" and listed["dropped_when"] == "pandad was started anew"
    assert len(listed["checkpoints"]) == 1
    out(p, id, "echo 3 >/root/n")
    rewind(p, id)
    assert out(p, id, "cat /root/n") == "1\n"


def test_names_limits_and_wrong_requests(pandad):
    id = pandad.create()
    assert pandad.ask("POST", f"/v1/sandboxes/{id}/rewind", {"steps": 1, "to": "x"}).status == 400
    assert pandad.ask("POST", f"/v1/sandboxes/{id}/rewind", {"steps": 0}).status == 400
    assert pandad.ask("POST", f"/v1/sandboxes/{id}/rewind", {"to": "nope"}).status == 404
    assert pandad.ask("POST", f"/v1/sandboxes/{id}/checkpoints", {"name": "x" * 65}).status == 400
    for i in range(16):
        pandad.do("POST", f"/v1/sandboxes/{id}/checkpoints", {"name": f"n{i}"})
    a = pandad.ask("POST", f"/v1/sandboxes/{id}/checkpoints", {"name": "n16"})
    assert a.status == 429, a
    pandad.do("DELETE", f"/v1/sandboxes/{id}/checkpoints/n3", expect=204)
    assert pandad.ask("DELETE", f"/v1/sandboxes/{id}/checkpoints/n3").status == 404
    pandad.do("POST", f"/v1/sandboxes/{id}/checkpoints", {"name": "n16"})


def test_volumes(pandad):
    pandad.do("POST", "/v1/volumes", {"name": "vol", "size_mb": 64})
    w = pandad.create(volumes=[{"name": "vol", "path": "/mnt/v"}])  # one that is written: test_server_volumes_live.py
    out(pandad, w, "echo kept >/mnt/v/f; sync")
    pandad.do("DELETE", f"/v1/sandboxes/{w}")
    r = pandad.create(checkpoints="auto", volumes=[{"name": "vol", "path": "/mnt/v", "read_only": True}])
    out(pandad, r, "echo 1 >/root/n")
    out(pandad, r, "echo 2 >/root/n")
    rewind(pandad, r)
    assert out(pandad, r, "cat /root/n /mnt/v/f") == "1\nkept\n"
    pandad.do("DELETE", f"/v1/sandboxes/{r}")


def test_a_rewind_leaves_nothing_of_the_old_machine(pandad):
    id = pandad.create(checkpoints="auto")
    mine = lambda: {m for m in pandad.processes()}
    for i in range(count(5, 100)):
        out(pandad, id, f"echo {i} >/root/n")
        rewind(pandad, id)
    wait_for("one machine", lambda: len(mine()) == len([s for s in pandad.do("GET", "/v1/sandboxes")
                                                        if s["status"] == "running"]))
