"""Each template boots and does what its page in docs/templates says, with what the sample documents run in it.

The images are made here when they are not there yet, which takes minutes once. PANDA_TEMPLATES names a directory with
descriptions (NAME.json) of images that are to be used instead.
"""
import base64
import hashlib
import io
import json
import os
import re
import struct
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from conftest import TOP, need, wait_for
from little_internet import PYTHON, WEB, Child, LittleInternet
from server import BUILD, NetPandad, patience
from streams import WebSocket

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
    assert box.run("node", "-e", "console.log(process.versions.node)").startswith("22.") and box.run("npm", "--version", timeout=60).startswith("10.")


USES = {
    "numpy": "print(numpy.linalg.det(numpy.eye(3)))",
    "pandas": "print(pandas.DataFrame({'a': [1, 2]}).a.sum())",
    "scipy": "import scipy.optimize as o; print(round(o.brentq(lambda x: x * x - 9, 0, 9)))",
    "sklearn": "from sklearn.linear_model import LinearRegression as L; print(round(L().fit([[0], [1]], [0, 3]).predict([[1]])[0]))",
    "skimage": "import numpy as n; from skimage.filters import sobel; print(sobel(n.eye(9)).shape)",
    "statsmodels": "import statsmodels.api as s; print(round(s.OLS([1, 2, 3], [1, 2, 3]).fit().params[0]))",
    "sympy": "x = sympy.Symbol('x'); print(sympy.integrate(2 * x, x))",
    "numba": "print(numba.njit(lambda a: a + 2)(1))",
    "xarray": "print(xarray.DataArray([1, 2]).sum().item())",
    "networkx": "print(networkx.shortest_path(networkx.path_graph(3), 0, 2))",
    "matplotlib": "matplotlib.use('Agg'); import matplotlib.pyplot as p; p.plot([1]); p.savefig('/tmp/a.png')\nwith open('/tmp/a.png', 'rb') as f: print(f.read(4))",
    "seaborn": "print(seaborn.lineplot(x=[1, 2], y=[1, 3]) is not None)",
    "plotly": "import plotly.express as px; print(len(px.line(x=[1, 2], y=[1, 3]).data))",
    "fastparquet": """
import pandas as pd
for codec in 'snappy', 'gzip', 'zstd', 'lz4', 'brotli', None:
    pd.DataFrame({'x': range(100)}).to_parquet('/tmp/a.pq', engine='fastparquet', compression=codec)
    assert pd.read_parquet('/tmp/a.pq').x.sum() == 4950, codec
print('read')""",
    "cv2": "import numpy as n; print(cv2.resize(n.zeros((4, 4), 'uint8'), (8, 8)).shape)",
    "PIL": "from PIL import Image; print(Image.new('RGB', (3, 2)).size)",
    "imageio": "import numpy as n; imageio.imwrite('/tmp/b.png', n.zeros((4, 4), 'uint8')); print(imageio.imread('/tmp/b.png').shape)",
    "soundfile": "import numpy as n; soundfile.write('/tmp/a.wav', n.zeros(8000), 8000); print(soundfile.read('/tmp/a.wav')[1])",
    "nltk": "print(nltk.edit_distance('abc', 'abd'))",
    "openpyxl": "w = openpyxl.Workbook(); w.save('/tmp/a.xlsx'); print(openpyxl.load_workbook('/tmp/a.xlsx').sheetnames)",
    "xlrd": "print(xlrd.xldate_as_datetime(44927, 0).year)",
    "docx": "d = docx.Document(); d.add_paragraph('p'); d.save('/tmp/a.docx'); print(len(docx.Document('/tmp/a.docx').paragraphs))",
    "bs4": "print(bs4.BeautifulSoup('<p>x</p>', 'lxml').p.text)",
    "lxml": "from lxml import etree; print(etree.fromstring('<a><b/></a>')[0].tag)",
    "sqlalchemy": "print(sqlalchemy.create_engine('sqlite://').connect().execute(sqlalchemy.text('select 7')).scalar())",
    "psycopg2": "print(psycopg2.extensions.parse_dsn('dbname=x')['dbname'])",
    "requests": "print(requests.Request('GET', 'http://x/').prepare().url)",
    "httpx": "print(httpx.Client(transport=httpx.MockTransport(lambda r: httpx.Response(204))).get('http://x/').status_code)",
    "aiohttp": """
import asyncio
from aiohttp import web
async def main():
    app = web.Application()
    app.router.add_get('/', lambda r: web.Response(text='served'))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, '127.0.0.1', 8123).start()
    async with aiohttp.ClientSession() as s, s.get('http://127.0.0.1:8123/') as r:
        print(await r.text())
    await runner.cleanup()
asyncio.run(main())""",
    "uvicorn": """
import threading, urllib.request, fastapi
app = fastapi.FastAPI()
app.get('/')(lambda: {'served': True})
server = uvicorn.Server(uvicorn.Config(app, port=8124, log_level='error'))
t = threading.Thread(target=server.run)
t.start()
while not server.started: pass
print(urllib.request.urlopen('http://127.0.0.1:8124/').read())
server.should_exit = True
t.join()""",
    "openai": """
import httpx, json
said = []
def model(request):
    said.append(json.loads(request.content))
    if said[-1].get('stream'):
        pieces = [{'id': 'x', 'object': 'chat.completion.chunk', 'created': 1, 'model': 'm', 'choices': [{'index': 0, 'delta': {'content': p}}]} for p in ('he', 'llo')]
        return httpx.Response(200, headers={'content-type': 'text/event-stream'}, text=''.join(f'data: {json.dumps(p)}\\n\\n' for p in pieces) + 'data: [DONE]\\n\\n')
    message = {'role': 'assistant', 'content': 'hello'}
    return httpx.Response(200, json={'id': 'x', 'object': 'chat.completion', 'created': 1, 'model': 'm', 'choices': [{'index': 0, 'finish_reason': 'stop', 'message': message}]})
client = openai.OpenAI(api_key='k', base_url='http://model/v1', http_client=httpx.Client(transport=httpx.MockTransport(model)))
ask = dict(model='m', messages=[{'role': 'user', 'content': 'q'}])
assert client.chat.completions.create(**ask).choices[0].message.content == 'hello'
print(''.join(c.choices[0].delta.content for c in client.chat.completions.create(stream=True, **ask)))
assert said[0]['messages'] == ask['messages'] and openai.OpenAI(api_key='k').base_url""",
    "anthropic": """
import httpx2, json
message = {'id': 'm', 'type': 'message', 'role': 'assistant', 'model': 'x', 'content': [{'type': 'text', 'text': 'hello'}], 'stop_reason': 'end_turn',
           'stop_sequence': None, 'usage': {'input_tokens': 1, 'output_tokens': 1}}
events = [{'type': 'message_start', 'message': {**message, 'content': []}},
          {'type': 'content_block_start', 'index': 0, 'content_block': {'type': 'tool_use', 'id': 't', 'name': 'n', 'input': {}}},
          *({'type': 'content_block_delta', 'index': 0, 'delta': {'type': 'input_json_delta', 'partial_json': p}} for p in ('{"a": ', '[1, "t', 'wo"]}')),
          {'type': 'content_block_stop', 'index': 0}, {'type': 'message_delta', 'delta': {'stop_reason': 'tool_use'}, 'usage': {'output_tokens': 2}},
          {'type': 'message_stop'}]
def model(request):
    if json.loads(request.content).get('stream'):
        return httpx2.Response(200, headers={'content-type': 'text/event-stream'}, text=''.join(f'event: {e["type"]}\\ndata: {json.dumps(e)}\\n\\n' for e in events))
    return httpx2.Response(200, json=message)
client = anthropic.Anthropic(api_key='k', base_url='http://model', http_client=httpx2.Client(transport=httpx2.MockTransport(model)))
ask = dict(model='x', max_tokens=5, messages=[{'role': 'user', 'content': 'q'}])
print(client.messages.create(**ask).content[0].text)
with client.messages.stream(**ask) as stream:
    assert stream.get_final_message().content[0].input == {'a': [1, 'two']}""",
    "IPython": "print(IPython.core.interactiveshell.InteractiveShell().run_cell('6 * 7').result)",
    "ipykernel": "print(ipykernel.version_info[0] >= 6)",
    "jupyter_server": "print(jupyter_server.version_info[0] >= 1)",
    "pytest": "print(bool(pytest.__version__))",
    "yaml": "print(yaml.safe_load('a: 1'))",
    "tqdm": "print(len(list(tqdm.tqdm([1], disable=True))))",
}
# one after the other in one Python: what they need to be imported is mostly the same
USE_ALL = """
import contextlib, importlib, io, json, sys, traceback
wrong = {}
for name, use in json.load(sys.stdin).items():
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(use, {name: importlib.import_module(name), '__name__': 'used'})
        if not out.getvalue().strip():
            wrong[name] = 'it printed nothing'
    except BaseException:
        wrong[name] = traceback.format_exc()[-600:]
print(json.dumps(wrong))
"""


