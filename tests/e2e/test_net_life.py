"""Slots live, change and end; names and hostile frames; in a little internet. See little_internet.py."""
import os
import signal
import subprocess

import pytest

from conftest import wait_for
from little_internet import (BED, DATABASE, DNS, FRAMES, GATEWAY_MAC, GUEST_MAC, HOST_PUBLIC, METADATA, ODD_FRAMES, OTHER, WEB, WILD, Guest, sh)

pytestmark = pytest.mark.skipif(not BED.exists(), reason=f"no {BED}: build first")


@pytest.fixture
def bed(net):
    b = net.bed(3)
    b.do("ready 3")
    yield b
    if b.proc.poll() is None:
        b.end()


@pytest.fixture
def guest(net, bed):
    """guest(policy): a new sandbox."""
    made = []

    def make(policy, bed_=None):
        name = f"g{len(made)}"
        (bed_ or bed).do("ready 1")
        (bed_ or bed).do(f"take {name} {policy}")
        made.append(Guest(net, bed_ or bed, name))
        return made[-1]
    yield make
    for g in made:
        g.close()
        if bed.proc.poll() is None:
            bed.say(f"return {g.name}")
            bed.line()


# Policies change while it runs -----------------------------------------------------------------------------------------


def test_a_change_cuts_what_is_no_longer_allowed_and_nothing_else(bed, guest):
    g = guest("open")
    g.attempt("name", "web.example")
    assert g.attempt("hold", "web", WEB, 80) == "held"
    assert g.attempt("hold", "other", OTHER, 80) == "held"
    assert g.attempt("poke", "other") == "ping"
    bed.do(f"policy {g.name} list {WEB},web.example")
    assert g.attempt("poke", "other") == "reset"
    assert g.attempt("poke", "web") == "ping"
    assert g.attempt("tcp", OTHER, 80) == "no"
    bed.do(f"policy {g.name} list web.example,web.example:9000")
    assert g.attempt("poke", "web") == "reset"  # what was asked for in there, nobody has looked at
    assert g.attempt("tcp", WEB, 80, "web.example") == f"internet {WEB}:80"  # resolved before: no need to ask again
    assert g.attempt("hold", "web", WEB, 9000) == "held"
    bed.do(f"policy {g.name} list *.wild.example,web.example:9000")
    assert g.attempt("poke", "web") == "ping"
    bed.do(f"policy {g.name} off")
    assert g.attempt("poke", "web") == "reset"
    assert g.attempt("name", "web.example") == "REFUSED"
    bed.do(f"policy {g.name} open")
    assert g.attempt("tcp", OTHER, 80) == f"internet {OTHER}:80"


def test_tls_whose_name_nobody_has_seen_ends_with_a_list(bed, guest):
    """Open policies look at no names. What was begun under one may be for any, and the address alone does not tell."""
    g = guest("open")
    assert g.attempt("name", "web.example") == WEB
    assert g.attempt("hold_tls", "evil", WEB, "evil.example") == "held"
    bed.do(f"policy {g.name} list web.example")
    assert g.attempt("poke", "evil") in ("reset", "no", "end")
    assert g.attempt("tls", WEB, "web.example") == f"tls {WEB} web.example"


def test_a_change_with_a_thousand_addresses_keeps_them(bed, guest):
    """More than what fits into one transaction, element by element; with many ports the newest must do."""
    ports = ",".join(f"*.crowd.example:{p}" for p in range(9000, 9004))
    g = guest("list *.crowd.example,web.example")
    for i in range(34):  # 32 addresses each, and 1,024 are remembered
        assert len(g.attempt("name", f"{i}.crowd.example", tcp=True).split()) == 32
    assert g.attempt("name", "web.example") == WEB
    for policy in "list web.example,*.crowd.example", f"list web.example,{ports}", f"list {ports}":
        bed.do(f"policy {g.name} {policy}")
        assert g.attempt("tcp", WEB, 80, "web.example") == ("no" if policy.endswith(f"list {ports}") else f"internet {WEB}:80")
    bed.do(f"policy {g.name} list web.example:80")
    assert g.attempt("name", "web.example") == WEB and g.attempt("tcp", WEB, 80, "web.example") == f"internet {WEB}:80"


