"""Live forks: what a child keeps, and that nothing goes from one to the other afterwards."""
import random

import pytest

from conftest import FEW, GUEST, count, wait_for


def test_a_forked_python_keeps_its_objects(box):
    box.keep()
    box.ask("import random; things = {n: [str(n)] * 3 for n in range(20000)}; "
            "loop = []; loop.append(loop); state = random.getstate(); where = id(things)")
    child, = box.fork()
    for m in box, child:
        assert m.ask("len(things), things[19999], loop[0] is loop, id(things) == where") == \
            [20000, ["19999"] * 3, True, True]
        assert m.ask("random.getstate() == state")
    box.ask("things.clear()")
    child.ask("things[0] = 'the child was here'")
    assert box.ask("len(things)") == 0
    assert child.ask("len(things), things[0]") == [20000, "the child was here"]


def test_a_forked_python_keeps_its_open_files(box):
    box.keep()
    box.ask("import os, tempfile; f = open('/root/log', 'w+'); f.write('not flushed, '); "
            "gone = tempfile.TemporaryFile(); gone.write(b'no name'); gone.seek(3); "
            "shm = open('/dev/shm/x', 'w+'); shm.write('in memory'); shm.flush(); shm.seek(0)")
    child, = box.fork()
    for name, m in ("parent", box), ("child", child):
        m.ask(f"f.write('{name}'); f.flush(); f.seek(0)")
        assert m.ask("f.read()") == f"not flushed, {name}"
        assert m.run("cat", "/root/log") == f"not flushed, {name}"
        assert m.ask("gone.read().decode()") == "name"
        assert m.ask("shm.read()") == "in memory"


def test_a_forked_python_keeps_its_pipes_sockets_and_child_processes(box):
    box.keep()
    box.ask("import os, socket, subprocess; r, w = os.pipe(); os.write(w, b'in flight'); "
            "a, b = socket.socketpair(); a.send(b'sent'); "
            "s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); d, _ = s.accept(); "
            "c.send(b'over tcp'); "
            "cat = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)")
    child, = box.fork()
    for name, m in ("parent", box), ("child", child):
        assert m.ask("os.read(r, 100).decode()") == "in flight"
        m.ask(f"os.write(w, b'{name}')")
        assert m.ask("os.read(r, 100).decode()") == name
        assert m.ask("b.recv(100).decode()") == "sent"
        assert m.ask("d.recv(100).decode()") == "over tcp"
        m.ask(f"d.send(b'back to {name}')")
        assert m.ask("c.recv(100).decode()") == f"back to {name}"
        m.ask(f"cat.stdin.write(b'{name}')")
        assert m.ask("cat.stdout.read(100).decode()") == name
        m.ask("cat.stdin.close()")
        assert m.ask("cat.wait(20)") == 0


def test_a_forked_python_keeps_its_threads_and_locks(box):
    box.keep()
    box.ask("""
import threading
ticks, got, pause, bell, lock = [0] * 4, [], threading.Event(), threading.Event(), threading.Lock()
def tick(n):
    while True:
        ticks[n] += 1
        pause.wait(0.005)
def wait():
    bell.wait()
    with lock:
        got.append('rung')
for n in range(4):
    threading.Thread(target=tick, args=(n,), daemon=True).start()
threading.Thread(target=wait, daemon=True).start()
lock.acquire()
""")
    child, = box.fork()
    for m in box, child:
        assert m.ask("threading.active_count(), lock.locked(), got") == [6, True, []]
        before = m.ask("list(ticks)")
        wait_for("all threads to go on", lambda: all(b > a for a, b in zip(before, m.ask("list(ticks)"))))
    child.ask("bell.set(); lock.release()")
    wait_for("the child's waiting thread", lambda: child.ask("got") == ["rung"])
    assert box.ask("lock.locked(), bell.is_set(), got") == [True, False, []]


def test_a_forked_python_keeps_its_timers(box):
    box.keep()
    box.ask("""
import select, signal, threading, time
rings, late, slept = [0], [], []
signal.signal(signal.SIGALRM, lambda *_: rings.__setitem__(0, rings[0] + 1))
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
start = time.monotonic()
threading.Timer(1.5, lambda: late.append(time.monotonic() - start)).start()
def doze():
    time.sleep(1.5)
    slept.append(time.monotonic() - start)
threading.Thread(target=doze, daemon=True).start()
""")
    child, = box.fork()
    for m in box, child:
        before = m.ask("rings[0]")
        wait_for("the interval timer", lambda: m.ask("rings[0]") > before + 3)
        wait_for("the one-shot timer and the sleep", lambda: m.ask("late and slept"))
        assert m.ask("late[0] >= 1.5 and slept[0] >= 1.5"), "nothing may fire early"


def test_parent_and_children_never_see_each_others_writes(box):
    """Under load, in memory and on disk: 50 forks, 1,000 with PANDA_SOAK=1; ten at a time, each checked twice."""
    box.keep()
    box.ask((GUEST / "ground.py").read_text())
    box.ask("ground = Ground('/root/ground', 512, 128)")
    for turn in range(2 if FEW else count(5, 100)):
        children = box.fork(2 if FEW else 10)
        for n, m in enumerate(children):
            m.ask(f"ground.be('child {turn}.{n}')")
            assert m.ask("ground.check()") == 640
        box.ask(f"ground.be('parent {turn}')")
        assert box.ask("ground.check()") == 640
        for m in children:  # once more, now that all others have written
            assert m.ask("ground.check()") == 640
        box.panda.do("stop", *(m.id for m in children))


