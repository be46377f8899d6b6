"""Commands through the API: bytes, time, pace; and those that outlive whoever started them."""
import base64
import hashlib
import threading

from conftest import wait_for
from server import patience
from streams import Events, rss_kib


def test_output_is_exact_to_the_byte(pandad):
    id = pandad.create()
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4096)"
    e = Events(pandad, "POST", f"/v1/sandboxes/{id}/exec/stream", {"argv": ["python3", "-c", code], "encoding": "base64"})
    seen = e.until("exit")
    got = b"".join(base64.b64decode(d["chunk_b64"]) for n, d in seen if n == "stdout")
    assert got == bytes(range(256)) * 4096
    assert seen[-1][1]["exit_code"] == 0
    # As text it is valid whatever it was, and characters are not cut where pieces are.
    text = "grüße €𝄞\n" * 50000
    pandad.do("PUT", f"/v1/sandboxes/{id}/fs?path=/root/text", text.encode())
    assert pandad.sh(id, "cat /root/text")["stdout"] == text
    e = Events(pandad, "POST", f"/v1/sandboxes/{id}/exec/stream", {"cmd": "cat /root/text"})
    seen = e.until("exit")
    assert "".join(d["chunk"] for n, d in seen if n == "stdout") == text
    assert len(seen) > 3, "in several pieces"
    r = pandad.sh(id, r"printf 'a\377b\303'")
    assert r["stdout"] == "a\ufffdb\ufffd"


def test_stdin_environment_directory_user(pandad):
    id = pandad.create(env={"FROM": "sandbox", "BOTH": "sandbox"})
    r = pandad.sh(id, "cat; echo $FROM $BOTH; pwd; id -un", stdin="in\n", env={"BOTH": "call"}, cwd="/tmp", user="nobody")
    assert r["stdout"] == "in\nsandbox call\n/tmp\nnobody\n"
    big = "# " + "x" * 300_000 + "\nread line; echo \"got $line\""  # longer than one message to the guest
    assert pandad.sh(id, big, stdin="mine\n")["stdout"] == "got mine\n"
    assert pandad.sh(id, big)["stdout"] == "got \n"
    for bad in ({"cmd": ""}, {"cmd": "true", "argv": ["true"]}, {"argv": []}, {"argv": [1]}, {"cmd": "true", "cwd": "tmp"},
                {"cmd": "true", "cwd": "/nowhere"}, {"cmd": "true", "user": "nosuch"}, {"cmd": "true", "env": {"A=B": "c"}},
                {"cmd": "true", "timeout_seconds": -1}):
        a = pandad.ask("POST", f"/v1/sandboxes/{id}/exec", bad)
        assert (a.status, a.json["code"]) == (400, "bad_request"), (bad, a)
    r = pandad.do("POST", f"/v1/sandboxes/{id}/exec", {"argv": ["no-such-program"]})
    assert r["exit_code"] == 127 and "No such file" in r["stderr"]
    r = pandad.sh(id, "kill -9 $$")
    assert (r["exit_code"], r["signal"]) == (137, 9)


def test_a_timeout_kills_all_it_started(pandad):
    id = pandad.create()
    seconds = 0.5 * patience()
    r = pandad.sh(id, "echo before; sleep 1000 & sleep 1000; echo after", timeout_seconds=seconds)
    assert (r["stdout"], r["exit_code"], r["timed_out"]) == ("before\n", 124, True)
    assert 800 * seconds <= r["duration_ms"] < 10000 * seconds
    assert pandad.sh(id, "pgrep -c sleep")["stdout"] == "0\n"


def test_much_output_is_kept_up_to_a_limit(pandad):
    id = pandad.create()
    for limit, more in (1 << 20, {}), (16 << 20, {"max_output_bytes": 16 << 20}):
        r = pandad.sh(id, "head -c 20000000 /dev/zero | tr '\\0' x", **more)
        assert len(r["stdout"]) == limit and set(r["stdout"]) == {"x"} and r["truncated"]
    r = pandad.sh(id, "seq 1 1000000", max_output_bytes=10)
    assert r["stdout"] == "1\n2\n3\n4\n5\n" and r["truncated"]


def test_fifty_at_once(pandad):
    id = pandad.create()
    answers = [None] * 50

    def one(i):
        answers[i] = pandad.sh(id, f"sleep 0.2; echo {i}; head -c {i * 1000} /dev/zero | md5sum", timeout_seconds=60)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(50)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, r in enumerate(answers):
        assert r["stdout"] == f"{i}\n{hashlib.md5(bytes(i * 1000)).hexdigest()}  -\n"


