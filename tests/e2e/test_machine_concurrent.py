"""Several hands on one machine at once, and hands that die half way."""
import os

from test_machine_lifecycle import at_once, kill_after, moments


def test_many_hands_may_fork_one_machine_at_once(panda, box):
    box.keep()
    box.ask("word = 'kept'")
    for turn in range(5):
        children = [m for some in at_once(*[box.fork] * 6) for m in some]
        assert len({m.id for m in children}) == 6
        for m in children:
            assert m.ask("word") == f"kept{' again' * turn}"
        box.ask("word += ' again'")
        panda.do("stop", *(m.id for m in children))


def test_fork_save_pause_exec_and_look_at_once(panda, box):
    box.keep()
    box.ask("word = 'kept'")
    pause_and_resume = lambda: (box.pause(), box.resume())
    for turn in range(5):
        forks, *_ = at_once(lambda: box.fork(3), lambda: box.snapshot(f"s{turn}"), pause_and_resume,
                            lambda: box.answers(), lambda: panda.do("stats", box.id), panda.ls)
        for m in [box, *forks, *panda.restore(f"s{turn}")]:
            assert m.ask("word") == "kept"
        panda.do("stop", *(i for i in panda.in_run_dir() if i != box.id))


def test_a_fork_that_is_killed_half_way_leaves_parent_and_children_sound(panda, box):
    box.keep()
    box.ask("word = 'kept'")
    for moment in moments(20):
        kill_after(panda, moment, "fork", box.id, "-n", "3")
        assert box.ask("word") == "kept"
        child, = box.fork()
        assert child.ask("word") == "kept"
        panda.do("stop", *(i for i in panda.in_run_dir() if i != box.id))


def test_a_snapshot_that_is_killed_half_way_is_there_whole_or_not_at_all(panda, box):
    box.keep()
    box.ask("word = 'kept'")
    for n, moment in enumerate(moments(800)):
        kill_after(panda, moment, "snapshot", box.id, f"s{n}")
        if f"s{n}" in panda.do("snapshots").text.split():
            m, = panda.restore(f"s{n}")
            assert m.ask("word") == "kept"
            m.stop()
            panda.do("delete", f"s{n}")
        assert box.ask("word") == "kept"
        panda.do("gc")
        assert os.listdir(panda.store / "snapshots") == []
    assert box.fork()[0].ask("word") == "kept"
