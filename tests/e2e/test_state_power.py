"""A power cut takes what SQLite had not synced: the record may be older than what is on disk."""
import contextlib
import sqlite3

from conftest import wait_for


def forget(p, id, state):
    """The record as it was before the last writes."""
    with contextlib.closing(sqlite3.connect(p.data / "panda.db")) as db:
        db.execute("UPDATE sandboxes SET state = ? WHERE id = ?", (state, id))
        db.commit()


def test_what_was_hibernated_counts_whatever_the_record_says(new_pandad):
    p = new_pandad()
    id = p.create()
    p.sh(id, "echo memory >/dev/shm/m; echo disk >/root/d")
    p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    for state in ("running", "paused", "hibernating", "waking"):
        p.kill9()
        forget(p, id, state)
        p.start()
        assert p.do("GET", f"/v1/sandboxes/{id}")["status"] == "hibernated", state
    assert p.sh(id, "cat /dev/shm/m /root/d")["stdout"] == "memory\ndisk\n"
    wait_for("what it slept in to go", lambda: p.snapshots() == [])


def test_a_rewind_that_the_record_forgot(new_pandad):
    """With another word in the record: the machine it names is the one that counts."""
    p = new_pandad()
    id = p.create(checkpoints="auto")
    p.sh(id, "echo 1 >/root/n")
    p.sh(id, "echo 2 >/root/n")
    p.do("POST", f"/v1/sandboxes/{id}/rewind")
    p.kill9()
    forget(p, id, "rewinding")
    p.start()
    assert p.do("GET", f"/v1/sandboxes/{id}")["status"] == "running"
    assert p.sh(id, "cat /root/n")["stdout"] == "1\n"
