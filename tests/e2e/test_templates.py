"""Each template boots and does what its page in docs/templates says, with what the sample documents run in it.

The images are made here when they are not there yet, which takes minutes once. PANDA_TEMPLATES names a directory with
descriptions (NAME.json) of images that are to be used instead.
"""
import base64
import json
import os
import struct
import subprocess
import time
from pathlib import Path

import pytest

from conftest import TOP, wait_for

NAMES = ["base", "code-interpreter", "python-data", "agent", "browser"]
MAKE_S = 1800  # packages for a large one, on a slow mirror


@pytest.fixture(scope="session")
def described():
    """describes(name): the description of a template whose image is there"""
    known = {}

    def describe(name):
        if name not in known and "PANDA_TEMPLATES" in os.environ:
            known[name] = json.loads(Path(os.environ["PANDA_TEMPLATES"], f"{name}.json").read_text())
        if name not in known:
            r = subprocess.run([TOP / "tools/image", "--template", name, "--json"], capture_output=True, text=True, timeout=MAKE_S)
            assert r.returncode == 0, r.stderr[-3000:]
            known[name] = json.loads(Path(r.stdout.strip()).read_text())
        return known[name]

    return describe


@pytest.fixture
def boot(panda, described):
    """boot(name): a machine of that template"""

    def boot_it(name):
        d = described(name)
        return panda.boot("--image", d["image"], "--memory", d["memory_mb"])

    return boot_it


