#!/usr/bin/python3
"""kvm.py [-o FILE] - boots, restores and forks of engine kvm, as ratios of one run

usage: tools/rig tests/bench/kvm.py    (or without tools/rig, on a host with hardware virtualization)

In an emulated machine milliseconds say nothing, but one thing beside another does.
Boot: a machine of ours beside QEMU's microvm, each with the same kernel, command line, root, memory and one vcpu, until the first program
has written a line on the console. QEMU has -cpu host and the six devices that our machine has, too (its six places for volumes are empty);
beside it, for who needs no more, one with a disk and nothing else. QEMU's time begins with its process. Ours begins when the engine is asked for a machine,
as by pandad, so with directory, jail and process; beside it with the start of the command line, which opens an engine first.
Restore and fork beside a boot, all of them until /bin/true has run; a boot after each fourth restore, and several turns, each with its own
snapshot: an emulated machine is now faster, now slower, for seconds. Restores and forks get a process that was made ahead, as pandad's do (restore_bare: without).
They stand beside QEMU's boot, too, whose guest has run less by then.
Then what a monitor takes for itself: resident memory that is not the guest's.
PANDA_BUILD: where our programs are, instead of build/. Exit code 1: a goal is missed, or something could not be measured.
"""

import ctypes
import json
import mmap
import os
import re
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("PANDA_BUILD", TOP / "build"))
BOOTED = "the first program runs"
ROUNDS = 9
TURNS = 5
IN_MODIFY, IN_CREATE = 2, 0x100  # sys/inotify.h
MEMORY_MIB = 512
GOALS = {"boot_vs_qemu": 0.7, "restore_vs_boot": 0.1, "monitor_mib": 3}
# An emulated SVM lets a guest set XCR0 of its host, so guests there must have no XSAVE; panda-vmm knows that by itself.
CPU = "host,-xsave,-avx,-avx2,-fma,-f16c" if os.environ.get("PANDA_RIG_OUT") else "host"
FILES = {"PANDA_VMM": "panda-vmm", "PANDA_VMLINUX": "panda-vmlinux", "PANDA_IMAGE": "base.img", "PANDA_UPPER": "upper.img"}


def environment():
    env = dict(os.environ, PANDA_ENGINE="kvm")
    env.setdefault("PANDA_RUN", "/run/panda-bench")
    for name, file in FILES.items():
        env.setdefault(name, str((BUILD / file).resolve()))
    return env


def ours(env):
    """What um-bench says of engine kvm in one turn, and how a restore and a fork compare with a boot of this turn."""
    numbers = {}
    args = [BUILD / "tests/bench/um-bench", "-q", "-q", "restore", "fork"]
    with subprocess.Popen(args, env=env, stdout=subprocess.PIPE, text=True) as p:
        for line in p.stdout:
            row = json.loads(line)
            numbers[row["key"]] = row["value"]
    if p.returncode:
        sys.exit(f"kvm.py: um-bench failed with {p.returncode}")
    for name, key in ("restore", "restore_ms_p50"), ("restore_bare", "restore_bare_ms_p50"), ("fork", "fork_ms_p50"):
        numbers[f"kvm.{name}_vs_boot"] = numbers[f"kvm.{key}"] / numbers["kvm.boot_exec_ms_p50"]
    print(" ".join(f"{k.removeprefix('kvm.')} {v:.3g}" for k, v in numbers.items()), flush=True)
    return numbers


def small_image(path):
    """A root with one program."""
    with tempfile.TemporaryDirectory() as tree:
        for name in "sbin", "dev", "proc", "sys":
            os.mkdir(f"{tree}/{name}")
        shutil.copy(BUILD / "tests/bench/first", f"{tree}/sbin/panda-init")
        subprocess.run(["mkfs.erofs", "--quiet", path, tree], check=True, stdout=subprocess.DEVNULL)


def wipe():
    """In an emulated machine, memory that held a kernel's code is slow to clear, and it is what the next one gets: nobody's fault."""
    with mmap.mmap(-1, 2 * MEMORY_MIB << 20, flags=mmap.MAP_PRIVATE) as m:
        m.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, len(m), 1 << 16):
            m[at] = 1


def devices(env):
    """Upper disk, network, randomness, a channel for an agent, balloon."""
    args = ["-drive", f"id=upper,file={env['PANDA_UPPER']},format=raw,if=none,readonly=on", "-device", "virtio-blk-device,drive=upper"]
    channel = "vhost-vsock-device,guest-cid=3" if os.path.exists("/dev/vhost-vsock") else "virtio-serial-device"  # modprobe vhost_vsock
    for name in "virtio-net-device", "virtio-rng-device", channel, "virtio-balloon-device,free-page-reporting=on":
        args += ["-device", name]
    return args


