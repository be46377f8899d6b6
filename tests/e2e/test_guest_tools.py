"""What people type first into a new machine works."""
import pytest


@pytest.mark.parametrize("command, says", [
    ("ps aux", "ps aux"), ("ps -ef", "panda-init"), ("top -bn1", "panda-init"), ("vmstat", "procs"),
    ("free -m", "Mem:"), ("uptime", "load average"), ("df /", "overlay"), ("mount", "overlay on /"),
    ("ip addr", "lo"), ("id", "uid=0(root)"), ("uname -s", "Linux"), ("nproc", "1"),
])
def test_the_usual_tools_work(box, command, says):
    r = box.try_("sh", "-c", command)
    assert r.code == 0 and says in r.text and r.err == b"", r
