"""Who a machine is: what must differ in every child, and what time it thinks it is."""
import hashlib
import re
import struct
import time

from conftest import ENGINE, FEW, count, wait_for
from test_snapshot import change, forge

DRAWS = """
import os, random, secrets, tempfile, uuid
print(os.urandom(16).hex())
print(open('/dev/urandom', 'rb').read(16).hex())
print(open('/dev/random', 'rb').read(16).hex())
print(os.getrandom(16).hex())
print(random.random())
print(uuid.uuid4())
print(secrets.token_hex(16))
print(next(tempfile._get_candidate_names()))
print(hash('a string'))
"""


def assert_all_differ(lists):
    for column in zip(*lists):
        assert len(set(column)) == len(column), column


def ids(m):
    return [m.run("cat", "/proc/sys/kernel/random/boot_id"), m.run("cat", "/etc/machine-id"), m.run("hostname")]


def test_random_numbers_of_a_fresh_interpreter_differ_in_every_child(box):
    children = box.fork(count(8, 8))
    assert_all_differ([m.python(DRAWS).split("\n")[:-1] for m in [box, *children]])


def test_random_numbers_differ_in_every_restored_machine(panda, box):
    box.snapshot("one")
    assert_all_differ([m.python(DRAWS).split("\n")[:-1] for m in [box, *panda.restore("one", count(8, 8))]])


def test_a_process_that_was_drawing_draws_something_else_in_every_child(box):
    """Children of a parent in which a thread draws again and again: no 16 bytes come twice in 100 children, 1,000 with
    PANDA_SOAK=1, the very first draw included. What was drawn before the fork all have in common, so it does not count."""
    box.keep()
    box.ask("""
import os, threading
draws, pause = [], threading.Event()
def draw():
    while True:
        draws.append(os.getrandom(16).hex())
        pause.wait(0.02)
threading.Thread(target=draw, daemon=True).start()
""")
    seen = set()
    for _ in range(2 if FEW else count(5, 50)):
        children = box.fork(count(20, 20))
        parents = set(box.ask("list(draws)"))  # all that they inherited is among these
        for m in children:
            own = set(m.ask("draws.append(os.getrandom(16).hex()) or list(draws)")) - parents
            assert own and not own & seen
            seen |= own
        box.panda.do("stop", *(m.id for m in children))
        box.ask("draws.clear()")


def test_boot_id_machine_id_and_host_name_are_each_childs_own(panda, box):
    box.snapshot("one")
    children = box.fork(2 if FEW else 5)
    machines = [box, *children, *panda.restore("one", 2 if FEW else 3), *children[0].fork(1 if FEW else 2)]
    assert_all_differ([ids(m) for m in machines])
    for m in machines[1:]:
        assert m.run("hostname").strip() == m.id.replace("_", "-")
        assert re.fullmatch("[0-9a-f]{32}\n", m.run("cat", "/etc/machine-id"))


def test_a_machine_keeps_its_ids_while_others_are_forked_from_it(box):
    before = ids(box)
    box.fork(3)
    assert ids(box) == before


def test_a_running_program_is_told_that_its_machine_is_another_one(panda, box):
    """By a file that it can watch: the generation. It is read in a thread that was waiting when the machine was copied."""
    box.keep()
    assert box.ask("""
import ctypes, os, threading
libc, lives = ctypes.CDLL(None), []
fd = libc.inotify_init()
assert libc.inotify_add_watch(fd, b"/run/panda/generation", 2) > 0
generation = lambda: int(open("/run/panda/generation").read())
def wait():
    while True:
        os.read(fd, 4096)
        lives.append(generation())
threading.Thread(target=wait, daemon=True).start()
""") is None
    first = box.ask("generation()")
    children = box.fork(2)
    grandchild, = children[0].fork()
    box.snapshot("one")
    restored, = panda.restore("one")
    for m, generations in (children[1], 1), (grandchild, 2), (restored, 1):
        assert m.ask("generation()") == first + generations
        wait_for("the program to see it", lambda: m.ask("lives[-1:]") == [first + generations])
    assert box.ask("lives") == [] and box.ask("generation()") == first


