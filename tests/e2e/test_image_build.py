"""tools/image: two who make the same do not fight, and what a kill leaves is nobody's image.

With the layers of base that this host has, in a cache of its own: only the last step is made, which takes seconds.
"""
import filecmp
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from conftest import TOP, wait_for
from server import BUILD, patience

CACHE = Path(os.environ.get("PANDA_CACHE", "/var/cache/panda"))
INIT = BUILD / "src/guest/init/panda-init"


class Maker:
    def __init__(self, home):
        r = subprocess.run([TOP / "tools/image", "--init", INIT], capture_output=True, text=True, timeout=1800)
        assert r.returncode == 0, r.stderr[-3000:]
        self.good = Path(r.stdout.strip())
        self.images = home / "images"
        layers = self.images / "layers"
        layers.mkdir(parents=True)
        for key in (self.good.parent / "layers").read_text().split():
            (layers / key).symlink_to(CACHE / "images/layers" / key)
            for end in ".id", ".full":
                if (known := CACHE / "images/layers" / (key + end)).exists():
                    (layers / (key + end)).write_text(known.read_text())
        self.env = dict(os.environ, PANDA_CACHE=str(home))

    def start(self, umask=-1, **env):
        return subprocess.Popen([TOP / "tools/image", "--init", INIT], env={**self.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                start_new_session=True, umask=umask)

    def end(self, p):
        out, said = p.communicate(timeout=600 * patience())
        assert p.returncode == 0, said
        return Path(out.strip()), said

    def packing(self):
        return [f for f in self.images.glob("scratch.*/root.erofs") if f.stat().st_size]


@pytest.fixture
def maker(tmp_path):
    yield Maker(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")  # half a gigabyte each


def test_two_at_once_make_one_image(maker):
    first = maker.start()
    wait_for("it to be packed", lambda: maker.packing() or first.poll() is not None)
    both = [maker.end(p) for p in (maker.start(), first)]
    assert both[0][0] == both[1][0] and filecmp.cmp(both[0][0], maker.good, shallow=False)
    assert sorted("packing base as erofs: done" in said for _, said in both) == [False, True], both
    assert "made already" in both[0][1] and not list(maker.images.glob("scratch.*"))


def test_many_who_only_ask_are_all_answered(maker):
    made, _ = maker.end(maker.start())
    assert [maker.end(p)[0] for p in [maker.start() for _ in range(24)]] == [made] * 24
    assert not list(maker.images.glob("scratch.*"))


def test_killed_while_it_is_packed(maker):
    p = maker.start()
    wait_for("it to be packed", lambda: maker.packing() or p.poll() is not None)
    os.killpg(p.pid, signal.SIGKILL)
    p.communicate(timeout=60 * patience())
    assert not list(maker.images.glob("*/base.json")) and str(maker.images) not in Path("/proc/self/mounts").read_text()
    left = list(maker.images.glob("scratch.*"))
    # what is set in the shell of who runs it makes no difference
    image, said = maker.end(maker.start(umask=0o077, LC_ALL="de_DE.UTF-8", TZ="Asia/Tokyo", SOURCE_DATE_EPOCH="1"))
    assert filecmp.cmp(image, maker.good, shallow=False) and "packing base" in said
    assert left and not list(maker.images.glob("scratch.*"))
