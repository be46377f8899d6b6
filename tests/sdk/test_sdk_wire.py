"""Bytes in, events and messages out: no I/O."""

import json
import random

import pytest

from conftest import frame
from pandastack import _ws
from pandastack._http import Wire, framing, parse_head, segment
from pandastack._config import parse_url
from pandastack._sse import EVENT_MAX, SSEParser

STREAM = (
    ": a comment\n\n"
    "event: stdout\ndata: {\"chunk\":\"ä\\n\"}\n\n"
    "data: one\ndata:two\ndata:  three\n\n"
    "event: empty\n\n"
    "event: exit\r\ndata: {}\r\n\r\n"
    "id: 7\nretry: 3\nevent:  x \ndata: 日本\n\n"
    "event: cut\ndata: never finished\n"
).encode()
EVENTS = [("stdout", '{"chunk":"ä\\n"}'), ("message", "one\ntwo\n three"), ("exit", "{}"), ("x", "日本")]


def test_a_stream_in_one_piece():
    assert SSEParser().feed(STREAM) == EVENTS


def test_a_stream_cut_at_every_place():
    for at in range(len(STREAM) + 1):
        p = SSEParser()
        assert p.feed(STREAM[:at]) + p.feed(STREAM[at:]) == EVENTS, at


def test_a_stream_byte_by_byte():
    p = SSEParser()
    assert [e for i in range(len(STREAM)) for e in p.feed(STREAM[i : i + 1])] == EVENTS


def test_an_event_without_end_is_refused():
    p = SSEParser()
    piece = b"data: " + b"x" * (EVENT_MAX // 4)
    with pytest.raises(ValueError, match="larger than"):
        for _ in range(8):
            p.feed(piece)


@pytest.mark.parametrize("n", [0, 1, 125, 126, 127, 65535, 65536, 300000])
def test_what_is_encoded_can_be_unmasked_by_a_server(n):
    data = random.Random(n).randbytes(n)
    raw = _ws.encode(_ws.BINARY, data)
    assert raw[0] == 0x82 and raw[1] & 0x80
    skip = {126: 4, 127: 10}.get(raw[1] & 0x7F, 2)
    mask, body = raw[skip : skip + 4], raw[skip + 4 :]
    assert bytes(b ^ mask[i % 4] for i, b in enumerate(body)) == data


def test_the_mask_is_not_always_the_same():
    assert len({_ws.encode(_ws.TEXT, b"hello") for _ in range(8)}) > 1


def test_messages_cut_at_every_place():
    raw = (
        frame(_ws.TEXT, "né".encode())
        + frame(_ws.BINARY, b"a" * 200)
        + frame(_ws.BINARY, b"part1-", fin=False)
        + frame(_ws.PING, b"p")
        + frame(_ws.CONT, b"part2", fin=True)
        + frame(_ws.CLOSE, b"\x03\xe8")
    )
    want = [
        (_ws.TEXT, "né".encode()),
        (_ws.BINARY, b"a" * 200),
        (_ws.PING, b"p"),
        (_ws.BINARY, b"part1-part2"),
        (_ws.CLOSE, b"\x03\xe8"),
    ]
    for at in range(len(raw) + 1):
        d = _ws.Decoder()
        assert d.feed(raw[:at]) + d.feed(raw[at:]) == want, at


@pytest.mark.parametrize(
    "raw,why",
    [
        (b"\x82\x80\0\0\0\0", "masked"),
        (b"\xc2\x00", "reserved"),
        (b"\x83\x00", "opcode"),
        (b"\x09\x00", "control"),
        (b"\x89\x7e\x00\x80", "control"),
        (b"\x80\x00", "continuation of nothing"),
        (frame(_ws.TEXT, b"a", fin=False) + frame(_ws.TEXT, b"b"), "unfinished"),
        (frame(_ws.TEXT, b"\xff"), "UTF-8"),
        (b"\x82\x7f" + (1 << 62).to_bytes(8, "big"), "larger"),
    ],
)
def test_a_server_that_breaks_the_protocol_is_refused(raw, why):
    with pytest.raises(_ws.WebSocketError, match=why):
        _ws.Decoder().feed(raw)


def test_fragments_cannot_grow_without_end():
    d = _ws.Decoder(message_max=1000)
    d.feed(frame(_ws.BINARY, b"x" * 600, fin=False))
    with pytest.raises(_ws.WebSocketError, match="larger"):
        d.feed(frame(_ws.CONT, b"x" * 600))


def test_the_accept_of_the_rfc():
    assert _ws.accept_of("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_a_request_is_one_head_with_form_encoded_query():
    w = Wire(parse_url("http://h:1/pre"), "k", 5)
    r = w.build("GET", "/sandboxes/x/fs", {"path": "/tmp/a b+c&é.txt", "none": None, "yes": True})
    lines = r.head.decode().split("\r\n")
    assert lines[0] == "GET /pre/v1/sandboxes/x/fs?path=%2Ftmp%2Fa+b%2Bc%26%C3%A9.txt&yes=1 HTTP/1.1"
    assert "Host: h:1" in lines and "Authorization: Bearer k" in lines and lines[-2:] == ["", ""]
    assert w.build("POST", "/x").head.count(b"Content-Length: 0") == 1
    assert json.loads(w.build("POST", "/x", json_body={"a": "é"}).body) == {"a": "é"}
    with pytest.raises(ValueError, match="line end"):
        w.build("GET", "/x", headers={"Range": "a\r\nb: c"})


@pytest.mark.parametrize("name,want", [("a/b", "a%2Fb"), ("..a", "..a"), ("é", "%C3%A9"), ("a?b#c", "a%3Fb%23c")])
def test_a_name_never_becomes_two_pieces_of_a_path(name, want):
    assert segment(name) == want


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_names_that_walk_are_refused(name):
    with pytest.raises(ValueError):
        segment(name)


def test_heads():
    assert parse_head(b"HTTP/1.1 200 OK\r\nA: 1\r\na:2\r\nB:x") == (200, {"a": "1, 2", "b": "x"})
    for bad in (b"", b"ICY 200 OK", b"HTTP/1.1 2x0 OK", b"HTTP/1.1 200 OK\r\nno colon"):
        with pytest.raises(ValueError):
            parse_head(bad)


@pytest.mark.parametrize(
    "status,headers,want",
    [
        (200, {"content-length": "5"}, (False, 5, False)),
        (200, {"transfer-encoding": "Chunked", "content-length": "5"}, (True, None, False)),
        (204, {}, (False, 0, False)),
        (200, {}, (False, None, True)),
        (200, {"content-length": "0", "connection": "Close"}, (False, 0, True)),
    ],
)
def test_how_a_body_ends(status, headers, want):
    assert framing(status, headers) == want


@pytest.mark.parametrize("text", ["-1", "+5", "1, 1", "", "0x10", "five"])
def test_a_length_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="Content-Length"):
        framing(200, {"content-length": text})
