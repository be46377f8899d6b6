"""Which engine a machine gets, and what is said when it cannot have the one that was asked for."""
import json
import re
import subprocess

import pytest

from conftest import ENGINE
from server import BUILD
from test_snapshot import OTHER, UM, forge

ISOLATION = {"um": "user-mode-kernel", "kvm": "kvm"}


def doctor(panda):
    r = subprocess.run([panda.program, "doctor", "--json"], env=panda.env, capture_output=True, text=True)
    return {row["name"]: row for row in json.loads(r.stdout)}


@pytest.fixture
def without_kvm(panda):
    """Why this host has none."""
    row = doctor(panda)["engine kvm"]
    if row["state"] == "ok":
        pytest.skip("this host has KVM")
    return row["detail"]


def test_the_doctor_says_which_engine_a_host_gets_and_why(panda):
    rows = doctor(panda)
    cpu = open("/proc/cpuinfo").read()
    hardware = re.search(r"^flags\s*:.* (svm|vmx)( |$)", cpu, re.M)
    if rows["engine kvm"]["state"] == "ok":
        assert hardware and hardware[1] in rows["engine kvm"]["detail"]
        assert rows["engine"]["detail"].startswith("auto is kvm")
    else:
        assert rows["engine"]["detail"].startswith("auto is um")
        if not hardware and subprocess.run(["test", "-c", "/dev/kvm"]).returncode == 0:
            assert "/dev/kvm opens, but the cpu has neither svm nor vmx" in rows["engine kvm"]["detail"]


def test_a_machines_book_names_its_engine(box):
    assert box.book()["engine"] == ENGINE


def test_what_is_no_engine_is_refused(panda):
    panda.refused("boot", "--engine", "xen", code=1, says=["auto, kvm or um", "xen"])
    assert panda.in_run_dir() == []


def test_a_host_without_kvm_says_so_when_kvm_is_asked_for(panda, without_kvm):
    panda.refused("boot", "--engine", "kvm", "--kernel", panda.env["PANDA_KERNEL"], code=1, says=[without_kvm, "engine = um"])
    assert panda.in_run_dir() == []


def test_what_runs_is_looked_at_and_ended_though_the_engine_works_no_more(panda, box, without_kvm):
    asks = ["--engine", "kvm", "--kernel", panda.env["PANDA_KERNEL"]]
    assert box.id in panda.do("ls", *asks).text
    assert panda.do("exec", *asks, box.id, "--", "echo", "here").text == "here\n"
    panda.do("stop", *asks, box.id)
    assert box.id not in panda.ls()


def test_auto_is_what_the_doctor_says(panda):
    m = panda.boot("--engine", "auto")
    assert doctor(panda)["engine"]["detail"].startswith(f"auto is {m.book()['engine']}")


def test_a_server_shows_the_isolation_of_a_sandbox(pandad):
    assert pandad.do("GET", "/version")["engine"] == ENGINE
    id = pandad.create()
    assert pandad.do("GET", f"/v1/sandboxes/{id}")["isolation"] == ISOLATION[ENGINE]


def test_the_isolation_is_known_after_a_restart(new_pandad):
    p = new_pandad()
    id = p.create()
    p.stop()
    p.start()
    assert p.do("GET", f"/v1/sandboxes/{id}")["isolation"] == ISOLATION[ENGINE]


def test_a_template_may_ask_for_an_engine(new_pandad, without_kvm):
    p = new_pandad(start=False)
    doc = json.loads((BUILD / "templates/base.json").read_text())
    for engine in "um", "kvm":
        doc.update(name=f"on-{engine}", aliases=[], engine=engine)
        (p.data / "templates" / f"on-{engine}.json").write_text(json.dumps(doc))
    p.start()
    a = p.ask("POST", "/v1/sandboxes", {"template": "on-kvm"})
    assert a.status >= 400 and "engine 'kvm' does not work on this host" in a.body.decode(), a
    id = p.create(template="on-um")
    assert p.sh(id, "echo here")["stdout"] == "here\n"


def test_a_server_that_must_use_kvm_does_not_start_without(new_pandad, without_kvm, tmp_path):
    vmlinux = tmp_path / "vmlinux"
    vmlinux.write_bytes(b"never read")
    p = new_pandad(start=False, engine="kvm", vmm=BUILD / "src/cli/panda", vmlinux=vmlinux)
    p.start(wait=False)
    assert p.ended() != 0
    assert without_kvm in p.tail()
    p.config["engine"] = "um"  # to be cleared away, it must run


def test_a_server_refuses_what_the_other_engine_saved_and_says_where_it_runs(new_pandad):
    """A data directory from a host with the other engine. Forged: few hosts have both."""
    p = new_pandad()
    id = p.create()
    p.sh(id, "echo kept >/root/f")
    snap = p.do("POST", f"/v1/sandboxes/{id}/snapshots")["id"]
    p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    p.stop()
    manifests = [p.data / "store/snapshots" / s / "manifest.json" for s in (snap, f"hib-{id}")]
    turn = lambda was, to: [forge(m, lambda t: t.replace(f'"engine":"{was}"', f'"engine":"{to}"')) for m in manifests]
    turn(ENGINE, OTHER)
    p.start()
    says = ["kernel"] if ENGINE == "kvm" and UM else [f"engine '{OTHER}'", "restore it on a host with that engine"]
    for path, body in ("/v1/sandboxes", {"from_snapshot": snap}), (f"/v1/sandboxes/{id}/exec", {"cmd": "true"}):
        a = p.ask("POST", path, body)
        assert (a.status, a.json["code"]) == (409, "snapshot_foreign"), a
        assert all(word in a.json["error"] for word in says), a
    assert p.do("GET", f"/v1/sandboxes/{id}")["status"] == "hibernated", "what cannot be woken here sleeps on"
    p.stop()
    turn(OTHER, ENGINE)  # and so it is woken where it can be
    p.start()
    assert p.sh(id, "cat /root/f")["stdout"] == "kept\n"