def guest_times(m):
    """(its clock minus ours in seconds, not counting the way there and back; its monotonic clock)"""
    before = time.time()
    wall, mono = map(float, m.python("import time; print(time.time(), time.monotonic())").split())
    after = time.time()
    skew = 0 if before <= wall <= after else min(wall - before, wall - after, key=abs)
    return skew, mono


def assert_clock_right(m):
    """Within 50 ms of ours: the bound of our own book of hazards, no measure of speed."""
    skew, _ = guest_times(m)
    assert abs(skew) < 0.05, f"the clock of {m.id} is {skew} s off"


def test_the_clock_is_right_after_boot_fork_and_restore(panda, box):
    box.snapshot("one")
    for m in [box, *box.fork(3), *panda.restore("one", 3)]:
        assert_clock_right(m)


def test_the_clock_is_right_after_a_pause_and_monotonic_time_stood_still(box):
    asked = time.monotonic()
    _, mono = guest_times(box)
    box.pause()
    ran = time.monotonic() - asked
    began = time.monotonic()
    wait_for("two seconds to pass", lambda: time.monotonic() - began > 2)
    start = time.monotonic()
    box.resume()
    assert_clock_right(box)
    _, later = guest_times(box)
    assert mono < later < mono + ran + 1.9 + (time.monotonic() - start), "the pause was counted"


def test_the_clock_is_right_after_two_seconds_on_disk_and_sleepers_are_not_woken_early(panda, box):
    """A thread sets one timer after the other, so that one is due while the machine is being saved."""
    box.keep()
    box.ask("""
import threading, time
done, start = [], time.monotonic()
def doze():
    time.sleep(3)
    done.append(time.monotonic() - start)
def tick():
    while True:
        time.sleep(0.0001)
threading.Thread(target=doze, daemon=True).start()
threading.Thread(target=tick, daemon=True).start()
""")
    asked = time.monotonic()
    _, mono = guest_times(box)
    box.snapshot("one")
    ran = time.monotonic() - asked
    box.stop()
    began = time.monotonic()
    wait_for("two seconds to pass", lambda: time.monotonic() - began > 2)
    start = time.monotonic()
    m, = panda.restore("one")
    assert_clock_right(m)
    _, later = guest_times(m)
    assert mono < later < mono + ran + 1.9 + (time.monotonic() - start)
    wait_for("the sleeper", lambda: m.ask("done"))
    assert m.ask("done[0] >= 3"), "it slept its time, by its own clock"


def shift_um(f, seconds):
    """struct panda_state: magic, version, nr_ext, nr_layers (u32), mem_size, brk, fs_base, resume_check, mono_ns (u64)."""
    assert f.read(4) == b"PNDA"
    f.seek(16 + 4 * 8)
    mono, = struct.unpack("<Q", f.read(8))
    f.seek(16 + 4 * 8)
    f.write(struct.pack("<Q", mono + seconds * 10**9))


def shift_kvm(f, seconds):
    """Records of tag, length (u32) and bytes, padded to 8 (vmm/state.c). STATE_VM has the clock and the speed of the TSC behind three
    chips (struct saved_vm), STATE_MSRS the TSC of a vcpu. What its timer was set to stays, and is an hour late."""
    STATE_VM, STATE_MSRS, MSR_TSC = 4, 6, 0x10
    clock, khz = 3 * 520, 3 * 520 + 48
    data, at, shifted = bytearray(f.read()), 0, []
    while at < len(data):
        tag, n = struct.unpack_from("<II", data, at)
        at += 8
        if tag == STATE_VM:
            struct.pack_into("<Q", data, at + clock, struct.unpack_from("<Q", data, at + clock)[0] + seconds * 10**9)
            speed, = struct.unpack_from("<I", data, at + khz)
            shifted.append("clock")
        for msr in range(at, at + n, 16) if tag == STATE_MSRS else ():
            index, _, value = struct.unpack_from("<IIQ", data, msr)
            if index == MSR_TSC:
                struct.pack_into("<Q", data, msr + 8, value + seconds * speed * 1000)
                shifted.append("tsc")
        at += (n + 7) & ~7
    assert shifted == ["clock", "tsc"]
    f.seek(0)
    f.write(data)