def test_a_change_cuts_tls_connections_too(bed, guest):
    g = guest("list web.example,other.example")
    assert g.attempt("name", "web.example") == WEB
    assert g.attempt("tls", WEB, "web.example") == f"tls {WEB} web.example"
    g.attempt("name", "other.example")
    assert g.attempt("hold_tls", "web", WEB, "web.example") == "held"
    assert g.attempt("hold_tls", "other", OTHER, "other.example") == "held"
    assert g.attempt("poke", "web") == "ping"
    bed.do(f"policy {g.name} list other.example")
    assert g.attempt("poke", "web") in ("reset", "no", "end")  # OpenSSL does not always say how it ended
    assert g.attempt("poke", "other") == "ping"
    assert g.attempt("tls", WEB, "web.example") == "no"


def test_bad_policies_are_refused_with_a_reason(bed, guest):
    g = guest("list web.example")
    for entry, word in (("10.0.0.1", "closed"), ("https://x.example/", "name alone"), ("*", "no list at all"), ("a.*.example", "in front"),
                        ("::1", "IPv6"), ("web.example:0", "port"), ("1.2.3.4/33", "without https"), ("exämple.com", "xn--"),
                        ("localhost", "dot"), ("1.2.3", "not a host name"), ("169.254.169.254", "link-local")):
        said = bed.refused(f"policy {g.name} list {entry}")
        assert said.startswith("bad_egress") and word in said, (entry, said)
    assert g.attempt("name", "web.example") == WEB  # and the old one stays


def test_another_policy_at_adoption_ends_what_it_forbids(net, bed, guest):
    g = guest("open")
    assert g.attempt("hold", "other", OTHER, 80) == "held"
    bed.end(signal.SIGKILL)
    b = net.bed(1)
    b.do(f"adopt again {g.machine} list web.example")
    assert g.attempt("poke", "other") == "reset"
    b.end()


# Who is told -----------------------------------------------------------------------------------------------------------


def test_every_connection_and_refusal_is_told(bed, guest):
    g = guest("list web.example")
    g.attempt("name", "web.example")
    g.attempt("tcp", WEB, 80, "web.example")
    bed.saw(slot=g.name, verdict="allowed", addr=WEB, port=80, proto=6, name="web.example")
    g.attempt("tcp", WEB, 80, "evil.example")
    bed.saw(slot=g.name, verdict="refused", addr=WEB, port=80, proto=6, name="evil.example", why="host")
    g.attempt("tcp", WEB, 8080)
    bed.saw(slot=g.name, verdict="refused", addr=WEB, port=8080, proto=6, name="web.example", why="port")
    g.attempt("tcp", OTHER, 8080)
    bed.saw(slot=g.name, verdict="refused", addr=OTHER, port=8080, why="policy")
    g.attempt("tcp", METADATA, 80)
    bed.saw(slot=g.name, verdict="refused", addr=METADATA, port=80, why="closed_range")
    g.attempt("tcp", HOST_PUBLIC, 8080)
    bed.saw(slot=g.name, verdict="refused", addr=HOST_PUBLIC, port=8080, why="closed_range")
    g.attempt("name", "evil.example")
    bed.saw(slot=g.name, verdict="refused", name="evil.example", why="name")
    g.attempt("tls", WEB, "evil.example")
    bed.saw(slot=g.name, verdict="refused", name="evil.example", why="sni", addr=WEB, port=443)
    g.attempt("garbage", WEB, 443, "00" * 20)
    assert g.attempt("tls", WEB, "web.example", path="/big") == "20000000"
    bed.saw(slot=g.name, verdict="allowed", name="web.example", port=443)
    e = bed.saw(slot=g.name, verdict="closed", name="web.example", port=443)
    assert e["down"] > 20000000 and 100 < e["up"] < 10000
    c = bed.numbers(f"counters {g.name}")
    assert c["refused"] >= 2 and c["names_refused"] >= 1 and c["down"] > 20000000 and c["lost"] == 0


