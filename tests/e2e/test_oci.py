"""Images of other tools become templates: archives of `docker save`, OCI layouts, root file systems; FROM scratch.

Archives are made here, byte for byte as those tools make them; busybox (static) stands for an image's programs.
"""
import bz2
import gzip
import hashlib
import importlib.util
import io
import json
import lzma
import os
import random
import subprocess
import tarfile

import pytest

from conftest import TOP, count, wait_for
from test_builds import bakes, build, form, log, order, own, panda  # noqa: F401
from test_server_stress import small_disk  # noqa: F401


def tar(*entries, format=tarfile.PAX_FORMAT):
    """entries: (name, bytes | dict of TarInfo fields with data=)"""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as t:
        for name, what in entries:
            i = tarfile.TarInfo(name)
            what = {"data": what} if isinstance(what, bytes) else dict(what)
            data = what.pop("data", b"")
            i.size, i.mode, i.mtime = len(data), 0o644, 1000000000
            for k, v in what.items():
                setattr(i, k, v)
            t.addfile(i, io.BytesIO(data))
    return out.getvalue()


def directory(**kw):
    return dict(type=tarfile.DIRTYPE, mode=0o755, **kw)


def link(to):
    return dict(type=tarfile.SYMTYPE, linkname=to, mode=0o777)


def hard(to):
    return dict(type=tarfile.LNKTYPE, linkname=to)


def program(data):
    return dict(data=data, mode=0o755)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def zstd(data):
    return subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout


