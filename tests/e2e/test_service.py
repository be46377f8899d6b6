"""packaging/pandad.service: pandad and its machines live with all that the unit takes from them. There is no systemd here; the unit
is read, and what it says is done to a pandad before it starts: capabilities, system call filter, read-only file systems, OOM score."""
import contextlib
import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from server import NetPandad, TOP

UNIT = TOP / "packaging/pandad.service"
libc = ctypes.CDLL(None, use_errno=True)
PR_CAPBSET_DROP, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 24, 22, 38
NEWNS, RDONLY, REMOUNT, BIND, REC, SLAVE = 0x20000, 1, 32, 4096, 16384, 1 << 19
EPERM = 1

# systemd.exec(5); what x86_64 has of them. test_the_unit_is_one_that_systemd_takes compares them with systemd's where it is installed.
GROUPS = {
    "@clock": "adjtimex clock_adjtime clock_settime settimeofday",
    "@module": "delete_module finit_module init_module",
    "@obsolete": "_sysctl afs_syscall create_module get_kernel_syms getpmsg putpmsg query_module security sysfs tuxcall uselib ustat vserver",
    "@raw-io": "ioperm iopl",
    "@reboot": "kexec_file_load kexec_load reboot",
    "@swap": "swapoff swapon",
}


def said(key):
    """All values of a key, as words."""
    return [w for line in UNIT.read_text().splitlines() if line.startswith(key + "=") for w in line.partition("=")[2].split()]


def numbers(header, pattern):
    for include in "/usr/include", "/usr/include/x86_64-linux-gnu":
        file = Path(include, header)
        if file.exists():
            return {name: int(n) for name, n in re.findall(pattern, file.read_text(), re.M)}
    pytest.skip(f"{header} is not installed here")


def refused():
    """Numbers of the system calls that the unit refuses."""
    known = numbers("asm/unistd_64.h", r"^#define __NR_(\w+)\s+(\d+)$")
    first, *more = said("SystemCallFilter")
    assert first.startswith("~") and said("SystemCallErrorNumber") == ["EPERM"]
    return sorted(known[n] for g in [first[1:], *more] for n in GROUPS[g].split() if n in known)


def kept():
    """Numbers of the capabilities that the unit leaves."""
    known = numbers("linux/capability.h", r"^#define (CAP_\w+)\s+(\d+)$")
    return {known[name] for name in said("CapabilityBoundingSet")}


def must(r, what):
    if r != 0:
        os.write(2, f"{what}: {os.strerror(ctypes.get_errno())}\n".encode())
        os._exit(98)