NODE_SDKS = """
import OpenAI from 'openai';
import { createRequire } from 'module';
const Anthropic = createRequire(import.meta.url)('@anthropic-ai/sdk');
const answer = (body) => async () => new Response(JSON.stringify(body), { headers: { 'content-type': 'application/json' } });
const one = new OpenAI({ apiKey: 'k', fetch: answer({ choices: [{ message: { content: 'hello' } }] }) });
console.log((await one.chat.completions.create({ model: 'm', messages: [] })).choices[0].message.content);
const two = new Anthropic({ apiKey: 'k', fetch: answer({ type: 'message', content: [{ type: 'text', text: 'hello' }] }) });
console.log((await two.messages.create({ model: 'm', max_tokens: 5, messages: [] })).content[0].text);
"""


def node_sdks(box):
    """The SDKs of model vendors, found with import and with require, from anywhere."""
    box.put("/workspace/sdks.mjs", NODE_SDKS.encode())
    return box.run("node", "/workspace/sdks.mjs", timeout=120)


def test_every_library_works(boot):
    box = boot("code-interpreter")
    box.put("/workspace/use.py", USE_ALL.encode())
    uses = dict(USES)
    if b"python3-anthropic " not in read(box, "/usr/share/panda/borrowed"):  # as its page says: sid may have one that does not work here
        del uses["anthropic"]
    r = box.try_("python3", "/workspace/use.py", stdin=json.dumps(uses).encode(), opts=["-i", "--cwd", "/workspace"], timeout=300)
    assert r.code == 0 and json.loads(r.out.splitlines()[-1]) == {}, r
    assert node_sdks(box) == "hello\nhello\n"
    box.sh("cd /tmp && ffmpeg -loglevel error -y -i a.wav a.flac && test -s a.flac && echo x | rg -c x", timeout=60)


