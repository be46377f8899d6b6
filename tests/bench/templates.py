"""What each template costs, seen by a client on loopback: the tmpl.* rows of make bench.

measure(quick) starts a pandad of its own, yields (key, value) pairs and leaves nothing behind. Templates are those in
build/templates (`PANDA_TEMPLATES="base code-interpreter python-data agent browser" make up` makes them all); of others there is nothing to say.
Of each:
  create_ms_p50      from the create call until /bin/true has answered in it
  first_cell_ms_p50  from the create call until its first cell has answered: `import pandas` where there is pandas, else `import json`
  own_mib            memory that this sandbox has for itself after that, all of it, with the host's for it
  bake_s             the first create, which bakes: boots, warms up, freezes, saves, restores
  warm_s             of it, what runs in the machine before it is frozen: the template's warm lines, its prelude, its ready check
  bake_beyond_warm_s the rest, which is ours
  image_mib          the read-only image, shared by all
  build_s            how long tools/image took to make it, when it did, with all of its layers
plot_ms_p50 is from the create call to the bytes of a PNG, browser.screenshot_ms_p50 to those of a screenshot of a local page, taken by a
Playwright script. build_cached_s is how long tools/image takes when nothing has changed; base.first_build_s how long base takes with its
packages at hand and nothing else, without a network: bootstrap, image, and bake.
"""
import base64
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

from api import TOP, Connection, ms

NAMES = ["base", "code-interpreter", "python-data", "agent", "browser"]
WITH_PANDAS = {"code-interpreter", "python-data"}
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [2, 4, 8], label='a')\nplt.title('a plot')\nplt.legend()\nplt.show()"
BROWSE = '''
import asyncio, sys
from playwright.async_api import async_playwright

async def main():
    async with async_playwright() as p:
        browser = await p.chromium.launch()
        page = await browser.new_page()
        await page.goto("file:///workspace/page.html")
        await page.screenshot(path="/workspace/shot.png")
        await browser.close()

asyncio.run(main())
'''
PNG = b"\x89PNG\r\n\x1a\n"


class Client(Connection):
    def ask_json(self, method, path, **body):
        got = self.ask(method, path, json.dumps(body).encode() if body else b"")
        return json.loads(got) if got else None

    def create(self, template="base"):
        return self.ask_json("POST", "/v1/sandboxes", template=template, ttl_seconds=3600)["id"]

    def session(self, id, template):
        """Its resident Python, or a new one."""
        return "default" if template == "python-data" else self.ask_json("POST", f"/v1/sandboxes/{id}/repl/sessions")["id"]

    def cell(self, id, session, code):
        r = self.ask_json("POST", f"/v1/sandboxes/{id}/repl/sessions/{session}/run", code=code)
        if r["exit"]:
            raise RuntimeError(f"the cell {code!r} ended with {r['exit']}: {r['stderr'][-300:]}")
        return r


def own_mib(server, id):
    """What its processes have for themselves (Private_*), shared pages not counted."""
    kib = 0
    for pid in server.processes().get(id, ()):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kib += sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean", "Private_Dirty")))
    return kib / 1024


def rounds_of(server, c, n, once):
    """Medians of what once(id-making client) gives, in a fresh sandbox each."""
    times = []
    for _ in range(n):
        begun = time.perf_counter()
        id = once()
        times.append(ms(begun))
        c.kill(id)
        time.sleep(0.02)  # jails are made ahead in the time between
    return statistics.median(times)


