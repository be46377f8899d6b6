"""WebSocket (RFC 6455), client side, without I/O: frames are built and taken apart, nothing is read or sent."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from typing import List, NamedTuple, Optional

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MESSAGE_MAX = 16 << 20
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketError(Exception):
    """The other side broke the protocol; ``close_code`` is what to tell it."""

    def __init__(self, text: str, close_code: int = 1002) -> None:
        super().__init__(text)
        self.close_code = close_code


class Message(NamedTuple):
    opcode: int  # TEXT, BINARY, CLOSE, PING or PONG; never a fragment
    data: bytes


def new_key() -> str:
    return base64.b64encode(os.urandom(16)).decode()


def accept_of(key: str) -> str:
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()


def _mask(data: bytes, key: bytes) -> bytes:
    # One big XOR: byte by byte would cost a hundred times as much.
    n = len(data)
    if not n:
        return data
    stream = (key * (n // 4 + 1))[:n]
    return (int.from_bytes(data, "little") ^ int.from_bytes(stream, "little")).to_bytes(n, "little")


def encode(opcode: int, data: bytes, mask: Optional[bytes] = None) -> bytes:
    """A whole message as one masked frame."""
    key = os.urandom(4) if mask is None else mask
    n = len(data)
    if n < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | n)
    elif n < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, n)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, n)
    return head + key + _mask(data, key)


def close_payload(code: int, reason: str = "") -> bytes:
    return struct.pack("!H", code) + reason.encode()[:120]


class Decoder:
    """Takes bytes as they come and gives whole messages."""

    def __init__(self, message_max: int = MESSAGE_MAX) -> None:
        self._buf = bytearray()
        self._parts = bytearray()
        self._opcode = CONT
        self._max = message_max

    def feed(self, chunk: bytes) -> List[Message]:
        self._buf += chunk
        out: List[Message] = []
        while True:
            m = self._frame()
            if m is None:
                return out
            if m.opcode != CONT:
                out.append(m)

    def _frame(self) -> Optional[Message]:
        """One frame off the buffer; CONT stands for "a fragment was put aside"; None: not all here yet."""
        buf = self._buf
        if len(buf) < 2:
            return None
        fin, opcode, n = buf[0] & 0x80, buf[0] & 0x0F, buf[1] & 0x7F
        if buf[0] & 0x70:
            raise WebSocketError("reserved bits are set, but no extension was agreed on")
        if buf[1] & 0x80:
            raise WebSocketError("the server masked a frame")
        if opcode not in (CONT, TEXT, BINARY, CLOSE, PING, PONG):
            raise WebSocketError(f"unknown opcode {opcode}")
        if opcode >= CLOSE and (n > 125 or not fin):
            raise WebSocketError("a control frame is too long or in pieces")
        at = 2
        if n == 126:
            if len(buf) < 4:
                return None
            n, at = struct.unpack_from("!H", buf, 2)[0], 4
        elif n == 127:
            if len(buf) < 10:
                return None
            n, at = struct.unpack_from("!Q", buf, 2)[0], 10
        if n + (len(self._parts) if opcode == CONT else 0) > self._max:
            raise WebSocketError(f"a message larger than {self._max} bytes", 1009)
        if len(buf) < at + n:
            return None
        data = bytes(memoryview(buf)[at : at + n])
        del buf[: at + n]
        if opcode >= CLOSE:
            return Message(opcode, data)
        if opcode == CONT:
            if self._opcode == CONT:
                raise WebSocketError("a continuation of nothing")
            self._parts += data
        else:
            if self._opcode != CONT:
                raise WebSocketError("a new message inside an unfinished one")
            if fin:
                return self._whole(opcode, data)
            self._opcode = opcode
            self._parts = bytearray(data)
        if not fin:
            return Message(CONT, b"")
        opcode, self._opcode = self._opcode, CONT
        data = bytes(self._parts)
        self._parts = bytearray()
        return self._whole(opcode, data)

    @staticmethod
    def _whole(opcode: int, data: bytes) -> Message:
        if opcode == TEXT:
            try:
                data.decode()
            except UnicodeDecodeError:
                raise WebSocketError("a text message that is not UTF-8", 1007) from None
        return Message(opcode, data)
