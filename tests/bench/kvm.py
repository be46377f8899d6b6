#!/usr/bin/python3
"""kvm.py [-o FILE] - boots, restores and forks of engine kvm, as ratios of one run

usage: tools/rig tests/bench/kvm.py    (or without tools/rig, on a host with hardware virtualization)

In an emulated machine milliseconds say nothing, but one thing beside another does: `panda machine boot` beside QEMU's microvm with the
same kernel and root, both until the first program has run; and a restore and a fork, both until /bin/true has run, beside a boot until
the agent has answered. Then what a monitor takes for itself: resident memory that is not the guest's.
PANDA_BUILD: where our programs are, instead of build/. Exit code 1: a goal is missed, or something could not be measured.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PANDA_BUILD", TOP / "build"))
BOOTED = "Attempted to kill init"
GOALS = {"boot_vs_qemu": 0.7, "restore_vs_boot": 0.1, "monitor_mib": 3}
# An emulated SVM lets a guest set XCR0 of its host, so guests there must have no XSAVE; panda-vmm knows that by itself.
CPU = "qemu64" if os.environ.get("PANDA_RIG_OUT") else "host"
FILES = {"PANDA_VMM": "panda-vmm", "PANDA_VMLINUX": "panda-vmlinux", "PANDA_IMAGE": "base.img", "PANDA_UPPER": "upper.img"}


def environment():
    env = dict(os.environ, PANDA_ENGINE="kvm")
    env.setdefault("PANDA_RUN", "/run/panda-bench")
    for name, file in FILES.items():
        env.setdefault(name, str((BUILD / file).resolve()))
    return env


def ours(env):
    """What um-bench says of engine kvm."""
    numbers = {}
    args = [BUILD / "tests/bench/um-bench", "-q", "-q", "boot", "restore", "fork"]
    with subprocess.Popen(args, env=env, stdout=subprocess.PIPE, text=True) as p:
        for line in p.stdout:
            row = json.loads(line)
            numbers[row["key"]] = row["value"]
            print(f"{row['key']} {row['value']:.1f}", flush=True)
    if p.returncode:
        sys.exit(f"kvm.py: um-bench failed with {p.returncode}")
    return numbers


def small_image(path):
    """A root whose /sbin/panda-init ends at once: then the kernel says so, and that is when a boot is over."""
    with tempfile.TemporaryDirectory() as tree:
        for name in "sbin", "dev", "proc", "sys":
            os.mkdir(f"{tree}/{name}")
        shutil.copy(BUILD / "tests/bench/work", f"{tree}/sbin/panda-init")
        subprocess.run(["mkfs.erofs", "--quiet", path, tree], check=True, stdout=subprocess.DEVNULL)


def qemu_boot_ms(env, image):
    args = ["qemu-system-x86_64", "-accel", "kvm", "-cpu", CPU, "-M", "microvm,acpi=off,pit=off,pic=off,rtc=off", "-m", "512", "-nodefaults",
            "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio", "-kernel", env["PANDA_VMLINUX"],
            "-drive", f"id=root,file={image},format=raw,if=none,readonly=on", "-device", "virtio-blk-device,drive=root",
            "-append", "console=ttyS0 root=/dev/vda ro init=/sbin/panda-init quiet no_timer_check reboot=t panic=-1"]  # fmt: skip
    t = time.monotonic()
    with subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as vm:
        said = []
        for line in vm.stdout:
            said.append(line)
            if BOOTED in line:
                took = (time.monotonic() - t) * 1e3
                vm.kill()
                return took
    sys.exit("kvm.py: QEMU's guest did not come up: " + "".join(said)[-600:])


def our_boot_ms(env, image):
    """The same by `panda machine boot`, whose own start is part of it."""
    console = Path(env["PANDA_RUN"], "machines", "bench", "console.log")
    t = time.monotonic()
    with subprocess.Popen([BUILD / "src/cli/panda", "machine", "boot", "--id", "bench", "--image", image], env=env,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:  # fmt: skip
        while p.poll() is None:
            try:
                if BOOTED in console.read_text(errors="replace"):
                    break
            except OSError:
                pass
            time.sleep(0.05)  # more often, and looking would take its share of the one cpu
        took = (time.monotonic() - t) * 1e3
        err = p.communicate()[1]
    if "Kernel panic" not in err:
        sys.exit(f"kvm.py: our guest did not come up: {err}")
    return took


def monitor_mib(env):
    """What a machine's process has in memory besides the guest's: not in a mapping of a memory layer."""
    panda, run = BUILD / "src/cli/panda", Path(env["PANDA_RUN"])
    id = subprocess.run([panda, "machine", "boot"], env=env, check=True, capture_output=True, text=True).stdout.strip()
    try:
        pid = json.loads((run / "machines" / id / "machine.json").read_text())["pid"]
        kib, guest = 0, False
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                guest = "panda-memory" in line
            elif line.startswith("Rss:") and not guest:
                kib += int(line.split()[1])
    finally:
        subprocess.run([panda, "machine", "stop", id], env=env, check=True)
    return kib / 1024


def main():
    env = environment()
    with tempfile.TemporaryDirectory() as tmp:
        image = f"{tmp}/root"
        small_image(image)
        pairs = [(our_boot_ms(env, image), qemu_boot_ms(env, image)) for _ in range(5)]  # in turn: both meet the same host
    numbers = {
        "kvm.boot_small_ms_p50": statistics.median(p[0] for p in pairs),
        "qemu.boot_small_ms_p50": statistics.median(p[1] for p in pairs),
        "kvm.boot_vs_qemu": statistics.median(p[0] / p[1] for p in pairs),
        "kvm.monitor_mib": monitor_mib(env),
    }
    for name, value in numbers.items():
        print(f"{name} {value:.2f}", flush=True)
    numbers |= ours(env)
    boot = numbers["kvm.boot_ms_p50"]
    numbers["kvm.restore_vs_boot"] = numbers["kvm.restore_ms_p50"] / boot
    numbers["kvm.fork_vs_boot"] = numbers["kvm.fork_ms_p50"] / boot
    missed = 0
    for name in "boot_vs_qemu", "restore_vs_boot", "fork_vs_boot", "monitor_mib":
        value, goal = numbers[f"kvm.{name}"], GOALS.get(name)
        missed += goal is not None and value > goal
        print(f"kvm.{name:<16} {value:6.2f}" + (f"   goal <= {goal}: {'met' if value <= goal else 'missed'}" if goal else ""))
    if len(sys.argv) == 3 and sys.argv[1] == "-o":
        Path(sys.argv[2]).write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