def of_template(server, c, name, rounds):
    def create():
        id = c.create(name)
        c.true(id)
        return id

    own = []

    def first_cell():
        id = c.create(name)
        c.cell(id, c.session(id, name), "import pandas" if name in WITH_PANDAS else "import json")
        return id

    def plot():
        id = c.create(name)
        (result,) = c.cell(id, c.session(id, name), PLOT)["results"]
        if not base64.b64decode(result["image/png"]).startswith(PNG):
            raise RuntimeError("that is no PNG")
        return id

    begun = time.perf_counter()
    c.kill(create())
    bake = ms(begun) / 1000
    warm = int(re.findall(rf"template baked template={name} .*warm_ms=(\d+)", server.log.read_text())[-1]) / 1000
    yield from (("bake_s", bake), ("warm_s", warm), ("bake_beyond_warm_s", bake - warm))
    time.sleep(0.2)
    yield "create_ms_p50", rounds_of(server, c, rounds, create)
    yield "first_cell_ms_p50", rounds_of(server, c, rounds, first_cell)
    for _ in range(3):
        id = first_cell()
        own.append(own_mib(server, id))
        c.kill(id)
    yield "own_mib", statistics.median(own)
    if name in WITH_PANDAS:
        yield "plot_ms_p50", rounds_of(server, c, max(rounds // 2, 3), plot)


def screenshots(server, c, rounds):
    def shot():
        id = c.create("browser")
        c.ask("PUT", f"/v1/sandboxes/{id}/fs?path=/workspace/page.html", b"<title>a local page</title><h1>hello</h1>")
        c.ask("PUT", f"/v1/sandboxes/{id}/fs?path=/workspace/shot.py", BROWSE.encode())
        r = c.ask_json("POST", f"/v1/sandboxes/{id}/exec", cmd="python3 shot.py", cwd="/workspace", timeout_seconds=60)
        if r["exit_code"] or not c.ask("GET", f"/v1/sandboxes/{id}/fs?path=/workspace/shot.png").startswith(PNG):
            raise RuntimeError(f"no screenshot: {r['stderr'][-300:]}")
        return id

    yield "browser.screenshot_ms_p50", rounds_of(server, c, rounds, shot)


def images(build, names):
    for name in names:
        image = Path(json.loads((build / "templates" / f"{name}.json").read_text())["image"])
        yield f"{name}.image_mib", os.path.getsize(image) / (1 << 20)
        took = image.parent / f"{name}.seconds"
        if took.exists():
            yield f"{name}.build_s", float(took.read_text())
    begun = time.perf_counter()
    subprocess.run([TOP / "tools/image", "--template", "base"], check=True, capture_output=True)
    yield "build_cached_s", ms(begun) / 1000


def first_image():
    """Seconds of tools/image for base, in a cache that has its packages and nothing else; None: this host has not fetched them."""
    have = Path(os.environ.get("PANDA_CACHE", "/var/cache/panda")) / "images"
    if not (have / "apt/updated").exists():
        return None
    home = Path(tempfile.mkdtemp(prefix="bench.", dir=have.parent))  # links need the same file system
    try:
        apt = home / "images/apt"
        (apt / "archives/partial").mkdir(parents=True)
        subprocess.run(["cp", "-a", have / "apt/lists", apt], check=True)
        subprocess.run(["cp", "-l", "-t", apt / "archives", *(have / "apt/archives").glob("*.deb")], check=True)
        (apt / "updated").touch()
        begun = time.perf_counter()
        r = subprocess.run(["unshare", "--net", TOP / "tools/image"], env=dict(os.environ, PANDA_CACHE=str(home)), capture_output=True, text=True)
        if r.returncode:
            raise RuntimeError(f"base could not be made of its packages: {r.stderr[-300:]}")
        return ms(begun) / 1000
    finally:
        shutil.rmtree(home)


def measure(quick=False):
    from server import BUILD, Pandad
    names = [n for n in NAMES if (BUILD / "templates" / f"{n}.json").exists()]
    server = Pandad(Path(tempfile.mkdtemp(prefix="panda-bench.")), templates=names, log="info")
    try:
        yield from images(BUILD, names)
        first = None if quick else first_image()
        server.start()
        c = Client(server)
        for name in names:
            for key, value in of_template(server, c, name, 5 if quick else 20):
                yield f"{name}.{key}", value
                if first and (name, key) == ("base", "bake_s"):
                    yield "base.first_build_s", first + value
        if "browser" in names:
            yield from screenshots(server, c, 3 if quick else 7)
        server.close()
    finally:
        server.scrub()


if __name__ == "__main__":
    for key, value in measure("--quick" in sys.argv):
        print(f"tmpl.{key} {value:.2f}", flush=True)
