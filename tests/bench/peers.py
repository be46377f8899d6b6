"""Other sandboxes that do the same work in the same run: bubblewrap, gVisor, QEMU without KVM.

Each peer gives numbers under the names um-bench uses. What cannot be had on this machine raises Missing with the
reason. Nothing of the system's apt configuration is touched: packages of other suites come through one of our own and are
unpacked in the cache.
"""
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("PANDA_CACHE", "/var/cache/panda")) / "bench"
LOOP, SYSCALLS, CLOCKS, FAULT_MIB = "20000000", "20000", "100000", "64"  # as in um-bench.c


class Missing(Exception):
    pass


def run(*argv, timeout=120, **kw):
    try:
        return subprocess.run([str(a) for a in argv], check=True, capture_output=True, text=True, timeout=timeout, **kw).stdout
    except FileNotFoundError as e:
        raise Missing(f"{e.filename} is not there") from e
    except subprocess.TimeoutExpired as e:
        raise Missing(f"{argv[0]} took longer than {timeout} s") from e
    except subprocess.CalledProcessError as e:
        words = (e.stderr or e.stdout or "").strip().splitlines()
        raise Missing(f"{Path(str(argv[0])).name} failed: {words[-1][:160] if words else e.returncode}") from e


def took_ms(*argv):
    t = time.monotonic()
    run(*argv)
    return (time.monotonic() - t) * 1e3


def median_of(n, fn):
    return statistics.median(fn() for _ in range(n))


def fetch(suite, package):
    """The unpacked files of a package of another suite."""
    apt, root = CACHE / "apt" / suite, CACHE / f"{package}.{suite}"
    if root.is_dir():
        return root
    for d in ("lists/partial", "cache/archives/partial"):
        (apt / d).mkdir(parents=True, exist_ok=True)
    (apt / "status").write_text("")
    (apt / "sources.list").write_text(run(TOP / "tools/debian-sources", suite))
    own = [
        "-q", "-o", f"Dir::Etc::SourceList={apt}/sources.list", "-o", "Dir::Etc::SourceParts=/dev/null",
        "-o", "Dir::Etc::Preferences=/dev/null", "-o", "Dir::Etc::PreferencesParts=/dev/null",
        "-o", f"Dir::State::Lists={apt}/lists", "-o", f"Dir::State::Status={apt}/status",
        "-o", f"Dir::Cache={apt}/cache", "-o", "Acquire::Languages=none", "-o", "APT::Sandbox::User=root",
    ]  # fmt: skip
    run("apt-get", *own, "update", timeout=180)
    shown = run("apt-cache", *own, "show", "--no-all-versions", package)
    real = re.search(r"^Depends: (linux-image-\S+)", shown, re.M)  # of a package that only names the newest kernel
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        run("apt-get", *own, "download", real.group(1) if real else package, cwd=scratch, timeout=300)
        tree = Path(scratch) / "tree"
        run("dpkg-deb", "-x", next(Path(scratch).glob("*.deb")), tree)
        tree.rename(root)
    return root


def install(program, package):
    if shutil.which(program):
        return
    try:
        run("apt-get", "install", "-qy", "--no-install-recommends", package, timeout=300,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})  # fmt: skip
    except Missing as e:
        raise Missing(f"cannot install {package}: {e}") from e


def work_in(inside, work, rounds, native_loop_ms):
    """syscall, fault and loop of the helper program; inside(argv) runs it and gives what it prints."""

    def number(*args):
        return median_of(rounds, lambda: float(inside([work, *args])))

    return {
        "cpu_ratio": native_loop_ms / number("loop", LOOP),
        "syscall_us": number("syscall", SYSCALLS),
        "clock_ns": number("clock", CLOCKS),
        "fault_us": number("fault", FAULT_MIB),
    }


def bwrap(work, rounds, native_loop_ms):
    """Namespaces around a process of the host: no kernel of its own, so the floor for starting something."""
    install("bwrap", "bubblewrap")
    box = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev",
           "--tmpfs", "/tmp", "--ro-bind", work, "/tmp/work"]  # fmt: skip
    return {
        "start_ms_p50": median_of(5 * rounds, lambda: took_ms(*box, "/bin/true")),
        "python_ms_p50": median_of(2 * rounds, lambda: took_ms(*box, "/usr/bin/python3", "-c", "print(1)")),
        **work_in(lambda argv: run(*box, *argv), "/tmp/work", rounds, native_loop_ms),
    }


