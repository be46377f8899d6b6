"""Pausing, stopping, many at once, several hands on one machine, and command lines that die half way."""
import concurrent.futures
import subprocess
import time

import pytest

from conftest import FEW, count, wait_for


def test_a_paused_machine_uses_no_cpu_and_answers_when_it_goes_on(panda, box, procs):
    box.keep()
    box.ask("import threading; n = [0]; threading.Thread(target=lambda: [n.__setitem__(0, n[0] + 1) for _ in iter(int, 1)], daemon=True).start()")
    box.pause()
    before, since = box.cpu_ns(), time.monotonic()
    p = panda.start("exec", box.id, "--", "echo", "late")
    procs.append(p)
    with pytest.raises(subprocess.TimeoutExpired):
        p.wait(1)  # no answer while it stands still
    used, passed = box.cpu_ns() - before, time.monotonic() - since
    assert used < passed * 1e9 / (10 if FEW else 100), f"{used} ns in {passed} s"
    box.resume()
    assert p.communicate(timeout=180)[0] == b"late\n"
    was = box.ask("n[0]")
    wait_for("the loop to go on", lambda: box.ask("n[0]") > was)


def test_a_paused_machine_is_listed_and_can_be_stopped(panda, box):
    box.pause()
    assert box.id in panda.ls()
    box.stop()
    assert box.id not in panda.ls()


def test_pausing_and_resuming_twice_changes_nothing(box):
    box.pause()
    box.pause()
    box.resume()
    box.resume()
    assert box.answers()


def test_a_machine_goes_on_after_many_pauses(box):
    """Also when its disk has something to do each time."""
    box.keep()
    box.ask("word = 'kept'")
    box.sh("setsid sh -c 'n=0; while :; do n=$((n + 1)); echo $n >/root/new; sync /root/new; mv /root/new /root/n; done' </dev/null >/dev/null 2>&1 &")
    wait_for("it to write", lambda: box.try_("cat", "/root/n").out)
    for _ in range(count(50, 50)):
        box.pause()
        box.resume()
    before = box.run("cat", "/root/n")
    wait_for("it to go on writing", lambda: box.run("cat", "/root/n") != before)
    assert box.ask("word") == "kept"


def test_a_paused_machine_can_be_forked_and_saved(panda, box):
    box.keep()
    box.ask("word = 'kept'")
    box.pause()
    child, = box.fork()
    box.snapshot("one")
    restored, = panda.restore("one")
    assert child.ask("word") == restored.ask("word") == "kept"
    box.resume()
    assert box.ask("word") == "kept"


def test_stopping_ends_a_command_that_runs(panda, box, procs):
    p = panda.start("exec", box.id, "--", "sh", "-c", "echo ready; sleep 1000")
    procs.append(p)
    assert p.stdout.readline() == b"ready\n"
    box.stop()
    out, err = p.communicate(timeout=180)
    assert p.returncode == 1 and err.startswith(b"panda: "), (p.returncode, out, err)


def test_a_command_whose_command_line_is_killed_ends_too(panda, box, procs):
    p = panda.start("exec", box.id, "--", "sh", "-c", "echo $$; sleep 1000 & wait")
    procs.append(p)
    pid = p.stdout.readline().decode().strip()
    p.kill()
    wait_for("its end in the guest", lambda: box.try_("kill", "-0", pid).code != 0)
    wait_for("the end of what it started", lambda: box.try_("pgrep", "-x", "sleep").code != 0)


def test_stopping_twice_says_there_is_none(panda, box):
    box.stop()
    panda.refused("stop", box.id, code=1, says="there is no machine")


def test_run_boots_runs_and_leaves_nothing(panda):
    r = panda.try_("run", "--id", panda.new_id(), "--", "sh", "-c", "echo hello; exit 7")
    assert (r.code, r.out) == (7, b"hello\n")
    assert panda.in_run_dir() == []


def test_twenty_machines_boot_and_work_at_once(panda):
    n = count(20, 20)
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        machines = list(pool.map(lambda _: panda.boot("-m", "128"), range(n)))
        answers = list(pool.map(lambda m: m.sh("echo $1; cat /etc/machine-id", m.id).split(), machines))
    assert [a[0] for a in answers] == [m.id for m in machines]
    assert len({a[1] for a in answers}) == n
    lines = panda.ls()
    assert all(lines[m.id].startswith("running 128 MiB") for m in machines)


def at_once(*jobs):
    """All of them at the same time; the list of what they returned."""
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        return [f.result() for f in [pool.submit(j) for j in jobs]]


def test_stopping_from_two_sides_at_once_leaves_nothing(panda):
    for _ in range(count(5, 5)):
        m = panda.fresh()
        codes = [r.code for r in at_once(*[lambda: panda.try_("stop", m.id)] * 3)]
        assert 0 in codes and set(codes) <= {0, 1}
        assert panda.in_run_dir() == []


def test_one_id_asked_for_by_many_at_once_is_given_to_one(panda):
    name = panda.new_id()
    panda.seen.add(name)
    results = at_once(*[lambda: panda.try_("boot", "--id", name)] * 4)
    assert sorted(r.code for r in results) == [0, 1, 1, 1], results
    assert panda.do("exec", name, "--", "echo", "here").out == b"here\n"


def moments(most_ms):
    """When to kill: spread over the time the work takes, so that every step of it is met."""
    n = count(12, 100)
    return [(5 if FEW else 1) * most_ms / 1000 * i / (n - 1) for i in range(n)]


def kill_after(panda, seconds, *args):
    """kill -9 of a command line in the middle of its work, wherever it is then."""
    p = panda.start(*args)
    try:
        p.wait(seconds)
    except subprocess.TimeoutExpired:
        pass
    p.kill()
    p.communicate()


def test_a_boot_that_is_killed_half_way_can_be_stopped(panda):
    for moment in moments(200):
        name = panda.new_id()
        panda.seen.add(name)
        kill_after(panda, moment, "boot", "--id", name)
        if name in panda.in_run_dir():
            assert name in panda.ls()
            panda.do("stop", name)
        assert not panda.left()
        assert panda.boot().answers()  # and the id's place is free
        panda.sweep()


def test_a_restore_that_is_killed_half_way_can_be_stopped(panda, box):
    box.keep()
    box.ask("word = 'kept'")
    box.snapshot("one")
    box.stop()
    for moment in moments(40):
        kill_after(panda, moment, "restore", "one", "-n", "2")
        ids = panda.in_run_dir()
        if ids:
            panda.do("stop", *ids)
    assert panda.restore("one")[0].ask("word") == "kept"
