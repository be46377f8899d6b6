"""Several hands on one machine at once."""
from test_life import at_once


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