def test_tls_that_nobody_answers_is_told_too(bed, guest):
    g = guest("list *.crowd.example")
    g.attempt("name", "0.crowd.example", tcp=True)
    assert g.attempt("tls", "11.3.0.1", "0.crowd.example", wait=0.5) in ("no", "silence")
    bed.saw(slot=g.name, verdict="allowed", addr="11.3.0.1", port=443, name="0.crowd.example")
    bed.do(f"policy {g.name} off")
    bed.saw(slot=g.name, verdict="closed", addr="11.3.0.1", port=443, name="0.crowd.example")


def test_the_end_of_a_connection_tells_its_bytes(bed, guest):
    g = guest("open")
    g.attempt("name", "web.example")
    g.attempt("tcp", WEB, 9000)
    bed.saw(slot=g.name, verdict="allowed", port=9000)
    wait_for("the kernel to forget it", lambda: [e for e in bed.events if e["verdict"] == "closed"], 30)
    e = bed.saw(slot=g.name, verdict="closed", port=9000, name="web.example")
    assert e["up"] > 100 and e["down"] > 100


def test_the_end_of_a_long_connection_is_told_soon(bed, guest):
    g = guest("open")
    assert g.attempt("hold", "long", WEB, 80) == "held"
    bed.saw(slot=g.name, verdict="allowed", port=80)
    bed.do("quiet")  # as if it had begun long ago: nobody looks any more
    assert g.attempt("drop", "long") == "gone"
    wait_for("the end", lambda: [e for e in bed.events if e["verdict"] == "closed"], 25)


def test_what_lives_when_a_slot_is_returned_is_told_with_its_bytes(net, bed, guest):
    """Who sends everything out and dies at once does not get away without a line."""
    g = guest("list web.example,web.example:9000")
    assert g.attempt("name", "web.example") == WEB
    assert g.attempt("hold", "out", WEB, 9000) == "held"
    assert g.attempt("hold_tls", "tls", WEB, "web.example") == "held"
    assert g.attempt("push", "out", 300_000) == 300_000
    assert not [e for e in bed.events if e["verdict"] == "closed"]
    os.kill(g.machine, signal.SIGKILL)
    bed.do(f"return {g.name}")
    e = bed.saw(slot=g.name, verdict="closed", addr=WEB, port=9000, name="web.example")
    assert e["up"] > 300_000 and e["down"] > 300_000
    assert bed.saw(slot=g.name, verdict="closed", port=443, name="web.example")["up"] > 100


# Names -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tcp", [False, True])
def test_names_the_hard_way(guest, tcp):
    g = guest("open")
    look = lambda *a: g.attempt("name", *a, tcp=tcp)  # noqa: E731
    assert look("step.example") == WEB  # the upstream server answers with one CNAME at a time
    assert look("circle.example") == "SERVFAIL"
    assert look("bad.example") == "SERVFAIL"
    assert look("pointer.example") == "SERVFAIL"
    assert look("forge.web.example") == "NXDOMAIN"
    assert look("glue.example", "MX") == "10 mail.example."
    assert look("glue.example", "A") == "REFUSED"
    assert look("web.example", "ANY") == "NOTIMP"
    # Of 120 addresses 32 are kept; of those, what 512 bytes hold when nothing else was offered.
    assert len(look("huge.example").split()) == (32 if tcp else 30)


def test_answers_that_nobody_asked_for_are_not_believed(net, guest):
    g = guest("open")
    assert g.attempt("name", "forge.tunnel.example") == WEB  # the one with the wrong id said OTHER


@pytest.mark.parametrize("bytes_", ["", "00", "1234", "12340100000100000000", "1234010000010000000000003f", "123401000001000000000000" + "3f" * 80,
                                    "123401000001000000000000c00c00010001", "12340100ffff000000000000", "12348180000100000000000003777777"])
