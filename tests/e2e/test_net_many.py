"""Many slots at once, with policies: what they cost, and that all of it comes back."""
import os
import time
from pathlib import Path

import pytest

from conftest import wait_for
from little_internet import BED, DNS, OTHER, WEB, Guest, LittleInternet

pytestmark = pytest.mark.skipif(not BED.exists(), reason=f"no {BED}: build first")
MANY = 500 if os.environ.get("PANDA_SOAK") == "1" else 100


def of_process(pid, field):
    text = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith(field + ":")))


def available_kb():
    return int(next(line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:")))


def test_many_slots_at_once():
    with LittleInternet() as net:
        bed = net.bed(50)
        pid = int(next(iter(Path(f"/proc/{bed.proc.pid}/task").iterdir())).name)
        before, free = of_process(pid, "VmRSS"), available_kb()
        start = time.monotonic()
        addrs = set()
        for i in range(MANY):
            if i % 50 == 0:
                bed.do("ready 50", 120)
            addrs.add(bed.do(f"take s{i} {('open', 'off', 'list web.example,*.wild.example,11.9.0.0/16')[i % 3]}")[1])
        took = time.monotonic() - start
        assert len(addrs) == MANY
        assert len(net.links()) >= MANY
        fds = len(os.listdir(f"/proc/{pid}/fd"))
        print(f"\n{MANY} slots in {took:.1f} s, {fds / MANY:.1f} fds, {(of_process(pid, 'VmRSS') - before) / MANY:.1f} KiB of ours and "
              f"{(free - available_kb()) / MANY:.0f} KiB of the host each")
        assert fds <= (MANY + 60) * 8
        # They work: the first, one in the middle, the last.
        for i in (0, MANY // 2 // 3 * 3 + 2, (MANY - 1) // 3 * 3):
            g = Guest(net, bed, f"s{i}")
            assert g.attempt("name", "web.example") == WEB
            assert g.attempt("tcp", WEB, 80, "web.example") == f"internet {WEB}:80"
            assert g.attempt("tcp", OTHER, 80) == (f"internet {OTHER}:80" if i % 3 == 0 else "no")
            g.close()
        start = time.monotonic()
        for i in range(MANY):
            bed.do(f"return s{i}")
        returned = time.monotonic() - start
        end = time.monotonic() + 120
        while len(net.links()) > 60:
            assert time.monotonic() < end, len(net.links())
            time.sleep(0.1)
        print(f"returned in {returned:.2f} s, gone after {time.monotonic() - start:.1f} s")
        assert bed.numbers("stats")["used"] == 0
        # Ready ones only: fds come back, too.
        bed.do("ready 50", 120)
        assert len(os.listdir(f"/proc/{pid}/fd")) <= 60 * 8
        bed.end()
        assert net.links() == [] and net.tables() == []


def test_every_place_is_handed_out_returned_and_handed_out_again():
    """A whole pool at once, twice, with real namespaces: 1,024 places in the long form, 64 in the short one. All 16,384, without
    namespaces, are in tests/unit/net/test_range.c."""
    pool, places = ("10.201.0.0/20", 1024) if MANY == 500 else ("10.201.0.0/24", 64)
    with LittleInternet() as net:
        bed = net.bed(16, DNS, pool)
        pid = int(next(iter(Path(f"/proc/{bed.proc.pid}/task").iterdir())).name)
        bed.do("ready 16", 60)
        fds = len(os.listdir(f"/proc/{pid}/fd"))
        for again in range(2):
            seen = set()
            for n in range(places):
                bed.do("ready 1", 60)
                seen.add(bed.do(f"take x{n} open")[1])
            assert len(seen) == places
            assert bed.refused("take more open").startswith("net_full")
            assert len(net.links()) == places
            for n in range(places):
                bed.do(f"return x{n}")
            bed.do("ready 16", 120)
        stats = bed.numbers("stats")
        assert stats["total"] == places and stats["used"] == 0
        wait_for("links to go", lambda: len(net.links()) == 16, 120)
        wait_for("fds to go", lambda: len(os.listdir(f"/proc/{pid}/fd")) <= fds)
        bed.end()
        assert net.links() == [] and net.tables() == []


def test_thousands_come_and_go_and_nothing_grows():
    """With PANDA_SOAK=1 twice as many as there are addresses, each a namespace of its own; places are handed out in turn, so all of them."""
    rounds = 2 if MANY == 100 else 2 * 16384 // 32
    with LittleInternet() as net:
        bed = net.bed(32)
        pid = int(next(iter(Path(f"/proc/{bed.proc.pid}/task").iterdir())).name)
        bed.do("ready 32", 120)
        bed.numbers("takes 32")  # what is made once is made
        bed.do("ready 32", 120)
        before = of_process(pid, "VmRSS")
        fds, links = len(os.listdir(f"/proc/{pid}/fd")), len(net.links())
        assert bed.numbers("stats")["total"] == 16384
        for _ in range(rounds):
            assert bed.numbers("takes 32")["n"] == 32
            bed.do("ready 32", 120)
        wait_for("links to go", lambda: len(net.links()) <= links, 120)
        wait_for("fds to go", lambda: len(os.listdir(f"/proc/{pid}/fd")) <= fds)
        assert of_process(pid, "VmRSS") - before < 4096
        assert bed.numbers("stats")["used"] == 0
        bed.end()
        assert net.links() == [] and net.tables() == []