def test_the_page_lists_what_is_tested():
    """Of each thing in the table of the page somebody has made sure that it works."""
    page = (TOP / "docs/templates/code-interpreter.md").read_text().partition("## ")[0]
    listed = " ".join(line.split("|")[2] for line in page.splitlines() if line.startswith("|") and "---" not in line)
    names = {w.strip(" .;").split(" ")[0].split(" ")[0] for w in listed.replace(";", ",").replace("(", ",").split(",")} - {""}
    same = {"scikit-learn": "sklearn", "scikit-image": "skimage", "opencv": "cv2", "pillow": "PIL", "beautifulsoup": "bs4", "fastapi": "uvicorn",
            "python-docx": "docx", "jupyter": "jupyter_server", "parquet": "fastparquet", "pyyaml": "yaml"}
    elsewhere = {"without", "git", "ripgrep", "gcc", "node.js", "ffmpeg"}  # in other tests of this file
    known = {u.lower() for u in USES}
    missing = {n for n in names if same.get(n.lower(), n).lower() not in known and n.lower() not in elsewhere}
    assert not missing


@pytest.mark.parametrize("name, begins", [("base", "bash, "), ("agent", "Everything of")])
def test_the_other_pages_list_what_is_tested(name, begins):
    (listed,) = [p for p in (TOP / f"docs/templates/{name}.md").read_text().split("\n\n") if p.startswith(begins)]
    words = set(re.findall(r"[@\w][-@/.+\w]*", listed.partition("and: ")[2] or listed))
    tested = set(re.findall(r"[@\w][-@/.+\w]*", {"base": BASE_TOOLS, "agent": AGENT_TOOLS}[name]))
    tested |= {"bash", "Python", "panda", "npm", "Node.js", "SDKs", "openai", "@anthropic-ai/sdk", "pytest", "gdb", "headers"}  # in other tests of this file
    tested |= {"ripgrep"} if "rg" in tested else set()
    tested |= {"vim"} if "vim.tiny" in tested else set()
    rest = {w.rstrip(".") for w in words} - tested - set("and for with the from any directory require import 3.11 22 10".split())
    assert len(words) > 15 and not rest