def docker(layers, config=None, tags=("app:1",), **top):
    """As docker save."""
    config = json.dumps(dict({"architecture": "amd64", "os": "linux", "config": config or {},
                              "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest(x) for x in layers]}}, **top)).encode()
    manifest = [{"Config": digest(config) + ".json", "RepoTags": list(tags), "Layers": [f"{i}/layer.tar" for i in range(len(layers))]}]
    return tar((digest(config) + ".json", config), *((f"{i}/layer.tar", x) for i, x in enumerate(layers)),
               ("manifest.json", json.dumps(manifest).encode()))


def oci(images, pack=gzip.compress, kind="application/vnd.oci.image.layer.v1.tar"):
    """An OCI layout; images: [(name, layers, config, platform)]"""
    blobs, manifests = {}, []

    def blob(data, type):
        blobs[digest(data)] = data
        return {"mediaType": type, "digest": "sha256:" + digest(data), "size": len(data)}

    for name, layers, config, platform in images:
        c = json.dumps({"architecture": platform, "os": "linux", "config": config,
                        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest(x) for x in layers]}}).encode()
        m = {"schemaVersion": 2, "config": blob(c, "application/vnd.oci.image.config.v1+json"),
             "layers": [blob(pack(x), kind) for x in layers]}
        d = blob(json.dumps(m).encode(), "application/vnd.oci.image.manifest.v1+json")
        manifests.append(dict(d, annotations={"org.opencontainers.image.ref.name": name}, platform={"os": "linux", "architecture": platform}))
    index = {"schemaVersion": 2, "manifests": manifests}
    return tar(("oci-layout", b'{"imageLayoutVersion": "1.0.0"}'), ("index.json", json.dumps(index).encode()),
               *((f"blobs/sha256/{k}", v) for k, v in blobs.items()))


@pytest.fixture(scope="session")
def busybox():
    for path in "/bin/busybox", "/usr/bin/busybox":
        if os.path.exists(path) and b"interp" not in subprocess.run(["readelf", "-lW", path], capture_output=True).stdout.lower():
            with open(path, "rb") as f:
                return f.read()
    pytest.fail("there is no static busybox: tools/setup installs busybox-static")


@pytest.fixture(scope="session")
def small(busybox):
    """The layer of a small system."""
    names = "sh ls cat echo id env stat find sleep pgrep pwd test readlink true hostname wc ps kill httpd wget nc".split()
    return tar(("bin", directory()), ("bin/busybox", program(busybox)), *((f"bin/{n}", hard("bin/busybox")) for n in names),
               ("etc/passwd", b"root:x:0:0::/root:/bin/sh\napp:x:1234:1234::/home/app:/bin/sh\n"),
               ("etc/group", b"root:x:0:\napp:x:1234:\n"), ("root", directory()), ("home/app", directory(uid=1234, gid=1234)))


def send(p, name, archive, token=None, **fields):
    body, headers = form(dict(name=name, **fields), {"rootfs": archive})
    return p.ask("POST", "/v1/templates/build", body, headers=headers, token=token, timeout=120)


def bring(p, name, archive, status="done", **fields):
    a = send(p, name, archive, **fields)
    assert a.status == 202, a
    text = log(p, a.json["id"], follow=True)
    b = p.do("GET", f"/v1/templates/builds/{a.json['id']}")
    assert b["status"] == status, f"{b}\n{text}"
    return b, text


def test_an_image_becomes_a_template(own, small):
    more = tar(("srv/hello", b"hello\n"), ("srv/deep/er", b"x"))
    image = docker([small, more], {"Env": ["PATH=/bin", "GREETING=hi there"], "WorkingDir": "/srv", "User": "app"}, tags=["tiny:1"])
    b, text = bring(own, "tiny", image)
    assert "2 layers" in text and b["bytes"] > 0
    r = own.sh(own.create(template="tiny"), "cat hello; pwd; id -u; echo $GREETING; ls /; readlink /proc/1/exe; ls -d /usr /var")
    assert r["stdout"] == "hello\n/srv\n1234\nhi there\nbin\ndev\netc\nhome\nproc\nroot\nrun\nsrv\nsys\ntmp\nworkspace\n" and "/usr" in r["stderr"], r
    t = own.do("GET", "/v1/templates/tiny")
    assert not t["is_global"] and t["baked"] and t["memory_mb"] == 512
    # all that sandboxes can do, they can do with it
    id = own.create(template="tiny")
    own.sh(id, "echo new >/srv/hello; echo x >/made; cat /made >/proc/self/fd/1", user="root")
    other = own.create(template="tiny")
    d = own.do("GET", f"/v1/sandboxes/{other}/diff?to={id}")
    assert ([f["path"] for f in d["added"]], [f["path"] for f in d["changed"]], d["removed"]) == (["/made"], ["/srv/hello"], []), d
    fork = own.do("POST", f"/v1/sandboxes/{id}/fork", {"count": 1})["children"][0]
    assert own.sh(fork, "cat /made hello")["stdout"] == "x\nnew\n"
    # its name as an image is known from now on
    build(own, "child", "FROM tiny:1\nUSER root\nRUN echo more >>/srv/hello")
    assert own.sh(own.create(template="child"), "cat hello; id -u")["stdout"] == "hello\nmore\n0\n"
    own.stop()
    own.start()
    assert own.sh(own.create(template="tiny"), "cat hello")["stdout"] == "hello\n"


def test_layers_over_layers(own, small):
    """Whiteouts, opaque directories, hard and symbolic links, owners, modes, times, extended attributes, holes."""
    low = tar(("d", directory()), ("d/old", b"old"), ("d/sub/older", b"x"), ("gone", b"x"), ("tree/a/b", b"x"), ("file", b"low"),
              ("swap", directory()), ("swap/x", b"x"), ("keep", b"kept"))
    cap = b"\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
    marks = {"SCHILY.xattr.user.note": "text", "SCHILY.xattr.trusted.overlay.opaque": "y",
             "SCHILY.xattr.security.capability": cap.decode("utf-8", "surrogateescape")}
    high = tar((".wh.gone", b""), ("d/new", b"new"), ("d/.wh..wh..opq", b""), ("tree/.wh.a", b""), ("file", dict(data=b"high", mode=0o4755)),
               ("swap", b"now a file"), ("twice", b"first"), ("twice", directory()), ("twice/in", b"x"), ("twice", b"last"), ("./dot/./ted", b"d"), ("one", b"1"), ("two", hard("one")), ("three", link("one")), ("abs", link("/etc/passwd")),
               ("n" * 90 + "/" + "m" * 90 + "/long", b"long"), ("\u00fcn\u00efcode", b"u"),
               ("marked", dict(data=b"x", uid=1234, gid=55, mode=0o640, pax_headers=marks)),
               ("null", dict(type=tarfile.CHRTYPE, devmajor=1, devminor=3)), ("pipe", dict(type=tarfile.FIFOTYPE)))
    sparse = subprocess.run("cd $(mktemp -d) && truncate -s 3M holes && printf end >>holes && tar --sparse --format=pax -cf - holes && rm -r $PWD",
                            shell=True, capture_output=True, check=True).stdout
    for i, image in enumerate((docker([small, low, high, sparse]), gzip.compress(docker([small, low, high, sparse])),
                               oci([("x", [small, low, high, sparse], {}, "amd64"), ("x", [b"?"], {}, "arm64")]),
                               oci([("x", [small, low, high, sparse], {}, "amd64")], pack=zstd))):
        bring(own, f"t{i}", image)
        r = own.sh(own.create(template=f"t{i}"), """
cat /d/new; ls /d; test -e /gone || echo no gone; ls /tree; cat /file; stat -c '%a %Y' /file; cat /swap; stat -c '%h' /one; cat /two /three
readlink /abs; cat /twice /dot/ted; echo; cat /n*/m*/long /keep; ls -d /*code; stat -c '%u %g %a' /marked; stat -c %F,%t,%T /null /pipe; wc -c </holes
""")
        assert r["stdout"] == ("newnew\nno gone\nhigh4755 1000000000\nnow a file2\n11/etc/passwd\nlastd\nlongkept/\u00fcn\u00efcode\n1234 55 640\n"
                               "character special file,1,3\nfifo,0,0\n3145731\n"), r
    # seen from a root that has Python; COPY --from takes the archive itself, too
    look = "import os; m = '/it/marked'; print({n: os.getxattr(m, n) for n in sorted(os.listxattr(m))})"
    for source, files in ("t0", {}), ("./i.tar", {"i.tar": docker([tar(("marked", dict(data=b"x", pax_headers=marks)))])}):
        _, text = build(own, "looks", f'FROM base\nCOPY --from={source} / /it\nRUN python3 -c "{look}"', files, replace="true")
        assert str({"security.capability": cap, "user.note": b"text"}) + "\n" in text, text


def test_every_way_to_pack_a_layer(own, small):
    """Layers, each packed in another way and in two pieces, as tools that work in parallel write them; and whole archives."""
    ways = {"plain": bytes, "gzip": gzip.compress, "zstd": zstd, "xz": lzma.compress, "bzip2": bz2.compress}
    layers = [small, *(tar((name, b"is here"), (f"big.{name}", bytes(range(256)) * 4000)) for name in ways)]
    packs = iter([bytes, *ways.values()])
    bring(own, "layers", oci([("x", layers, {}, "amd64")], pack=lambda x: (p := next(packs))(x[:1000]) + p(x[1000:])))
    r = own.sh(own.create(template="layers"), "cat plain gzip zstd xz bzip2; cat big.* | wc -c", cwd="/")
    assert r["stdout"] == "is here" * 5 + "5120000\n", r
    for name in "xz", "bzip2":  # gzip and zstd: in other tests
        bring(own, name, ways[name](tar(("it", b"is here"), ("bin", directory()))))
        assert own.do("GET", f"/v1/sandboxes/{own.create(template=name)}/fs?path=/it") == b"is here"


def test_what_cannot_be_unpacked_is_named(own):
    layer = tar(("it", b"is here"))
    for image, says in [
        (oci([("x", [layer], {}, "amd64")], pack=lambda x: b"\x04\x22\x4d\x18" + x), "layer 1 of 1: it is packed with lz4"),
        (b"LZIP\x01" + bytes(500), "packed with lzip"),
        (b"PK\x03\x04" + bytes(500), "packed with zip: what is read are tar files"),
        (oci([("x", [layer], {}, "amd64")], kind="application/vnd.oci.image.layer.v1.tar+gzip+encrypted"), "the image is encrypted"),
    ]:
        b, text = bring(own, "x", image, status="failed")
        assert says in b["error"], (says, b, text)


def hostile():
    big = tarfile.TarInfo("big")
    big.size = 1 << 50
    up = tar(("../../../../escaped", b"x"))
    huge = big.tobuf(tarfile.GNU_FORMAT) + b"x" * 512
    return {
        "dots": (docker([up]), "leads out of the image"),
        "dots inside": (docker([tar(("a/../../escaped", b"x"))]), "leads out of the image"),
        "hard link out": (tar(("x", hard("../../../etc/passwd"))), "leads out of the image"),
        "huge": (docker([huge]), "more than a disk has"),
        "huge hole": (docker([tar(("h", dict(data=b"0\n", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "h",
                                                                   "GNU.sparse.realsize": str(1 << 60)})))]), "layer 1"),
        "hard link to nothing": (docker([tar(("x", hard("nowhere")))]), "layer 1 of 1: cannot make 'x': No such file"),
        "whiteout of its own directory": (docker([tar(("a/b", b"x")), tar(("a/.wh..", b""))]), "layer 2 of 2: '/a/.wh..' takes away nothing"),
        "whiteout of all": (docker([tar(("a/b", b"x")), tar(("a/.wh...", b""))]), "layer 2 of 2: '/a/.wh...' takes away nothing"),
        "a file is no directory": (docker([tar(("a", b"x"), ("a/b", b"x"))]), "layer 1"),
        "a name without end": (docker([tar(("n" * 5000, b"x"))]), "layer 1"),
        "an owner without end": (docker([tar(("x", dict(data=b"x", pax_headers={"uid": str(1 << 70)})))]), "layer 1"),
        "cut": (docker([tar(("x", b"y" * 5000))[:2000]]), "damaged"),
        "gzip cut": (gzip.compress(os.urandom(100000))[:5000], "early"),
        "zstd": (b"\x28\xb5\x2f\xfd" + b"\xff" * 200, "zstd"),
        "no tar": (os.urandom(4096), "no tar archive"),
        "empty": (b"", "empty"),
    }


