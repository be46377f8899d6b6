#!/usr/bin/python3
"""Which file system for the read-only root image? Boots a machine from each and reads through it.

Prints one row per format: size of the image, boot, first (cold) and second run of a Python that
imports a good part of its library, and reading all of /usr cold. Medians of RUNS fresh machines.
Needs what 'make up' leaves in build/. Not a test: nothing is asserted.
"""
import os, pathlib, statistics, subprocess, sys, tempfile, time

TOP = pathlib.Path(__file__).resolve().parents[2]
RUNS = int(os.environ.get("RUNS", "5"))
PANDA = os.environ.get("PANDA", str(TOP / "build/src/cli/panda"))
IMPORTS = "import json, ssl, asyncio, email, http.client, sqlite3, unittest, xml.dom.minidom"
FORMATS = ["erofs", "erofs-lz4", "squashfs-lz4", "squashfs-zstd", "ext4"]


def call(*argv, env=None):
    return subprocess.run(argv, check=True, capture_output=True, text=True, env=env).stdout.strip()


def timed(*argv, env):
    start = time.monotonic()
    call(*argv, env=env)
    return (time.monotonic() - start) * 1000


def main():
    init = os.environ.get("PANDA_INIT", str(TOP / "build/src/guest/init/panda-init"))
    print(f"{'format':14} {'MiB':>6} {'boot ms':>8} {'cold ms':>8} {'warm ms':>8} {'read /usr ms':>13}")
    with tempfile.TemporaryDirectory(prefix="panda-formats.") as run:
        for fmt in FORMATS:
            image = call(str(TOP / "tools/image"), "--format", fmt, "--init", init)
            env = dict(os.environ, PANDA_IMAGE=image, PANDA_RUN=run)
            rows = []
            for n in range(RUNS):
                name = f"fmt-{n}"
                exe = (PANDA, "machine", "exec", name, "--")
                boot = timed(PANDA, "machine", "boot", "--id", name, env=env)
                try:
                    rows.append((boot, timed(*exe, "python3", "-c", IMPORTS, env=env),
                                 timed(*exe, "python3", "-c", IMPORTS, env=env),
                                 timed(*exe, "sh", "-c", "cat $(find /usr -type f) >/dev/null", env=env)))
                finally:
                    call(PANDA, "machine", "stop", name, env=env)
            size = os.path.getsize(image) / (1 << 20)
            mid = [statistics.median(column) for column in zip(*rows)]
            print(f"{fmt:14} {size:6.0f} {mid[0]:8.0f} {mid[1]:8.0f} {mid[2]:8.0f} {mid[3]:13.0f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