def runsc(work, rounds, native_loop_ms):
    """gVisor: a kernel written in Go, on its systrap platform."""
    exe = fetch("bookworm-backports", "runsc") / "usr/bin/runsc"
    with tempfile.TemporaryDirectory(prefix="panda-bench-") as tmp:
        shutil.copy(work, f"{tmp}/work")
        base = [exe, f"--root={tmp}/state", "--network=none", "--ignore-cgroups", "--platform=systrap"]
        config = {
            "ociVersion": "1.0.0",
            "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/bin/sleep", "1000000"],
                        "env": ["PATH=/usr/bin:/bin"]},
            "root": {"path": "/", "readonly": True},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
                       {"destination": "/tmp", "type": "bind", "source": tmp, "options": ["ro", "rbind"]}],
            "linux": {"namespaces": [{"type": t} for t in ("pid", "mount", "ipc", "uts", "network")]},
        }  # fmt: skip
        Path(tmp, "config.json").write_text(json.dumps(config))
        inside = [*base, "exec", "panda-bench"]

        def start():
            config["process"]["args"] = ["/bin/true"]
            Path(tmp, "config.json").write_text(json.dumps(config))
            return took_ms(*base, "run", f"--bundle={tmp}", "panda-bench-true")

        try:
            with open(f"{tmp}/log", "w") as log:  # the sandbox keeps it open, so no pipe of ours
                subprocess.run([*base, "run", "--detach", f"--bundle={tmp}", "panda-bench"], stdout=log, stderr=log, timeout=60)
            state = json.loads(run(*base, "state", "panda-bench"))["status"]
            if state != "running":
                raise Missing(f"its container is {state}")
            return {
                "exec_ms_p50": median_of(3 * rounds, lambda: took_ms(*inside, "/bin/true")),
                "python_ms_p50": median_of(2 * rounds, lambda: took_ms(*inside, "/usr/bin/python3", "-c", "print(1)")),
                **work_in(lambda argv: run(*inside, *argv), "/tmp/work", rounds, native_loop_ms),
                "start_ms_p50": median_of(rounds, start),
            }
        finally:
            subprocess.run([*base, "delete", "--force", "panda-bench"], capture_output=True, timeout=60)


def qemu_tcg(work, rounds, native_loop_ms):
    """A whole computer emulated in software, which is what a virtual machine is without KVM."""
    install("qemu-system-x86_64", "qemu-system-x86")
    kernel = next((fetch("bookworm", "linux-image-cloud-amd64") / "boot").glob("vmlinuz-*"))
    boots, told = [], {"loop": [], "syscall": [], "clock": [], "fault": []}
    with tempfile.TemporaryDirectory(prefix="panda-bench-") as tmp:
        shutil.copy(work, f"{tmp}/work")
        with open(f"{tmp}/initramfs", "wb") as out:
            subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], input=b"work\n", stdout=out, cwd=tmp, check=True)
        for _ in range(max(1, rounds // 2)):
            t = time.monotonic()
            vm = subprocess.Popen(
                ["qemu-system-x86_64", "-accel", "tcg", "-m", "512", "-nodefaults", "-no-reboot", "-display", "none", "-serial",
                 "stdio", "-kernel", kernel, "-initrd", f"{tmp}/initramfs", "-append", "console=ttyS0 quiet rdinit=/work -- init"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")  # fmt: skip
            try:
                for line in vm.stdout:  # ends when the machine powers off
                    m = re.search(r"work (\w+) ([\d.]+)", line)
                    if m and m.group(1) == "up":
                        boots.append((time.monotonic() - t) * 1e3)
                    elif m:
                        told[m.group(1)].append(float(m.group(2)))
            finally:
                vm.kill()
                vm.wait()
    if not boots or not all(told.values()):
        raise Missing("its guest did not say all we asked")
    return {
        "start_ms_p50": statistics.median(boots),
        "cpu_ratio": native_loop_ms / statistics.median(told["loop"]),
        "syscall_us": statistics.median(told["syscall"]),
        "clock_ns": statistics.median(told["clock"]),
        "fault_us": statistics.median(told["fault"]),
    }


ALL = {"bwrap": bwrap, "runsc": runsc, "qemu_tcg": qemu_tcg}