def nothing_left(p, id, had):
    wait_for("its machines to go", lambda: not [m for m in p.machines() if m.startswith("b_")])
    wait_for("its bake to go", lambda: bakes(p) == had)
    assert sorted(os.listdir(p.data / "builds" / id)) == ["build.json", "log"]
    for name in "escaped", "absolute":
        assert not os.path.exists(f"/{name}") and not os.path.exists(f"/tmp/{name}") and not list(p.home.rglob(name))


def test_hostile_archives(own):
    had = bakes(own)
    for what, (data, says) in hostile().items():
        b, text = bring(own, "x", data, status="failed")
        assert says in b["error"], (what, b, text)
        assert "Dockerfile" not in b["error"]
        assert own.ask("GET", "/v1/templates/x").status == 404
        nothing_left(own, b["id"], had)


def test_links_that_lead_out_stay_inside(own, small):
    """What a link points to is looked for in the image: the machine that unpacks has other files there, and so has the host."""
    with open("/etc/hostname") as f:
        name = f.read()
    had = bakes(own)
    image = docker([small, tar(("way", link("/")), ("up", link("../../../../../../..")), ("etc/deep", link("/escaped-by-link"))),
                    tar(("way/absolute", b"by link"), ("up/escaped", b"by dots"), ("/absolute-name", b"abs")),
                    tar(("sda", dict(type=tarfile.BLKTYPE, devmajor=8, devminor=0)), ("mem", dict(type=tarfile.CHRTYPE, devmajor=1, devminor=1)),
                        ("etc/hostname", b"inside\n"))])
    b, _ = bring(own, "links", image)
    r = own.sh(own.create(template="links"), "cat /absolute /escaped /absolute-name; cat /sda /mem 2>&1 | wc -c; cat /etc/hostname")
    assert r["stdout"].startswith("by linkby dotsabs") and r["stdout"].endswith("inside\n"), r
    with open("/etc/hostname") as f:
        assert f.read() == name
    own.do("DELETE", "/v1/templates/links")
    nothing_left(own, b["id"], had)


