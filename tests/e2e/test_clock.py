"""Clocks that programs read without a system call: right in every life of a machine, and never backwards."""
import time

import pytest

from conftest import ENGINE, FEW, GUEST, count
from test_identity import assert_clock_right

SPIN = """
import threading, time
bad, reads, go = [], [0], True
def spin(clock):
    read, last = time.clock_gettime_ns, time.clock_gettime_ns(clock)
    while go:
        for _ in range(1000):
            now = read(clock)
            if now < last:
                bad.append((clock, last, now))
            last = now
        reads[0] += 1000
for clock in (1, 1, 7, 4):
    threading.Thread(target=spin, args=(clock,), daemon=True).start()
"""


def clocks(m, what, prefix=()):
    m.put("/root/clocks.py", (GUEST / "clocks.py").read_bytes())
    return m.run(*prefix, "python3", "-c", f"import sys; sys.path.append('/root'); import clocks; print(clocks.{what})").strip()


@pytest.mark.skipif(ENGINE != "um", reason="behind KVM it depends on the host's clock source")
def test_no_clock_takes_a_system_call(panda, box):
    """Under a seccomp filter of the guest's that refuses them: after a boot, in a fork and after a restore."""
    box.snapshot("one")
    for m in [box, *box.fork(), *panda.restore("one")]:
        assert clocks(m, "without_calls()") == "no call was made"


def test_the_kernel_and_programs_tell_the_same_time(panda, box):
    box.snapshot("one")
    for m in [box, *box.fork(), *panda.restore("one")]:
        assert clocks(m, "agree()") == "they agree"
    box.pause()
    box.resume()
    assert clocks(box, "agree()") == "they agree"
    assert_clock_right(box)


def test_a_clock_that_was_set_is_seen_at_once(panda, box):
    box.keep()
    box.ask("import time")
    box.sh("date -s 2001-02-03T04:05:06Z")
    assert 981173106 <= box.ask("time.time()") < 981173106 + 600
    assert clocks(box, "agree(50)") == "they agree"
    child = box.fork()[0]  # who starts anew is told the time by the host
    assert abs(child.ask("time.time()") - time.time()) < 600


@pytest.mark.skipif(ENGINE != "um", reason="Linux's own on engine kvm")
def test_a_clock_that_is_slewed_is_asked_of_the_kernel(box):
    """adjtimex() makes a clock run faster than the host's: what the page says holds no more."""
    assert clocks(box, "slewed()") == "they agree"


def test_in_a_time_namespace_monotonic_time_is_its_own(box):
    outside = float(box.python("import time; print(time.monotonic())"))
    inside = float(box.run("unshare", "--time", "--monotonic", "100000", "--fork", "python3", "-c", "import time; print(time.monotonic())"))
    assert 100000 + outside <= inside < 100000 + outside + 600
    assert clocks(box, "agree(50)", prefix=("unshare", "--time", "--boottime", "5000", "--fork")) == "they agree"


def test_a_traced_program_reads_the_clock_step_by_step(box):
    assert clocks(box, "step_by_step()") == "it came through"


def test_readers_go_on_in_every_life_wherever_they_were_interrupted(panda, box):
    """Four threads do nothing but read clocks, so that most snapshots meet one that is just doing it."""
    box.keep()
    box.ask(SPIN)
    for i in range(1 if FEW else count(4, 200)):
        for m in box.fork(2):
            before = m.ask("reads[0]")
            m.ask(f"import time\nend = time.monotonic() + 20\nwhile reads[0] < {before} + 20000 and time.monotonic() < end: time.sleep(0.01)")
            assert m.ask("reads[0]") >= before + 20000 and m.ask("bad") == []
            m.stop()
        box.snapshot(f"s{i}")
        m = panda.restore(f"s{i}")[0]
        assert m.ask("bad") == []
        m.stop()
        panda.do("delete", f"s{i}")
    assert box.ask("bad") == []