BASE_TOOLS = """
python3 -m venv --without-pip /tmp/v && /tmp/v/bin/python -c 'print(1)'
cd /tmp && python -m pip --version && pip list | grep -q '^pip '
git init -q r && git -C r -c user.name=a -c user.email=b commit -q --allow-empty -m first && git -C r log --oneline | grep -q first
(echo '{"a": "b"}' >j; exec python3 -m http.server --bind 127.0.0.1 8099 >/dev/null 2>&1) & server=$!
curl -s --retry 60 --retry-delay 1 --retry-connrefused http://127.0.0.1:8099/j >j1 && wget -q -O j2 http://127.0.0.1:8099/j && kill $server
cmp j1 j2 && test "$(jq -r .a j1)" = b
printf 'int main(void) { return 0; }' >a.c && gcc -o a1 a.c && ./a1
printf '#include <vector>\\nint main() { return std::vector<int>{7}[0] - 7; }' >a.cc && g++ -o a2 a.cc && ./a2
printf 'all:\\n\\techo made\\n' >Makefile && test "$(make -s)" = made
ssh-keygen -q -t ed25519 -N '' -f key && ssh-keygen -y -f key >/dev/null && ssh -V && mkdir -p /run/sshd && sshd -t -h key
mkdir from && cp j from/ && rsync -a from/ to/ && cmp j to/j && test "$(sudo -n -u nobody id -un)" = nobody
nano --version >/dev/null && test "$(less j </dev/null)" = '{"a": "b"}'
zip -q a.zip j && unzip -p a.zip | cmp - j && tar -cJf a.txz j && file a.txz | grep -q XZ && tar -xOJf a.txz j | cmp - j
diff -u j /etc/hostname >p || patch -s j p && cmp j /etc/hostname
"""
AGENT_TOOLS = """
cd /workspace && mkdir -p c && printf 'int main(void) { return 0; }\\n' >c/m.c
printf 'cmake_minimum_required(VERSION 3.20)\\nproject(p C)\\nadd_executable(m m.c)\\n' >c/CMakeLists.txt
cmake -S c -B c/out >/dev/null && cmake --build c/out >/dev/null && c/out/m
test "$(tree -i --noreport c/m.c)" = c/m.c && rg -q 'int main' c && test "$(fd -e c . c)" = c/m.c
tmux new-session -d -s s 'echo in a window >said; tmux wait-for -S said; sleep 999' && tmux wait-for said && grep -q window said && tmux kill-server
vim.tiny -es -c '%s/return 0/return 3/' -c wq c/m.c && grep -q 'return 3' c/m.c
pkg-config --exists python3 && strace -o calls -e trace=execve true && grep -q execve calls
"""


def test_base_tools(boot):
    box = boot("base")
    r = box.try_("bash", "-exc", BASE_TOOLS, timeout=120)
    assert r.code == 0, r
    assert box.try_("node", "--version").code != 0  # as its page says


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


CHART = "application/vnd.pandastack.chart.v1+json"
CHARTS = {
    "line": "plt.plot([1, 2, 3], [2, 4, float('nan')], label='a'); plt.plot([1, 2, 3], [1, 2, 3], label='b'); plt.title('two lines'); "
            "plt.xlabel('time (s)'); plt.ylabel('v'); plt.yscale('log')",
    "dates": "import pandas as pd; plt.plot(pd.date_range('2026-01-01', periods=2), [1, 2])",
    "scatter": "plt.scatter([1, 2], [3, 4], label='dots'); plt.plot([5], [6], 'o', label='more')",
    "bar": "plt.bar(['x', 'y'], [3, 5], label='g')",
    "flat": "plt.barh(['x', 'y'], [3, 5])",
    "groups": "import pandas as pd; pd.DataFrame({'u': [1, 2], 'w': [3, 4]}, index=['x', 'y']).plot.bar(); None",
    "pie": "plt.pie([1, 3], labels=['p', 'q'], autopct='%d')",
    "box": "plt.boxplot([[1, 2, 3, 4, 5], [2, 2, 2, 2, 50]], labels=['s', 't'])",
    "several": "fig, (one, two) = plt.subplots(1, 2); one.plot([1, 2]); two.bar([1], [2]); fig.suptitle('both')",
    "picture": "plt.imshow([[1, 2], [3, 4]])",
    "many": "plt.plot(range(30000))",
}


