"""Running commands in a machine: what goes in and comes out, byte for byte, and what is refused."""
import fcntl
import os
import pty
import signal
import struct
import termios

import pytest

from conftest import count, wait_for


@pytest.mark.parametrize("code", [0, 1, 2, 42, 255])
def test_the_exit_code_is_the_commands(box, code):
    assert box.try_("sh", "-c", f"exit {code}").code == code


@pytest.mark.parametrize("sig", [signal.SIGHUP, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_signal_gives_128_and_its_number(box, sig):
    assert box.try_("sh", "-c", f"kill -{int(sig)} $$").code == 128 + sig


def test_stdout_and_stderr_stay_apart(box):
    r = box.try_("sh", "-c", "echo one; echo two >&2; echo three")
    assert (r.code, r.out, r.err) == (0, b"one\nthree\n", b"two\n")


def test_every_byte_comes_back_unchanged(box):
    data = bytes(range(256)) * 4096 + os.urandom(1 << 20)
    r = box.try_("cat", stdin=data, opts=["-i"])
    assert r.code == 0 and r.out == data and r.err == b""


def test_stdin_is_empty_unless_asked_for(box):
    assert box.try_("cat", stdin=b"not for the guest").out == b""


def test_arguments_arrive_as_they_are(box):
    args = ["a b", "", "$HOME", "'\"", "new\nline", "ü", "--help", "-n"]
    got = box.run("python3", "-c", "import sys; print(ascii(sys.argv[1:]))", *args)
    assert got == ascii(args) + "\n"


def test_environment_directory_and_user_can_be_chosen(box):
    r = box.try_("sh", "-c", "echo $WORD; pwd; id -un", opts=["-e", "WORD=two words", "-C", "/usr/lib", "-u", "nobody"])
    assert r.out == b"two words\n/usr/lib\nnobody\n"


def test_a_timeout_gives_124_and_kills_the_whole_group(box):
    r = box.try_("sh", "-c", "sleep 1000 & sleep 1000 & echo $! >/tmp/pid; wait", opts=["--timeout", "1"])
    assert r.code == 124
    wait_for("the group to end", lambda: box.try_("sh", "-c", "kill -0 $(cat /tmp/pid)").code != 0)


def test_a_command_within_its_time_is_not_disturbed(box):
    assert box.try_("echo", "quick", opts=["--timeout", "60"]).out == b"quick\n"


def until_the_end(fd, text=b"", last=None):
    """What a terminal says, until nobody has its other end any more or it has said `last`."""
    while last is None or last not in text:
        try:
            more = os.read(fd, 4096)
        except OSError:  # EIO: nobody has the other end any more
            break
        if not more:
            break
        text += more
    return text


def test_a_terminal_is_one_with_the_size_of_ours(panda, box, procs):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    p = panda.start("exec", "-t", box.id, "--", "sh", "-c", "tty; stty size; read x; echo got $x",
                    stdin=theirs, stdout=theirs, stderr=theirs)
    procs.append(p)
    os.close(theirs)
    os.write(ours, b"word\n")
    text = until_the_end(ours)
    os.close(ours)
    assert p.wait(180) == 0
    assert b"/dev/pts/" in text and b"33 111" in text and b"got word" in text


def test_a_terminal_that_changes_its_size_changes_the_guests(panda, box, procs):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    p = panda.start("exec", "-t", "--timeout", "60", box.id, "--", "sh", "-c",
                    "echo be''gin; until test \"$(stty size)\" = '44 122'; do sleep 0.1; done; echo changed",
                    stdin=theirs, stdout=theirs, stderr=theirs)
    procs.append(p)
    text = until_the_end(ours, last=b"begin")
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 122, 0, 0))
    os.close(theirs)
    p.send_signal(signal.SIGWINCH)
    text = until_the_end(ours, text)
    os.close(ours)
    assert p.wait(180) == 0 and b"changed" in text, text


