"""What a sandbox may take: its disk, and what stands behind that when its kernel does not care."""


def available_kib(pandad, id):
    return int(pandad.sh(id, "df -k --output=avail / | tail -n1")["stdout"])


def test_a_smaller_disk_is_full_sooner(pandad):
    id = pandad.create(disk_gb=1)
    assert pandad.do("GET", f"/v1/sandboxes/{id}")["disk_gb"] == 1
    assert (1 << 20) - 1000 <= available_kib(pandad, id) <= 1 << 20
    assert pandad.sh(id, "fallocate -l 500M /root/fits")["exit_code"] == 0
    r = pandad.sh(id, "fallocate -l 600M /root/does-not || { rm -f /root/does-not; false; }")
    assert r["exit_code"] != 0 and "No space left" in r["stderr"]
    left = available_kib(pandad, id) - 1024  # blocks of its own that a file needs
    assert pandad.sh(id, f"fallocate -l {left}K /root/rest")["exit_code"] == 0
    a = pandad.ask("PUT", f"/v1/sandboxes/{id}/fs?path=/root/more", b"x" * (4 << 20))
    assert a.status == 507 and a.json["code"] == "disk_full", a
    assert pandad.sh(id, "rm /root/rest; echo enough >/root/more && cat /root/more")["stdout"] == "enough\n"


def test_the_limit_stays_with_forks_snapshots_and_sleep(pandad):
    id = pandad.create(disk_gb=2)
    snapshot = pandad.do("POST", f"/v1/sandboxes/{id}/snapshots", {})["id"]
    (child,) = pandad.do("POST", f"/v1/sandboxes/{id}/fork-tree", {"count": 1})["children"]
    again = pandad.create(from_snapshot=snapshot)
    smaller = pandad.create(from_snapshot=snapshot, disk_gb=1)
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    for sandbox, gb in (child["id"], 2), (again, 2), (smaller, 1), (id, 2):
        assert (gb << 20) - 1000 <= available_kib(pandad, sandbox) <= gb << 20
        assert pandad.do("GET", f"/v1/sandboxes/{sandbox}")["disk_gb"] == gb


def test_more_than_the_template_has_is_what_the_template_has(pandad):
    whole = pandad.create()
    id = pandad.create(disk_gb=1000)
    assert pandad.do("GET", f"/v1/sandboxes/{id}")["disk_gb"] == pandad.do("GET", f"/v1/sandboxes/{whole}")["disk_gb"] == 8
    assert abs(available_kib(pandad, id) - available_kib(pandad, whole)) < 1 << 10


def test_no_file_of_a_machine_outgrows_its_disk(pandad):
    """Whatever its kernel does: the host's kernel says no."""
    id = pandad.create()
    for pid in pandad.processes()[id]:
        with open(f"/proc/{pid}/limits") as f:
            (soft, hard) = next(line.split()[3:5] for line in f if line.startswith("Max file size"))
        assert int(soft) == int(hard) == (8 << 30) + (64 << 20)