def test_charts_as_data(boot):
    box = boot("code-interpreter")
    shown = cells(box, ["import matplotlib.pyplot as plt"] + [code + "\nplt.show()" for code in CHARTS.values()], timeout=300)[1:]
    got = {}
    for name, answers in zip(CHARTS, shown):
        figures = [a["data"] for a in answers if a["type"] == "result" and "image/png" in a["data"]]
        assert len(figures) == 1, (name, [str(a)[:300] for a in answers])
        got[name] = json.loads(figures[0][CHART])
    line = got["line"]
    assert (line["type"], line["title"], line["x_label"], line["x_unit"], line["y_label"], line["y_scale"]) == \
        ("line", "two lines", "time (s)", "s", "v", "log")
    assert [(e["label"], e["points"]) for e in line["elements"]] == [("a", [[1, 2], [2, 4], [3, None]]), ("b", [[1, 1], [2, 2], [3, 3]])]
    assert len(line["x_ticks"]) == len(line["x_tick_labels"]) > 1
    assert got["dates"]["x_scale"] == "datetime" and got["dates"]["elements"][0]["points"][0][0].startswith("2026-01-01")
    assert got["scatter"]["type"] == "scatter"
    assert {e["label"]: e["points"] for e in got["scatter"]["elements"]} == {"dots": [[1, 3], [2, 4]], "more": [[5, 6]]}
    assert got["bar"]["type"] == "bar" and got["bar"]["elements"] == [{"label": "x", "group": "g", "value": 3}, {"label": "y", "group": "g", "value": 5}]
    assert [(e["label"], e["value"]) for e in got["flat"]["elements"]] == [("x", 3), ("y", 5)]
    assert [(e["label"], e["group"], e["value"]) for e in got["groups"]["elements"]] == [("x", "u", 1), ("y", "u", 2), ("x", "w", 3), ("y", "w", 4)]
    assert got["pie"]["type"] == "pie" and [(e["label"], round(e["angle"])) for e in got["pie"]["elements"]] == [("p", 90), ("q", 270)]
    first, second = got["box"]["elements"]
    assert got["box"]["type"] == "box_and_whisker" and second["outliers"] == [50]
    assert first == {"label": "s", "min": 1, "first_quartile": 2, "median": 3, "third_quartile": 4, "max": 5, "outliers": []}
    assert (got["several"]["type"], got["several"]["title"]) == ("superchart", "both")
    assert [c["type"] for c in got["several"]["elements"]] == ["line", "bar"]
    assert got["picture"]["type"] == "unknown"
    assert got["many"]["truncated"] is True and len(got["many"]["elements"][0]["points"]) == 20000


def test_rich_results_reach_the_client(world):
    """Every form a result can have, from a cell to the SDK."""
    need(world, "code-interpreter")
    from pandastack import Sandbox
    with Sandbox.create(template="code-interpreter") as sb, sb.create_code_context() as ctx:
        r = ctx.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2]})")
        assert "<table" in r.html and "a" in r.text
        seen = []
        r = ctx.run_code("import matplotlib.pyplot as plt\nprint('drawing', flush=True)\nplt.figure(figsize=(4, 2)); plt.plot([1, 2], [3, 4])\n"
                         "plt.title('t'); plt.show()\nprint('after')", on_stdout=seen.append, on_result=seen.append)
        assert png_size(r.png)[0] > 200 and r.chart.title == "t" and r.chart.elements[0].points == [[1, 3], [2, 4]]
        assert [type(x).__name__ for x in seen] == ["str", "Result", "str"]  # as they came
        r = ctx.run_code("import plotly.express as px\npx.bar(x=['a'], y=[1])")
        assert r.results[0].plotly["data"][0]["type"] == "bar"
        r = ctx.run_code("from IPython.display import HTML, JSON, SVG, Markdown, display\n"
                         "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'), JSON({'k': [1]}), HTML('<i>h</i>'), Markdown('*m*'))")
        assert "<svg" in r.svg and r.json == {"k": [1]} and r.html == "<i>h</i>" and r.results[3].markdown == "*m*"
        r = ctx.run_code("import sympy\nsympy.Symbol('x') ** 2")
        assert "x" in r.results[0].latex and r.text == "x**2"
        r = ctx.run_code("1/0")
        assert (r.error.name, r.error.value, r.exit_code) == ("ZeroDivisionError", "division by zero", 1) and "<cell" in str(r.error)
        r = ctx.run_code("import asyncio\nkept = 1\nawait asyncio.sleep(100)", timeout_seconds=0.5 * patience())
        assert r.timed_out and ctx.run_code("kept").text == "1"
        other = sb.create_code_context("javascript")
        assert other.run_code("const kept = 2; kept").text == "2" and ctx.run_code("kept").text == "1"


