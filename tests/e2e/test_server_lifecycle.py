"""The life of sandboxes through the API: who lives how long, and what comes back."""
import concurrent.futures
import os
import signal
import subprocess
import time

import pytest
from conftest import TOP, wait_for
from server import patience


def state(p, id):
    a = p.ask("GET", f"/v1/sandboxes/{id}")
    return a.json["status"] if a.status == 200 else a.status


def test_a_sandbox_is_created_asked_and_killed(pandad):
    id = pandad.create(metadata={"purpose": "test"})
    r = pandad.sh(id, "echo out; echo err >&2; exit 3")
    assert (r["stdout"], r["stderr"], r["exit_code"], r["timed_out"]) == ("out\n", "err\n", 3, False)
    assert pandad.do("GET", f"/v1/sandboxes/{id}")["metadata"]["purpose"] == "test"
    pandad.do("DELETE", f"/v1/sandboxes/{id}", expect=204)
    pandad.do("GET", f"/v1/sandboxes/{id}", expect=404)
    assert id not in pandad.processes() and id not in pandad.machines()


def test_pause_stops_and_resume_goes_on(pandad):
    id = pandad.create()
    pandad.sh(id, "echo 42 >/dev/shm/answer")
    pandad.do("POST", f"/v1/sandboxes/{id}/pause", expect=204)
    a = pandad.ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "true"})
    assert (a.status, a.json["code"]) == (409, "sandbox_paused")
    assert state(pandad, id) == "paused"
    pandad.do("POST", f"/v1/sandboxes/{id}/resume", expect=204)
    assert pandad.sh(id, "cat /dev/shm/answer")["stdout"] == "42\n"


def test_a_hibernated_sandbox_has_no_process_and_wakes_on_exec(pandad):
    id = pandad.create()
    pandad.sh(id, "echo 42 >/dev/shm/answer; echo disk >/root/file; sync")
    assert pandad.do("POST", f"/v1/sandboxes/{id}/hibernate") == {"status": "hibernated"}
    assert id not in pandad.processes()
    assert state(pandad, id) == "hibernated", "a plain GET does not wake it"
    assert pandad.sh(id, "cat /dev/shm/answer /root/file")["stdout"] == "42\ndisk\n"
    assert state(pandad, id) == "running"
    wait_for("its snapshot to go", lambda: not pandad.snapshots())


def test_hibernate_and_wake_may_be_asked_twice(pandad):
    id = pandad.create()
    for _ in range(2):
        assert pandad.do("POST", f"/v1/sandboxes/{id}/hibernate") == {"status": "hibernated"}
    for _ in range(2):
        assert pandad.do("POST", f"/v1/sandboxes/{id}/wake") == {"status": "running"}
    assert pandad.sh(id, "echo here")["stdout"] == "here\n"


def test_fork_has_memory_and_disk_and_goes_its_own_way(pandad):
    id = pandad.create(metadata={"a": "1"})
    pandad.sh(id, "echo one >/dev/shm/m; echo one >/root/d")
    f = pandad.do("POST", f"/v1/sandboxes/{id}/fork", {"metadata": {"b": "2"}}, expect=201)
    child = f["children"][0]
    assert f["parent_id"] == id
    assert pandad.sh(child, "cat /dev/shm/m /root/d")["stdout"] == "one\none\n"
    pandad.sh(child, "echo two >/dev/shm/m; echo two >/root/d")
    assert pandad.sh(id, "cat /dev/shm/m /root/d")["stdout"] == "one\none\n"
    info = pandad.do("GET", f"/v1/sandboxes/{child}")
    assert info["metadata"]["a"] == "1" and info["metadata"]["b"] == "2" and info["parent_id"] == id
    names = {pandad.sh(i, "hostname; cat /etc/machine-id")["stdout"] for i in (id, child)}
    assert len(names) == 2
    pandad.do("DELETE", f"/v1/sandboxes/{id}", expect=204)
    assert pandad.sh(child, "cat /dev/shm/m")["stdout"] == "two\n"


