"""What a machine learned at its bake about the memory it uses first (/proc/panda-learn) saves it faults, and changes nothing else.

Faults are counted by the guest's own kernel, so nothing here depends on how busy the host is.
"""
import json

import pytest

from conftest import ENGINE, need

pytestmark = pytest.mark.skipif(ENGINE != "um", reason="only the kernel of engine um takes such notes")

PAGES = 4000
STEP = 5  # what is written lies too far apart for fault-around by chance
SETUP = f'''
import hashlib, mmap, resource
PAGES, STEP = {PAGES}, {STEP}
m = mmap.mmap(-1, PAGES * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(PAGES):
    m[page * 4096 : page * 4096 + 8] = page.to_bytes(8, "little")

def write(n):
    "Faults that it takes to write here and there."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for page in range(0, PAGES, STEP):
        m[page * 4096 + 9] = n
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def look():
    "Faults that it takes to look at each page, in turn."
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    sum(m[page * 4096] for page in range(PAGES))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def written():
    return sorted({{m[page * 4096 + 9] for page in range(0, PAGES, STEP)}})

def rest():
    "A digest of all but what write() writes."
    return hashlib.sha256(b"".join(m[p * 4096 : p * 4096 + 9] + m[p * 4096 + 10 : p * 4096 + 4096] for p in range(PAGES))).hexdigest()
'''


def note(box, word):
    box.sh(f"echo {word} >/proc/panda-learn")


@pytest.fixture
def learner(box):
    box.keep()
    box.ask(SETUP)
    return box


def test_pages_that_were_used_while_it_learned_come_without_faults(learner):
    rest = learner.ask("rest()")
    plain, = learner.fork()
    faults = plain.ask("write(1)")
    assert faults >= PAGES / STEP / 2, "there is nothing to save here"

    note(learner, "begin")
    learner.ask("write(1)")
    note(learner, "first")
    assert learner.ask("rest()") == rest and learner.ask("written()") == [1], "they have moved, and are the same"
    a, b = learner.fork(2)
    assert a.ask("write(2)") < faults / 20
    assert b.ask("write(3)") < faults / 20
    assert [m.ask("written()") for m in (learner, a, b)] == [[1], [2], [3]], "nobody writes to what another one has"
    assert [m.ask("rest()") for m in (learner, a, b)] == [rest] * 3
    again, = a.fork()
    assert again.ask("written()") == [2] and again.ask("rest()") == rest
    again.ask("write(4)")
    assert a.ask("written()") == [2]


def test_what_may_be_used_later_comes_with_its_neighbours(learner):
    plain, = learner.fork()
    faults = plain.ask("write(1)")
    note(learner, "begin")
    learner.ask("write(1)")
    note(learner, "later")
    learner.ask("0")
    note(learner, "first")
    rest = learner.ask("rest()")
    child, = learner.fork()
    assert child.ask("write(2)") < faults / 5
    assert child.ask("written()") == [2] and child.ask("rest()") == rest
    assert learner.ask("written()") == [1]


def test_what_was_learned_may_be_wrong(learner):
    """All that was used is gone, shared or protected when the machine goes on."""
    note(learner, "begin")
    learner.ask("write(1)")
    learner.ask("import os, ctypes, signal; r, w = os.pipe(); pid = os.fork()\n"
                "if pid == 0:\n    os.read(r, 1)\n    os._exit(m[9] + m[STEP * 4096 + 9])")
    note(learner, "first")
    child, = learner.fork()
    child.ask("write(7)")
    assert child.ask("written()") == [7]
    child.ask("os.write(w, b'x')")
    assert child.ask("os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])") == 2, "its child has what was there when it was forked"
    child.ask("m.madvise(mmap.MADV_DONTNEED, 0, PAGES * 2048)")
    assert child.ask("m[STEP * 4096 + 9], m[(PAGES - STEP) * 4096 + 9]") == [0, 7]
    other, = learner.fork()
    other.ask("m.close(); m = mmap.mmap(-1, PAGES * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)")
    assert other.ask("written()") == [0]
    assert learner.ask("written()") == [1]


def test_nobody_learns_for_ever(learner):
    """While it takes notes a machine brings nothing in advance. Who starts from it does again."""
    plain, = learner.fork()
    few = plain.ask("look()")
    note(learner, "begin")
    assert learner.ask("look()") >= PAGES / 2
    child, = learner.fork()
    assert child.ask("look()") <= 2 * few + 100
    assert child.try_("sh", "-c", "echo first >/proc/panda-learn").code != 0, "nothing has begun in this life"


def test_only_root_takes_notes_and_only_in_words_it_knows(box):
    assert "Permission denied" in box.sh("setpriv --reuid 65534 --clear-groups sh -c 'echo begin >/proc/panda-learn' 2>&1 || :")
    for word in "first", "later", "nonsense", "", "begin-and-far-too-much-of-it":
        assert box.try_("sh", "-c", f"echo '{word}' >/proc/panda-learn").code != 0, word
    assert box.try_("cat", "/proc/panda-learn").code != 0
    for word in "begin", "begin", "later", "later", "first":
        note(box, word)
    assert box.answers() and box.fork()[0].answers()


def test_a_first_cell_of_a_resident_python_takes_few_faults(world):
    """650 without what was learned when the template was baked."""
    need(world, "python-data")
    id = world.do("POST", "/v1/sandboxes", {"template": "python-data"}, expect=201)["id"]

    def faults():
        r = world.do("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "cat /proc/$(pgrep -of repl.py)/stat"})
        return int(r["stdout"].rpartition(")")[2].split()[7])

    def cell(code):
        r = world.do("POST", f"/v1/sandboxes/{id}/repl/sessions/default/run", {"code": code})
        assert r["exit"] == 0, r
        return r["results"]

    before = faults()
    cell("import pandas")
    assert faults() - before < 200
    assert "42" in json.dumps(cell("pandas.Series([40, 2]).sum()"))
    assert cell("_, plt.rcParams['backend'], 'sys' in dir()")[0]["text/plain"] == "(42, 'agg', False)", "nothing of the rehearsal stays"