def test_a_python_that_is_awake(world):
    """The page of python-data: what run() talks to was there before the sandbox, and goes along into forks; exec() is a shell."""
    need(world, "python-data")
    from pandastack import Sandbox
    with Sandbox.create(template="python-data", env={"GIVEN": "at create"}) as sb:
        assert sb.run("print(pd.Series([1, 2]).sum(), np.arange(4).sum())").stdout == "3 6\n"
        sb.run("import os\nkept = os.environ['GIVEN']")
        child = sb.fork()
        sb.run("kept = 'changed'")
        assert (sb.run("print(kept)").stdout, child.run("print(kept)").stdout) == ("changed\n", "at create\n")
        assert sb.exec("echo $((6 * 7)) $GIVEN").stdout == "42 at create\n"
        child.kill()


def test_a_jupyter_client_through_the_proxy(world):
    """Jupyter's own protocol: a kernel is made over HTTP, a cell is run over its WebSocket."""
    need(world, "code-interpreter")
    p, id = world, world.create(template="code-interpreter")
    at = f"/v1/sandboxes/{id}/proxy/8888"
    p.do("POST", f"/v1/sandboxes/{id}/execs", {"cmd": "JUPYTER_TOKEN=let-me-in panda-jupyter"})
    wait_for("the server", lambda: p.ask("GET", f"{at}/api?token=let-me-in").status == 200, 60)
    assert p.ask("GET", f"{at}/api/kernels").status == 403  # without its token
    assert "python3" in p.do("GET", f"{at}/api/kernelspecs?token=let-me-in")["kernelspecs"]
    kernel = p.do("POST", f"{at}/api/kernels?token=let-me-in", {"name": "python3"}, expect=201)["id"]
    ws = WebSocket(p, f"{at}/api/kernels/{kernel}/channels?token=let-me-in&session_id=s1")
    assert ws.status == 101, ws.head

    def run(code, msg_id):
        head = {"msg_id": msg_id, "username": "u", "session": "s1", "msg_type": "execute_request", "version": "5.3", "date": ""}
        ws.json({"header": head, "parent_header": {}, "metadata": {}, "channel": "shell", "buffers": [],
                 "content": {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False,
                             "stop_on_error": False}})
        seen = {}
        while "execute_reply" not in seen or "idle" not in seen:
            m = json.loads(ws.recv()[1])
            if m["parent_header"].get("msg_id") == msg_id:
                kind = m["msg_type"]
                seen[m["content"]["execution_state"] if kind == "status" else kind] = m["content"]
        return seen

    first = run("x = 6\nprint('printed')", "m1")
    assert first["execute_reply"]["status"] == "ok" and first["stream"]["text"] == "printed\n"
    assert run("x * 7", "m2")["execute_result"]["data"]["text/plain"] == "42"
    assert run("1/0", "m3")["error"]["ename"] == "ZeroDivisionError"
    drawn = run("%matplotlib inline\nimport matplotlib.pyplot as plt; plt.plot([1]); plt.show()", "m4")
    assert "display_data" in drawn, drawn
    assert png_size(base64.b64decode(drawn["display_data"]["data"]["image/png"]))[0] > 100
    ws.close()
    p.do("DELETE", f"{at}/api/kernels/{kernel}?token=let-me-in", expect=204)


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
    one, two, three, four = cells(box, ["const os = require('os'); let x = 6", "console.log(os.platform()); await Promise.resolve(x * 7)",
                                        "process.version", "const OpenAI = require('openai'), A = require('@anthropic-ai/sdk');"
                                        "[typeof new OpenAI({ apiKey: 'k' }).chat.completions.create, typeof new A({ apiKey: 'k' }).messages.create]"],
                                  command=["/usr/lib/panda/repl-node"])
    assert json.loads(four[0]["data"]["application/json"]) == ["function", "function"], four
    assert [a["type"] for a in two] == ["stdout", "result", "done"]
    assert two[1]["data"]["text/plain"] == "42" and three[0]["data"]["text/plain"].startswith("'v22.")


