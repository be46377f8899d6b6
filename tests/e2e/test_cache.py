"""tools/cache: what is kept of the things that are made once, and what goes."""
import fcntl
import json
import os
import subprocess
import time

import pytest

from conftest import TOP

DAY = 24 * 3600


class Cache:
    def __init__(self, home):
        self.home = home
        self.images = home / "images"
        (self.images / "layers").mkdir(parents=True)
        (home / "users").mkdir()

    def age(self, days, *paths):
        for p in paths:
            os.utime(p, (time.time() - days * DAY,) * 2)

    def image(self, key, days, *names, layers=(), size=4096):
        d = self.images / key
        d.mkdir()
        (d / "root.erofs").write_bytes(b"x" * size)
        (d / "layers").write_text("\n".join(layers))
        for n in names:
            (d / f"{n}.json").write_text(json.dumps({"name": n, "image": str(d / "root.erofs")}))
        (d / "used").touch()
        self.age(days, d / "used", d)
        return d

    def layer(self, key, days):
        d = self.images / "layers" / key
        d.mkdir()
        (d / "file").write_text("x")
        for end in "id", "used", "seconds":
            (d.parent / f"{key}.{end}").write_text("1")
            self.age(days, d.parent / f"{key}.{end}")

    def kernel(self, name, days):
        d = self.home / "kernel" / name
        d.mkdir(parents=True)
        (d / "panda-um").write_text("x")
        self.age(days, d)
        return d

    def build(self, name):
        d = self.home.parent / name
        (d / "templates").mkdir(parents=True)
        (self.home / "users" / name).symlink_to(d)
        return d

    def run(self, *args):
        r = subprocess.run([TOP / "tools/cache", *args], env=dict(os.environ, PANDA_CACHE=str(self.home)), capture_output=True, text=True, timeout=120)
        assert r.returncode == 0, r.stderr
        return r.stderr

    def there(self):
        found = [p.name for d in (self.images, self.images / "layers", self.home / "kernel") if d.is_dir() for p in d.iterdir()]
        return {n[0] for n in found if len(n) == 16}


def key(c):
    return c * 16


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def test_what_was_not_used_for_long_goes_and_the_newest_stay(cache):
    for c, days in zip("123456", (40, 30, 20, 13, 3, 1)):
        cache.image(key(c), days, "base")
    cache.image(key("7"), 99, "agent")
    cache.image(key("8"), 100, "agent", "browser")
    said = cache.run()
    assert cache.there() == set("45678"), said  # 4 is not old enough; 7 and 8 are the newest of their names
    assert "image 1111111111111111 (base): gone" in said and "GB are free" in said
    assert cache.run("--keep", "1", "--days", "0") and cache.there() == set("678")
    assert not list(cache.home.glob("gone.*"))


def test_what_somebody_has_stays(cache):
    """A link in a build directory, a description that names it, an open file, a lock."""
    images = {c: cache.image(key(c), 50, "base") for c in "123456"}
    for c in "9abc":
        cache.kernel(key(c), 50 - int(c, 16))
    mine = cache.build("mine")
    (mine / "base.img").symlink_to(images["1"] / "root.erofs")
    (mine / "panda-um").symlink_to(cache.home / "kernel" / key("9") / "panda-um")
    (mine / "templates/base.json").write_text((images["2"] / "base.json").read_text())
    (mine / "templates/broken.json").write_text("{")
    (cache.home / "users/gone").symlink_to(cache.home / "nowhere")
    (cache.images / "locks").mkdir()
    cache.age(60, images["3"] / "used", images["3"], images["4"] / "used", images["4"])
    with open(images["3"] / "root.erofs"), open(cache.images / "locks" / key("4"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = cache.run("--days", "7", "--keep", "1")
    kept = cache.there()
    assert set("1234") < kept and len(kept & set("56")) <= 1 and set("9c") <= kept and not set("ab") & kept, (kept, said)
    assert "444 (base): somebody is at it" in said
    assert not (cache.home / "users/gone").is_symlink()
    # the checkout is gone, and so is what it had
    for p in sorted(mine.rglob("*"), reverse=True):
        p.rmdir() if p.is_dir() and not p.is_symlink() else p.unlink()
    mine.rmdir()
    cache.run("--days", "7", "--keep", "1")
    assert len(cache.there() & set("123456")) == 1


def test_layers_go_with_their_images(cache):
    cache.image(key("1"), 50, "base", layers=[key("a"), key("b")])
    cache.image(key("2"), 1, "base", layers=[key("a"), key("c")])
    for c in "abcd":
        cache.layer(key(c), 50)
    cache.layer(key("e"), 1)
    cache.run("--keep", "1")
    assert cache.there() == set("2ace")
    assert not [p for p in (cache.images / "layers").iterdir() if p.name.startswith(("bbb", "ddd"))]


def test_packages_go_when_nothing_was_made_of_them_for_long(cache):
    archives = cache.images / "apt/archives"
    (archives / "partial").mkdir(parents=True)
    for name, days in ("a_1_all.deb", 20), ("b_1_all.deb", 20), ("a_2_all.deb", 3), ("c_1_all.deb", 0), ("lock", 50):
        (archives / name).write_text("x" * 100)
        cache.age(days, archives / name)
    npm = cache.images / "fetched/npm/@scope"
    npm.mkdir(parents=True)
    for name, days in ("a-1.0.tgz", 20), ("a-1.1.tgz", 2):
        (npm / name).write_text("x")
        cache.age(days, npm / name)
    said = cache.run("--dry-run")
    assert "3 packages: would go" in said, said
    with open(cache.images / "apt/lock", "w") as lock:  # somebody is fetching
        fcntl.flock(lock, fcntl.LOCK_EX)
        cache.run()
        assert len(list(archives.glob("*.deb"))) == 4
    assert [p.name for p in npm.iterdir()] == ["a-1.1.tgz"]
    assert "2 packages: gone" in cache.run()
    assert sorted(p.name for p in archives.iterdir()) == ["a_2_all.deb", "c_1_all.deb", "lock", "partial"]
    cache.run("--max-gb", "0")
    assert sorted(p.name for p in archives.glob("*.deb")) == ["c_1_all.deb"]  # used within the last hour


def test_a_limit_drops_what_was_unused_for_longest(cache):
    for c, days in zip("12345", (5, 4, 3, 2, 0.01)):
        cache.image(key(c), days, "base", size=1 << 20)
    assert "would go" in cache.run("--max-gb", "0.0032", "--keep", "1", "--dry-run") and cache.there() == set("12345")
    cache.run("--max-gb", "0.0032", "--keep", "1")
    assert cache.there() == set("345")
    cache.run("--max-gb", "0", "--keep", "1")
    assert cache.there() == {"5"}  # used within the last hour, and the newest


def test_what_a_kill_left_is_cleared_and_one_works_at_a_time(cache):
    cache.image(key("1"), 50, "base")
    left = cache.home / "gone.1.x"
    left.mkdir()
    (left / "file").write_text("x")
    with open(cache.home / "collect.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "somebody else" in cache.run() and left.exists()
    cache.run()
    assert not left.exists() and cache.there() == {"1"}


def test_what_makes_no_sense_is_refused(cache):
    r = subprocess.run([TOP / "tools/cache", "--keep", "0"], env=dict(os.environ, PANDA_CACHE=str(cache.home)), capture_output=True, text=True, timeout=60)
    assert r.returncode == 2 and "--keep" in r.stderr