def test_images_that_make_no_sense(own, small):
    for make, says in [
        (lambda s: docker([s], architecture="arm64"), "linux/amd64"),
        (lambda s: oci([("a", [s], {}, "amd64"), ("b", [s], {}, "amd64")]), "several images"),
        (lambda s: oci([("a", [s], {}, "arm64")]), "no image for linux/amd64"),
        (lambda s: docker([s]).replace(b'"0/layer.tar"', b'"9/layer.tar"'), "missing in the archive"),
        (lambda s: tar(("a", b"x"), ("b", b"y")).replace(b"b\0\0", b"c\0\0"), "no tar archive"),
        (lambda s: docker([s]).replace(b"app:x:1234", b"app:x:4321"), "digest"),
        (lambda s: tar(("manifest.json", b"[{]")), "not JSON"),
        (lambda s: tar(("manifest.json", b"[1]")), "makes no sense"),
        (lambda s: tar(("manifest.json", b'[{"Config": "c", "Layers": []}]'), ("c", b"[]")), "no JSON object"),
        (lambda s: docker([s], {"Env": ["=x"]}), "Env"),
        (lambda s: docker([s], {"Cmd": [1]}), "cmd"),
        (lambda s: docker([s], {"Env": ["A=" + "x" * 100000]}), "Env"),
        (lambda s: tar(("index.json", b'{"manifests": [{"digest": "sha256:../../../etc/passwd"}]}')), "missing"),
    ]:
        b, _ = bring(own, "x", make(small), status="failed")
        assert says in b["error"], (says, b)