def test_agent_tools(boot):
    box = boot("agent")
    box.put("/workspace/t.py", b"def test_one():\n    assert 1 + 1 == 2\n")
    assert "1 passed" in box.sh("cd /workspace && python3 -m pytest -q t.py")
    assert box.sh("cd /workspace && rg -l test_one && fd t.py") == "t.py\nt.py\n"
    box.put("/workspace/package.json", b'{"name": "p", "version": "1.0.0", "scripts": {"test": "node -e 0"}}')
    box.sh("cd /workspace && npm test && npm --version | grep '^10[.]'", timeout=120)
    r = box.try_("bash", "-exc", AGENT_TOOLS, timeout=120)
    assert r.code == 0, r
    box.put("/workspace/m.c", b'#include <Python.h>\nint main(void) { Py_Initialize(); return Py_IsInitialized() - 1; }\n')
    assert node_sdks(box) == "hello\nhello\n"
    box.sh("cd /workspace && gcc -g m.c $(python3-config --includes --ldflags --embed) -o m && ./m && gdb -batch -ex 'info line main' m", timeout=120)


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
    assert run_file(box, "sync.py", """
from playwright.sync_api import sync_playwright
with sync_playwright() as p, p.chromium.launch() as browser:
    page = browser.new_page()
    page.set_content("<p id=x>" + chr(0x1f43c) + "</p>")
    print(page.inner_text("#x") == chr(0x1f43c))
""", timeout=180) == "True\n"
    fonts = box.sh("fc-list : family")
    assert all(name in fonts for name in ("DejaVu Sans", "Liberation Serif", "Noto Sans", "Noto Color Emoji")), fonts
    start = time.monotonic()
    box.run("python3", "/usr/lib/panda/warm-browser.py", timeout=180)
    print(f"a page from nothing, warm: {time.monotonic() - start:.1f} s")


def package_index(where):
    """Two registries of one package each, as files: lamp for Python, lantern for Node."""
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as z:
        z.writestr("lamp.py", "light = 'on'\n")
        z.writestr("lamp-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: lamp\nVersion: 1.0\n")
        z.writestr("lamp-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("lamp-1.0.dist-info/RECORD", "")
    (where / "simple/lamp").mkdir(parents=True)
    (where / "files").mkdir()
    (where / "files/lamp-1.0-py3-none-any.whl").write_bytes(wheel.getvalue())
    (where / "simple/lamp/index.html").write_text('<a href="/files/lamp-1.0-py3-none-any.whl">lamp-1.0-py3-none-any.whl</a>')
    about = {"name": "lantern", "version": "1.0.0", "main": "index.js", "bin": {"lantern": "cli.js"}}
    tgz = io.BytesIO()
    with tarfile.open(fileobj=tgz, mode="w:gz") as t:
        for name, text in {"package.json": json.dumps(about), "index.js": "module.exports = 'lit'\n",
                           "cli.js": "#!/usr/bin/env node\nconsole.log('run')\n"}.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            t.addfile(entry, io.BytesIO(text.encode()))
    (where / "files/lantern-1.0.0.tgz").write_bytes(tgz.getvalue())
    dist = {"tarball": "http://web.example:8090/files/lantern-1.0.0.tgz", "shasum": hashlib.sha1(tgz.getvalue()).hexdigest()}
    (where / "lantern").write_text(json.dumps({"name": "lantern", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {**about, "dist": dist}}}))


def test_packages_can_be_installed_when_egress_allows(server_home, tmp_path):
    """pip and npm, from a registry of our own in the little internet."""
    if not (BUILD / "templates/agent.json").exists():
        pytest.skip("the template agent is not built here")
    package_index(tmp_path)
    with LittleInternet() as net:
        index = Child(net.internet, PYTHON, "-u", "-m", "http.server", "--bind", WEB, "--directory", str(tmp_path), "8090", stderr=subprocess.DEVNULL)
        net.children_beds = [index]
        assert "Serving" in index.line()
        p = NetPandad(net, server_home / "index", templates=["agent"], bakes=server_home / "bakes").start()
        try:
            pip = "pip install -q --no-cache-dir --disable-pip-version-check --retries 0 --timeout 3 --root-user-action=ignore " \
                  "--index-url http://web.example:8090/simple --trusted-host web.example lamp"
            npm = "npm install --no-audit --no-fund --fetch-retries 0 --fetch-timeout 3000 --registry http://web.example:8090"
            id = p.create(template="agent", egress_allowlist=["web.example:8090"])
            r = p.sh(id, f"{pip} && python3 -c 'import lamp; print(lamp.light)'", timeout_seconds=100)
            assert (r["exit_code"], r["stdout"]) == (0, "on\n"), r
            r = p.sh(id, f"cd /workspace && {npm} lantern && ls node_modules/lantern && node -p 'require(\"lantern\")' && {npm} -g lantern && lantern", timeout_seconds=100)
            assert r["exit_code"] == 0 and r["stdout"].split()[-1] == "run" and "lit" in r["stdout"].split(), r
            shut = p.create(template="agent", egress="off")
            assert p.sh(shut, pip, timeout_seconds=100)["exit_code"] != 0
            assert p.sh(shut, f"cd /workspace && {npm} lantern", timeout_seconds=100)["exit_code"] != 0
        finally:
            p.close()


