"""Reads an image archive, inside a machine: what it says of itself, and its files onto a disk to be.

    oci_unpack.py look|unpack SIZE WHICH

The archive is the first SIZE bytes of /dev/pvol1: of `docker save`, an OCI layout, or a plain root file system; each, and
each layer in it, as it is or compressed with gzip, zstd, xz or bzip2. SIZE 0: there is none, and the root is empty. WHICH
names one of several images. With `unpack`, an empty ext4 is mounted at /mnt: it becomes the disk of machines whose root
image is that of this one, so everything of that image is covered (see finish()). The last line of stdout is JSON for
template/oci.h; stderr is for people. Nothing here protects this machine: it is thrown away. That entries stay below the new
root is chroot()'s business.
"""
import bz2
import ctypes
import encodings.utf_8  # noqa: F401 - nothing can be imported later: the root is another one then
import hashlib
import json
import lzma
import os
import shutil
import stat
import sys
import tarfile
import zlib

ARCHIVE, DISK, ROOT = "/dev/pvol1", "/mnt", "/mnt/upper"
PIECE = 1 << 18
OUTER_MAX = 10000  # files of an archive; a root file system has more
META_MAX = 4 << 20  # one JSON file
LAYERS_MAX = 256
ENTRIES_MAX = 2000000  # of all layers
UNPACKED_MAX = 32 << 30  # bytes of one layer, or of the whole archive: several disks full
REFS_MAX = 16


# What readers of formats say when they are given nonsense.
EXPECTED = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, ValueError, OverflowError, OSError, KeyError, TypeError,
            AttributeError, RecursionError)


class Bad(Exception):
    pass


# ---- bytes ----


class Part:
    """Some bytes of a file, as a file."""

    def __init__(self, fd, start, size):
        self.fd, self.start, self.size, self.at = fd, start, size, 0

    def read(self, n=-1):
        left = max(self.size - self.at, 0)
        data = os.pread(self.fd, left if n < 0 else min(n, left), self.start + self.at)
        self.at += len(data)
        return data

    def seek(self, at, whence=0):
        self.at = at + (self.at if whence == 1 else self.size if whence == 2 else 0)
        return self.at

    def tell(self):
        return self.at


class Zstd:
    """As the decompressors of Python look: Python 3.11 has none for this, dpkg's library is there."""

    lib = ctypes.CDLL("libzstd.so.1")

    class Buffer(ctypes.Structure):
        _fields_ = [("p", ctypes.c_void_p), ("size", ctypes.c_size_t), ("pos", ctypes.c_size_t)]

    def __init__(self):
        self.lib.ZSTD_createDStream.restype = ctypes.c_void_p
        self.lib.ZSTD_decompressStream.restype = ctypes.c_size_t
        self.stream = ctypes.c_void_p(self.lib.ZSTD_createDStream())
        self.out = ctypes.create_string_buffer(PIECE)
        self.rest, self.needs_input, self.eof, self.unused_data = b"", True, False, b""

    def decompress(self, data, max_length):
        data = self.rest + data
        hold = ctypes.create_string_buffer(data, len(data))
        src = self.Buffer(ctypes.cast(hold, ctypes.c_void_p), len(data), 0)
        dst = self.Buffer(ctypes.cast(self.out, ctypes.c_void_p), PIECE, 0)
        r = self.lib.ZSTD_decompressStream(self.stream, ctypes.byref(dst), ctypes.byref(src))
        if self.lib.ZSTD_isError(ctypes.c_size_t(r)):
            raise Bad("its zstd data is damaged")
        self.rest = data[src.pos:]
        self.needs_input = not self.rest and dst.pos < PIECE
        return self.out.raw[:dst.pos]


class Gzip:
    def __init__(self):
        self.z = zlib.decompressobj(31)

    def decompress(self, data, max_length):
        return self.z.decompress(self.z.unconsumed_tail + data, max_length)

    needs_input = property(lambda self: not self.z.unconsumed_tail)
    eof = property(lambda self: self.z.eof)
    unused_data = property(lambda self: self.z.unused_data)


KINDS = [(b"\x1f\x8b", Gzip), (b"\x28\xb5\x2f\xfd", Zstd), (b"\xfd7zXZ\0", lzma.LZMADecompressor), (b"BZh", bz2.BZ2Decompressor)]

OTHERS = [(b"\x04\x22\x4d\x18", "lz4"), (b"LZIP", "lzip"), (b"\x1f\x9d", "compress"), (b"\x89LZO", "lzop"), (b"7z\xbc\xaf", "7z"),
          (b"PK\x03\x04", "zip"), (b"hsqs", "squashfs")]