def test_snapshot_is_a_moment_to_start_from(pandad):
    id = pandad.create()
    pandad.sh(id, "echo then >/root/f; echo then >/dev/shm/m")
    s = pandad.do("POST", f"/v1/sandboxes/{id}/snapshots", expect=201)
    pandad.sh(id, "echo later >/root/f")
    assert [x["id"] for x in pandad.do("GET", f"/v1/snapshots?sandbox_id={id}")["snapshots"]] == [s["id"]]
    pandad.do("DELETE", f"/v1/sandboxes/{id}", expect=204)
    for _ in range(2):
        b = pandad.do("POST", "/v1/sandboxes", {"template": "ubuntu-24.04", "from_snapshot": s["id"]}, expect=201)["id"]
        assert pandad.sh(b, "cat /root/f /dev/shm/m")["stdout"] == "then\nthen\n"
    pandad.do("DELETE", f"/v1/snapshots/{s['id']}")
    pandad.do("GET", f"/v1/snapshots/{s['id']}", expect=404)
    assert pandad.ask("POST", "/v1/sandboxes", {"from_snapshot": s["id"]}).status == 404


def test_ttl_ends_it_whatever_happens(pandad):
    plain, kept = pandad.create(ttl_seconds=1), pandad.create(ttl_seconds=1, persistent=True)
    wait_for("both to be gone", lambda: {state(pandad, plain), state(pandad, kept)} == {404})
    wait_for("their machines to be gone", lambda: not {plain, kept} & set(pandad.machines()))


def test_ttl_can_be_extended(pandad):
    def extend():  # a busy host may be too late for one
        id = pandad.create(ttl_seconds=2)
        a = pandad.ask("PATCH", f"/v1/sandboxes/{id}/lifecycle", {"ttl_seconds": 3600})
        return a.status == 200 and (id, a.json)
    id, life = wait_for("one that is extended in time", extend)
    assert life["ttl_seconds"] == 3600
    time.sleep(2.2)
    assert state(pandad, id) == "running"


SET_BACK = """
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t)
{
	int r = (int)syscall(SYS_clock_gettime, id, t);

	if (id == CLOCK_REALTIME && access("%s", F_OK) == 0)
		t->tv_sec -= 86400;
	return r;
}
"""


def test_a_clock_that_is_set_back_prolongs_no_ttl(new_pandad, tmp_path, monkeypatch):
    back, shim = tmp_path / "back", tmp_path / "clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", shim], input=SET_BACK % back, text=True, check=True)
    p = new_pandad(start=False)
    with monkeypatch.context() as m:
        m.setenv("LD_PRELOAD", str(shim))
        p.start()
    id = p.create(ttl_seconds=3)
    kept = p.create(ttl_seconds=3600)
    back.touch()
    created = p.do("GET", "/v1/sandboxes/" + p.create())["created_at"]
    assert created < p.do("GET", f"/v1/sandboxes/{kept}")["created_at"], "the clock was not set back"
    wait_for("it to end as if nothing had been", lambda: state(p, id) == 404)
    assert state(p, kept) == "running"
    life = p.do("PATCH", f"/v1/sandboxes/{kept}/lifecycle", {"ttl_seconds": 7200})  # what is said now counts from then on
    assert life["ttl_seconds"] == 7200 and state(p, kept) == "running"


def test_the_idle_are_reaped_but_not_the_busy_the_persistent_and_the_sleeping(new_pandad):
    seconds = round(patience())  # a busy host would be too late for one
    p = new_pandad(idle_seconds=seconds)
    idle, kept, asleep = p.create(), p.create(persistent=True), p.create()
    p.do("POST", f"/v1/sandboxes/{asleep}/hibernate")
    busy = p.create()
    assert p.sh(busy, f"sleep {seconds + 1.5}; echo worked")["stdout"] == "worked\n"
    wait_for("the idle one to go", lambda: state(p, idle) == 404)
    assert (state(p, kept), state(p, asleep)) == ("running", "hibernated")
    wait_for("the busy one to go when it has done its work", lambda: state(p, busy) == 404)


def test_it_hibernates_by_itself_and_wakes_when_asked(pandad):
    id = pandad.create(auto_hibernate_seconds=1)
    pandad.sh(id, "echo 1 >/dev/shm/x")
    wait_for("it to fall asleep", lambda: state(pandad, id) == "hibernated")
    assert pandad.sh(id, "cat /dev/shm/x")["stdout"] == "1\n"