BROWSE = """
import asyncio, glob, os, sys
from playwright.async_api import async_playwright

def command(file):
    try:
        return open(file).read()
    except OSError:  # it has ended
        return ''

def browsers():
    commands = {f.split('/')[2]: command(f) for f in glob.glob('/proc/[0-9]*/cmdline')}
    return {pid for pid, c in commands.items() if '--remote-debugging-pipe' in c and '--type=' not in c and 'standby' not in c and 'headless-shell' in c}

async def main():
    before = browsers()
    async with async_playwright() as p:
        browser = await p.chromium.launch(args=sys.argv[1:])
        page = await browser.new_page()
        await page.set_content('<title>t</title>')
        print(await page.title(), len(await page.screenshot()) > 100, 'taken' if browsers() == before else 'started')
        await browser.close()

asyncio.run(main())
"""


def test_a_browser_waits_in_every_sandbox(world):
    """The first launch() takes over a Chromium that ran before the snapshot; one that wants another gets another."""
    need(world, "browser")
    from pandastack import Sandbox
    node = "const { chromium } = require('playwright'); (async () => { const b = await chromium.launch(); const p = await b.newPage();" \
           "await p.setContent('<h1>n</h1>'); console.log(await p.textContent('h1')); await b.close(); })()"
    with Sandbox.create(template="browser") as sb:
        sb.filesystem.write("/workspace/b.py", BROWSE)
        sb.filesystem.write("/workspace/n.js", node)
        child = sb.fork()
        assert sb.exec("cd /workspace && python3 b.py --lang=de").stdout == "t True started\n"
        assert sb.exec("cd /workspace && python3 b.py").stdout == "t True taken\n"
        assert sb.exec("pgrep -c chromium").stdout == "0\n"  # it was closed, like any other
        assert sb.exec("cd /workspace && node n.js").stdout == "n\n"
        # what it trusts, and where it is, a browser looks up when it starts
        r = child.exec("mkdir -p ~/.pki/nssdb && certutil -d sql:$HOME/.pki/nssdb -N --empty-password && cd /workspace && TZ=Asia/Tokyo python3 b.py")
        assert r.stdout == "t True started\n", r
        assert child.exec("cd /workspace && unset PLAYWRIGHT_NODEJS_PATH && python3 b.py").stdout.startswith("t True ")
        child.kill()


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


@pytest.mark.parametrize("works", [True, False])
def test_what_is_borrowed_on_trial_and_does_not_work_is_given_back(tmp_path, works):
    """The step of tools/image alone, on a tree of one package: a whole image takes minutes."""
    tree, package = tmp_path / "tree", tmp_path / "package"
    for top in tree, package:
        (top / "usr/lib/tried").mkdir(parents=True)
        (top / "usr/lib/tried/a file").write_text("x")
    (package / "DEBIAN").mkdir()
    (package / "DEBIAN/control").write_text("Package: python3-tried\nVersion: 1\nArchitecture: all\nMaintainer: us\nDescription: x\n")
    subprocess.run(["dpkg-deb", "--build", package, tmp_path / "a.deb"], check=True, capture_output=True)
    (tree / "usr/lib/tried/made later").write_text("x")
    (tree / "usr/share/panda").mkdir(parents=True)
    (tree / "usr/share/panda/borrowed").write_text("python3-tried 1 sid\npython3-other 1 sid\n")
    step = subprocess.run(["sed", "-n", "/^give_back()/,/^}/p", TOP / "tools/image"], capture_output=True, text=True, check=True).stdout
    script = f"""set -euo pipefail
said() {{ printf 'borrow sid python3-tried tried\\nborrow sid python3-other\\n'; }}
fetch_borrowed() {{ test "$1 $2" = 'sid python3-tried' && echo {tmp_path}/a.deb; }}
inside() {{ test "$1" = "python3 -c 'import tried'" && {'true' if works else 'false'}; }}
tree={tree}
{step}
give_back"""
    r = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r
    left = sorted(p.name for p in (tree / "usr/lib/tried").iterdir())
    assert left == (["a file", "made later"] if works else ["made later"]) and ("does not work here" in r.stdout) == (not works)
    assert (tree / "usr/share/panda/borrowed").read_text() == ("python3-tried 1 sid\n" if works else "") + "python3-other 1 sid\n"
