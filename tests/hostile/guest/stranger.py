"""Not in a guest: a user of the host who is nobody, with a shell beside pandad. Tries to get at machines, their files and sockets.

usage: stranger.py    reads {"files": [...], "directories": [...], "sockets": [...], "processes": [...], "groups": [...]} from stdin
Prints all it got as a list of sentences: an empty one is as it should be.
"""
import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import sys

UID = GID = 65534
PIDFD_OPEN, PIDFD_GETFD, PTRACE_SEIZE = 434, 438, 0x4206
libc = ctypes.CDLL(None, use_errno=True)
got = []


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


def attempt(sentence, fn):
    """What fails with anything else than a plain no is shown, too: an attempt that could not be made shows nothing."""
    try:
        what = fn()
    except OSError as e:
        if e.errno not in (errno.EACCES, errno.EPERM):
            got.append(f"{sentence}: {e}")
        return
    got.append(f"{sentence}: {what!r:.80}")


def call(name, *args):
    r = getattr(libc, name)(*args)
    if r < 0:
        raise OSError(ctypes.get_errno(), name)
    return r


def read(path, flags=os.O_RDONLY):
    fd = os.open(path, flags)
    try:
        return os.read(fd, 64) if flags == os.O_RDONLY else "opened for writing"
    finally:
        os.close(fd)


def connect(path, kind):
    with socket.socket(socket.AF_UNIX, kind) as s:
        s.connect(path)
        return "connected"


def memory_of(pid):
    buf = ctypes.create_string_buffer(8)
    here, there = Iovec(ctypes.addressof(buf), 8), Iovec(0x400000, 8)
    return call("process_vm_readv", pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)


def fd_of(pid):
    pidfd = call("syscall", PIDFD_OPEN, pid, 0)
    try:
        return call("syscall", PIDFD_GETFD, pidfd, 3, 0)
    finally:
        os.close(pidfd)


ask = json.load(sys.stdin)
os.setgroups([])
os.setresgid(GID, GID, GID)
os.setresuid(UID, UID, UID)
for path in ask["directories"]:
    attempt(f"list {path}", lambda: os.listdir(path))
    attempt(f"make a file in {path}", lambda: os.open(f"{path}/mine", os.O_CREAT | os.O_WRONLY, 0o600))
    attempt(f"remove {path}", lambda: os.rename(path, f"{path}-gone"))
for path in ask["files"]:
    attempt(f"read {path}", lambda: read(path))
    attempt(f"write {path}", lambda: read(path, os.O_WRONLY))
for path in ask["sockets"]:
    for kind in socket.SOCK_STREAM, socket.SOCK_SEQPACKET:
        attempt(f"connect to {path}", lambda: connect(path, kind))
for path in ask["groups"]:
    attempt(f"move into {path}", lambda: read(path, os.O_WRONLY))
for pid in ask["processes"]:
    for name in "mem", "maps", "environ", "pagemap", "auxv", "syscall":
        attempt(f"read /proc/{pid}/{name}", lambda: read(f"/proc/{pid}/{name}"))
    for name in "fd", "map_files":
        attempt(f"list /proc/{pid}/{name}", lambda: os.listdir(f"/proc/{pid}/{name}"))
    for name in "exe", "cwd", "root", "ns/net", "ns/mnt", "fd/3", "fd/7":
        attempt(f"follow /proc/{pid}/{name}", lambda: os.readlink(f"/proc/{pid}/{name}"))
    attempt(f"list the root of {pid}", lambda: os.listdir(f"/proc/{pid}/root/"))
    attempt(f"trace {pid}", lambda: call("ptrace", PTRACE_SEIZE, pid, None, None))
    attempt(f"read memory of {pid}", lambda: memory_of(pid))
    attempt(f"take an fd of {pid}", lambda: fd_of(pid))
    attempt(f"signal {pid}", lambda: os.kill(pid, signal.SIGSTOP))
    attempt(f"bind {pid} to a cpu", lambda: os.sched_setaffinity(pid, {0}))
    attempt(f"give {pid} more time", lambda: os.setpriority(os.PRIO_PROCESS, pid, 5))
with contextlib.suppress(OSError):
    with open("/proc/net/unix") as f:
        got += [f"an abstract socket: {line.split()[-1]}" for line in f if "@panda" in line]
print(json.dumps(got))
