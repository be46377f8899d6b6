"""A guest has taken over its kernel: the machine's process, in its real jail, lies to the host (guest/liar.c). That machine is lost;
pandad, what else runs and what was saved are as before, and nothing is left of it."""
import json
import re
import subprocess
from pathlib import Path

import pytest

from conftest import BUILD, ENGINE, HOSTILE, TOP
from server import Pandad

pytestmark = pytest.mark.skipif(ENGINE != "um", reason="the monitor of the other engine is not the guest's kernel")
LIES = re.search(r"enum lie \{(.*?)\};", (HOSTILE / "liar.c").read_text(), re.S)[1]
LIES = re.findall(r"^\t([A-Z_]+)", LIES, re.M)
CORE = {"GARBAGE", "CUT"}
LONG = 150  # seconds: more than the host waits for a kernel, and then for its agent


def rss_mib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) // 1024


@pytest.fixture(scope="module")
def quiet(server_home):
    """pandad with a sandbox of the real kernel, which is looked at beside the liars. When they are gone it makes more of them."""
    p = Pandad(server_home / "liars", bakes=server_home / "bakes").start()
    id = p.create()
    assert p.sh(id, "echo 42 >/dev/shm/x; echo 43 >/root/x; sync; cat /dev/shm/x /root/x")["stdout"] == "42\n43\n"
    yield p, id
    try:
        assert p.sh(p.create(), "echo $((6 * 7))")["stdout"] == "42\n"
    finally:
        p.close()


@pytest.mark.parametrize("lie", [pytest.param(n, marks=[pytest.mark.core] if n in CORE else []) for n in LIES])
def test_a_kernel_that_lies_is_alone_with_it(quiet, tmp_path, lie):
    p, kept = quiet
    liar = tmp_path / "panda-um"
    subprocess.run(["cc", "-O1", "-D_GNU_SOURCE", "-Wno-unused-result", "-static", f"-DLIE={lie}", "-I", TOP / "src", "-o", liar,
                    HOSTILE / "liar.c"], check=True)
    liar.chmod(0o711)
    kernel, image = p.config["kernel"], Path(json.loads((BUILD / "templates/base.json").read_text())["image"])
    was = image.stat()
    p.stop()
    p.config["kernel"] = liar
    p.start()
    try:
        look = lambda: p.sh(kept, "cat /dev/shm/x /root/x")["stdout"] == "42\n43\n"
        assert look()
        small = rss_mib(p.process.pid)
        answer = p.ask("POST", "/v1/sandboxes", {"template": "base"}, timeout=LONG)
        assert look()
        if answer.status == 201:  # it lied about what nobody but itself needs
            id = answer.json["id"]
            p.ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "true", "timeout_seconds": 5}, timeout=LONG)
            for what in "snapshots", "fork", "hibernate":
                p.ask("POST", f"/v1/sandboxes/{id}/{what}", timeout=LONG)
        else:
            assert answer.status >= 500 and answer.json["code"] and answer.json["error"], answer
        assert look() and rss_mib(p.process.pid) < small + 64
        for sb in p.do("GET", "/v1/sandboxes"):
            if sb["id"] != kept:
                p.do("DELETE", f"/v1/sandboxes/{sb['id']}")
        for s in p.do("GET", "/v1/snapshots")["snapshots"]:
            p.do("DELETE", f"/v1/snapshots/{s['id']}")
        assert {s["id"] for s in p.do("GET", "/v1/sandboxes")} == {kept} and set(p.processes()) == {kept}, p.tail()
    finally:
        p.stop()
        p.config["kernel"] = kernel
        p.start()
    now = image.stat()
    assert (now.st_size, now.st_mtime_ns) == (was.st_size, was.st_mtime_ns)
    assert look()