def qemu_boot_ms(env, image, more=()):
    args = ["qemu-system-x86_64", "-accel", "kvm", "-cpu", CPU, "-M", "microvm,acpi=off,pit=off,pic=off,rtc=off", "-m", str(MEMORY_MIB),
            "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio", "-kernel", env["PANDA_VMLINUX"],
            "-drive", f"id=root,file={image},format=raw,if=none,readonly=on", "-device", "virtio-blk-device,drive=root", *more,
            "-append", "root=/dev/vda ro init=/sbin/panda-init console=ttyS0 quiet no_timer_check tsc=nowatchdog reboot=k panic=-1"]  # fmt: skip
    wipe()
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
    """Until the first program, since the engine was asked; and since the command was started that asked it."""
    machines = Path(env["PANDA_RUN"], "machines")
    command = [BUILD / "src/cli/panda", "machine"]
    subprocess.run([*command, "ls"], env=env, check=True, stdout=subprocess.DEVNULL)  # makes the directory
    asked = watch(machines, IN_CREATE)
    wipe()
    t = time.monotonic()
    with subprocess.Popen([*command, "boot", "--id", "bench", "--memory", str(MEMORY_MIB), "--image", image], env=env,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:  # fmt: skip
        wait_for(asked, p)
        begun = time.monotonic()
        console = machines / "bench" / "console.log"
        while not console.exists() and p.poll() is None:
            time.sleep(0.002)
        changed = watch(console, IN_MODIFY)
        while BOOTED not in console.read_text(errors="replace"):
            wait_for(changed, p)
        end = time.monotonic()
        p.kill()  # it waits for an agent
    os.close(asked)
    os.close(changed)
    subprocess.run([*command, "stop", "bench"], env=env, check=True)
    return (end - begun) * 1e3, (end - t) * 1e3


def watch(path, what):
    """An fd that can be read when that has happened."""
    libc = ctypes.CDLL(None)
    fd = libc.inotify_init1(os.O_CLOEXEC)
    if fd < 0 or libc.inotify_add_watch(fd, str(path).encode(), what) < 0:
        sys.exit(f"kvm.py: cannot watch {path}")
    return fd


def wait_for(fd, process):
    if not select.select([fd], [], [], 60)[0] or process.poll() is not None:
        process.kill()
        sys.exit(f"kvm.py: our guest did not come up: {process.communicate()[1]}")
    os.read(fd, 4096)


def monitor_mib(env):
    """What a machine's process has in memory besides the guest's: its memory is the one large mapping, or those of its layers."""
    panda, run = BUILD / "src/cli/panda", Path(env["PANDA_RUN"])
    id = subprocess.run([panda, "machine", "boot"], env=env, check=True, capture_output=True, text=True).stdout.strip()
    try:
        pid = json.loads((run / "machines" / id / "machine.json").read_text())["pid"]
        kib, guest = 0, False
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if at := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                guest = "panda-memory" in line or int(at[2], 16) - int(at[1], 16) >= MEMORY_MIB << 20
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
        rounds = []
        for _ in range(ROUNDS + 1):  # in turn: all meet the same host
            rounds.append((*our_boot_ms(env, image), qemu_boot_ms(env, image, devices(env)), qemu_boot_ms(env, image)))
    rounds = rounds[1:]  # the first one reads files that lie in memory then
    numbers = {
        "kvm.boot_small_ms_p50": statistics.median(r[0] for r in rounds),
        "kvm.boot_small_command_ms_p50": statistics.median(r[1] for r in rounds),
        "qemu.boot_small_ms_p50": statistics.median(r[2] for r in rounds),
        "qemu.boot_bare_ms_p50": statistics.median(r[3] for r in rounds),
        "kvm.boot_vs_qemu": statistics.median(r[0] / r[2] for r in rounds),
        "kvm.boot_vs_bare_qemu": statistics.median(r[0] / r[3] for r in rounds),
        "kvm.boot_command_vs_qemu": statistics.median(r[1] / r[2] for r in rounds),
        "kvm.monitor_mib": monitor_mib(env),
    }
    for name, value in numbers.items():
        print(f"{name} {value:.2f}", flush=True)
    turns = [ours(env) for _ in range(TURNS)]
    numbers |= {name: statistics.median(t[name] for t in turns) for name in turns[0]}
    for name in "restore", "fork":
        numbers[f"kvm.{name}_vs_qemu"] = numbers[f"kvm.{name}_ms_p50"] / numbers["qemu.boot_small_ms_p50"]
    missed = 0
    for name in ("boot_vs_qemu", "boot_vs_bare_qemu", "boot_command_vs_qemu", "restore_vs_boot", "restore_bare_vs_boot", "fork_vs_boot",
                 "restore_vs_qemu", "fork_vs_qemu", "monitor_mib"):
        value, goal = numbers[f"kvm.{name}"], GOALS.get(name)
        missed += goal is not None and value > goal
        print(f"kvm.{name:<20} {value:6.2f}" + (f"   goal <= {goal}: {'met' if value <= goal else 'missed'}" if goal else ""))
    if len(sys.argv) == 3 and sys.argv[1] == "-o":
        Path(sys.argv[2]).write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
