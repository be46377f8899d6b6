"""Volumes through the API: they outlive sandboxes, have one writer, and forks get copies of their own."""
from conftest import wait_for


def volume(p, name="data", size_mb=64):
    return p.do("POST", "/v1/volumes", {"name": name, "size_mb": size_mb}, expect=201)


def with_volume(p, name="data", path="/workspace", **more):
    return p.create(volumes=[dict(name=name, path=path, **more)])


def test_a_volume_outlives_sandboxes(pandad):
    v = volume(pandad)
    assert (v["name"], v["size_mb"]) == ("data", 64)
    one = with_volume(pandad)
    assert pandad.sh(one, "echo kept >/workspace/f; sync; df /workspace | tail -1")["stdout"].split()[-1] == "/workspace"
    pandad.do("DELETE", f"/v1/sandboxes/{one}")
    two = with_volume(pandad, path="/mnt/elsewhere")
    assert pandad.sh(two, "cat /mnt/elsewhere/f")["stdout"] == "kept\n"


def test_without_a_path_it_is_mounted_by_its_name(pandad):
    volume(pandad)
    id = pandad.create(volumes=[{"name": "data"}])
    assert "/mnt/data" in pandad.sh(id, "cat /proc/mounts")["stdout"]


def test_one_writer_or_many_readers(pandad):
    volume(pandad)
    one = with_volume(pandad)
    a = pandad.ask("POST", "/v1/sandboxes", {"template": "base", "volumes": [{"name": "data", "path": "/w"}]})
    assert (a.status, a.json["code"]) == (409, "volume_busy") and one in a.json["error"], a
    a = pandad.ask("DELETE", "/v1/volumes/data")
    assert a.status == 409, a
    pandad.sh(one, "echo x >/workspace/f; sync")
    pandad.do("DELETE", f"/v1/sandboxes/{one}")
    readers = [with_volume(pandad, read_only=True) for _ in range(2)]
    for r in readers:
        assert pandad.sh(r, "cat /workspace/f")["stdout"] == "x\n"
        assert pandad.sh(r, "echo y >/workspace/f")["exit_code"] != 0


def test_a_fork_has_a_copy_of_its_own(pandad):
    volume(pandad)
    one = with_volume(pandad)
    pandad.sh(one, "echo before >/workspace/f; sync")
    child = pandad.do("POST", f"/v1/sandboxes/{one}/fork")["children"][0]
    pandad.sh(child, "echo child >/workspace/f; sync")
    pandad.sh(one, "echo parent >>/workspace/f; sync")
    assert pandad.sh(child, "cat /workspace/f")["stdout"] == "child\n"
    assert pandad.sh(one, "cat /workspace/f")["stdout"] == "before\nparent\n"
    pandad.do("POST", f"/v1/sandboxes/{child}/hibernate")
    assert pandad.sh(child, "cat /workspace/f")["stdout"] == "child\n"
    pandad.do("DELETE", f"/v1/sandboxes/{child}")
    wait_for("its copy to go", lambda: len(pandad.volumes()) == 1)


def test_hibernate_keeps_it_attached(pandad):
    volume(pandad)
    id = with_volume(pandad)
    pandad.sh(id, "echo 1 >/workspace/f; exec 9>>/workspace/f; sleep 1000 >/dev/null 2>&1 &")
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    a = pandad.ask("POST", "/v1/sandboxes", {"template": "base", "volumes": [{"name": "data", "path": "/w"}]})
    assert a.status == 409, a
    assert pandad.sh(id, "echo 2 >>/workspace/f; cat /workspace/f")["stdout"] == "1\n2\n"


def test_a_killed_pandad_keeps_volumes_and_their_holders(new_pandad):
    p = new_pandad()
    volume(p)
    id = with_volume(p)
    p.sh(id, "echo 1 >/workspace/f; sync")
    p.kill9()
    p.start()
    assert p.sh(id, "cat /workspace/f")["stdout"] == "1\n"
    assert p.ask("DELETE", "/v1/volumes/data").status == 409


def test_bad_volumes_are_refused_in_words(pandad):
    volume(pandad)
    for body, status in ({"name": "data"}, 409), ({"name": "a/b"}, 400), ({"name": "x", "size_mb": 1}, 400), ({}, 400), \
            ({"name": "big", "size_mb": 1 << 30}, 400):
        a = pandad.ask("POST", "/v1/volumes", body)
        assert a.status == status and a.json["error"], a
    for volumes in [{"name": "nobody"}], [{"name": "data", "path": "relative"}], [{"path": "/x"}], "data", [5], \
            [{"name": "data", "path": "/a"}, {"name": "data", "path": "/b"}]:
        a = pandad.ask("POST", "/v1/sandboxes", {"template": "base", "volumes": volumes})
        assert a.status in (400, 404) and a.json["error"], (volumes, a)
