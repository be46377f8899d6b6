"""The package itself: generated code is current, types hold, a wheel builds without network, documents run."""

import ast
import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import pandastack
from conftest import BOX, EXEC

TOP = Path(__file__).resolve().parents[2]
SDK = TOP / "sdk" / "python"
SOURCES = sorted((SDK / "src" / "pandastack").rglob("*.py"))


def test_the_blocking_client_is_what_unasync_writes():
    r = subprocess.run([sys.executable, SDK / "tools" / "unasync", "--check"], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr


def test_types_hold():
    pytest.importorskip("mypy")
    r = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", "/dev/null"],
        cwd=SDK, capture_output=True, text=True,
    )
    assert r.returncode == 0, r.stdout + r.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_sources_are_python_3_9_with_nothing_but_the_standard_library(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        else:
            continue
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names, name


def test_a_wheel_builds_with_nothing_installed(tmp_path):
    spec = importlib.util.spec_from_file_location("backend", SDK / "tools" / "backend.py")
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    names = zipfile.ZipFile(tmp_path / backend.build_wheel(str(tmp_path))).namelist()
    assert "pandastack/py.typed" in names and "pandastack/_sync/sandbox.py" in names
    assert {f"pandastack/{p.relative_to(SDK / 'src' / 'pandastack').as_posix()}" for p in SOURCES} <= set(names)
    version = pandastack.__version__
    assert backend.build_sdist(str(tmp_path)) == f"pandastack-{version}.tar.gz"
    r = subprocess.run(
        [sys.executable, "-c", "import pandastack; print(pandastack.__version__)"],
        env={"PYTHONPATH": str(next(tmp_path.glob("*.whl")))}, capture_output=True, text=True, cwd="/",
    )
    assert r.stdout.strip() == version, r.stderr


def test_everything_public_is_documented():
    text = (TOP / "docs" / "python.md").read_text()
    for cls in (pandastack.Sandbox, pandastack.Filesystem, pandastack.Command, pandastack.CodeContext, pandastack.Terminal, pandastack.Volume):
        for name in vars(cls):
            if not name.startswith("_"):
                assert re.search(rf"\b{name}\b", text), f"{cls.__name__}.{name} is not in docs/python.md"
    for name in pandastack.exceptions.__all__:
        assert name in text, name


def test_names_used_in_the_documents_exist():
    """Every sb.x, sb.filesystem.x and so on in the examples is something the objects have."""
    owners = {
        "sb": pandastack.Sandbox, "child": pandastack.Sandbox, "base": pandastack.Sandbox, "fs": pandastack.Filesystem,
        "command": pandastack.Command, "ctx": pandastack.CodeContext, "term": pandastack.Terminal, "vol": pandastack.Volume,
        "client": pandastack.Client, "asb": pandastack.AsyncSandbox,
    }
    made = pandastack.Sandbox.from_info(pandastack.Client("k", "http://h"), BOX)
    checked = 0
    for doc in (TOP / "docs" / "python.md", SDK / "README.md"):
        for block in re.findall(r"```python\n(.*?)```", doc.read_text(), re.S):
            tree = ast.parse(block, feature_version=(3, 9))
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module == "pandastack":
                    for a in node.names:
                        assert hasattr(pandastack, a.name), a.name
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in owners:
                    owner = owners[node.value.id]
                    there = hasattr(owner, node.attr) or hasattr(made, node.attr) or hasattr(made.client, node.attr)
                    assert there or node.attr in ("id", "pid", "exit_code", "language", "name"), ast.dump(node)
                    checked += 1
    assert checked > 40
    assert EXEC["exit_code"] == 0
