"""Sandboxes whose agent root in the guest has replaced: what tests need of the wire, and how it is done (guest/takeover.py)."""
import json
import struct
from pathlib import Path

DATA, EOF, CREDIT, END, READY, STARTED, EXITED, ATTACHED, GAP, FILE, PATH, STATS = 1, 2, 3, *range(7, 16)  # src/wire/guest.h
REPLIES = {"READY": READY, "STARTED": STARTED, "EXITED": EXITED, "ATTACHED": ATTACHED, "GAP": GAP, "FILE": FILE, "PATH": PATH, "STATS": STATS}


def text(s):
    return struct.pack("<I", len(s)) + s.encode() + b"\0"


PAYLOADS = {READY: b"", STARTED: struct.pack("<QI", 1, 2), EXITED: struct.pack("<QIIIQQQQ", 1, 1, 9, 2, 0, 0, 0, 0),
            ATTACHED: struct.pack("<QIQQ", 1, 2, 0, 0), GAP: struct.pack("<Q", 1 << 40), PATH: text("/x"), STATS: bytes(13 * 8),
            FILE: text("f") + text("") + struct.pack("<IIIIQQQ", 0o100644, 0, 0, 1, 0, 0, 1)}


def row(type, times=1, chan=None, payload=None):
    payload = PAYLOADS.get(type, b"") if payload is None else payload
    return [type, (1 if type in (DATA, EOF, GAP) else 0) if chan is None else chan, payload.hex(), times]


def end(err=0, words=""):
    return row(END, payload=struct.pack("<I", err) + text(words))


def brings(*rows):
    """For a path or a script: the answer that this request wants."""
    return "plan:" + json.dumps(rows).encode().hex() + "."


def take_over(pandad, id, plan):
    """From now on all that this sandbox's agent says is plan: {request type or "": rows}."""
    pandad.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/plan.json", json.dumps(plan).encode())
    pandad.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/takeover.py", (Path(__file__).parent / "guest/takeover.py").read_bytes())
    pandad.sh(id, "setsid python3 /root/takeover.py </dev/null >/root/takeover.log 2>&1 &")
