"""Going back, comparing and racing through our own client."""
import asyncio

import pytest


def test_the_undo_key(pandad):
    import pandastack
    with pandastack.Sandbox.create("base", checkpoints="auto", client=pandad.client()) as sb:
        sb.exec("echo 1 >/root/n")
        good = sb.checkpoint("good")
        assert good.name == "good" and not good.automatic and good == good.id
        sb.exec("rm -rf /root /usr/bin")
        assert len(sb.checkpoints()) == 3
        r = sb.rewind(to="good")
        assert r.checkpoint_id == good
        assert sb.exec("cat /root/n").stdout == "1\n"
        sb.rewind()
        with pytest.raises(ValueError):
            sb.rewind(1, to="good")
        with pytest.raises(pandastack.NotFoundError):
            sb.rewind(to="nope")
        sb.set_checkpoints("off")
        n = len(sb.checkpoints())
        sb.exec("true")
        assert len(sb.checkpoints()) == n


def test_race_diff_merge(pandad):
    import pandastack
    with pandastack.Sandbox.create("base", client=pandad.client()) as sb:
        sb.write("/root/t", "one\ntwo\n")
        r = sb.race(["sleep 20", "sleep 0.1; sed -i s/two/zwei/ /root/t; echo new >/root/new", "false"])
        assert r.index == 1 and r.result.exit_code == 0 and len(r.outcomes) == 3
        d = sb.diff(r.winner, unified=True)
        assert [f.path for f in d.added] == ["/root/new"] and [f.path for f in d.changed] == ["/root/t"]
        assert "-two\n+zwei\n" in d.changed[0].unified
        m = sb.merge(r.winner)
        assert m.applied and m.added == ["/root/new"] and m.changed == ["/root/t"] and not m.conflicts
        assert not sb.diff(r.winner)
        assert sb.read("/root/t") == b"one\nzwei\n"
        r.winner.kill()
        assert sb.race(["false", "false"]).winner is None


def test_a_snapshot_travels(pandad, tmp_path):
    import pandastack
    c = pandad.client()
    with pandastack.Sandbox.create("base", client=c) as sb:
        sb.write("/root/t", "here")
        snap = sb.snapshot("s")
        assert snap.expires_at is None
    n = c.snapshots.export(snap, tmp_path / "s.tar")
    assert n == (tmp_path / "s.tar").stat().st_size and list(tmp_path.iterdir()) == [tmp_path / "s.tar"]
    c.snapshots.delete(snap)
    with pytest.raises(pandastack.NotFoundError):
        c.snapshots.export(snap, tmp_path / "gone.tar")
    assert list(tmp_path.iterdir()) == [tmp_path / "s.tar"], "half a file is none"
    again = c.snapshots.import_(tmp_path / "s.tar")
    with open(tmp_path / "s.tar", "rb") as f:
        twice = c.snapshots.import_(f)
    assert len({snap, again, twice}) == 3 and again.name == "s"
    with pandastack.Sandbox.from_snapshot(again, client=c) as sb:
        assert sb.read("/root/t") == b"here"
    (tmp_path / "bad").write_bytes(b"x" * 100000)
    with pytest.raises(pandastack.BadRequestError, match="no exported snapshot"):
        c.snapshots.import_(tmp_path / "bad")


def test_async(pandad):
    import pandastack

    async def go():
        c = pandastack.AsyncClient(api_key=pandad.key, api_url=pandad.url)
        sb = await pandastack.AsyncSandbox.create("base", client=c)
        await sb.checkpoint("x")
        await sb.exec("echo 1 >/root/n")
        await sb.rewind(to="x")
        assert (await sb.exec("ls /root/n")).exit_code != 0
        r = await sb.race(["true"])
        assert r.winner is not None
        await r.winner.kill()
        await sb.kill()

    asyncio.run(go())