def test_a_flood_of_output_does_not_stall_another_command(panda, box, procs):
    procs.append(panda.start("exec", box.id, "--", "yes"))  # and we do not read it
    wait_for("yes to run", lambda: box.try_("pgrep", "-x", "yes").code == 0)
    for _ in range(5):
        assert box.answers()


def test_many_commands_at_once_keep_their_output_apart(panda, box, procs):
    procs += [panda.start("exec", box.id, "--", "sh", "-c", f"for i in 1 2 3; do echo {n} $i; done; exit {n}")
              for n in range(count(30, 30))]
    for n, p in enumerate(procs):
        out, err = p.communicate(timeout=180)
        assert (p.returncode, out, err) == (n, f"{n} 1\n{n} 2\n{n} 3\n".encode(), b"")


def test_a_program_that_is_not_there_is_named_as_the_reason(panda, box):
    panda.refused("exec", box.id, "--", "/no/such/program", code=1, says="No such file or directory")


def test_what_was_left_running_by_an_exec_goes_on(box):
    box.sh("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >/tmp/pid")
    assert box.try_("sh", "-c", "kill -0 $(cat /tmp/pid)").code == 0


@pytest.mark.parametrize("args, says", [
    ([], "usage:"),
    (["frobnicate"], "there is no verb 'frobnicate'"),
    (["exec"], "needs the name of a machine"),
    (["exec", "some-id"], "needs a command"),
    (["snapshot", "some-id"], "needs a name"),
    (["boot", "--memory", "63"], "64 MiB and more"),
    (["boot", "--memory", "lots"], "64 MiB and more"),
    (["boot", "--no-such-option"], "--help"),
    (["boot", "what-is-this"], "what is 'what-is-this'"),
    (["fork", "-n", "0", "some-id"], "-n takes 1 to"),
    (["exec", "--timeout", "soon", "some-id", "--", "true"], "--timeout takes seconds"),
    (["exec", "--env", "NOVALUE", "some-id", "--", "true"], "NAME=VALUE"),
])
def test_a_wrong_command_line_is_refused_with_exit_2(panda, args, says):
    r = panda.try_(*args)
    assert r.code == 2 and says in r.err.decode() and r.out == b"", r


@pytest.mark.parametrize("bad", ["UPPER", "a/b", "..", "x" * 65, "", "spa ce"])
def test_an_id_that_cannot_be_one_is_refused(panda, bad):
    panda.refused("boot", f"--id={bad}", code=1, says="is no machine id")
    panda.refused("exec", bad, "--", "true", code=1, says="is no machine id")
    assert panda.in_run_dir() == []


def test_a_machine_that_is_not_there_is_refused_by_every_verb(panda):
    for args in (["exec", "nobody", "--", "true"], ["fork", "nobody"], ["pause", "nobody"], ["resume", "nobody"],
                 ["stats", "nobody"], ["stop", "nobody"], ["snapshot", "nobody", "name"]):
        panda.refused(*args, code=1, says="there is no machine nobody")


def test_an_id_is_given_only_once(panda, box):
    panda.refused("boot", "--id", box.id, code=1, says="there is a machine")
    assert box.answers()


@pytest.mark.parametrize("option", ["--image", "--upper", "--kernel"])
def test_a_missing_image_or_kernel_is_named(panda, option):
    panda.refused("boot", option, "/no/such/file", code=1, says=["/no/such/file", "make up"])
    assert panda.in_run_dir() == []


def test_what_is_no_image_or_kernel_boots_nothing_and_leaves_nothing(panda, tmp_path):
    junk = tmp_path / "junk"
    junk.write_bytes(os.urandom(1 << 20))
    for option in "--image", "--kernel":
        r = panda.try_("boot", "--id", panda.new_id(), option, junk)
        assert r.code == 1 and r.err.startswith(b"panda: "), r
        assert panda.in_run_dir() == []