def test_one_of_several_images(own, small):
    two = oci([("a:1", [small, tar(("which", b"a"))], {}, "amd64"), ("b:1", [small, tar(("which", b"b"))], {}, "amd64")])
    bring(own, "x", two, image_ref="docker.io/library/b:1")
    assert own.sh(own.create(template="x"), "cat /which")["stdout"] == "b"
    build(own, "y", "FROM ./two.tar#a:1\nRUN test $(cat /which) = a", {"two.tar": two})


def test_a_plain_root_file_system(own, small):
    for i, data in enumerate((small, gzip.compress(small))):
        bring(own, f"r{i}", data, memory_mb=256)
        r = own.sh(own.create(template=f"r{i}"), "ls /bin | wc -l; pwd; cat /proc/meminfo | while read a b c; do test $a != MemTotal: || test $b -lt 262144 && echo small; break; done")
        assert r["stdout"].split()[1:] == ["/", "small"] and int(r["stdout"].split()[0]) > 10, r


def test_image_ref_is_what_is_known_here(own, small):
    bring(own, "x", docker([small], tags=["docker.io/library/tiny:2", "other/name:v1"]))
    for i, ref in enumerate(("tiny:2", "library/tiny:2", "docker.io/library/tiny:2", "other/name:v1", "x", "base")):
        body, headers = form({"name": f"c{i}", "image_ref": ref}, {})
        id = own.do("POST", "/v1/templates/build", body, headers=headers)["id"]
        log(own, id, follow=True)
        assert own.do("GET", f"/v1/templates/builds/{id}")["status"] == "done"
    for ref in "tiny:3", "alpine", "ghcr.io/x/y@sha256:0000":
        body, headers = form({"name": "n", "image_ref": ref}, {})
        a = own.ask("POST", "/v1/templates/build", body, headers=headers)
        assert a.status == 400 and "registries" in a.json["error"] and "import" in a.json["error"] and "Dockerfile" not in a.json["error"], a
    other = own.do("POST", "/v1/me/tokens", {"label": "t", "tenant": "other"})["token"]
    body, headers = form({"name": "n", "image_ref": "tiny:2"}, {})
    assert own.ask("POST", "/v1/templates/build", body, headers=headers, token=other).status == 400


def test_from_scratch_and_stages_of_images(own, small, busybox):
    build(own, "one", "FROM base AS make\nRUN mkdir -p /out/etc && echo made >/out/etc/made && ln -s made /out/etc/link\n"
                      "FROM scratch\nCOPY busybox /bin/sh\nCOPY busybox /bin/cat\nCOPY --from=make /out /\nCOPY --chown=7:8 passwd /etc/passwd\nENV X=1\n"
                      "RUN cat /etc/link >/seen", {"busybox": busybox, "passwd": "a:x:7:8::/:/bin/sh\n"})
    r = own.sh(own.create(template="one"), "cat /seen /etc/link /etc/passwd; echo $X; echo /*")
    assert r["stdout"] == "made\nmade\na:x:7:8::/:/bin/sh\n1\n/bin /dev /etc /proc /run /seen /sys /tmp /workspace\n", r
    image = docker([small], {"Env": ["A=from the image"], "WorkingDir": "/home/app"})
    text = ("FROM ./i.tar AS i\nENV B=stage\nRUN echo $A $B >>said\nFROM i\nCOPY --chown=app:app x .\nRUN echo $A $B $(stat -c %U x) >>said\n"
            "FROM scratch AS none\nCOPY x /\nFROM i\nCOPY --from=1 /home/app/said /root/\nCOPY --from=none / /none/\n")
    build(own, "two", text, {"i.tar": image, "x": "x"})
    r = own.sh(own.create(template="two"), "cat /root/said /none/x; pwd; echo $B; cat said")
    assert r["stdout"] == "from the image stage\nfrom the image stage app\nx/home/app\nstage\nfrom the image stage\n", r
    _, again = build(own, "two", text, {"i.tar": image, "x": "x"}, replace="true")
    assert again.count("(as before)") == 6 and "unpacked" not in again
    _, later = build(own, "two", text + "RUN true\n", {"i.tar": image, "x": "x"}, replace="true")
    assert later.count("(as before)") == 6
    # an image without a shell: what can be said of it is said
    build(own, "bare", "FROM scratch\nCOPY x /x", {"x": "x"})
    id = own.create(template="bare")
    assert own.do("GET", f"/v1/sandboxes/{id}/fs?path=/x") == b"x"
    a = own.ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "true"})
    assert a.status == 400 and "No such file" in a.json["error"], a