def test_malformed_questions_break_nothing(guest, bytes_):
    g = guest("open")
    got = g.attempt("ask_raw", bytes_, wait=0.3)
    assert got in ("silence", "no") or got.startswith("12348") and got[7] in "1", got  # nothing, or FORMERR
    assert g.attempt("name", "web.example") == WEB


def test_a_cached_answer_needs_no_upstream_and_ends(net, guest):
    g = guest("open")
    g.attempt("name", "web.example")
    net.clear()
    for _ in range(5):
        assert g.attempt("name", "web.example") == WEB
    assert net.world.ask("asked") == []
    assert g.attempt("name", "short.example") == WEB
    wait_for("the answer to end", lambda: g.attempt("name", "short.example") == WEB and net.world.ask("asked").count("short.example") > 1)


def test_an_address_that_was_resolved_again_stays_open(guest):
    g = guest("list web.example,step.example")
    for _ in range(3):
        assert g.attempt("name", "web.example") == WEB
        assert g.attempt("name", "step.example") == WEB
    assert g.attempt("tcp", WEB, 80, "step.example") == f"internet {WEB}:80"


def test_an_address_is_shut_when_its_answer_has_ended(net):
    """The kernel takes it out of the set; what is open goes on."""
    b = net.bed(1, DNS, "10.201.0.0/24", "open", 0, 0, 0, 4)
    b.do("ready 1")
    b.do("take brief list short.example,short.example:443,short.example:9000")
    g = Guest(net, b, "brief")
    assert g.attempt("tcp", WEB, 80, "short.example") == "no"

    def opened():  # on a busy machine its time may be over in between
        assert g.attempt("name", "short.example") == WEB
        return g.attempt("tcp", WEB, 80, "short.example") == f"internet {WEB}:80"

    def held():
        assert g.attempt("name", "short.example") == WEB
        return g.attempt("hold", "open", WEB, 9000) == "held"
    wait_for("it to be open", opened)
    wait_for("a connection", held)
    wait_for("it to be shut", lambda: g.attempt("tcp", WEB, 80, "short.example") == "no")
    assert g.attempt("tls", WEB, "short.example") == "no"
    assert g.attempt("poke", "open") == "ping"
    wait_for("it to be open again", opened)
    b.do("policy brief list short.example")  # a change while its time runs does not make it last
    wait_for("it to be shut again", lambda: g.attempt("tcp", WEB, 80, "short.example") == "no")
    g.close()
    b.end()


def test_servers_that_never_answer_cost_only_those_who_ask_them(net, bed, guest):
    """Eight slots could have all questions of a host under way, and the ninth none."""
    h, *crowd = [guest("open") for _ in range(10)]
    for k, g in enumerate(crowd):
        g.attempt("ask_many", 90, "{i}.x%d.silent.example" % k)
    assert h.attempt("name", "n1.tunnel.example") == WEB and h.attempt("name", "n2.tunnel.example") == WEB


def test_questions_leave_nothing_in_the_table_of_connections(net, bed, guest):
    g = guest("open")
    assert g.attempt("scatter", 200) == 200
    assert int(bed.do(f"flows {g.name}")[0]) == 0
    assert g.attempt("name", "web.example", tcp=True) == WEB
    assert int(bed.do(f"flows {g.name}")[0]) == 1  # that one is a connection


def test_tunnelling_through_names_is_slowed_and_told(net, bed, guest):
    g = guest("list *.tunnel.example")
    net.clear()
    label = "0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijkl{i:05d}"
    got = g.attempt("flood_names", 400, label + ".tunnel.example")
    assert got.get("REFUSED", 0) > 150, got
    assert len(net.world.ask("asked")) < 250
    bed.saw(slot=g.name, verdict="refused", why="tunnel")
    assert bed.numbers(f"counters {g.name}")["names_limited"] > 100
    assert g.attempt("name", "a.tunnel.example") in (WEB, "REFUSED")


