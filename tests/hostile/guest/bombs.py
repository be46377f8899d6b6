"""Inside a guest, as root: one kind of bomb, as large as the guest lets it become, and kept that way.

usage: bombs.py KIND ADDRESS    prints "ready" once it cannot grow any more, or has been tried to its end; it ends with its sandbox.
"""
import ctypes
import os
import pty
import resource
import socket
import subprocess
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
kept = []
FULL = OSError, MemoryError, RuntimeError


def until_full(fn, most):
    for n in range(most):
        try:
            kept.append(fn(n))
        except FULL:
            return


def in_many(fn, processes=8):
    """What one process may have is little: so many do it. Each tells when it is done, and stays."""
    r, w = os.pipe()
    for _ in range(processes):
        try:
            if os.fork() == 0:
                fn()
                os.write(w, b"x")
                threading.Event().wait()
        except OSError:
            os.write(w, b"x")
    while processes:
        processes -= len(os.read(r, processes))


def expendable():
    with open("/proc/self/oom_score_adj", "w") as f:
        f.write("1000")  # the guest's OOM killer takes it, and not what made it


def fork():
    """Processes that wait; where there is no room for more, they try again and again."""
    if os.fork() == 0:
        expendable()
        while True:
            try:
                if os.fork() == 0:
                    time.sleep(0.01)
            except OSError:
                time.sleep(0.1)
    time.sleep(3)


def memory():
    for _ in range(4):  # each is killed for want of memory
        pid = os.fork()
        if pid == 0:
            expendable()
            while True:
                kept.append(os.urandom(1 << 20))
        os.waitpid(pid, 0)
    if os.fork() == 0:
        expendable()
        while True:
            kept.append(os.urandom(1 << 20))


def fds():
    in_many(lambda: until_full(lambda n: os.pipe(), 1 << 16))


def inotify():
    def watch(n):
        fd = libc.inotify_init()
        if fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init")
        os.makedirs(f"/tmp/w/{n}", exist_ok=True)
        for i in range(200):
            os.makedirs(f"/tmp/w/{n}/{i}", exist_ok=True)
            if libc.inotify_add_watch(fd, f"/tmp/w/{n}/{i}".encode(), 0xfff) < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch")
        return fd
    until_full(watch, 100)


def inodes():
    """Empty files, on the disk."""
    def files(d):
        os.makedirs(f"/root/i/{d}")
        for n in range(1000):
            os.close(os.open(f"/root/i/{d}/{n}", os.O_CREAT | os.O_WRONLY))
    until_full(files, 60)


def disk():
    block = os.urandom(1 << 20)
    fd = os.open("/root/flood", os.O_CREAT | os.O_WRONLY)
    until_full(lambda n: os.write(fd, block) and None, 1500)


def tmpfs():
    block = os.urandom(1 << 20)
    fd = os.open("/dev/shm/flood", os.O_CREAT | os.O_WRONLY)
    until_full(lambda n: os.write(fd, block) and None, 4096)


def threads():
    threading.stack_size(64 << 10)

    def start(n):
        t = threading.Thread(target=threading.Event().wait, daemon=True)
        t.start()
        return t
    until_full(start, 20000)


def sockets():
    """Of each family that is there; connected pairs with bytes that are never read."""
    def some(n):
        a, b = socket.socketpair()
        a.setblocking(False)
        try:
            while True:
                a.send(b"x" * 65536)
        except BlockingIOError:
            pass
        more = [socket.socket(family, kind) for family, kind in
                ((socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_UNIX, socket.SOCK_SEQPACKET))]
        return a, b, more
    in_many(lambda: until_full(some, 2000))


def connections():
    """To the outside: each SYN, each datagram to another port is something that the host remembers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setblocking(False)
        for i in range(20000):
            try:
                s.sendto(b"x", (address, 1 + i % 65535))
            except BlockingIOError:
                time.sleep(0.001)

    def begin(n):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex((address, 80 if n % 2 else 1 + n))
        return s
    until_full(begin, 4000)


def names():
    """Questions to the name server, faster than they can be answered."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setblocking(False)
        for i in range(20000):
            name = f"n{i}".encode()
            q = i.to_bytes(2, "big") + b"\1\0\0\1\0\0\0\0\0\0" + bytes([len(name)]) + name + b"\7example\0\0\1\0\1"
            try:
                s.sendto(q, ("172.31.255.1", 53))
            except OSError:
                time.sleep(0.001)


def ptys():
    until_full(lambda n: pty.openpty(), 1 << 14)


def mounts():
    os.makedirs("/tmp/m", exist_ok=True)
    until_full(lambda n: subprocess.run(["mount", "-t", "tmpfs", "x", "/tmp/m"], check=True, capture_output=True) and None, 300)


def namespaces():
    def new(n):
        if os.fork() == 0:
            expendable()
            if libc.unshare(0x10000000 | 0x40000000 | 0x20000000 | 0x08000000 | 0x00020000) < 0:
                os._exit(0)
            threading.Event().wait()
    until_full(new, 200)


def output():
    """What nobody reads, as fast as it goes, on the console and in the kernel's log."""
    for _ in range(2000):
        for path in "/dev/console", "/dev/kmsg":
            try:
                with open(path, "wb", buffering=0) as f:
                    f.write(b"x" * 900)
            except OSError:
                pass


address = sys.argv[2]
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
with open("/proc/self/oom_score_adj", "w") as f:
    f.write("-1000")
globals()[sys.argv[1]]()
print("ready", flush=True)
threading.Event().wait()