@pytest.mark.parametrize("text,says", [
    ("FROM python:3.12-slim", "Dockerfile:1: there is no template 'python:3.12-slim', and nothing is pulled"),
    ("FROM ./no.tar", "Dockerfile:1: the archive 'no.tar' is not in the context"),
    ("FROM oci-archive:no.tar", "is not in the context"),
])
def test_what_from_cannot_be(pandad, text, says):
    a = order(pandad, "x", text)
    assert a.status == 400 and says in a.json["error"], a


def test_debian_is_the_base(own):
    for tag in "", ":12", ":12.7-slim", ":bookworm-slim", ":latest":
        build(own, "d", f"FROM docker.io/library/debian{tag}\nRUN grep -q bookworm /etc/os-release", replace="true")


def test_an_upload_that_breaks_off_leaves_nothing(own, small):
    body, headers = form({"name": "x"}, {"rootfs": small})
    c = own.connection(20)
    c.putrequest("POST", "/v1/templates/build")
    for k, v in dict(headers, Authorization=f"Bearer {own.key}", **{"Content-Length": str(len(body))}).items():
        c.putheader(k, v)
    c.endheaders(body[:len(body) // 2])
    wait_for("it to begin", lambda: os.listdir(own.data / "builds"))
    c.close()
    wait_for("it to be thrown away", lambda: not os.listdir(own.data / "builds"))


def test_two_of_them_are_one_too_many(own, small):
    body, headers = form({"name": "x", "dockerfile": "FROM base", "image_ref": "base"}, {})
    a = own.ask("POST", "/v1/templates/build", body, headers=headers)
    assert a.status == 400 and "one of" in a.json["error"], a
    a = send(own, "x", small, image_ref="not an image")
    assert a.status == 400 and "image_ref" in a.json["error"], a
    # with a Dockerfile, 'rootfs' is a file of the context as any other
    build(own, "x", "FROM base\nCOPY rootfs /x", {"rootfs": "a file"})
    assert own.sh(own.create(template="x"), "cat /x")["stdout"] == "a file"


def test_the_command_line_and_the_sdk_import(own, small, tmp_path):
    (tmp_path / "i.tar").write_bytes(docker([small, tar(("it", b"is here"))]))
    r = panda(own, "template", "import", str(tmp_path / "i.tar"), "--name", "mine")
    assert r.returncode == 0 and "done" in r.stdout, r
    assert own.sh(own.create(template="mine"), "cat /it")["stdout"] == "is here"
    r = panda(own, "template", "import", str(tmp_path / "i.tar"), "--name", "mine")
    assert r.returncode == 125 and "replace" in r.stderr, r
    r = panda(own, "template", "import", str(tmp_path / "i.tar"), "--name", "other", "--image", "no:1", "--json")
    assert r.returncode == 125 and "no image 'no:1'" in r.stderr, r
    for args in ([str(tmp_path)], [str(tmp_path / "none"), "--name", "x"], [str(tmp_path), "--name", "x"]):
        r = panda(own, "template", "import", *args)
        assert r.returncode in (2, 125) and r.stderr, r
    with own.client() as c:
        b = c.templates.import_image("sdk", tmp_path / "i.tar", image="app:1")
        assert c.templates.wait_for_build(b.id, interval=0.05).status == "done"
        assert c.sandboxes.create("sdk").run("cat /it").stdout == "is here"
        with pytest.raises(ValueError):
            c.templates.build("x", rootfs="a", dockerfile="b")


def test_a_disk_that_is_full_of_an_image(small_disk, small):
    """The host's: while the archive comes in, and while it is unpacked."""
    p = small_disk
    had = bakes(p)
    id = p.create()
    room = os.statvfs(p.data)
    with open(p.data / "ballast", "wb") as f:
        os.posix_fallocate(f.fileno(), 0, room.f_bavail * room.f_frsize - (40 << 20))
    try:
        a = send(p, "x", os.urandom(60 << 20))
        assert a.status == 507 and a.json["code"] == "disk_full", a
    except OSError:
        pass  # it hung up while we sent: as good
    wait_for("it to be thrown away", lambda: not os.listdir(p.data / "builds"))
    piece = os.urandom(1 << 20)
    b, text = bring(p, "x", oci([("x", [small, tar(("big", piece * 100))], {}, "amd64")], pack=zstd), status="failed")
    assert "big" in b["error"] or "disk" in b["error"] or "space" in b["error"], (b, text)
    wait_for("its machines to go", lambda: not [m for m in p.machines() if m.startswith("b_")])
    assert sorted(os.listdir(p.data / "builds" / b["id"])) == ["build.json", "log"] and bakes(p) == had
    assert p.sh(id, "echo on")["stdout"] == "on\n"
    os.unlink(p.data / "ballast")
    bring(p, "x", docker([small]))
    assert p.sh(p.create(template="x"), "echo fine")["stdout"] == "fine\n"
    p.do("DELETE", "/v1/templates/x")


def unpacker():
    spec = importlib.util.spec_from_file_location("oci_unpack", TOP / "src/guest/oci_unpack.py")
    u = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(u)
    return u


def test_what_grows_without_end_is_ended(tmp_path, monkeypatch):
    """Little that becomes much, also behind the end of what is wanted of it."""
    u = unpacker()
    monkeypatch.setattr(u, "UNPACKED_MAX", 3 << 20)
    little = gzip.compress(bytes(1 << 20))
    for data, fine in (little * 2, True), (gzip.compress(tar(("a", b"x"))) + little * 4, False), (bz2.compress(bytes(4 << 20)), False), (zstd(bytes(4 << 20)), False):
        (tmp_path / "a").write_bytes(data)
        f = u.Plain(u.Part(os.open(tmp_path / "a", os.O_RDONLY), 0, len(data)))
        if fine:
            assert f.digest() == digest(bytes(2 << 20))
            continue
        with pytest.raises(u.Bad, match="when it is decompressed"):
            f.digest()


def test_mutated_archives_are_refused_in_words(tmp_path):
    """What reads archives (inside machines) ends with a sentence, whatever it is given; here it only looks."""
    u = unpacker()
    layer = tar(("a", b"x" * 700), ("b", link("a")), ("c", hard("a")))
    seeds = [docker([layer]), oci([("x", [layer], {"Env": ["A=b"]}, "amd64")]), oci([("x", [layer], {}, "amd64")], pack=zstd), layer]
    rnd = random.Random(7)
    ends = {"good": 0, "bad": 0}
    for n in range(count(400, 20000)):
        data = bytearray(seeds[n % len(seeds)])
        for _ in range(rnd.randrange(1, 8)):
            at = rnd.randrange(len(data))
            what = rnd.randrange(4)
            if what == 0:
                data[at] ^= 1 << rnd.randrange(8)
            elif what == 1:
                del data[at:at + rnd.randrange(1, 600)]
            elif what == 2:
                data[at:at] = data[at:at + rnd.randrange(600)]
            else:
                data[at:at + 12] = rnd.choice([b"7" * 12, b"\xff" * 12, b"\0" * 12, b"../../../etc", b"-00000000001"])
        (tmp_path / "a").write_bytes(data)
        u.ARCHIVE = str(tmp_path / "a")
        try:
            names, config, layers = u.Archive(u.whole_archive(len(data))).image("")
            for f in layers:
                with tarfile.open(fileobj=u.Plain(f), mode="r|", tarinfo=u.Entry) as t:
                    for m in t:
                        u.path_of(m.name, "an entry")
            ends["good"] += 1
        except (u.Bad, *u.EXPECTED):
            ends["bad"] += 1
    assert ends["good"] and ends["bad"], ends
