"""Inside a guest, as root: spins, forks, and fills memory, disk, fds and the network, all at once, again and again.

usage: everything.py ADDRESS [WHAT...]    WHAT: spin fork memory disk fds network; all without it
Prints "ready" when all of it has begun. It ends with its sandbox.
"""
import os
import resource
import socket
import sys
import threading
import time


def forever(fn):
    """A full table, disk or memory is what it wants; it goes on as soon as there is room again."""
    while True:
        try:
            fn()
        except (OSError, MemoryError, RuntimeError):
            time.sleep(0.01)


def spin():
    end = time.monotonic() + 1
    while time.monotonic() < end:
        pass


def taken_first():
    """By the guest's OOM killer: so what made it lives, and begins anew."""
    with open("/proc/self/oom_score_adj", "w") as f:
        f.write("1000")


def fork():
    """Children that fork until nothing can be forked any more."""
    if os.fork() == 0:
        taken_first()
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(0.05)
    time.sleep(1)


def memory():
    pid = os.fork()
    if pid == 0:
        taken_first()
        kept = []
        while True:
            kept.append(os.urandom(1 << 20))
    os.waitpid(pid, 0)


def disk():
    with open("/root/flood", "wb", buffering=0) as f:
        block = os.urandom(1 << 20)
        for _ in range(4096):
            f.write(block)
    os.sync()


def fds():
    kept = []
    try:
        while True:
            kept.append(os.pipe())
    except OSError:
        time.sleep(0.2)
    for pair in kept:
        for fd in pair:
            os.close(fd)


def network():
    """Datagrams and connections to as many ports and names as there are."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setblocking(False)
        for i in range(20000):
            try:
                s.sendto(b"x" * 1000, (address, 1 + i % 65535))
            except BlockingIOError:
                pass
    kept = []
    for i in range(500):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex((address, 1 + i))
        kept.append(s)
    for s in kept:
        s.close()
    for i in range(20):
        try:
            socket.getaddrinfo(f"n{os.getpid()}-{i}-{time.monotonic_ns()}.example", 80)
        except socket.gaierror:
            pass


address = sys.argv[1]
WHAT = {f.__name__: f for f in (spin, fork, memory, disk, fds, network)}
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
with open("/proc/self/oom_score_adj", "w") as f:
    f.write("-1000")
for name in sys.argv[2:] or WHAT:
    for _ in range(4 if name == "spin" else 1):
        if os.fork() == 0:
            forever(WHAT[name])
print("ready", flush=True)
threading.Event().wait()