def test_a_slow_reader_stalls_its_command_and_nothing_else(pandad):
    id = pandad.create()
    pandad.sh(id, "true")
    before = rss_kib(pandad.process.pid)
    slow = [Events(pandad, "POST", f"/v1/sandboxes/{id}/exec/stream", {"cmd": "yes", "timeout_seconds": 0}, small=True)
            for _ in range(4)]
    for e in slow:
        assert e.status == 200
        next(iter(e))
    wait_for("all of them to wait", lambda: pandad.sh(id, "grep -l S.*sleeping /proc/$(pgrep -ox yes)/status; true")["stdout"])
    for _ in range(20):
        assert pandad.sh(id, "echo works")["stdout"] == "works\n"
    grown = rss_kib(pandad.process.pid) - before
    assert grown < 8 * 1024, f"{grown} KiB for four readers that do not read"
    assert pandad.sh(id, "pgrep -c -x yes")["stdout"] == "4\n"
    for e in slow:
        e.close()
    wait_for("commands of clients that went to go, too", lambda: pandad.sh(id, "pgrep -c -x yes; true")["stdout"] == "0\n")


def test_a_client_that_goes_ends_its_command(pandad):
    id = pandad.create()
    e = Events(pandad, "POST", f"/v1/sandboxes/{id}/exec/stream", {"cmd": "echo here; sleep 1000"})
    assert next(iter(e)) == ("stdout", {"chunk": "here\n"})
    e.close()
    wait_for("the command to end", lambda: pandad.sh(id, "pgrep -c -x sleep; true")["stdout"] == "0\n")


def test_a_stream_of_a_killed_sandbox_says_so(pandad):
    id = pandad.create()
    e = Events(pandad, "POST", f"/v1/sandboxes/{id}/exec/stream", {"cmd": "echo here; sleep 1000"})
    events = iter(e)
    assert next(events)[0] == "stdout"
    pandad.do("DELETE", f"/v1/sandboxes/{id}", expect=204)
    name, data = next(events)
    assert name == "error" and data["code"] == "guest_gone"
    assert pandad.ask("POST", f"/v1/sandboxes/{id}/exec", {"cmd": "true"}).status == 404


# ---- detached ----

def output(p, id, eid, **q):
    """Replays it; returns (stdout, last event)."""
    query = "&".join(f"{k}={v}" for k, v in {"encoding": "base64", **q}.items())
    got, at = b"", None
    for name, d in Events(p, "GET", f"/v1/sandboxes/{id}/execs/{eid}/output?{query}"):
        if name == "start":
            at = d["stdout_offset"]
        elif name == "stdout":
            assert d["offset"] == at, "no gap and nothing twice"
            got += base64.b64decode(d["chunk_b64"])
            at += len(base64.b64decode(d["chunk_b64"]))
        elif name in ("exit", "end", "error"):
            return got, (name, d)
    raise AssertionError("the stream ended without a last word")


def test_detached_commands_are_fed_signalled_and_listed(pandad):
    id = pandad.create()
    ex = f"/v1/sandboxes/{id}/execs"
    eid = pandad.do("POST", ex, {"cmd": "while read x; do echo \"got $x\"; done; echo end; exit 5", "stdin": True}, expect=201)["id"]
    pandad.do("POST", f"{ex}/{eid}/stdin", "one\n", expect=204)
    pandad.do("POST", f"{ex}/{eid}/stdin", "two\n", expect=204)
    wait_for("both lines", lambda: pandad.do("GET", f"{ex}/{eid}")["stdout_to"] == 16)
    got, last = output(pandad, id, eid)
    assert got == b"got one\ngot two\n" and last == ("end", {"stdout_offset": 16, "stderr_offset": 0})
    pandad.do("POST", f"{ex}/{eid}/stdin?eof=1", "three\n", expect=204)
    got, last = output(pandad, id, eid, follow=1, stdout_offset=8)
    assert got == b"got two\ngot three\nend\n" and last == ("exit", {"exit_code": 5, "timed_out": False})
    info = pandad.do("GET", f"{ex}/{eid}")
    assert (info["running"], info["exit_code"], info["detached"]) == (False, 5, True)

    eid = pandad.do("POST", ex, {"argv": ["sleep", "1000"]})["id"]
    assert [e["command"] for e in pandad.do("GET", ex) if e["running"]] == ["sleep 1000"]
    pandad.do("POST", f"{ex}/{eid}/signal", {"signal": "SIGUSR1"}, expect=204)
    assert output(pandad, id, eid, follow=1)[1] == ("exit", {"exit_code": 138, "timed_out": False, "signal": 10})
    for path, method, body in ((f"{ex}/999999", "GET", None), (f"{ex}/x", "GET", None), (f"{ex}/999999/output", "GET", None),
                               (f"{ex}/999999/stdin", "POST", "x"), (f"{ex}/999999/signal", "POST", {})):
        a = pandad.ask(method, path, body)
        assert (a.status, a.json["code"]) == (404, "exec_not_found"), (path, a)
    assert pandad.ask("POST", f"{ex}/{eid}/signal", {"signal": "NOPE"}).status == 400


