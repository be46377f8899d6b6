"""Pages of memory and blocks of a file that a thread keeps stamping, and a list of what each must hold.
Run inside keeper.py. A page that shows anything but the last stamp this very machine put there, or
inherited at the moment of its fork, is a write that leaked."""
import mmap
import os
import random
import threading

PAGE = 4096


class Ground:
    def __init__(self, path, mem_pages, disk_pages):
        self.owner, self.count, self.lock = "first", 0, threading.Lock()
        self.mem = mmap.mmap(-1, mem_pages * PAGE)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.mem_is = [self.put_mem(i) for i in range(mem_pages)]
        self.disk_is = [self.put_disk(i) for i in range(disk_pages)]
        threading.Thread(target=self.load, daemon=True).start()

    def stamp(self):
        self.count += 1
        return (f"{self.owner} {self.count} ".encode() * PAGE)[:PAGE]

    def put_mem(self, i):
        s = self.stamp()
        self.mem[i * PAGE:(i + 1) * PAGE] = s
        return s

    def put_disk(self, i):
        s = self.stamp()
        assert os.pwrite(self.fd, s, i * PAGE) == PAGE
        return s

    def some(self, n):
        with self.lock:
            for i in random.choices(range(len(self.mem_is)), k=n):
                self.mem_is[i] = self.put_mem(i)
            for i in random.choices(range(len(self.disk_is)), k=n):
                self.disk_is[i] = self.put_disk(i)

    def load(self):
        """Never stops: forks come in the middle of it."""
        pause = threading.Event()
        while True:
            self.some(4)
            pause.wait(0.01)

    def check(self):
        """The number of stamps that are right; anything wrong raises. The disk is read from the disk."""
        with self.lock:
            os.fsync(self.fd)
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            for i, want in enumerate(self.mem_is):
                got = self.mem[i * PAGE:(i + 1) * PAGE]
                assert got == want, f"{self.owner}: memory {i} holds {got[:40]}, not {want[:40]}"
            for i, want in enumerate(self.disk_is):
                got = os.pread(self.fd, PAGE, i * PAGE)
                assert got == want, f"{self.owner}: disk {i} holds {got[:40]}, not {want[:40]}"
            return len(self.mem_is) + len(self.disk_is)

    def be(self, owner):
        """From now on every stamp carries this name."""
        with self.lock:
            self.owner = owner
        self.some(32)
