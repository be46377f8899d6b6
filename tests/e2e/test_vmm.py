"""
panda-vmm alone, without Linux in it: tiny guests (vmm_guest.S), and the control protocol of src/wire/control.h spoken by
this file. What Linux machines do with it is in the other files, with PANDA_ENGINE=kvm.
"""
import array
import contextlib
import fcntl
import os
import pathlib
import socket
import struct
import subprocess
import time

import pytest

VMM = os.environ.get("PANDA_VMM")
pytestmark = pytest.mark.skipif(os.environ.get("PANDA_ENGINE") != "kvm" or not VMM, reason="needs KVM: make test-kvm")

MIB = 1 << 20
MAGIC, FDS_MAX = 0x41444E50, 200
HELLO, READY, SNAPSHOT, PAUSE, RESUME, STATS, DONE, PING = range(1, 9)
F_ADD_SEALS, F_SEAL_WRITE = 1033, 8
SLOT = {"agent": 5, "pagemap": 6, "top": 7, "state": 8, "kvm": 9, "kernel": 10, "layer": 16}
TO_STATE, TO_MAP, TOP_RO = 1000, 1001, 1002


def message(kind, arg0=0, slots=()):
    return (struct.pack("<II8Q", MAGIC, kind, arg0, *[0] * 7) + bytes(4 * 16 + 6 * 16) + struct.pack("<II", 0, len(slots)) +
            struct.pack(f"<{FDS_MAX}H", *slots, *[0] * (FDS_MAX - len(slots))))


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not (seen := what()):
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)
    return seen


class Vmm:
    """One machine of 64 MiB, booted from a guest or restored from what snapshot() gave; ahead: its process has waited for that."""

    def __init__(self, where, guest=None, image=None, ahead=False):
        where.mkdir()
        self.where, self.layers = where, list(image["layers"]) if image else []
        control, agent = (self.listen(name, kind) for name, kind in
                          (("control", socket.SOCK_SEQPACKET), ("agent", socket.SOCK_STREAM)))
        self.top = self.new_top()
        argv = [VMM] + (["ahead"] if ahead else [] if image else [f"mem={64 * 1024}K", "cpus=1", "x"])
        kvm = os.open("/dev/kvm", os.O_RDWR)
        given = {fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100): slot for fd, slot in ((control.fileno(), 3), (kvm, SLOT["kvm"]))}
        with open(where / "console.log", "wb") as log:
            self.p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=given.values(),
                                      preexec_fn=lambda: [os.dup2(fd, slot) for fd, slot in given.items()])
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.connect(str(where / "control"))
        if ahead:
            wait_for(self.has_vm)
            if not image:
                return
        fds = {SLOT["agent"]: agent.fileno(), SLOT["pagemap"]: os.open(f"/proc/{self.p.pid}/pagemap", os.O_RDONLY),
               SLOT["top"]: self.top}
        if image:
            fds[SLOT["state"]] = image["state"]
        else:
            fds[SLOT["kernel"]] = os.open(guest, os.O_RDONLY)
        fds |= {SLOT["layer"] + i: fd for i, fd in enumerate(self.layers)}
        self.send(HELLO, fds=fds)
        self.kind, self.arg = self.receive()

    def has_vm(self):
        for fd in pathlib.Path(f"/proc/{self.p.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it moves
                if os.readlink(fd) == "anon_inode:kvm-vm":
                    return True
        return False

    def listen(self, name, kind):
        s = socket.socket(socket.AF_UNIX, kind)
        s.bind(str(self.where / name))
        s.listen(8)
        return s

    @staticmethod
    def new_top():
        fd = os.memfd_create("top", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 64 * MIB)
        return fd

    def send(self, kind, arg0=0, fds=None):
        fds = fds or {}
        self.control.sendmsg([message(kind, arg0, list(fds))],
                             [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds.values()))] if fds else [])

    def receive(self):
        """Type and arguments of the answer; None when the machine has ended."""
        self.control.settimeout(60)
        try:
            data = self.control.recv(4096)
        except ConnectionResetError:
            data = b""
        head = struct.unpack_from("<II8q", data) if data else (0, 0)
        return head[1], head[2:]

    def ask(self, kind, arg0=0, fds=None):
        self.send(kind, arg0, fds)
        kind, arg = self.receive()
        assert kind == DONE
        return arg

    def snapshot(self):
        state, where = os.memfd_create("state"), os.memfd_create("map")
        ro, top = os.open(f"/proc/self/fd/{self.top}", os.O_RDONLY), self.new_top()
        arg = self.ask(SNAPSHOT, fds={TO_STATE: state, TO_MAP: where, TOP_RO: ro, SLOT["top"]: top})
        assert arg[0] == 0
        fcntl.fcntl(self.top, F_ADD_SEALS, F_SEAL_WRITE)  # the proof that it has let go
        os.close(self.top)
        self.top = top
        self.layers = [fd for i, fd in enumerate(self.layers) if arg[3] >> i & 1] + [ro]
        return {"state": state, "layers": list(self.layers)}

    def numbers(self):
        """What a counting guest has printed so far, whole lines of 8 letters: the first of a life may have begun in the one before."""
        lines = (self.where / "console.log").read_text().split("\n")[:-1]
        return [int(line.translate(str.maketrans("abcdefghijklmnop", "0123456789abcdef")), 16) for line in lines if len(line) == 8]

    def counts_on(self, n=2):
        have = len(self.numbers())
        return wait_for(lambda: (self.numbers() if len(self.numbers()) >= have + n else None))

    def end(self):
        self.p.kill()
        self.p.wait()


