"""backend - builds the wheel with nothing but the standard library, so that pip needs no network (PEP 517, PEP 660)"""

import base64
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same input gives the same bytes


def _project():
    text = (ROOT / "pyproject.toml").read_text().split("[project]", 1)[1].split("\n[", 1)[0]
    return dict(re.findall(r'^([\w-]+) = "(.*)"$', text, re.M))


P = _project()
INFO = f"{P['name']}-{P['version']}.dist-info"


def _metadata():
    return (
        f"Metadata-Version: 2.1\nName: {P['name']}\nVersion: {P['version']}\nSummary: {P['description']}\n"
        f"Requires-Python: {P['requires-python']}\nLicense: Apache-2.0\nDescription-Content-Type: text/markdown\n\n"
        + (ROOT / "README.md").read_text()
    ).encode()


def _unasync():
    """The blocking half of the package is written from the other one."""
    subprocess.run([sys.executable, str(ROOT / "tools" / "unasync")], check=True)


def _package():
    _unasync()
    for path in sorted((SOURCE / "pandastack").rglob("*")):
        if path.suffix in (".py", ".typed"):
            yield path.relative_to(SOURCE).as_posix(), path.read_bytes()


def _wheel(directory, files):
    files = list(files)
    files.append((f"{INFO}/METADATA", _metadata()))
    files.append((f"{INFO}/WHEEL", b"Wheel-Version: 1.0\nGenerator: pandastack\nRoot-Is-Purelib: true\nTag: py3-none-any\n"))
    record = ""
    for name, data in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    record += f"{INFO}/RECORD,,\n"
    files.append((f"{INFO}/RECORD", record.encode()))
    wheel = f"{P['name']}-{P['version']}-py3-none-any.whl"
    with zipfile.ZipFile(Path(directory) / wheel, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files:
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(entry, data)
    return wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _wheel(wheel_directory, _package())


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _unasync()
    return _wheel(wheel_directory, [(f"__editable__.{P['name']}.pth", f"{SOURCE}\n".encode())])


def build_sdist(sdist_directory, config_settings=None):
    top = f"{P['name']}-{P['version']}"
    name = f"{top}.tar.gz"
    files = [(f"src/{n}", d) for n, d in _package()] + [("PKG-INFO", _metadata())]
    files += [(n, (ROOT / n).read_bytes()) for n in ("README.md", "pyproject.toml", "tools/backend.py", "tools/unasync")]
    with tarfile.open(Path(sdist_directory) / name, "w:gz", format=tarfile.PAX_FORMAT) as t:
        for path, data in files:
            entry = tarfile.TarInfo(f"{top}/{path}")
            entry.size = len(data)
            entry.mode = 0o644
            t.addfile(entry, io.BytesIO(data))
    return name