def kind_of(f):
    head = f.read(8)
    f.seek(0)
    for magic, name in OTHERS:
        if head.startswith(magic):
            raise Bad(f"it is packed with {name}: what is read are tar files, plain or packed with gzip, zstd, xz or bzip2")
    return next((k for magic, k in KINDS if head.startswith(magic)), None)


class Plain:
    """What f holds, decompressed if it is compressed, with its digest; forwards only."""

    def __init__(self, f):
        self.f, self.kind, self.sha, self.rest, self.all = f, kind_of(f), hashlib.sha256(), b"", 0
        self.z = self.kind() if self.kind else None

    def piece(self):
        if not self.z:
            return self.f.read(PIECE)
        while True:
            data = self.f.read(PIECE) if self.z.needs_input else b""
            if self.z.eof:
                rest = self.z.unused_data + data
                if not rest.startswith(next(magic for magic, k in KINDS if k is self.kind)):
                    return b""  # zeros, or whatever is behind it
                self.z, data = self.kind(), rest
            elif not data and self.z.needs_input:
                if isinstance(self.z, Zstd):
                    return b""
                raise Bad("its compressed data ends early")
            out = self.z.decompress(data, PIECE)
            if out:
                return out

    def read(self, n):
        out = [self.rest]
        have = len(self.rest)
        while have < n:
            p = self.piece()
            if not p:
                break
            out.append(p)
            have += len(p)
            self.all += len(p)
            if self.all > UNPACKED_MAX:
                raise Bad(f"it is more than {UNPACKED_MAX >> 30} GiB when it is decompressed")
            self.sha.update(p)
        data = b"".join(out)
        self.rest = data[n:]
        return data[:n]

    def digest(self):
        while self.read(PIECE):
            pass
        return self.sha.hexdigest()


# ---- what the archive says ----


def load(f, what):
    if f.size > META_MAX:
        raise Bad(f"{what} is larger than {META_MAX >> 20} MiB")
    try:
        return json.loads(f.read())
    except (ValueError, RecursionError):
        raise Bad(f"{what} is not JSON") from None


class Entry(tarfile.TarInfo):
    """Python takes a header that makes no sense for the end of the archive."""

    @classmethod
    def fromtarfile(cls, t):
        try:
            return super().fromtarfile(t)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as e:
            raise tarfile.ReadError(str(e)) from None


def plain_name(name):
    return "/".join(p for p in name.split("/") if p not in ("", "."))


def plain_ref(name):
    """As oci_ref() of template/oci.h: one name for what is the same image."""
    for usual in "docker.io/", "index.docker.io/", "library/":
        name = name[len(usual):] if name.startswith(usual) else name
    return name if ":" in name.rpartition("/")[2] or "@" in name else name + ":latest"


