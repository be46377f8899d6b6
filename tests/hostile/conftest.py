"""Guests, tenants, neighbours and users of the host that mean harm: each test is an attack, run against the real programs.

All fixtures and helpers are those of tests/e2e (conftest.py, server.py, streams.py, little_internet.py): `from conftest import
wait_for`, `def test_x(pandad, new_pandad, box)`. One file for each subject: test_<subject>.py. What runs inside guests is in guest/.
A test says in its docstring who attacks, with what, and it ends with looking at the others: pandad is alive and as small as before,
another sandbox (better: another tenant's) is served. No finding may need luck: an attack that does not find its hole open must have
been tried to its end.

Which tests run when:

* `@pytest.mark.core`: in `make test`, too. For each finding the one test that shows most, if it takes no more than about 10 s.
  All core tests together stay below three minutes on two cpus.
* no mark: in `make test-hostile`, which runs the core, too, and stays below ten minutes. Most tests.
* `@pytest.mark.soak`: only in `make soak`, which runs all. What takes more than a minute.

Loops use count(usual, soak), which is large in `make soak`. PANDA_HOSTILE=core leaves out all but the core (tools/test-hostile --core).

These tests want a pytest of their own, without tests/e2e: its fixtures of a session would be there twice.
"""
import importlib.util
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
E2E = HERE.parent / "e2e"
HOSTILE = HERE / "guest"  # what attacks from inside

sys.path.insert(0, str(E2E))
_spec = importlib.util.spec_from_file_location("e2e_conftest", E2E / "conftest.py")
_e2e = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_e2e)
globals().update({name: value for name, value in vars(_e2e).items() if not name.startswith("__")})
_configure = _e2e.pytest_configure


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if any(str(getattr(plugin, "__file__", "")) == str(E2E / "conftest.py") for plugin in config.pluginmanager.get_plugins()):
        raise pytest.UsageError("tests/hostile and tests/e2e cannot share one pytest: run each in its own")
    config.addinivalue_line("markers", "core: a part of `make test`")
    config.addinivalue_line("markers", "soak: only in `make soak`")
    _configure(config)


def pytest_collection_modifyitems(config, items):
    core, soak = os.environ.get("PANDA_HOSTILE") == "core", os.environ.get("PANDA_SOAK") == "1"
    wanted = lambda t: soak or (t.get_closest_marker("core") if core else not t.get_closest_marker("soak"))
    config.hook.pytest_deselected(items=[t for t in items if not wanted(t)])
    items[:] = [t for t in items if wanted(t)]
