"""tools/fetch.sh: what images are made of is fetched once, and believed only when it is what was promised.

A Debian mirror of three packages on loopback, which counts what it is asked for, and the steps of tools/image alone: a whole image
takes a minute.
"""
import base64
import gzip
import hashlib
import http.server
import os
import shutil
import signal
import subprocess
import threading

import pytest

from conftest import TOP, wait_for

DRIVER = """
set -euo pipefail
. {top}/tools/lib.sh
. {top}/tools/fetch.sh
apt={cache}/apt fetched={cache}/fetched suite=tiny epoch=1735689600 max_age=30 refresh=${{REFRESH-0}}
make_scratch {cache}
tree=$scratch/tree
mkdir -p "$tree"
all() {{ apt_tells -o Dir::State::status=/dev/null && fetch_packages "$@" && cat "$scratch/debs"; }}
"$@"
"""


class Mirror(http.server.ThreadingHTTPServer):
    """Counts what it is asked for; of what has .stall in its name it gives half, and the rest when .go is set."""
    daemon_threads = True

    def __init__(self, where):
        self.where, self.asked, self.stall, self.go = where, [], None, threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def go_on(self):
        self.stall = None
        self.go.set()

    def debs(self):
        return sorted(p.rpartition("/")[2] for p in self.asked if p.endswith(".deb"))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        file = self.server.where / self.path.lstrip("/")
        self.server.asked.append(self.path)
        data = file.read_bytes() if file.is_file() else b""
        self.send_response(200 if file.is_file() else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        half = len(data) // 2 if self.server.stall and self.server.stall in self.path else 0
        try:
            if half:
                self.wfile.write(data[:half])
                self.wfile.flush()
                self.server.go.wait(600)
            self.wfile.write(data[half:])
        except OSError:
            pass  # it was killed meanwhile

    def log_message(self, *args):
        pass


class Bed:
    def __init__(self, home):
        self.home, self.cache, self.top, self.repo = home, home / "cache", home / "top", home / "repo"
        for d in self.cache, self.top / "tools", self.repo / "pool":
            d.mkdir(parents=True)
        for name in "lib.sh", "fetch.sh":
            shutil.copy(TOP / "tools" / name, self.top / "tools" / name)
        entries = [self.package("lamp", "wire, bulb"), self.package("wire"), self.package("bulb")]
        self.index(entries)
        self.mirror = Mirror(self.repo)
        self.sources("[trusted=yes] ")
        # where nobody listens now, nobody will; one that stalls does so until a test is done with it
        (home / "apt.conf").write_text('Acquire::Retries "0"; Acquire::http::Timeout "600";\n')

    def package(self, name, depends=""):
        made = self.home / name
        (made / "DEBIAN").mkdir(parents=True)
        (made / "usr/share").mkdir(parents=True)
        (made / "usr/share" / name).write_bytes(os.urandom(20000))
        about = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: us\nDescription: x\n" + (f"Depends: {depends}\n" if depends else "")
        (made / "DEBIAN/control").write_text(about)
        deb = self.repo / "pool" / f"{name}_1_all.deb"
        subprocess.run(["dpkg-deb", "--build", made, deb], check=True, capture_output=True)
        data = deb.read_bytes()
        return f"{about}Filename: pool/{deb.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"

    def index(self, entries):
        arch = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
        at = self.repo / "dists/tiny/main" / f"binary-{arch}"
        at.mkdir(parents=True)
        packed = gzip.compress("\n".join(entries).encode(), mtime=0)
        (at / "Packages.gz").write_bytes(packed)
        plain = gzip.decompress(packed)
        sums = "".join(f" {hashlib.sha256(d).hexdigest()} {len(d)} main/binary-{arch}/Packages{end}\n" for d, end in ((plain, ""), (packed, ".gz")))
        (self.repo / "dists/tiny/Release").write_text(f"Suite: tiny\nCodename: tiny\nArchitectures: {arch}\nComponents: main\n"
                                                      f"Date: Sat, 01 Nov 2025 00:00:00 UTC\nSHA256:\n{sums}")

    def sources(self, trust):
        """What tools/debian-sources says."""
        tool = self.top / "tools/debian-sources"
        tool.write_text(f"#!/bin/sh\necho 'deb {trust}http://127.0.0.1:{self.mirror.server_port}/ tiny main'\n")
        tool.chmod(0o755)

    def start(self, *call, **env):
        return subprocess.Popen(["bash", "-c", DRIVER.format(top=self.top, cache=self.cache), "fetch", *call], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, start_new_session=True, env={**os.environ, "APT_CONFIG": str(self.home / "apt.conf"), **env})

    def run(self, *call, ok=True, **env):
        p = self.start(*call, **env)
        try:
            said = p.communicate(timeout=300)[0]
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            raise
        assert (p.returncode == 0) == ok, said
        return said

    def start_and_stall(self):
        """One that has half of a package, until mirror.go_on()."""
        self.mirror.stall = "wire_1"
        p = self.start("all", "lamp")
        wait_for("half of a package", lambda: "wire_1_all.deb" in self.mirror.debs())
        return p

    def kept(self, name):
        return self.cache / "apt/archives" / f"{name}_1_all.deb"

    def whole(self):
        return all(self.kept(n).read_bytes() == (self.repo / "pool" / f"{n}_1_all.deb").read_bytes() for n in ("lamp", "wire", "bulb"))

    def later(self):
        """The lists are older than those of this hour."""
        os.utime(self.cache / "apt/updated", (1, 1))

    def offline(self):
        self.mirror.shutdown()
        self.mirror.server_close()


@pytest.fixture
def bed(tmp_path):
    b = Bed(tmp_path)
    yield b
    b.mirror.go.set()
    b.offline()


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


ALL = ["bulb_1_all.deb", "lamp_1_all.deb", "wire_1_all.deb"]


def test_packages_are_fetched_once_and_do_without_a_network_then(bed):
    said = bed.run("all", "lamp")
    assert sorted(said.splitlines()[-3:]) == ALL and bed.whole()
    assert bed.mirror.debs() == ALL
    bed.later()
    bed.run("all", "lamp")
    assert bed.mirror.debs() == ALL  # no more of them
    bed.later()
    bed.offline()
    said = bed.run("all", "lamp")
    assert "going on with those of" in said and sorted(said.splitlines()[-3:]) == ALL
    bed.kept("wire").unlink()
    bed.run("all", "lamp", ok=False)


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_package_is_found_and_fetched_again(bed, damage):
    bed.run("all", "lamp")
    damage(bed.kept("wire"))
    bed.run("all", "lamp")
    assert bed.whole() and bed.mirror.debs() == sorted(ALL + ["wire_1_all.deb"])
    damage(bed.kept("bulb"))
    bed.offline()
    bed.run("all", "lamp", ok=False)  # better nothing than that
    assert not bed.kept("bulb").exists()


def test_nothing_is_taken_from_a_mirror_that_lies(bed):
    bed.sources("")  # its lists are not signed
    said = bed.run("all", "lamp", ok=False)
    assert "not signed" in said and not list((bed.cache / "apt/archives").glob("*.deb"))
    bed.sources("[trusted=yes] ")
    flip(bed.repo / "pool/wire_1_all.deb")
    bed.run("all", "lamp", ok=False)
    assert not bed.kept("wire").exists()
    flip(bed.repo / "pool/wire_1_all.deb")
    bed.run("all", "lamp")
    assert bed.whole()


def test_killed_while_fetching(bed):
    p = bed.start_and_stall()
    os.killpg(p.pid, signal.SIGKILL)
    p.communicate(timeout=60)
    assert not bed.kept("wire").exists()
    bed.mirror.go_on()
    bed.run("all", "lamp")
    assert bed.whole()


def test_two_who_want_the_same_fetch_it_once(bed):
    first = bed.start_and_stall()
    second = bed.start("all", "lamp")
    lock = f":{(bed.cache / 'apt/lock').stat().st_ino} "
    wait_for("the other to wait", lambda: [w for w in open("/proc/locks") if "->" in w and lock in w])
    bed.mirror.go_on()
    for p in first, second:
        said = p.communicate(timeout=300)[0]
        assert p.returncode == 0 and sorted(said.splitlines()[-3:]) == ALL, said
    assert bed.whole()
    assert bed.mirror.debs().count("lamp_1_all.deb") == 1


@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_package_of_another_suite_is_fetched_again(bed, damage):
    first = bed.run("fetch_borrowed", "tiny", "wire").splitlines()[-1]
    good = (bed.repo / "pool/wire_1_all.deb").read_bytes()
    assert open(first, "rb").read() == good
    before = len(bed.mirror.asked)
    assert bed.run("fetch_borrowed", "tiny", "wire").splitlines()[-1] == first and len(bed.mirror.asked) == before
    damage(bed.cache / "fetched/tiny/wire/wire_1_all.deb")
    assert bed.run("fetch_borrowed", "tiny", "wire").splitlines()[-1] == first and open(first, "rb").read() == good


def test_what_npm_gives_is_what_the_template_names(bed):
    (bed.home / "bin").mkdir()
    (bed.home / "parcel.tgz").write_bytes(b"a parcel")
    npm = bed.home / "bin/npm"
    npm.write_text(f'#!/bin/sh -e\necho asked >>{bed.home}/asked\nwhile [ "$1" != --pack-destination ]; do shift; done\ncp {bed.home}/parcel.tgz "$2/x.tgz"\n')
    npm.chmod(0o755)
    want = "sha512-" + base64.b64encode(hashlib.sha512(b"a parcel").digest()).decode()
    path = f"{bed.home}/bin:{os.environ['PATH']}"

    def fetch(ok=True):
        return bed.run("fetch_npm", "@us/parcel", "1.0.0", want, ok=ok, PATH=path).splitlines()[-1]

    kept = bed.cache / "fetched/npm/@us/parcel-1.0.0.tgz"
    assert fetch() == str(kept) == fetch() and (bed.home / "asked").read_text() == "asked\n"
    flip(kept)
    fetch()
    assert kept.read_bytes() == b"a parcel" and (bed.home / "asked").read_text() == "asked\n" * 2
    flip(kept)
    (bed.home / "parcel.tgz").write_bytes(b"another")
    fetch(ok=False)
    assert not kept.exists()
