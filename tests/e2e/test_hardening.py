"""What a bug of ours finds in its way: every program and library that the build makes, read as the ELF file it is.

Nothing here looks at flags but for the one that leaves no mark in a program. The programs are found, not listed, so a new one
is looked at from its first day.
"""
import json
import re
import shlex
import struct

import pytest

from server import BUILD

EXEC, DYN = 2, 3
LOAD, DYNAMIC, INTERP, STACK, RELRO = 1, 2, 3, 0x6474E551, 0x6474E552
X, W = 1, 2
FLAGS, FLAGS_1, BIND_NOW_TAG, NEEDED, TEXTREL = 30, 0x6FFFFFFB, 24, 1, 22
BIND_NOW, NOW, PIE = 8, 1, 0x08000000

# mov/sub/xor of %fs:0x28, the canary of a stack protector, with any register.
CANARY = re.compile(rb"\x64[\x48\x4c][\x2b\x33\x8b][\x04\x0c\x14\x1c\x24\x2c\x34\x3c]\x25\x28\0\0\0")
ENDBR64 = b"\xf3\x0f\x1e\xfa"
PROBE = re.compile(rb"\x48\x83\x0c\x24\x00")  # orq $0, (%rsp): each page of a large frame is touched


class Elf:
    def __init__(self, path):
        self.b = b = path.read_bytes()
        self.type, = struct.unpack_from("<H", b, 16)
        at, = struct.unpack_from("<Q", b, 32)
        size, n = struct.unpack_from("<HH", b, 54)
        self.segments = []
        for i in range(n):
            kind, flags, off, addr, _, filesz, memsz, align = struct.unpack_from("<IIQQQQQQ", b, at + i * size)
            self.segments.append({"kind": kind, "flags": flags, "off": off, "addr": addr, "filesz": filesz, "memsz": memsz, "align": align})

    def all(self, kind):
        return [s for s in self.segments if s["kind"] == kind]

    def dynamic(self):
        found = {}
        for s in self.all(DYNAMIC):
            for at in range(s["off"], s["off"] + s["filesz"], 16):
                tag, value = struct.unpack_from("<QQ", self.b, at)
                found.setdefault(tag, []).append(value)
        return found

    def code(self):
        return b"".join(self.b[s["off"]:s["off"] + s["filesz"]] for s in self.all(LOAD) if s["flags"] & X)


def programs():
    if not BUILD.exists():
        return []
    places = [p for p in (BUILD / "src").rglob("*") if p.is_file() and not p.is_symlink() and not p.suffix == ".o"]
    return sorted(p for p in places if p.open("rb").read(4) == b"\x7fELF" and struct.unpack_from("<H", p.read_bytes(), 16)[0] in (EXEC, DYN))


FOUND = programs()
GUESTS = ("panda-init", "panda-upper", "panda-tool")  # musl: static, and no fortified functions


@pytest.fixture(params=FOUND, ids=lambda p: p.name)
def elf(request):
    e = Elf(request.param)
    e.name = request.param.name
    return e


def test_all_our_programs_are_looked_at():
    names = {p.name for p in FOUND}
    assert {"pandad", "panda", "panda-vmm", *GUESTS} <= names, names
    assert any(n.startswith("libpanda.so") for n in names), names


def test_it_is_loaded_anywhere(elf):
    assert elf.type == DYN
    dynamic = elf.dynamic()
    assert TEXTREL not in dynamic
    if ".so" not in elf.name:
        assert dynamic.get(FLAGS_1, [0])[0] & PIE or elf.name in GUESTS  # musl's link is by hand, and says only ET_DYN
    static = elf.name in (*GUESTS, "panda-vmm")
    assert bool(elf.all(INTERP) or ".so" in elf.name) != static
    assert (NEEDED in dynamic) != static  # a static one has relocations of its own, and asks for no library


def test_nothing_is_writable_and_executable(elf):
    stack, = elf.all(STACK)
    assert not stack["flags"] & X
    for s in elf.all(LOAD):
        assert s["flags"] & (X | W) != X | W, s
    # and code shares no page with what is only read: the headers are not part of it
    for s in elf.all(LOAD):
        if s["flags"] & X:
            assert s["off"] > 0 and s["off"] % 4096 == 0, s


def test_tables_of_functions_are_read_only_from_the_start(elf):
    assert elf.all(RELRO)
    dynamic = elf.dynamic()
    if NEEDED in dynamic:
        assert dynamic.get(FLAGS, [0])[0] & BIND_NOW or dynamic.get(FLAGS_1, [0])[0] & NOW or BIND_NOW_TAG in dynamic


def test_functions_check_their_stack(elf):
    code = elf.code()
    # a function with a protector reads the canary twice; each program of ours has at least a few
    assert len(CANARY.findall(code)) >= 4
    if elf.name not in GUESTS:
        assert b"__stack_chk_fail" in elf.b


def test_large_frames_are_touched_page_by_page(elf):
    assert PROBE.search(elf.code()) or elf.name == "panda-tool" or ".so" in elf.name  # they may have no large frame


def test_indirect_branches_land_on_marks(elf):
    assert elf.code().count(ENDBR64) >= (1 if elf.name in GUESTS else 10)  # musl has none, and calls few functions of ours by address


def test_copies_know_the_size_of_their_target(elf):
    if elf.name not in GUESTS:
        assert re.search(rb"__(mem|str|v?snprintf|read|recv)[a-z]*_chk", elf.b)


def test_each_source_is_compiled_with_all_of_it():
    """A variable that is zero at first leaves no mark; and one library of ours without the flags would not show above."""
    wanted = {"-fstack-protector-strong", "-fstack-clash-protection", "-fcf-protection=full", "-ftrivial-auto-var-init=zero",
              "-D_FORTIFY_SOURCE=3"}
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    ours = [c for c in commands if "/tests/" not in c["file"] and not c["output"].startswith("tests/")]
    assert len(ours) > 100
    for c in ours:
        flags = shlex.split(c["command"])
        assert wanted <= set(flags), (c["file"], wanted - set(flags))
        assert not {"-fno-stack-protector", "-U_FORTIFY_SOURCE"} & set(flags[flags.index("-D_FORTIFY_SOURCE=3"):]), c["file"]
    # what runs in guests is made by musl-gcc in a line of its own
    lines = [line for line in (BUILD / "build.ninja").read_text().splitlines() if "rcrt1.o" in line]
    assert len(lines) >= len(GUESTS)
    for line in lines:
        assert wanted - {"-D_FORTIFY_SOURCE=3"} <= set(line.replace("'", " ").split()), line