@pytest.fixture
def make(tmp_path):
    made = []

    def build(**define):
        exe = tmp_path / "-".join(define)
        if not exe.exists():
            subprocess.run(["cc", "-nostdlib", "-static", "-Wl,-Ttext=0x1000000,--build-id=none,-N", "-o", exe,
                            *[f"-D{k}={v}" for k, v in define.items()], pathlib.Path(__file__).with_name("vmm_guest.S")],
                           check=True)
        return exe

    def start(image=None, ahead=False, **define):
        made.append(Vmm(tmp_path / f"m{len(made)}", guest=build(**define) if define else None, image=image, ahead=ahead))
        return made[-1]

    yield start
    for m in made:
        m.end()


def test_parent_and_child_count_on_from_the_same_number(make):
    parent = make(COUNTER=1)
    before = parent.counts_on()[-1]
    image = parent.snapshot()
    after = parent.numbers()[-1]  # it went on meanwhile
    child = make(image)
    assert child.kind == READY
    assert before < child.counts_on()[0] <= after + 2
    for m in parent, child:
        n = m.counts_on()
        assert n == list(range(n[0], n[0] + len(n))), "not a number was lost or came twice"
    grandchild = make(child.snapshot())
    assert grandchild.counts_on()[0] >= child.numbers()[0]


def test_a_process_that_waits_becomes_a_machine(make):
    parent = make(COUNTER=1)
    before = parent.counts_on()[-1]
    child = make(parent.snapshot(), ahead=True)
    assert child.kind == READY
    assert child.counts_on()[0] > before


def test_a_process_that_waits_ends_with_who_made_it(make):
    m = make(ahead=True)
    assert m.p.poll() is None
    m.control.close()
    assert m.p.wait(60) == 2


def test_a_chain_of_many_snapshots_stays_short(make):
    m = make(COUNTER=1)
    for _ in range(40):
        image = m.snapshot()
        assert len(image["layers"]) <= 26
    child = make(image)
    assert child.counts_on()[0] > 0
    m.counts_on()


def test_a_paused_machine_stands_still_and_can_be_saved(make):
    m = make(COUNTER=1)
    m.counts_on()
    assert m.ask(PAUSE)[0] == 0
    before = m.numbers()
    image = m.snapshot()
    child = make(image)
    child.counts_on()
    assert m.numbers() == before
    assert m.ask(RESUME)[0] == 0
    assert m.counts_on()[:len(before)] == before


def test_a_machine_tells_its_age_over_all_its_lives(make):
    m = make(COUNTER=1)
    m.counts_on()
    child = make(m.snapshot())
    child.counts_on(1)
    first, second = m.ask(STATS), child.ask(STATS)
    assert (first[4], second[4]) == (1, 2)
    assert first[1] == second[1] == 64 * MIB
    assert second[3] > 0


@pytest.mark.parametrize("event,status", [(1, 0), (2, 3), (3, 4)])
def test_a_guest_that_ends_says_how(make, event, status):
    m = make(EVENT=event)
    assert m.p.wait(60) == status


def test_a_triple_fault_is_a_reset(make):
    assert make(FAULT=1).p.wait(60) == 3


def test_a_guest_that_writes_anything_anywhere_harms_only_its_devices(make):
    m = make(LIAR=5000)
    assert m.p.wait(300) == 0, (m.where / "console.log").read_text()


def test_a_damaged_state_is_refused_in_words(make):
    m = make(COUNTER=1)
    image = m.snapshot()
    os.pwrite(image["state"], b"\xff" * 8, 16)
    child = make(image)
    assert child.kind == 0 and child.p.wait(60) == 2
    assert "state file is damaged" in (child.where / "console.log").read_text()
