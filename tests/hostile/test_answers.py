"""Root in a guest takes the agent's place and answers pandad with what it likes (issue: what a guest may answer)."""
import os

import pytest

from conftest import wait_for
from takeover import brings, end, row, take_over


@pytest.fixture
def served(pandad):
    """Another sandbox, which is served during and after the attack by the same pandad."""
    pid, other = pandad.process.pid, pandad.create()

    def look():
        assert pandad.sh(other, "echo here")["stdout"] == "here\n"
        assert pandad.process.poll() is None and pandad.process.pid == pid, pandad.tail()

    yield look
    look()


@pytest.mark.core
def test_an_agent_that_talks_nonsense_ends_its_own_connection(pandad, served):
    id = pandad.create()
    take_over(pandad, id, {"": [end(22, "taken")]})
    # It answers this, so it is in the agent's place.
    refused = wait_for("the takeover", lambda: (a := pandad.ask("GET", f"/v1/sandboxes/{id}/fs?path=/etc/hostname")).status != 200 and a)
    assert "taken" in refused.json["error"], refused
    for nonsense in [row(None, payload=os.urandom(512))], [row(None, payload=b"\xff" * 12)], [row(99)]:
        a = pandad.ask("GET", f"/v1/sandboxes/{id}/fs?path=/{brings(*nonsense)}")
        assert a.status >= 500, a
        served()
