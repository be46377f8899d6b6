#!/usr/bin/env python3
"""make bench: what the engine does, beside its targets, the bare host and other sandboxes.

usage: bench.py [--quick] [--no-peers] [-o FILE]
  --quick      fewer rounds, no peers: under a minute
  --no-peers   only our own machines and the bare host
  -o FILE      where the numbers go (build/bench.json)
Environment: PANDA_KERNEL, PANDA_IMAGE, PANDA_UPPER (otherwise what 'make up' made in build/). Needs root.

No number fails anything here: machines are shared and noisy. Exit code 1 means that something could not be measured.
"""
import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import datetime, timezone

import api
import neighbours
import net
import peers
import state
import templates

TOP = peers.TOP
BUILD = TOP / "build"

# What we hold ourselves to; of those in AT_LEAST more is better.
TARGETS = {
    "boot_ms_p50": 150,
    "restore_ms_p50": 5,
    "restore_ms_p99": 15,
    "fork_parent_stop_ms_p50": 2,
    "fork_ms_p50": 10,
    "fork_dirty_parent_stop_ms_p50": 2,  # the same, when the parent has written its whole heap since the last fork
    "fork_dirty_ms_p50": 10,
    "fork10_500m_extra_mib": 5,
    "fork100_s": 1,
    "idle_rss_mib": 2,
    "idle_wakeups_per_s": 0,
    "cpu_ratio": 0.95,
    "python_vs_native": 3,
    "clock_ns": 80,
}
API_TARGETS = {
    "create_ms_p50": 10,
    "create_ms_p99": 25,
    "exec_ms_p50": 3,
    "fork_ms_p50": 12,
    "create_burst100_s": 2,
    "live_rss_mib": 20,  # with 1,000 idle sandboxes (live_idle)
    "live_kib_per_sandbox": 16,
    "read_mb_s": 300,
    "write_mb_s": 300,
}
STATE_TARGETS = {
    "checkpoint_ms_p50": 5,
    "rewind_ms_p50": 10,
    "wake_ms_p50": 20,  # with 256 MiB of memory
    "hibernate_ms": 150,  # after 64 MiB were written; hibernate_dd_ms is what dd takes for that
    "race5_extra_ms": 60,  # over its slowest command
    "volume_create_extra_ms": 5,  # a create with a volume, over one without
    "disk_write_ratio": 0.6,  # of what the host gets
    "disk_read_ratio": 0.6,
    "fsync_ratio": 0.6,
    "layer_chain_cost": 1.2,  # a command after 100 checkpoints, against one after 1
}
NET_TARGETS = {
    "create_extra_ms": 2,
    "throughput_gbit": 1,
}
HOSTILE_TARGETS = {  # a tenant beside four sandboxes of another one that do all they can; p99 against a quiet host
    "create_p99_vs_quiet": 3,
    "exec_p99_vs_quiet": 3,
    "pandad_grown_mib": 32,
    "back_s": 60,
}
AT_LEAST = {"throughput_gbit", "cpu_ratio", "read_mb_s", "write_mb_s", "disk_write_ratio", "disk_read_ratio", "fsync_ratio"}
TMPL_TARGETS = {
    **{f"{name}.create_ms_p50": 15 for name in templates.NAMES},
    "python-data.first_cell_ms_p50": 30,
    "python-data.plot_ms_p50": 400,
    "browser.screenshot_ms_p50": 1500,
    **{f"{name}.bake_beyond_warm_s": 5 for name in templates.NAMES},
    "base.first_build_s": 60,
}
KVM_TARGETS = {
    "boot_vs_qemu": 0.7,  # of QEMU's microvm with the same kernel and image
    "restore_vs_boot": 0.1,
    "monitor_mib": 3,
}
KVM_RATIOS = {"kvm.boot_vs_qemu", "kvm.restore_vs_qemu", "kvm.fork_vs_qemu", "kvm.restore_vs_boot", "kvm.fork_vs_boot", "kvm.monitor_mib"}
COMPARED = ["start_ms_p50", "exec_ms_p50", "python_ms_p50", "cpu_ratio", "syscall_us", "clock_ns", "fault_us"]
SYSTEMS = ["um", "native", *peers.ALL]


def say(text):
    print(f"[{time.monotonic() - started:4.0f}s] {text}", file=sys.stderr, flush=True)


def inputs():
    """The environment for um-bench; what nobody names is made by tools/up."""
    ours = {"PANDA_KERNEL": BUILD / "panda-um", "PANDA_IMAGE": BUILD / "base.img", "PANDA_UPPER": BUILD / "upper.img"}
    subprocess.run([TOP / "tools/build"], check=True)
    if any(name not in os.environ and not path.exists() for name, path in ours.items()):
        subprocess.run([TOP / "tools/up", "--no-hello"], check=True)
    return {**{name: str(path.resolve()) for name, path in ours.items()}, **os.environ}


def um(quick, env):
    """Runs um-bench; its lines as they come, and whether all of it worked."""
    numbers = {}
    argv = [BUILD / "tests/bench/um-bench", *(["-q"] if quick else [])]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as p:
        for line in p.stdout:
            row = json.loads(line)
            numbers[row["key"]] = row["value"]
            say(f"{row['key']} {show(row['value'])}")
    return numbers, p.returncode == 0


def opens(path):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return 0
    return 1