class Service(NetPandad):
    """As systemd would start it. Between fork and exec, so all that takes an import was done before."""

    def prepare(self):
        assert said("NoNewPrivileges") == ["yes"] and said("ProtectSystem") == ["strict"]
        code = [struct.pack("=HBBI", 0x20, 0, 0, 0)]  # the number
        calls = refused()
        for i, n in enumerate(calls):
            code.append(struct.pack("=HBBI", 0x15, len(calls) - i, 0, n))
        code += [struct.pack("=HBBI", 6, 0, 0, 0x7fff0000), struct.pack("=HBBI", 6, 0, 0, 0x50000 | EPERM)]
        self.code = ctypes.create_string_buffer(b"".join(code))
        self.program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(self.code)))
        self.drop = sorted(set(range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1)) - kept())
        self.score = said("OOMScoreAdjust")[0]
        self.data.mkdir(parents=True, exist_ok=True)
        return self

    def enter(self):
        super().enter()
        with contextlib.suppress(PermissionError):  # a container's root may not be able to
            Path("/proc/self/oom_score_adj").write_text(self.score)
        must(libc.unshare(NEWNS), "unshare")
        must(libc.mount(None, b"/", None, REC | SLAVE, None), "slave")
        data = os.fsencode(self.data)
        must(libc.mount(data, data, None, BIND, None), "bind")
        must(libc.mount(None, b"/", None, REMOUNT | BIND | RDONLY, None), "read-only")
        for cap in self.drop:
            must(libc.prctl(PR_CAPBSET_DROP, cap, 0, 0, 0), f"cap {cap}")
        must(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        must(libc.prctl(PR_SET_SECCOMP, 2, self.program, 0, 0), "filter")


@pytest.fixture
def service(net, server_home):
    p = Service(net, server_home / "service", bakes=server_home / "bakes").prepare()
    # a socket's directory has to be one it can write
    p.config["listen"] = f"unix:{p.data}/socket"
    p.start()
    yield p
    p.close()


def status(pid):
    return dict(line.split(":\t", 1) for line in Path("/proc", str(pid), "status").read_text().splitlines() if ":\t" in line)


def test_pandad_works_with_what_its_unit_leaves_it(service):
    p = service
    of, here = status(p.process.pid), int(status("self")["CapBnd"], 16)
    assert of["NoNewPrivs"] == "1" and of["Seccomp"] == "2" and int(of["CapBnd"], 16) == here & sum(1 << n for n in kept()), of
    assert int(of["CapEff"], 16) == int(of["CapBnd"], 16)
    p.do("POST", "/v1/volumes", {"name": "kept", "size_mb": 64})
    id = p.create(volumes=[{"name": "kept", "path": "/kept"}])
    assert p.sh(id, "echo on >/kept/it && cat /kept/it")["stdout"] == "on\n"
    child = p.do("POST", f"/v1/sandboxes/{id}/fork-tree", {"count": 1})["children"][0]["id"]
    assert p.sh(child, "cat /kept/it")["stdout"] == "on\n"
    p.do("POST", f"/v1/sandboxes/{child}/pause")
    p.do("POST", f"/v1/sandboxes/{child}/resume")
    p.do("POST", f"/v1/sandboxes/{id}/hibernate")
    assert p.sh(id, "cat /kept/it")["stdout"] == "on\n"
    p.do("POST", f"/v1/sandboxes/{id}/snapshots", {"name": "saved"})
    assert p.sh(id, "cat /sys/class/net/eth0/carrier")["stdout"] == "1\n"
    p.do("DELETE", f"/v1/sandboxes/{id}/volumes/kept")
    for pids in p.processes(all=True).values():  # what runs, and what was made ahead
        for pid in pids:
            assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "500\n", "the OOM killer takes a machine first"
            assert int(status(pid)["CapBnd"], 16) == 0
    p.kill9()
    p.start()
    assert p.sh(id, "echo here")["stdout"] == "here\n", "the next pandad takes them up"
    assert p.sh(child, "echo here")["stdout"] == "here\n"


CALLS = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
got = {}
for n in json.loads(sys.argv[1]):
    r = libc.syscall(n, -1, 0, 0, 0, 0)
    got[n] = ctypes.get_errno() if r < 0 else 0
print(len(got), 38 in got.values())
"""


def test_a_guest_asks_its_own_kernel_for_what_the_unit_refuses(service):
    """The stub of a guest process has the filter, too. It must not end for a call that its kernel answers."""
    id = service.create()
    calls = refused()
    service.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/calls.py", CALLS.encode())
    r = service.sh(id, f"python3 /root/calls.py '{json.dumps(calls)}'")
    assert r["exit_code"] == 0 and r["stdout"].split()[0] == str(len(calls)), r
    # The guest's root may set its own clock: it was the guest's kernel that answered.
    r = service.sh(id, "date -s '2031-02-03 04:05:06' >/dev/null && date +%Y")
    assert r["stdout"] == "2031\n", r


def test_the_unit_is_one_that_systemd_takes(tmp_path):
    analyze = shutil.which("systemd-analyze")
    if not analyze:
        pytest.skip("systemd-analyze is not installed here")
    unit = tmp_path / "pandad.service"
    text = UNIT.read_text().replace("ExecStart=/usr/bin/pandad", "ExecStart=/bin/true")
    unit.write_text(re.sub("^Documentation=.*$", "", text, flags=re.M))
    r = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert r.returncode == 0 and "pandad.service" not in r.stderr, r
    known = numbers("asm/unistd_64.h", r"^#define __NR_(\w+)\s+(\d+)$")
    for group, names in GROUPS.items():
        r = subprocess.run([analyze, "syscall-filter", group], capture_output=True, text=True)
        listed = {line.strip() for line in r.stdout.splitlines()} & set(known)
        assert r.returncode != 0 or listed == set(names.split()) & set(known), group