def test_a_child_sees_the_moment_of_its_own_fork(box):
    """MAP_PRIVATE over a file somebody still writes would show later writes on untouched pages."""
    box.keep()
    box.ask("import mmap; m = mmap.mmap(-1, 4 << 20)")
    children = []
    for moment in b"abcdef"[:count(6, 6)]:
        box.ask(f"m[:] = bytes([{moment}]) * len(m)")
        box.sh("printf %s \"$1\" >/root/moment; sync", chr(moment))
        children += zip([chr(moment)], box.fork())
    box.ask("m[:] = b'z' * len(m)")
    for moment, child in children:
        assert child.ask(f"m[:] == b'{moment}' * len(m)")
        assert child.run("cat", "/root/moment") == moment


def test_pages_written_here_and_there(box):
    """Every fourth of thousands of pages, by the kernel: each is a piece of its own to whoever asks the host what was written."""
    box.keep()
    box.ask("import os; fd = os.open('/dev/shm/x', os.O_RDWR | os.O_CREAT); n = os.pwrite(fd, b'a' * (32 << 20), 0)")
    box.fork()
    box.ask("for at in range(0, n, 4 * 4096): os.pwrite(fd, b'b', at)")
    child, = box.fork()
    for m in box, child:
        assert m.ask("os.pread(fd, n, 0)[::4096] == b'baaa' * (n // (4 * 4096))")


def test_forks_of_forks_go_twenty_deep(box):
    box.keep()
    box.ask("path = ['root']")
    line = [box]
    for depth in range(1, count(20, 20) + 1):
        child, = line[-1].fork()
        child.ask(f"path.append({depth})")
        child.sh("echo $1 >>/root/path", str(depth))
        line.append(child)
    for depth, m in enumerate(line):
        assert m.ask("path") == ["root", *range(1, depth + 1)]
        assert m.sh("cat /root/path 2>/dev/null || :").split() == [str(d) for d in range(1, depth + 1)]
        assert m.book()["generation"] == box.book()["generation"] + depth


def test_a_child_outlives_its_parent_and_grandparent(box):
    box.keep()
    box.ask("word = 'kept'")
    child, = box.fork()
    grandchild, = child.fork()
    box.stop()
    child.stop()
    assert grandchild.ask("word") == "kept"
    assert grandchild.fork()[0].ask("word") == "kept"


def test_one_parent_forks_a_hundred_times_in_sequence(box):
    """Far more than there is room for layers: old ones are merged, and nobody can tell."""
    box.keep()
    box.ask("import hashlib; pages = [bytes([n % 256]) * 65536 for n in range(100)]; "
            "sum = lambda: hashlib.sha256(b''.join(pages)).hexdigest()")
    keep, times = [], 27 if FEW else 100  # from 24 layers on they are merged
    for n in range(times):
        box.ask(f"pages[{n}] = b'fork {n}' * 8192; open('/root/file-{n}', 'w').write('{n}\\n')")
        child, = box.fork()
        if n % 20 == 19:
            keep.append((n, child, box.ask("sum()")))
        else:
            child.stop()
    for n, child, sum in keep:
        assert child.ask("sum()") == sum
        assert child.sh("cat /root/file-* | sort -n").split() == [str(i) for i in range(n + 1)]
    assert box.sh("cat /root/file-* | sort -n").split() == [str(i) for i in range(times)]


def test_a_parent_that_frees_and_reuses_memory_keeps_its_children_whole(box):
    box.keep()
    box.ask("import os; big = os.urandom(32 << 20); import hashlib; sum = hashlib.sha256(big).hexdigest()")
    child, = box.fork()
    box.ask("del big; other = [bytes([n]) * (1 << 20) for n in range(48)]")
    assert child.ask("hashlib.sha256(big).hexdigest() == sum")
    assert box.ask("all(set(o) == {n} for n, o in enumerate(other))")


def test_a_running_computation_goes_on_in_both(box):
    """A fork in the middle of registers, floating point included: the result is the same everywhere."""
    code = "import sys; x = 0.5\nfor i in range(%d): x = 3.9 * x * (1 - x)\nprint(x.hex())" % (500_000 if FEW else 1_500_000)
    want = box.python(code)
    box.sh("setsid python3 -c \"$1\" >/root/result 2>&1 </dev/null &", code)
    machines = [box, *(box.fork(3))]
    for m in machines:
        wait_for("the result", lambda: m.run("cat", "/root/result"))
        assert m.run("cat", "/root/result") == want


def test_a_commands_output_belongs_to_the_parent_alone(panda, box, procs):
    """An exec that is under way when the machine forks ends where it was asked for, once."""
    box.run("mkfifo", "/root/go")
    p = panda.start("exec", box.id, "--", "sh", "-c", "echo before; read x </root/go; echo after $x")
    procs.append(p)
    assert p.stdout.readline() == b"before\n"
    child, = box.fork()
    box.sh("echo parent >/root/go")
    out, err = p.communicate(timeout=180)
    assert (p.returncode, out, err) == (0, b"after parent\n", b"")
    assert child.answers()


def test_many_forks_in_one_go_all_answer(box):
    box.keep()
    box.ask("word = 'same'")
    children = box.fork(count(40, 40))
    assert len({m.id for m in children}) == count(40, 40)
    for n, m in enumerate(children):
        m.ask(f"word += ' {n}'")
    for n, m in enumerate(children):
        assert m.ask("word") == f"same {n}"
    assert box.ask("word") == "same"