def kvm(quick, env):
    """Engine kvm: absolute numbers on a host that has it; ratios there, or in an emulated machine (tools/rig)."""
    numbers, whole, out = {}, True, BUILD / "kvm-bench"
    said = subprocess.run([BUILD / "src/cli/panda", "doctor"], capture_output=True, text=True).stdout
    real = any(line.split()[:3] == ["ok", "engine", "kvm"] for line in said.splitlines())
    if real:
        ours = {name: str((BUILD / file).resolve()) for name, file in (("PANDA_VMM", "panda-vmm"), ("PANDA_VMLINUX", "panda-vmlinux"))}
        numbers, whole = um(quick, {**ours, **env, "PANDA_ENGINE": "kvm"})
    out.mkdir(exist_ok=True)
    (out / "kvm.json").unlink(missing_ok=True)
    subprocess.run([*([] if real else [TOP / "tools/rig"]), TOP / "tests/bench/kvm.py", "-o", out / "kvm.json"],
                   env={**os.environ, **({} if real else {"PANDA_RIG_OUT": str(out)})})  # fmt: skip
    try:
        found = json.loads((out / "kvm.json").read_text())
    except OSError:
        return numbers, False
    return numbers | {k: v for k, v in found.items() if real or k in KVM_RATIOS}, whole


def machine():
    with open("/proc/cpuinfo") as f:
        models = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
    commit = subprocess.run(["git", "-C", TOP, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout
    return {
        "machine.cpu": models[0] if models else platform.machine(),
        "machine.cores": len(os.sched_getaffinity(0)),
        "machine.kernel": platform.release(),
        "machine.kvm": opens("/dev/kvm"),
        "machine.load_before": os.getloadavg()[0],
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "git": commit.strip() or "unknown",
    }


def show(v):
    if v is None:
        return "-"
    return f"{v:.0f}" if abs(v) >= 100 else f"{v:.1f}" if abs(v) >= 10 else f"{v:.2f}"


def print_rows(rows):
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    for r in rows:
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths))).rstrip())


def tables(numbers):
    rows = [("", "measured", "target", "met")]
    wanted = [("um." + k, k, t) for k, t in TARGETS.items()] + [("api." + k, k, t) for k, t in API_TARGETS.items()]
    wanted += [("state." + k, k, t) for k, t in STATE_TARGETS.items()] + [("net." + k, k, t) for k, t in NET_TARGETS.items()]
    wanted += [("hostile." + k, k, t) for k, t in HOSTILE_TARGETS.items()]
    wanted += [("kvm." + k, k, t) for k, t in KVM_TARGETS.items()]
    wanted += [("tmpl." + k, k, t) for k, t in TMPL_TARGETS.items() if "tmpl." + k in numbers]
    for name, key, target in wanted:
        v = numbers.get(name)
        more = key in AT_LEAST
        met = "?" if v is None else "yes" if (v >= target if more else v <= target) else "no"
        rows.append((name, show(v), f"{'≥' if more else '≤'} {target}", met))
    print_rows(rows)
    print("\nthe same work elsewhere (start: until /bin/true has answered; ours is a restore)")
    rows = [("", *SYSTEMS)]
    for key in COMPARED:
        rows.append((key, *(show(numbers.get(f"{s}.{key}")) for s in SYSTEMS)))
    print_rows(rows)


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("\n", 2)[2])
    p.add_argument("--quick", action="store_true")
    p.add_argument("--no-peers", action="store_true")
    p.add_argument("-o", default=BUILD / "bench.json")
    args = p.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench.py: needs root, as machines do")

    env = inputs()
    numbers = machine()
    say(f"{numbers['machine.cpu']}, {numbers['machine.cores']} cores, load {show(numbers['machine.load_before'])}")
    measured, whole = um(args.quick, env)
    numbers.update(measured)
    if "um.restore_ms_p50" in numbers:
        numbers["um.start_ms_p50"] = numbers["um.restore_ms_p50"]
    if "native.python_ms_p50" in numbers:
        numbers["um.python_vs_native"] = numbers["um.python_ms_p50"] / numbers["native.python_ms_p50"]
        numbers["native.cpu_ratio"] = 1.0
    try:
        for room, measure in ("api", api.measure), ("state", state.measure), ("tmpl", templates.measure), ("net", net.measure), \
                ("hostile", neighbours.measure):
            for key, value in measure(args.quick):
                numbers[f"{room}.{key}"] = value
                say(f"{room}.{key} {show(value)}")
    except (OSError, RuntimeError, AssertionError) as e:
        say(f"the server could not be measured to the end: {e}")
        whole = False
    say("engine kvm")
    measured, all_of_it = kvm(args.quick, env)
    numbers.update(measured)
    whole = whole and all_of_it
    missing = {}
    for name, measure in {} if args.quick or args.no_peers else peers.ALL.items():
        say(f"peer {name}")
        try:
            found = measure(BUILD / "tests/bench/work", 5, numbers.get("native.loop_ms", float("nan")))
            numbers.update({f"{name}.{k}": v for k, v in found.items()})
        except peers.Missing as e:
            missing[name] = str(e)
    numbers["machine.load_after"] = os.getloadavg()[0]

    tables(numbers)
    for name, why in missing.items():
        print(f"without {name}: {why}")
    print(f"load {show(numbers['machine.load_before'])} before, {show(numbers['machine.load_after'])} after; all numbers: {args.o}")
    with open(args.o, "w") as f:
        json.dump(numbers, f, indent=1, sort_keys=True)
        f.write("\n")
    return 0 if whole else 1


if __name__ == "__main__":
    started = time.monotonic()
    sys.exit(main())