def shift_monotonic(directory, seconds):
    """Moves the moment a snapshot was taken, by the guest's own monotonic clock, and makes the digests fit."""
    state = directory / "state"
    old = hashlib.sha256(state.read_bytes()).hexdigest()
    change(state, lambda f: {"um": shift_um, "kvm": shift_kvm}[ENGINE](f, seconds))
    new = hashlib.sha256(state.read_bytes()).hexdigest()
    forge(directory / "manifest.json", lambda t: t.replace(old, new))
    assert new in (directory / "manifest.json").read_text()


def test_the_clock_is_right_after_an_hour_asleep(panda, box):
    """An hour is simulated: CLOCK_REALTIME of the guest is set an hour back before the snapshot, so the guest
    wakes up with a wall clock as wrong as an hour of sleep would have left it. It must be ours again."""
    box.python("import time; time.clock_settime(time.CLOCK_REALTIME, time.time() - 3600)")
    skew, mono = guest_times(box)
    assert -3610 < skew < -3590
    box.snapshot("one")
    start = time.monotonic()
    m, = panda.restore("one")
    assert_clock_right(m)
    _, later = guest_times(m)
    assert mono < later < mono + 60 + (time.monotonic() - start), "monotonic time does not jump"
    child, = box.fork()
    assert_clock_right(child)


def test_timers_fire_when_due_in_a_machine_with_another_monotonic_past(panda, box):
    """The saved monotonic clock is moved an hour ahead, as on a host that has been up for another time."""
    box.keep()
    box.ask("import time; start = time.monotonic()")
    box.snapshot("one")
    box.stop()
    shift_monotonic(panda.store / "snapshots" / "one", 3600)
    m, = panda.restore("one")
    assert_clock_right(m)
    assert 3600 <= m.ask("time.monotonic() - start") < 3700
    assert m.ask("time.sleep(0.05) or 'slept'") == "slept"


LAYOUT = r"""
cat >/root/where.c <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
int main(void)
{
	int here;
	printf("%p %p %p %p %#lx\n", (void *)puts, malloc(1), (void *)main, (void *)&here, getauxval(AT_SYSINFO_EHDR));
}
C
gcc -o /root/where /root/where.c && gcc -no-pie -o /root/where-fixed /root/where.c
for i in $(seq $1); do /root/where; done
for i in $(seq $1); do /root/where-fixed; done
setarch -R /root/where; setarch -R /root/where
"""


def test_programs_and_what_they_use_lie_at_random_addresses(box):
    """libc, heap, program, stack and vdso; a program that was linked for one address stays there, and ADDR_NO_RANDOMIZE is heard."""
    n = 5 if FEW else 50
    rows = [line.split() for line in box.sh(LAYOUT, str(n), timeout=120).split("\n")[:-1]]
    assert len(rows) == 2 * n + 2, rows
    different = lambda rows: [len(set(column)) for column in zip(*rows)]
    assert min(different(rows[:n])) >= n * 2 // 5, rows[:n]
    libc, heap, program, stack, vdso = different(rows[n:2 * n])
    assert program == 1 and min(libc, heap, stack, vdso) >= n * 2 // 5, rows[n:2 * n]
    assert different(rows[2 * n:]) == [1] * 5, rows[2 * n:]


def test_a_low_address_can_be_asked_for_and_a_full_address_space_is_used_to_the_end(box):
    """MAP_32BIT; and 100 TiB of reservations: more than there is above the place where libraries begin."""
    assert box.python("""
import ctypes
mmap = ctypes.CDLL(None).mmap
mmap.restype = ctypes.c_size_t
mmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
PRIVATE, LOW, ANONYMOUS, NORESERVE = 2, 0x40, 0x20, 0x4000
print(all(0 < mmap(0, 1 << 20, 0, PRIVATE | ANONYMOUS | LOW, -1, 0) < 1 << 31 for _ in range(100)))
print(all(mmap(0, 1 << 40, 0, PRIVATE | ANONYMOUS | NORESERVE, -1, 0) < 1 << 47 for _ in range(80)))
""") == "True\nTrue\n"
