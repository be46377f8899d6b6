"""The npm package @pandastack/sdk and its command line, as published, against pandad: tests/conformance has the tests, one process each."""
import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from server import TOP

HERE = TOP / "tests/conformance"
CACHE = Path(os.environ.get("PANDA_CACHE", "/var/cache/panda"))


def names(file):
    """From the text: no package needs to be installed to collect tests."""
    inside, found = False, []
    for line in (HERE / file).read_text().splitlines():
        if line.startswith("const tests = {"):
            inside = True
        elif line == "};":
            inside = False
        elif inside and line.startswith("  async "):
            found.append(line.split()[1].split("(")[0])
    return found


@pytest.fixture(scope="session")
def installed():
    """node_modules by name and version, kept outside of the tree."""
    package = (HERE / "package.json").read_bytes()
    home = CACHE / "npm" / hashlib.sha256(package).hexdigest()[:16]
    if not (home / "done").exists():
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_bytes(package)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=home, check=True, timeout=300,
                       stdout=subprocess.DEVNULL)
        (home / "done").touch()
    return home


def run(installed, pandad, file, name, tmp_path):
    # Node looks for packages beside the script. Preview host names are made from that of the API: localhost is the suffix.
    text = (HERE / file).read_bytes()
    script = installed / f"{hashlib.sha256(text).hexdigest()[:16]}-{file}"
    if not script.exists():  # whole, or not there: another session may read it
        new = installed / f"{os.getpid()}-{file}"
        new.write_bytes(text)
        new.rename(script)
    env = dict(os.environ, PANDASTACK_API=f"http://localhost:{pandad.port}", PANDASTACK_API_KEY=pandad.key, HOME="/nonexistent",
               TMPDIR=str(tmp_path))
    r = subprocess.run(["node", str(script), name], env=env, capture_output=True, text=True, timeout=120)
    assert r.returncode == 0 and r.stdout.endswith(f"ok {name}\n"), f"{r.stdout}\n{r.stderr}"


@pytest.mark.parametrize("name", names("library.mjs"))
def test_library(installed, pandad, name, tmp_path):
    run(installed, pandad, "library.mjs", name, tmp_path)


@pytest.mark.parametrize("name", names("cli.mjs"))
def test_command_line(installed, pandad, name, tmp_path):
    run(installed, pandad, "cli.mjs", name, tmp_path)
