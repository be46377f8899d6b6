"""Terminals and commands over WebSockets."""
import json

from conftest import wait_for
from streams import WebSocket, rss_kib


def test_a_login_shell_on_a_terminal(pandad):
    id = pandad.create()
    w = WebSocket(pandad, f"/v1/sandboxes/{id}/exec/pty?rows=30&cols=100")
    assert w.status == 101
    w.send(b"stty size; echo $TERM; tty; id -un; pwd\n")
    got = w.until(b"/root\r\n")
    for text in b"30 100", b"xterm-256color", b"/dev/pts/", b"root\r\n":
        assert text in got
    w.json({"resize": {"rows": 40, "cols": 120}})
    w.send(b"stty size\n")
    w.until(b"40 120")
    w.json({"type": "resize", "rows": 41, "cols": 121})
    w.send("not json at all")
    w.json({"resize": {"rows": -1, "cols": "x"}})
    w.json({"stdin": "stty size\n"})
    w.until(b"41 121")
    w.send(b"exit 7\n")
    while (frame := w.recv()) and not frame[0]:
        pass
    assert json.loads(frame[1]) == {"exit": 7, "type": "exit", "code": 7}
    assert w.recv() is None and w.code == 1000


def test_another_command_and_the_end_of_the_client(pandad):
    id = pandad.create()
    w = WebSocket(pandad, f"/v1/sandboxes/{id}/ssh?cmd=echo%20here%3B%20sleep%201000")
    w.until(b"here")
    w.close()
    wait_for("the command to end", lambda: pandad.sh(id, "pgrep -c -x sleep; true")["stdout"] == "0\n")


def test_what_is_no_terminal_gets_a_plain_answer(pandad):
    id = pandad.create()
    a = pandad.ask("GET", f"/v1/sandboxes/{id}/exec/pty")
    assert a.status == 400 and "WebSocket" in a.json["error"]
    assert WebSocket(pandad, "/v1/sandboxes/00000000-0000-4000-8000-000000000000/exec/pty").status == 404
    pandad.do("POST", f"/v1/sandboxes/{id}/pause")
    assert WebSocket(pandad, f"/v1/sandboxes/{id}/exec/pty").status == 409
    pandad.do("POST", f"/v1/sandboxes/{id}/resume")


def test_a_terminal_wakes_a_sandbox(pandad):
    id = pandad.create()
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    w = WebSocket(pandad, f"/v1/sandboxes/{id}/exec/pty?cmd=cat")
    w.send(b"hello\n")
    w.until(b"hello\r\nhello")
    w.close()


def test_much_input_and_much_output_keep_their_pace(pandad):
    id = pandad.create()
    pandad.sh(id, "true")
    before = rss_kib(pandad.process.pid)
    w = WebSocket(pandad, f"/v1/sandboxes/{id}/exec/pty?cmd=stty%20raw%20-echo%3B%20echo%20ready%3B%20head%20-c%202000000%20%7C%20md5sum")
    w.until(b"ready")
    data = b"0123456789abcdef" * 4096
    left = 2000000
    while left > 0:
        w.send(data[:left])
        left -= len(data[:left])
    got = w.until(b"  -")
    import hashlib
    assert hashlib.md5((data * 31)[:2000000]).hexdigest().encode() in got
    w.close()
    w = WebSocket(pandad, f"/v1/sandboxes/{id}/exec/pty?cmd=yes")
    w.until(b"y")
    for _ in range(20):
        assert pandad.sh(id, "echo works")["stdout"] == "works\n"
    assert rss_kib(pandad.process.pid) - before < 8 * 1024
    w.close()
    wait_for("yes to end", lambda: pandad.sh(id, "pgrep -c -x yes; true")["stdout"] == "0\n")


def test_many_commands_on_one_socket(pandad):
    id = pandad.create()
    w = WebSocket(pandad, f"/v1/sandboxes/{id}/exec/ws")
    for i in range(20):
        w.json({"id": f"r{i}", "cmd": f"echo out {i}; echo err {i} >&2; exit {i}"})
    w.json({"id": "long", "cmd": "sleep 1000"})
    w.json({"id": "late", "cmd": "sleep 1000", "timeout_seconds": 0.2})
    w.send("{")
    w.json({"cmd": "true"})
    w.json({"id": "none"})
    w.json({"id": "long", "cancel": True})
    out, ends = {}, {}
    while len(ends) < 25:
        text, data = w.recv()
        assert text
        m = json.loads(data)
        if "stream" in m:
            out.setdefault((m["id"], m["stream"]), []).append(m["data"])
        else:
            ends.setdefault(m["id"], []).append(m)
            if m["id"] == "" and len(ends[""]) == 2:
                ends["second without id"] = True
    for i in range(20):
        assert ends[f"r{i}"] == [{"id": f"r{i}", "exit": i}]
        assert "".join(out[f"r{i}", "stdout"]) == f"out {i}\n" and "".join(out[f"r{i}", "stderr"]) == f"err {i}\n"
    assert "cancelled" in ends["long"][0]["error"] and "timeout" in ends["late"][0]["error"]
    assert "bad json" in ends[""][0]["error"] and "id required" in ends[""][1]["error"] and "cmd required" in ends["none"][0]["error"]
    w.json({"id": "left", "cmd": "sleep 1000"})
    wait_for("it to start", lambda: pandad.sh(id, "pgrep -c -x sleep; true")["stdout"] == "1\n")
    w.close()
    wait_for("it to end with the socket", lambda: pandad.sh(id, "pgrep -c -x sleep; true")["stdout"] == "0\n")