def test_too_many_questions_are_refused_and_others_are_served(net, bed, guest):
    g, h = guest("open"), guest("open")
    got = g.attempt("flood_names", 980, "web.example")  # beyond 1,000 packets the kernel would drop them
    assert got.get("REFUSED", 0) > 0 and got["NOERROR"] >= 500, got
    bed.saw(slot=g.name, verdict="refused", why="rate")
    assert h.attempt("name", "web.example") == WEB


def test_real_clients(net, guest):
    g = guest("list web.example,web.example:8080")
    assert WEB in g.run("dig +short @172.31.255.1 web.example")[1]
    assert "REFUSED" in g.run("dig @172.31.255.1 other.example")[1]
    assert g.run(f"curl -s -m 5 --resolve web.example:80:{WEB} http://web.example/")[1] == f"internet {WEB}:80"
    assert g.run(f"curl -s -m 5 http://{WEB}/")[0] != 0
    assert g.run(f"curl -s -m 5 http://{OTHER}/")[0] != 0
    assert g.run(f"curl -sk -m 5 --resolve web.example:443:{WEB} https://web.example/")[1].startswith(f"tls {WEB}")
    assert g.run(f"curl -sk -m 5 --resolve evil.example:443:{WEB} https://evil.example/")[0] != 0
    assert g.run(f"nc -z -w 2 {WEB} 8080")[0] == 0
    assert g.run(f"nc -z -w 2 {DATABASE} 5432")[0] != 0


def test_a_hello_in_pieces_is_read(guest):
    g = guest("list web.example")
    g.attempt("name", "web.example")
    assert g.attempt("tls", WEB, "web.example", split=True) == "handshake"
    assert g.attempt("tls", WEB, "evil.example", split=True) == "no"


# Frames a guest's root can make -----------------------------------------------------------------------------------------


def test_odd_frames_arrive_nowhere(net, bed, guest):
    g = guest("open")
    net.clear()
    g.attempt("frame", "plain")
    for mark, how in FRAMES.items():
        assert g.attempt("frame", mark, **how) == "sent", mark
    g.attempt("frame", "syn", proto=6, dport=80)
    wait_for("the plain frame", lambda: "plain" in net.marks())
    g.attempt("frame", "last")
    wait_for("the last frame", lambda: "last" in net.marks())
    assert set(net.marks()) <= {"plain", "last", "syn"}
    assert bed.numbers(f"counters {g.name}")["odd"] >= ODD_FRAMES
    bed.saw(slot=g.name, verdict="refused", why="odd")


def test_arp_tells_only_the_gateway(guest):
    g = guest("open")
    assert g.attempt("arp", 1, GUEST_MAC, "172.31.255.2", "172.31.255.1") == GATEWAY_MAC
    assert g.attempt("arp", 1, GUEST_MAC, "172.31.255.2", "10.200.0.2", wait=0.3) == "silence"
    assert g.attempt("arp", 1, "06:00:ac:1f:ff:09", "172.31.255.2", "172.31.255.1", wait=0.3) == "silence"
    g.attempt("arp", 2, "06:00:ac:1f:ff:02", "172.31.255.1", "172.31.255.1", wait=0.1)  # claims to be the gateway
    assert g.attempt("tcp", WEB, 80) == f"internet {WEB}:80"


def test_sandboxes_do_not_see_each_other(net, bed, guest):
    a, b = guest("open"), guest("open")
    assert b.run("python3 -c 'import socket,os; s=socket.create_server((\"0.0.0.0\",7000)); os.fork() and os._exit(0); s.accept()' "
                 ">/dev/null 2>&1")[0] == 0
    assert len(net.links()) >= 2
    for i in range(8):
        for last in (1, 2):
            assert a.attempt("tcp", f"10.200.0.{4 * i + last}", 7000, wait=0.3) == "no"
            assert a.attempt("ping", f"10.200.0.{4 * i + last}", wait=0.3) == "no"