class Archive:
    def __init__(self, f):
        self.whole, self.files, self.links = f, {}, {}
        try:
            with tarfile.open(fileobj=f, mode="r:", tarinfo=Entry) as t:
                for n, m in enumerate(t):
                    if n == OUTER_MAX:
                        self.files = {}
                        break
                    if m.isreg():
                        self.files[plain_name(m.name)] = (m.offset_data, m.size)
                    elif m.issym():  # docker of old: the same layer twice
                        self.links[plain_name(m.name)] = os.path.normpath(os.path.join(os.path.dirname(m.name), m.linkname))
                    t.members = []
        except (tarfile.TarError, ValueError, OverflowError) as e:
            raise Bad(f"this is no tar archive: {e}") from None

    def part(self, name):
        name = plain_name(str(name))
        name = self.links.get(name, name)
        if name not in self.files:
            raise Bad(f"'{name}' is missing in the archive")
        start, size = self.files[name]
        return Part(self.whole.fd, self.whole.start + start, size)

    def blob(self, d):
        digest = str(d.get("digest", "")) if isinstance(d, dict) else ""
        algorithm, _, text = digest.partition(":")
        f = self.part(f"blobs/{algorithm}/{text}")
        if algorithm == "sha256" and f.size <= META_MAX:
            if hashlib.sha256(f.read()).hexdigest() != text:
                raise Bad(f"blob {digest[:32]} is damaged")
            f.seek(0)
        return f

    def docker(self):
        """[(names, config, layers)]"""
        for m in load(self.part("manifest.json"), "manifest.json"):
            yield m.get("RepoTags") or [], lambda m=m: self.part(m["Config"]), lambda m=m: [self.part(n) for n in m["Layers"]]

    def oci(self, index, names=(), depth=0):
        for m in index.get("manifests") or []:
            notes = m.get("annotations") or {}
            mine = [notes[k] for k in ("io.containerd.image.name", "org.opencontainers.image.ref.name") if k in notes] or list(names)
            where = m.get("platform") or {}
            if where and (where.get("os"), where.get("architecture")) != ("linux", "amd64"):
                continue
            doc = load(self.blob(m), "a manifest")
            if "manifests" in doc and depth < 4:
                yield from self.oci(doc, mine, depth + 1)
            elif "layers" in doc:
                if any(str(d.get("mediaType")).endswith("+encrypted") for d in doc["layers"]):
                    raise Bad("the image is encrypted: decrypt it before you bring it here")
                yield mine, lambda doc=doc: self.blob(doc.get("config")), lambda doc=doc: [self.blob(d) for d in doc["layers"]]

    def image(self, which):
        """(names, config, layers)"""
        if "manifest.json" in self.files:
            found = list(self.docker())
        elif "index.json" in self.files:
            found = list(self.oci(load(self.part("index.json"), "index.json")))
        else:
            return [], {}, [self.whole]
        if which:
            found = [x for x in found if plain_ref(which) in [plain_ref(str(n)) for n in x[0]]] or [None]
        if not found or found[0] is None:
            raise Bad(f"there is no image '{which}' in the archive" if which else "there is no image for linux/amd64 in the archive")
        names = sorted({str(n) for x in found for n in x[0]})
        if len(found) > 1:
            raise Bad(f"the archive holds several images: say which of {', '.join(names)[:160]}")
        config, layers = load(found[0][1](), "the image's configuration"), found[0][2]()
        if len(layers) > LAYERS_MAX:
            raise Bad(f"the image has more than {LAYERS_MAX} layers")
        return found[0][0][:REFS_MAX], config, layers


# ---- its files ----


def path_of(name, what):
    parts = [p for p in name.split("/") if p not in ("", ".")]
    if ".." in parts:
        raise Bad(f"{what} '{name[:80]}' leads out of the image")
    return "/" + "/".join(parts)


def remove(path):
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        pass


def clear(top, made):
    """All that layers below have put there."""
    for e in list(os.scandir(top)):
        if e.path not in made:
            remove(e.path)
        elif e.is_dir(follow_symlinks=False):
            clear(e.path, made)


class Layer:
    def __init__(self, limit):
        self.made, self.times, self.limit = set(), [], limit

    def whiteout(self, path):
        top, name = os.path.split(path)
        if name[4:] in ("", ".", ".."):
            raise Bad(f"'{path[:80]}' takes away nothing that has a name")
        if name == ".wh..wh..opq":
            if os.path.isdir(top):
                clear(top, self.made)
        elif not name.startswith(".wh..wh.") and os.path.join(top, name[4:]) not in self.made:
            remove(os.path.join(top, name[4:]))

    def make(self, t, m, path):
        mode = m.mode & 0o7777
        if m.isdir():
            if not os.path.isdir(path) or os.path.islink(path):
                remove(path)
                os.mkdir(path)
            self.times.append((path, m.mtime))
        else:
            remove(path)
            if m.islnk():
                os.link(path_of(m.linkname, "a link to"), path, follow_symlinks=False)
                return
            if m.issym():
                os.symlink(m.linkname, path)
            elif m.isreg() or m.issparse():
                if m.size > self.limit:
                    raise Bad(f"'{m.name[:80]}' says it has {m.size} bytes: that is more than a disk has")
                t.makefile(m, path)
            elif m.isfifo():
                os.mkfifo(path)
            elif m.ischr() or m.isblk():
                os.mknod(path, stat.S_IFCHR if m.ischr() else stat.S_IFBLK, os.makedev(m.devmajor, m.devminor))
            else:
                print(f"left out, of unknown kind: {m.name[:200]!r}", file=sys.stderr)
                return
        os.chown(path, m.uid, m.gid, follow_symlinks=False)
        if not m.issym():
            os.chmod(path, mode)
        for k, v in m.pax_headers.items():
            name = k[len("SCHILY.xattr."):] if k.startswith("SCHILY.xattr.") else ""
            if name.startswith("user.") or name in ("security.capability", "system.posix_acl_access", "system.posix_acl_default"):
                os.setxattr(path, name, v.encode("utf-8", "surrogateescape"), follow_symlinks=False)
        if not m.isdir():
            os.utime(path, (m.mtime, m.mtime), follow_symlinks=False)

    def unpack(self, f, left):
        n = 0
        with tarfile.open(fileobj=f, mode="r|", bufsize=PIECE, errors="surrogateescape", tarinfo=Entry) as t:
            for m in t:
                n += 1
                t.members = []
                if n > left:
                    raise Bad(f"the image has more than {ENTRIES_MAX} files")
                path = path_of(m.name, "an entry")
                if os.path.basename(path).startswith(".wh."):
                    self.whiteout(path)
                elif path != "/":
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    try:
                        self.make(t, m, path)
                    except OSError as e:
                        raise Bad(f"cannot make '{m.name[:80]}': {e.strerror}") from None
                    while path != "/":
                        self.made.add(path)
                        path = os.path.dirname(path)
        for path, mtime in reversed(self.times):
            if os.path.isdir(path):
                os.utime(path, (mtime, mtime), follow_symlinks=False)
        return n


