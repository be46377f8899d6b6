"""How long snapshots are kept: the last so many, so long, so much of one owner; those with a name stay."""
from conftest import wait_for
from test_state_model import in_store, in_use


def take(p, id, **body):
    return p.do("POST", f"/v1/sandboxes/{id}/snapshots", body)["id"]


def kept(p, id=None):
    return [s["id"] for s in p.do("GET", "/v1/snapshots" + (f"?sandbox_id={id}" if id else ""))["snapshots"]]


def test_the_last_so_many_of_each_sandbox(new_pandad):
    p = new_pandad(snapshots_keep=2)
    id, other, own, all = p.create(), p.create(), p.create(snapshots_keep=1), p.create(snapshots_keep=0)
    named = take(p, id, name="keep me")
    taken = [take(p, id) for _ in range(4)]
    assert kept(p, id) == [taken[3], taken[2], named]
    assert len([take(p, other) for _ in range(2)]) == len(kept(p, other)) == 2
    last = [take(p, own) for _ in range(3)][-1]
    assert kept(p, own) == [last]
    assert len([take(p, all) for _ in range(3)]) == len(kept(p, all)) == 3
    wait_for("their files to go", lambda: set(p.snapshots()) == set(kept(p)))
    wait_for("their layers to go", lambda: in_store(p) <= in_use(p))
    p.kill9()
    p.start()
    take(p, own)
    assert len(kept(p, own)) == 1, "the rule is on record"


def test_so_long_also_when_the_sandbox_is_gone_and_after_a_crash(new_pandad):
    p = new_pandad(snapshots_max_age_seconds=1)
    id, own = p.create(), p.create(snapshots_max_age_seconds=0)
    stays = [take(p, own), take(p, id, name="n")]
    s = p.do("POST", f"/v1/sandboxes/{id}/snapshots")
    goes = s["id"]
    assert s["expires_at"] > s["created_at"] and not p.do("GET", f"/v1/snapshots/{stays[0]}")["expires_at"]
    for i in id, own:
        p.do("DELETE", f"/v1/sandboxes/{i}")
    p.kill9()
    p.start()
    wait_for("its time to be up", lambda: set(kept(p)) == set(stays))
    assert p.ask("GET", f"/v1/snapshots/{goes}").status == 404
    events = [e for e in p.do("GET", "/v1/events?limit=100")["events"] if e["type"] == "snapshot.expired"]
    assert [e["payload"]["snapshot_id"] for e in events] == [goes]
    wait_for("its files to go", lambda: set(p.snapshots()) == set(stays))


def test_so_much_of_one_owner(new_pandad):
    p = new_pandad()
    id = p.create()
    size = p.do("GET", f"/v1/snapshots/{take(p, id)}")["size_bytes"]
    p.stop()
    p.config["snapshots_total_mb"] = (3 * size >> 20) + 1
    p.start()
    named = take(p, id, name="n")
    taken = [take(p, id) for _ in range(4)]
    now = kept(p)
    assert named in now and taken[-1] in now and len(now) < 5, "the oldest went, those with a name did not"
    assert sum(s["size_bytes"] for s in p.do("GET", "/v1/snapshots")["snapshots"]) <= p.config["snapshots_total_mb"] << 20


def test_a_rule_that_cannot_be_is_refused(pandad):
    for body in {"snapshots_keep": -1}, {"snapshots_keep": "x"}, {"snapshots_keep": True}, {"snapshots_max_age_seconds": -1}:
        a = pandad.ask("POST", "/v1/sandboxes", body)
        assert a.status == 400 and next(iter(body)) in a.json["error"], a