def test_nobody_comes_in_from_outside(net, bed, guest):
    g = guest("open")
    inner = " ".join(f"10.200.0.{4 * i + 2}" for i in range(6))
    sh(f"ip -n {net.lan} route replace 10.200.0.0/16 via 10.9.0.1; ip -n {net.internet} route replace 10.200.0.0/16 via 11.0.0.2")
    for ns in (net.lan, net.internet):
        assert sh(f"for a in {inner}; do ip netns exec {ns} nc -z -w 1 $a 22 && echo open & done; wait") == ""
    assert g.attempt("tcp", WEB, 80) == f"internet {WEB}:80"


def test_the_host_does_not_become_a_router(net, bed):
    """We turned on forwarding of the way out; the internet still cannot reach the lan through it."""
    sh(f"ip -n {net.internet} route replace 10.9.0.0/24 via 11.0.0.2")
    assert sh(f"ip netns exec {net.host} cat /proc/sys/net/ipv4/ip_forward").strip() == "0"
    assert sh(f"ip netns exec {net.internet} nc -z -w 1 {DATABASE} 5432 && echo open || echo shut").strip() == "shut"
    sh(f"ip -n {net.internet} route del 10.9.0.0/24")


def test_a_way_out_that_carries_less_is_no_hole(net, bed, guest):
    """The host's interface has a smaller MTU than the guest's; large transfers in both directions, and no ICMP to help."""
    sh(f"ip -n {net.host} link set up0 mtu 1300; ip -n {net.internet} link set down0 mtu 1300")
    try:
        g = guest("open")
        assert g.attempt("fetch", WEB, 80, limit_s=1) > 1_000_000
        assert g.attempt("echo", WEB, 80, 500_000) == 500_000
    finally:
        sh(f"ip -n {net.host} link set up0 mtu 1500; ip -n {net.internet} link set down0 mtu 1500")


# Limits ----------------------------------------------------------------------------------------------------------------


def test_connections_are_limited(net):
    b = net.bed(1, DNS, "10.201.0.0/24", "open", 0, 0, 40)
    b.do("ready 1")
    b.do("take few open")
    g = Guest(net, b, "few")
    n = g.attempt("many", WEB, 9000, 60)
    assert 35 <= n <= 41
    b.saw(slot="few", verdict="refused", why="rate")
    g.close()
    b.end()


def test_limits_of_one_slot_are_its_own_and_change_while_it_runs(net):
    b = net.bed(2, DNS, "10.201.0.0/24", "open", 0, 0, 100)
    b.do("ready 2")
    for name in "one", "other":
        b.do(f"take {name} open")
    one, other = Guest(net, b, "one"), Guest(net, b, "other")
    b.do("limits one 10 0 16000")
    assert one.attempt("many", WEB, 9000, 30) == 10
    assert other.attempt("many", WEB, 9000, 30) == 30
    b.saw(slot="one", verdict="refused", why="rate")
    assert one.attempt("fetch", WEB, 80, limit_s=1) < 3_200_000  # 2 MB/s and a burst
    wait_for("more than that", lambda: other.attempt("fetch", WEB, 80, limit_s=1) > 6_000_000)
    b.do("limits one 500 0 0")  # more than the host gives: the host's
    wait_for("no limit", lambda: one.attempt("fetch", WEB, 80, limit_s=1) > 6_000_000)
    assert 80 <= one.attempt("many", WEB, 9000, 130) <= 100
    one.close()
    other.close()
    b.end()


def test_changing_limits_does_not_lift_the_hosts(net):
    """A new rule counts from none; the host's table is for all, so its limit holds whatever changes."""
    b = net.bed(1, DNS, "10.201.0.0/24", "open", 0, 0, 50)
    b.do("ready 1")
    b.do("take many open")
    g = Guest(net, b, "many")
    assert g.attempt("keep", "a", WEB, 9000, 40) == 40
    for limit in 49, 50, 48:
        b.do(f"limits many {limit} 0 0")
    assert g.attempt("keep", "a", WEB, 9000, 40) == 10
    g.attempt("let_go", "a")
    g.close()
    b.end()