def finish(covered, resolv):
    """What every machine needs; and nothing of the image below shows through: a directory of its root has another, opaque
    one above it, everything else a whiteout."""
    for d in "proc", "sys", "dev", "run", "tmp", "etc", "workspace":
        if not os.path.isdir(f"/{d}"):
            remove(f"/{d}")
            os.mkdir(f"/{d}")
    os.chmod("/tmp", 0o1777)
    remove("/etc/resolv.conf")
    with open("/etc/resolv.conf", "w") as f:
        f.write(resolv)
    for e in list(os.scandir("/")):
        if e.is_dir(follow_symlinks=False):
            os.setxattr(e.path, "trusted.overlay.opaque", b"y")
    for name in covered:
        if not os.path.lexists(f"/{name}"):
            os.mknod(f"/{name}", stat.S_IFCHR, 0)


def unpack(config, layers):
    limit = os.statvfs(DISK).f_blocks * os.statvfs(DISK).f_frsize
    covered = os.listdir("/")
    with open("/etc/resolv.conf") as f:
        resolv = f.read()
    diffs = (config.get("rootfs") or {}).get("diff_ids") or []
    os.mkdir(ROOT, 0o755)
    disk, libc = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY), ctypes.CDLL(None, use_errno=True)
    os.chroot(ROOT)
    os.chdir("/")
    os.umask(0o022)
    n = 0
    for i, part in enumerate(layers):
        try:
            f = Plain(part)
            n += Layer(limit).unpack(f, ENTRIES_MAX - n)
            digest = "sha256:" + f.digest()
        except EXPECTED as e:
            raise Bad(f"layer {i + 1} of {len(layers)} is damaged: {e}") from None
        except Bad as e:
            raise Bad(f"layer {i + 1} of {len(layers)}: {e}") from None
        if i < len(diffs) and diffs[i] != digest:
            raise Bad(f"layer {i + 1} of {len(layers)} is damaged: its digest is not the one the image names")
        print(f"layer {i + 1} of {len(layers)} unpacked", file=sys.stderr)
    finish(covered, resolv)
    if libc.syncfs(disk) < 0:  # the first to be told of what was lost on the way to the host's file
        raise Bad(f"the disk cannot be written ({os.strerror(ctypes.get_errno())}): the server's own may be full")
    return n


def whole_archive(size):
    """A compressed archive is decompressed first: it has to be read here and there."""
    part = Part(os.open(ARCHIVE, os.O_RDONLY), 0, size)
    if not kind_of(part):
        return part
    f, n = Plain(part), 0
    fd = os.open("/var/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
    while data := f.read(PIECE):
        os.pwrite(fd, data, n)
        n += len(data)
    return Part(fd, 0, n)


def main(what, size, which):
    names, config, layers = Archive(whole_archive(int(size))).image(which) if int(size) else ([], {}, [])
    if not isinstance(config, dict):
        raise Bad("the image's configuration is no JSON object")
    here = config.get("architecture", "amd64"), config.get("os", "linux")
    if here != ("amd64", "linux"):
        raise Bad(f"the image is for {here[1]}/{here[0]}: machines here are linux/amd64")
    files = unpack(config, layers) if what == "unpack" else 0
    print(json.dumps({"refs": names, "config": config.get("config") or {}, "layers": len(layers), "files": files}))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Bad as e:
        sys.exit(str(e))
    except EXPECTED as e:
        sys.exit(f"the archive makes no sense: {type(e).__name__}: {e}")