def png_size(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


def run_file(box, name, code, timeout=120):
    """As the samples do it: write a file to /workspace, run it with python3."""
    box.put(f"/workspace/{name}", code.encode())
    return box.run("python3", f"/workspace/{name}", opts=["--cwd", "/workspace"], timeout=timeout)


def read(box, path):
    r = box.try_("cat", path)
    assert r.code == 0, r
    return r.out


def cells(box, codes, command=("python3", "/usr/lib/panda/repl.py"), timeout=120):
    """Runs cells in a resident interpreter: [answers, ...]"""
    frames = b""
    for i, code in enumerate(codes):
        data = json.dumps({"id": i, "code": code}).encode()
        frames += b"%d\n%s" % (len(data), data)
    r = box.try_(*command, stdin=frames, opts=["-i", "--cwd", "/workspace"], timeout=timeout)
    assert r.code == 0, r
    answers = [json.loads(line) for line in r.out.splitlines()]
    return [[a for a in answers if a["id"] == i] for i in range(len(codes))]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_it(described, name):
    d = described(name)
    assert d["name"] == name and d["description"] and d["tools"] and d["workdir"] == "/workspace"
    assert d["memory_mb"] >= 256 and d["cpu"] >= 1 and d["disk_gb"] >= 1
    assert d["runner"] == ("python" if name == "python-data" else "shell")
    assert d["aliases"] == (["ubuntu-24.04"] if name == "base" else [])


def test_two_templates_share_one_image(described):
    assert described("python-data")["image"] == described("code-interpreter")["image"]


@pytest.mark.parametrize("name", NAMES)
def test_the_common_ground(boot, name):
    box = boot(name)
    assert box.sh("cd /workspace && ls -A") == ""
    assert box.run("python", "-c", "print(sum(range(101)))") == "5050\n"
    assert box.run("python3", "-c", "import sys; print(sys.version_info[:2])") == "(3, 11)\n"
    assert box.sh("cd /workspace && git init -q . && git status --short && git --version").startswith("git version 2")
    assert "curl" in box.sh("curl --version") and "pip" in box.sh("pip --version")
    box.put("/workspace/a.c", b'#include <stdio.h>\nint main(void) { puts("compiled"); }\n')
    assert box.sh("cd /workspace && gcc a.c && ./a.out") == "compiled\n"
    first, second = cells(box, ["x = 6", "x * 7"])
    assert second[0]["data"]["text/plain"] == "42"


def test_the_code_interpreter_sample(boot):
    box = boot("code-interpreter")
    out = run_file(box, "plot.py", '''
import matplotlib
matplotlib.use("Agg")  # headless backend, no display needed
import matplotlib.pyplot as plt
import numpy as np

x = np.linspace(0, 4 * np.pi, 400)
plt.figure(figsize=(8, 4))
plt.plot(x, np.sin(x), label="sin")
plt.plot(x, np.cos(x), label="cos")
plt.legend(); plt.title("trig")
plt.savefig("/workspace/plot.png", dpi=120, bbox_inches="tight")
print("wrote /workspace/plot.png")
''')
    assert out == "wrote /workspace/plot.png\n"
    width, height = png_size(read(box, "/workspace/plot.png"))
    assert 700 < width < 1000 and 350 < height < 500
    assert run_file(box, "c1.py", "import pandas as pd\ndf = pd.DataFrame({'x': range(1000)})\ndf['y'] = df.x ** 2\n"
                    "df.to_parquet('/workspace/state.parquet')\nprint('rows:', len(df))\n") == "rows: 1000\n"
    assert run_file(box, "c2.py", "import pandas as pd\ndf = pd.read_parquet('/workspace/state.parquet')\n"
                    "print('max y:', int(df.y.max()))\n") == "max y: 998001\n"
    assert box.run("node", "-e", "console.log(process.versions.node)").startswith("22.")


USES = {
    "pandas": "print(pandas.DataFrame({'a': [1, 2]}).a.sum())",
    "scipy": "import scipy.optimize as o; print(round(o.brentq(lambda x: x * x - 9, 0, 9)))",
    "sklearn": "from sklearn.linear_model import LinearRegression as L; print(round(L().fit([[0], [1]], [0, 3]).predict([[1]])[0]))",
    "skimage": "import numpy as n; from skimage.filters import sobel; print(sobel(n.eye(9)).shape)",
    "statsmodels": "import statsmodels.api as s; print(round(s.OLS([1, 2, 3], [1, 2, 3]).fit().params[0]))",
    "sympy": "x = sympy.Symbol('x'); print(sympy.integrate(2 * x, x))",
    "numba": "print(numba.njit(lambda a: a + 2)(1))",
    "xarray": "print(xarray.DataArray([1, 2]).sum().item())",
    "seaborn": "import matplotlib; matplotlib.use('Agg'); print(seaborn.lineplot(x=[1, 2], y=[1, 3]) is not None)",
    "plotly": "import plotly.express as px; print(len(px.line(x=[1, 2], y=[1, 3]).data))",
    "cv2": "import numpy as n; print(cv2.resize(n.zeros((4, 4), 'uint8'), (8, 8)).shape)",
    "PIL": "from PIL import Image; print(Image.new('RGB', (3, 2)).size)",
    "soundfile": "import numpy as n; soundfile.write('/tmp/a.wav', n.zeros(10), 8000); print(soundfile.read('/tmp/a.wav')[1])",
    "nltk": "print(nltk.edit_distance('abc', 'abd'))",
    "openpyxl": "w = openpyxl.Workbook(); w.save('/tmp/a.xlsx'); print(openpyxl.load_workbook('/tmp/a.xlsx').sheetnames)",
    "docx": "d = docx.Document(); d.add_paragraph('p'); d.save('/tmp/a.docx'); print(len(docx.Document('/tmp/a.docx').paragraphs))",
    "bs4": "print(bs4.BeautifulSoup('<p>x</p>', 'lxml').p.text)",
    "sqlalchemy": "print(sqlalchemy.create_engine('sqlite://').connect().execute(sqlalchemy.text('select 7')).scalar())",
    "fastapi": "print(fastapi.FastAPI().title)",
    "pytest": "print(bool(pytest.__version__))",
    "ipykernel": "print(ipykernel.version_info[0] >= 6)",
    "requests": "print(requests.Request('GET', 'http://x/').prepare().url)",
}


def test_every_library_works(boot):
    box = boot("code-interpreter")
    wrong = {}
    for name, use in USES.items():
        r = box.try_("python3", "-c", f"import {name}\n{use}", timeout=120)
        if r.code != 0 or not r.out:
            wrong[name] = r
    assert not wrong


def test_rich_cells(boot):
    box = boot("code-interpreter")
    table, figure, shown, chart, seed, after = cells(box, [
        "import pandas as pd\npd.DataFrame({'a': [1, 2]})",
        "import matplotlib.pyplot as plt\nfig = plt.figure(figsize=(4, 2)); ax = plt.plot([1, 2])",
        "plt.plot([3]); plt.show(); print('after')",
        "import plotly.express as px\npx.line(x=[1, 2], y=[3, 4])",
        "import numpy as np; np.random.seed(1); np.random.rand()",
        "np.random.seed(1); np.random.rand()",
    ])
    assert "<table" in table[0]["data"]["text/html"] and "a\n0  1" in table[0]["data"]["text/plain"]
    assert [a["type"] for a in figure] == ["result", "done"]
    width, height = png_size(base64.b64decode(figure[0]["data"]["image/png"]))
    assert 200 < width < 500 and 100 < height < 300
    assert [a["type"] for a in shown] == ["result", "stdout", "done"]
    assert len(json.loads(chart[0]["data"]["application/vnd.plotly.v1+json"])["data"]) == 1
    assert seed[0]["data"] == after[0]["data"]  # the same machine: what the user seeded stays


def ask(box, id, code):
    """One cell of the Python that a test left behind /root/in: the text of its value."""
    data = json.dumps({"id": id, "code": code}).encode()
    box.put("/root/in", b"%d\n%s" % (len(data), data))

    def done():
        answers = [json.loads(line) for line in read(box, "/root/out").splitlines() if line.endswith(b"}")]
        return {a["type"]: a for a in answers if a["id"] == id} if {"id": id, "type": "done", "exit": 0} in answers else None

    return wait_for(f"the answer to {code!r}", done).get("result", {"data": {"text/plain": None}})["data"]["text/plain"]


def test_a_resident_python_goes_on_in_forks_and_draws_its_own_numbers(boot):
    box = boot("python-data")
    box.sh("mkfifo /root/in; setsid python3 /usr/lib/panda/repl.py <>/root/in >/root/out 2>/root/err &")
    ask(box, "bake", "import numpy as np, pandas as pd, random\ndf = pd.DataFrame({'x': [1, None, 3]})")
    a, b = box.fork(2)
    assert ask(a, "a1", "len(df.fillna(0))") == "3" and ask(b, "b1", "len(df.dropna())") == "2"
    drawn = {ask(m, f"draw{i}", "random.random(), np.random.rand()") for i, m in enumerate((box, a, b))}
    assert len(drawn) == 3
    assert len({n for pair in drawn for n in pair.strip("()").split(", ")}) == 6


def test_node_cells(boot):
    box = boot("agent")
    one, two, three = cells(box, ["const os = require('os'); let x = 6", "console.log(os.platform()); await Promise.resolve(x * 7)",
                                  "process.version"], command=["/usr/lib/panda/repl-node"])
    assert [a["type"] for a in two] == ["stdout", "result", "done"]
    assert two[1]["data"]["text/plain"] == "42" and three[0]["data"]["text/plain"].startswith("'v22.")


def test_agent_tools(boot):
    box = boot("agent")
    box.put("/workspace/t.py", b"def test_one():\n    assert 1 + 1 == 2\n")
    assert "1 passed" in box.sh("cd /workspace && python3 -m pytest -q t.py")
    assert box.sh("cd /workspace && rg -l test_one && fd t.py") == "t.py\nt.py\n"
    box.put("/workspace/package.json", b'{"name": "p", "version": "1.0.0", "scripts": {"test": "node -e 0"}}')
    box.sh("cd /workspace && npm test && tmux -V && cmake --version", timeout=120)


def test_the_first_import_compiles_nothing(boot):
    """Each .pyc in the image fits its source, or every first import in every sandbox would pay for it."""
    box = boot("code-interpreter")
    box.run("python3", "-c", "import pandas, matplotlib.pyplot, scipy.stats, sklearn, sympy, requests", timeout=120)
    assert box.sh("find / -xdev -mmin -5 -name '*.pyc'") == ""


def test_the_browser_sample(boot):
    box = boot("browser")
    box.put("/workspace/page.html", b"<title>a local page</title><h1>hello</h1>")
    out = run_file(box, "nav.py", '''
import asyncio
from playwright.async_api import async_playwright

async def main():
    async with async_playwright() as p:
        browser = await p.chromium.launch()
        page = await browser.new_page()
        await page.goto("file:///workspace/page.html")
        await page.screenshot(path="/workspace/shot.png")
        print(await page.title())
        await browser.close()

asyncio.run(main())
''', timeout=180)
    assert out == "a local page\n"
    assert png_size(read(box, "/workspace/shot.png")) == (1280, 720)
    box.put("/workspace/nav.mjs", b'''
import { chromium } from 'playwright';
const browser = await chromium.launch();
const page = await browser.newPage();
await page.goto('file:///workspace/page.html');
console.log(await page.textContent('h1'));
await browser.close();
''')
    assert box.run("node", "/workspace/nav.mjs", timeout=180) == "hello\n"
    start = time.monotonic()
    box.run("python3", "/usr/lib/panda/warm-browser.py", timeout=180)
    print(f"a page from nothing, warm: {time.monotonic() - start:.1f} s")


@pytest.mark.parametrize("text, says", [
    ("from nowhere\n", "nowhere"), ("from broken\n", "circle"), ("packages x\n", 'unknown word "packages"'),
    ("suite\n", "wants a value"), ("description x\n", "from base"),
])
def test_a_broken_template_is_refused_with_its_place(text, says, tmp_path):
    top = tmp_path / "top"
    (top / "templates/broken").mkdir(parents=True)
    for name in "base", "parts", "common":
        (top / "templates" / name).symlink_to(TOP / "templates" / name)
    (top / "templates/broken/template").write_text(text)
    subprocess.run(["cp", "-r", TOP / "tools", top / "tools"], check=True)
    r = subprocess.run([top / "tools/image", "--template", "broken", "--init", "/bin/true"], capture_output=True, text=True,
                       env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PANDA_CACHE": str(tmp_path / "cache")}, timeout=60)
    assert r.returncode != 0 and says in r.stderr, r