def test_stdin_of_any_length(pandad):
    id = pandad.create()
    ex = f"/v1/sandboxes/{id}/execs"
    eid = pandad.do("POST", ex, {"cmd": "md5sum", "stdin": True})["id"]
    data = bytes(range(251)) * 40000  # 10 MB
    pandad.do("POST", f"{ex}/{eid}/stdin?eof=1", data, expect=204)
    got, _ = output(pandad, id, eid, follow=1)
    assert got.decode().split()[0] == hashlib.md5(data).hexdigest()


def test_detached_output_has_no_gap_after_pandad_was_killed(new_pandad):
    p = new_pandad()
    id = p.create()
    eid = p.do("POST", f"/v1/sandboxes/{id}/execs",
               {"cmd": "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); [ $((i%100)) = 0 ] && sleep 0.05; done"})["id"]
    e = Events(p, "GET", f"/v1/sandboxes/{id}/execs/{eid}/output?follow=1")
    first = ""
    for name, d in e:
        if name == "stdout":
            first += d["chunk"]
        if len(first) > 2000:
            break
    p.kill9()
    e.close()
    p.start()
    got, last = output(p, id, eid, follow=1, stdout_offset=len(first))
    whole = first.encode() + got
    assert whole == "".join(f"line {i}\n" for i in range(2000)).encode()
    assert last == ("exit", {"exit_code": 0, "timed_out": False})


def test_a_detached_command_goes_on_in_forks_and_after_hibernation(pandad):
    id = pandad.create()
    eid = pandad.do("POST", f"/v1/sandboxes/{id}/execs",
                    {"cmd": "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"})["id"]
    wait_for("some output", lambda: pandad.do("GET", f"/v1/sandboxes/{id}/execs/{eid}")["stdout_to"] > 4)
    child = pandad.do("POST", f"/v1/sandboxes/{id}/fork")["children"][0]
    pandad.do("POST", f"/v1/sandboxes/{id}/hibernate")
    for who in child, id:
        at = pandad.do("GET", f"/v1/sandboxes/{who}/execs/{eid}")["stdout_to"]
        wait_for("more output", lambda: pandad.do("GET", f"/v1/sandboxes/{who}/execs/{eid}")["stdout_to"] > at)
        got = output(pandad, who, eid)[0].decode().split()
        assert got == [str(i) for i in range(len(got))], "from the very first line"


def test_a_slow_reader_of_a_detached_command_is_told_of_gaps(pandad):
    id = pandad.create()
    ex = f"/v1/sandboxes/{id}/execs"
    eid = pandad.do("POST", ex, {"cmd": "seq 1 3000000"})["id"]
    wait_for("its end", lambda: not pandad.do("GET", f"{ex}/{eid}")["running"], seconds=60)
    e = Events(pandad, "GET", f"{ex}/{eid}/output")
    start = dict([next(iter(e))])["start"]
    info = pandad.do("GET", f"{ex}/{eid}")
    assert start["stdout_offset"] == info["stdout_from"] > 0
    got, last = output(pandad, id, eid, follow=1)
    assert got.endswith(b"2999999\n3000000\n") and len(got) == info["stdout_to"] - info["stdout_from"]


def test_a_command_that_holds_waits_for_its_readers(new_pandad):
    p = new_pandad()
    id = p.create()
    ex = f"/v1/sandboxes/{id}/execs"
    eid = p.do("POST", ex, {"cmd": "seq 1 300000; exit 5", "hold": True})["id"]
    kept = wait_for("a full ring", lambda: (i := p.do("GET", f"{ex}/{eid}"))["stdout_to"] >= 256 << 10 and i)
    assert kept["running"] and kept["stdout_from"] == 0  # nobody has read: all of it is there, and it waits
    p.kill9()
    p.start()
    got, (name, last) = output(p, id, eid, follow=1)
    assert (name, last["exit_code"]) == ("exit", 5)
    assert got.split() == [b"%d" % i for i in range(1, 300001)]
    # One that was read and left does not stay for ever.
    eid = p.do("POST", ex, {"cmd": "yes", "hold": True})["id"]
    Events(p, "GET", f"{ex}/{eid}/output?follow=1").until("stdout")
    p.do("POST", f"{ex}/{eid}/signal", {"signal": "KILL"})
    wait_for("its end", lambda: not p.do("GET", f"{ex}/{eid}")["running"])
    assert output(p, id, eid, follow=1, stdout_offset=1 << 40)[1][1]["signal"] == 9