def test_bandwidth_is_limited(net):
    b = net.bed(1, DNS, "10.201.0.0/24", "open", 8000, 16000)
    b.do("ready 1")
    b.do("take slow open")
    g = Guest(net, b, "slow")
    rates = []
    wait_for("most of it", lambda: rates.append(g.attempt("fetch", WEB, 80, limit_s=2)) or rates[-1] > 1_000_000)
    assert max(rates) < 2_600_000, rates  # 16 Mbit/s are 2 MB/s
    g.close()
    b.end()


# Life and death --------------------------------------------------------------------------------------------------------


def test_a_new_life_ends_old_connections_at_once(net, bed, guest):
    """A restored guest sends on in connections its namespace never saw: it reads a reset, it does not hang."""
    a = guest("open")
    assert a.attempt("hold", "old", WEB, 80) == "held"
    # The same guest behind another slot: what a restore or a fork does.
    bed.do("ready 1")
    bed.do("take second open")
    os.kill(a.machine, signal.SIGKILL)
    net.machines.remove(a.machine)
    wait_for("the tap to go", lambda: "eth0" not in sh(f"ip -n {a.ns} -o link"))
    a.machine = int(bed.do(f"guest second /run/netns/{a.ns}")[0])
    net.machines.append(a.machine)
    sh(f"ip -n {a.ns} link set eth0 address {GUEST_MAC} up; ip -n {a.ns} addr add 172.31.255.2/30 dev eth0;"
       f"ip -n {a.ns} route add default via 172.31.255.1")
    assert a.attempt("poke", "old") == "reset"  # not "silence"
    assert a.attempt("name", "web.example") == WEB
    assert a.attempt("tcp", WEB, 80) == f"internet {WEB}:80"
    bed.do("return second")


def test_a_killed_daemon_leaves_running_machines_and_nothing_else(net, bed, guest):
    policy = f"list web.example,web.example:8080,web.example:9999/udp,{WILD}"
    g = guest(policy)
    g.attempt("name", "web.example")
    assert g.attempt("hold", "wild", WILD, 80) == "held"
    assert g.attempt("hold", "web", WEB, 8080) == "held"
    bed.end(signal.SIGKILL)
    wait_for("unused slots to go", lambda: len(net.links()) == 1)
    assert g.attempt("poke", "wild") == "ping"  # its network goes on
    assert g.attempt("poke", "web") in ("reset", "end")  # but for what went through the daemon's hands
    assert g.attempt("tcp", OTHER, 80) == "no"  # and so does its policy
    assert g.attempt("name", "web.example", wait=0.5) == "silence"
    b = net.bed(2)
    place, addr, _ = b.do(f"adopt again {g.machine} {policy}")
    assert g.attempt("poke", "wild") == "ping"  # the same policy: what was resolved stays open
    assert g.attempt("tcp", WEB, 8080) == f"internet {WEB}:8080"
    assert g.attempt("tcp", WEB, 80, "web.example") == f"internet {WEB}:80"
    assert g.attempt("udp", WEB, 9999) == "hello"
    b.do("policy again list web.example,other.example")
    assert g.attempt("tcp", WEB, 8080) == "no" and g.attempt("udp", WEB, 9999) == "no"
    assert g.attempt("name", "other.example") == OTHER
    assert g.attempt("tcp", OTHER, 80, "other.example") == f"internet {OTHER}:80"
    assert g.attempt("tls", OTHER, "other.example") == f"tls {OTHER} other.example"
    b.do("ready 2")
    assert int(b.numbers("stats")["used"]) == 1
    assert g.attempt("name", "web.example") == WEB
    # The adopted place is not given to anybody else.
    for i in range(2):
        assert b.do(f"take n{i} open")[1] != addr
    assert b.refused(f"adopt twice {g.machine} open").startswith("net_stale")
    assert g.attempt("name", "other.example") == OTHER
    # A daemon that ends in order lets go, too; the table stays for the one that lives.
    b.end()
    wait_for("unused slots to go", lambda: len(net.links()) == 1)
    assert any("panda_net" in t for t in net.tables())
    os.kill(g.machine, signal.SIGKILL)
    wait_for("the last slot to go", lambda: len(net.links()) == 0)
    last = net.bed(1)
    last.do("ready 1")
    last.end()
    assert net.links() == [] and net.tables() == []
    assert sh(f"ip netns exec {net.host} cat /proc/sys/net/ipv4/conf/up0/forwarding").strip() == "0"