def test_a_machine_that_dies_is_failed_and_says_why(pandad):
    id = pandad.create()
    crash = (TOP / "tests/guest/crash.py").read_bytes()
    pandad.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/crash.py", crash)
    a = pandad.ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "python3 /root/crash.py"})
    assert a.status == 502, a
    wait_for("it to fail", lambda: state(pandad, id) == "failed")
    info = pandad.do("GET", f"/v1/sandboxes/{id}")
    assert "Kernel panic" in info["end_reason"], info
    a = pandad.ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "true"})
    assert (a.status, a.json["code"]) == (409, "sandbox_failed")
    pandad.do("DELETE", f"/v1/sandboxes/{id}", expect=204)


def test_unknown_template_names_the_known_ones(pandad):
    a = pandad.ask("POST", "/v1/sandboxes", {"template": "nope"})
    assert a.status == 400 and "base" in a.json["error"], a


def test_a_full_host_refuses_with_a_reason(new_pandad):
    p = new_pandad(sandboxes_max=2)
    p.create(), p.create()
    a = p.ask("POST", "/v1/sandboxes", {})
    assert (a.status, a.json["code"]) == (503, "host_full"), a
    p2 = new_pandad(memory_reserve_mb=1 << 20)
    a = p2.ask("POST", "/v1/sandboxes", {})
    assert a.status == 503 and "memory" in a.json["error"], a


def test_pandad_ends_and_comes_back_with_all_its_sandboxes(new_pandad):
    p = new_pandad()
    running, paused, asleep = p.create(), p.create(), p.create()
    for id in running, paused, asleep:
        p.sh(id, "echo mine >/dev/shm/x")
    p.do("POST", f"/v1/sandboxes/{paused}/pause")
    p.do("POST", f"/v1/sandboxes/{asleep}/hibernate")
    for how in p.stop, p.kill9:
        before = p.processes()
        how()
        assert {k: v for k, v in p.processes().items() if k in (running, paused)} == \
            {k: v for k, v in before.items() if k in (running, paused)}, "machines go on without pandad"
        p.start()
        assert [state(p, i) for i in (running, paused, asleep)] == ["running", "paused", "hibernated"]
        assert p.sh(running, "cat /dev/shm/x")["stdout"] == "mine\n"
    p.do("POST", f"/v1/sandboxes/{paused}/resume")
    for id in paused, asleep:
        assert p.sh(id, "cat /dev/shm/x")["stdout"] == "mine\n"


def waiting(p):
    """{id: pid} of the processes that were made ahead, all eight of them. (A thread of KVM's may be in a group, too.)"""
    def all_of_them():
        pids = {id: min(pids) for id, pids in p.processes(all=True).items() if id in p.waiting()}
        return len(pids) == 8 and pids
    return wait_for("eight processes made ahead", all_of_them)


def test_a_sandbox_gets_the_process_that_was_made_ahead(new_pandad):
    p = new_pandad()
    ahead = waiting(p)
    id = p.create()
    assert ahead[id] in p.processes()[id]
    ahead = waiting(p)
    child = p.do("POST", f"/v1/sandboxes/{id}/fork", {"count": 1})["children"][0]
    assert ahead[child] in p.processes()[child]


@pytest.mark.parametrize("end", ["stop", "kill9"])
def test_processes_that_were_made_ahead_end_with_pandad_and_no_others(new_pandad, end):
    p = new_pandad()
    id = p.create()
    ahead = waiting(p)
    assert id not in ahead
    getattr(p, end)()
    wait_for("those that wait to end by themselves", lambda: set(p.processes(all=True)) == {id})
    p.start()
    assert not set(ahead) & set(waiting(p))
    assert p.sh(id, "echo here")["stdout"] == "here\n"


def test_a_process_made_ahead_that_died_is_replaced(new_pandad):
    p = new_pandad()
    for pid in waiting(p).values():
        os.kill(pid, signal.SIGKILL)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda _: p.create(), range(8)))
    for id in ids:
        assert p.sh(id, "echo here")["stdout"] == "here\n"
    assert set(p.processes()) == set(ids)
