"""What test_clock.py runs in a guest: the clocks as programs read them (libc, so the vdso), beside the system calls."""
import ctypes
import os
import struct
import time

libc = ctypes.CDLL(None, use_errno=True)
FINE = {"realtime": 0, "monotonic": 1, "raw": 4, "boottime": 7, "tai": 11}
COARSE = {"realtime coarse": 5, "monotonic coarse": 6}
CLOCK_GETTIME, GETTIMEOFDAY, TIME = 228, 96, 201


class Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


def call(clock):
    """The system call itself."""
    t = Timespec()
    if libc.syscall(CLOCK_GETTIME, clock, ctypes.byref(t)):
        raise OSError(ctypes.get_errno(), f"clock_gettime({clock})")
    return t.sec * 10**9 + t.nsec


def agree(rounds=500):
    """Both ways of asking in turn: time never runs backwards between them."""
    for name, clock in {**FINE, **COARSE}.items():
        last = call(clock)
        for _ in range(rounds):
            for ask in time.clock_gettime_ns, call:
                now = ask(clock)
                assert last <= now, f"{name}: {ask} says {now} after {last}"
                last = now
    for _ in range(rounds):
        before, now, after = call(5) // 10**9, libc.time(None), call(5) // 10**9
        assert before <= now <= after, f"time() says {now} between {before} and {after}"
    return "they agree"


def forbid():
    """From here on this process may not ask the kernel for the time: EPERM."""
    program = [
        (0x20, 0, 0, 0),  # the number of the call
        (0x15, 2, 0, CLOCK_GETTIME),
        (0x15, 1, 0, GETTIMEOFDAY),
        (0x15, 0, 1, TIME),
        (0x06, 0, 0, 0x00050001),  # EPERM
        (0x06, 0, 0, 0x7FFF0000),  # allowed
    ]
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    buf = ctypes.create_string_buffer(code, len(code))
    prog = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buf))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, prog, 0, 0) == 0, os.strerror(ctypes.get_errno())  # PR_SET_SECCOMP, a filter
    forbid.keeps = buf


def without_calls():
    """All clocks can be read though no system call for them is allowed."""
    forbid()
    for name, clock in FINE.items():
        try:
            call(clock)
            raise AssertionError("the filter lets the system call pass")
        except PermissionError:
            pass
    for clock in [*FINE.values(), *COARSE.values()]:
        assert time.clock_gettime_ns(clock) > 0
    assert abs(time.time() - libc.time(None)) < 2
    tv = Timespec()
    assert libc.gettimeofday(ctypes.byref(tv), None) == 0 and abs(tv.sec - libc.time(None)) < 2
    return "no call was made"


def slewed():
    """Runs the clock 500 ppm faster than the host's, and compares."""
    timex = ctypes.create_string_buffer(struct.pack("<Iiqq", 2, 0, 0, 500 << 16), 256)  # ADJ_FREQUENCY
    assert libc.adjtimex(timex) >= 0, os.strerror(ctypes.get_errno())
    return agree(2000)


def step_by_step(clock=1, most=200_000):
    """A child that reads a clock is traced, one instruction at a time, to its end."""
    child = os.fork()
    if not child:
        libc.ptrace(0, 0, None, None)  # PTRACE_TRACEME
        os.kill(os.getpid(), 19)
        before = call(clock)
        os._exit(7 if before <= time.clock_gettime_ns(clock) <= call(clock) else 8)
    _, status = os.waitpid(child, 0)
    for _ in range(most):
        if not os.WIFSTOPPED(status):
            break
        libc.ptrace(9, child, None, None)  # PTRACE_SINGLESTEP
        _, status = os.waitpid(child, 0)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        raise AssertionError(f"no end after {most} steps")
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 7, status
    return "it came through"