@pytest.mark.parametrize("when", ["at once", "later"])
def test_all_are_adopted_whatever_was_prepared_before(net, bed, when):
    """The next daemon begins to prepare slots at once, at the very places that machines still have."""
    guests = []
    for i in range(4):
        bed.do("ready 1")
        bed.do(f"take m{i} open")
        guests.append(Guest(net, bed, f"m{i}"))
        assert guests[i].attempt("hold", "web", WEB, 80) == "held"
    bed.end(signal.SIGKILL)
    b = net.bed(3)
    if when == "later":
        b.do("ready 3")
    got = [b.do(f"adopt m{i} {g.machine} open")[1] for i, g in enumerate(guests)]
    assert len(set(got)) == 4
    b.do("ready 3")
    for i in range(3):
        got.append(b.do(f"take n{i} open")[1])
    assert len(set(got)) == 7
    for i, g in enumerate(guests):
        assert g.attempt("poke", "web") == "ping"
        assert g.attempt("name", "web.example") == WEB
        g.close()
        b.do(f"return m{i}")
    b.end()


def test_places_of_others_are_found_again_when_they_left(net):
    a = net.bed(2, DNS, "10.203.0.0/28")
    a.do("ready 2")
    b = net.bed(2, DNS, "10.203.0.0/28")
    b.do("ready 2")
    for i in range(2):
        b.do(f"take b{i} open")
    assert b.refused("take more open").startswith("net_")
    a.end()
    wait_for("places to be found", lambda: b.numbers("stats")["ready"] == 2)
    b.end()


def test_places_come_back(net):
    b = net.bed(2, DNS, "10.202.0.0/28")  # four places
    b.do("ready 2")
    for i in range(4):
        b.do("ready 1")
        b.do(f"take t{i} open")
    said = b.refused("take t4 open")
    assert said.startswith("net_full"), said
    for i in range(4):
        b.do(f"return t{i}")
    b.do("ready 2")
    for i in range(2):
        b.do(f"take u{i} open")
    b.end()
    wait_for("all to go", lambda: net.links() == [])


def test_two_daemons_do_not_take_the_same_place(net):
    a, b = net.bed(2), net.bed(2)
    a.do("ready 2")
    b.do("ready 2")
    got = [a.do("take a0 open")[1], a.do("take a1 open")[1], b.do("take b0 open")[1], b.do("take b1 open")[1]]
    assert len(set(got)) == 4
    a.end()
    assert net.tables() != []  # the other one still needs them
    b.end()


def test_what_is_missing_is_said(net):
    done = subprocess.run(["ip", "netns", "exec", net.host, "setpriv", "--bounding-set=-net_admin", "--inh-caps=-all", str(BED), "1"],
                          capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    assert done.stdout.startswith("no net_unavailable"), done


@pytest.mark.parametrize("pool, word", [("172.16.0.0/12", "which guests use"), ("172.31.255.0/28", "which guests use"), ("11.0.0.0/16", "private"),
                                        ("10.200.0.0", "is not a network"), ("10.200.0.0/30", "is not a network")])
def test_pools_that_cannot_be_are_refused(net, pool, word):
    done = subprocess.run(["ip", "netns", "exec", net.host, str(BED), "1", DNS, pool], capture_output=True, text=True, timeout=20,
                          stdin=subprocess.DEVNULL)
    assert done.stdout.startswith("no bad_config") and word in done.stdout, done
