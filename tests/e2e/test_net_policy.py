"""Attempts x policies in a little internet, every cell asserted; see little_internet.py."""
import concurrent.futures
import signal
import subprocess

import pytest

from little_internet import (BED, CDN, DATABASE, DNS, HOST_LAN, HOST_PUBLIC, METADATA, OTHER, WEB, WILD, LittleInternet, Guest, patient)

pytestmark = pytest.mark.skipif(not BED.exists(), reason=f"no {BED}: build first")

POLICIES = {
    "open": "open",
    "off": "off",
    "names": "list web.example,*.wild.example,www.example",
    "port": "list web.example:8080,web.example:8443,web.example:2222,web.example:9999/udp,web.example:443/udp",
    "addrs": f"list {OTHER},11.1.1.4:80,11.9.0.0/16,0.0.0.0/1",
}
# "addrs" also has a network that holds closed ranges: they stay closed.
ORDER = list(POLICIES)
NO = "no"


@pytest.fixture(scope="module")
def world():
    with LittleInternet() as net:
        bed = net.bed(len(ORDER) + 1)
        bed.do(f"ready {len(ORDER) + 1}")
        guests = {}
        for name in ORDER:
            bed.do(f"take {name} {POLICIES[name]}")
            guests[name] = Guest(net, bed, name)
            for known in "web.example", "a.wild.example", "www.example":  # so that each row stands for itself
                guests[name].attempt("name", known)
        yield net, bed, guests


# attempt: what comes back under each policy, in ORDER. Names have been resolved in the guest before.
TABLE = [
    (("name", "web.example"), (WEB, "REFUSED", WEB, WEB, "REFUSED")),
    (("name", "other.example"), (OTHER, "REFUSED", "REFUSED", "REFUSED", "REFUSED")),
    (("name", "a.wild.example"), (WILD, "REFUSED", WILD, "REFUSED", "REFUSED")),
    (("name", "deep.b.wild.example"), (WILD, "REFUSED", WILD, "REFUSED", "REFUSED")),
    (("name", "wild.example"), (WILD, "REFUSED", "REFUSED", "REFUSED", "REFUSED")),
    (("name", "www.example"), (CDN, "REFUSED", CDN, "REFUSED", "REFUSED")),
    (("name", "nowhere.example"), ("NXDOMAIN", "REFUSED", "REFUSED", "REFUSED", "REFUSED")),
    (("name", "web.example", "AAAA"), ("nothing", "REFUSED", "nothing", "nothing", "REFUSED")),
    (("name", "web.example", "HTTPS"), ("nothing", "REFUSED", "nothing", "nothing", "REFUSED")),
    (("name", "txt.example", "TXT"), ('"hello"', "REFUSED", "REFUSED", "REFUSED", "REFUSED")),
    (("name", "rebind.example"), ("REFUSED",) * 5),
    (("name", "meta.example"), ("REFUSED",) * 5),
    (("name", "loopback.example"), ("REFUSED",) * 5),
    (("name", "alias-private.example"), ("REFUSED",) * 5),
    (("name", "half.example"), (WEB, "REFUSED", "REFUSED", "REFUSED", "REFUSED")),
    (("name", "db.internal"), ("NXDOMAIN", "REFUSED", "REFUSED", "REFUSED", "REFUSED")),
    (("name", "5.0.9.10.in-addr.arpa", "PTR"), ("NXDOMAIN", "REFUSED", "REFUSED", "REFUSED", "REFUSED")),
    # Other name servers, whatever they would say.
    (("name", "web.example", "A", DNS), ("silence",) * 5),
    (("name", "web.example", "A", DNS, True), (NO,) * 5),
    (("tcp", DNS, 853), (NO,) * 5),
    # Addresses.
    (("tcp", WEB, 80), (f"internet {WEB}:80", NO, NO, NO, f"internet {WEB}:80")),
    (("tcp", WEB, 80, "web.example"), (f"internet {WEB}:80", NO, f"internet {WEB}:80", NO, f"internet {WEB}:80")),
    (("tcp", WEB, 80, "Web.Example:80"), (f"internet {WEB}:80", NO, f"internet {WEB}:80", NO, f"internet {WEB}:80")),
    (("tcp", WEB, 80, "evil.example"), (f"internet {WEB}:80", NO, NO, NO, f"internet {WEB}:80")),
    (("tcp", WEB, 80, WEB), (f"internet {WEB}:80", NO, NO, NO, f"internet {WEB}:80")),
    (("tcp", WILD, 80, "x.y.wild.example"), (f"internet {WILD}:80", NO, f"internet {WILD}:80", NO, f"internet {WILD}:80")),
    (("tcp", WEB, 9000), (f"internet {WEB}:9000", NO, NO, NO, f"internet {WEB}:9000")),
    (("tcp", WEB, 8080), (f"internet {WEB}:8080", NO, NO, f"internet {WEB}:8080", f"internet {WEB}:8080")),
    (("greeted", WEB, 2222, "me"), ("hello, who is it?|me", NO, NO, "hello, who is it?|me", "hello, who is it?|me")),
    (("tcp", OTHER, 80), (f"internet {OTHER}:80", NO, NO, NO, f"internet {OTHER}:80")),
    (("tcp", CDN, 80), (f"internet {CDN}:80", NO, NO, NO, f"internet {CDN}:80")),
    (("tcp", CDN, 80, "www.example"), (f"internet {CDN}:80", NO, f"internet {CDN}:80", NO, f"internet {CDN}:80")),
    (("tcp", "11.1.1.5", 80), ("internet 11.1.1.5:80", NO, NO, NO, "internet 11.1.1.5:80")),
    (("udp", WEB, 9999), ("hello", NO, NO, "hello", "hello")),
    (("udp", OTHER, 9999), ("hello", NO, NO, NO, "hello")),
    (("udp", WEB, 443), ("hello", NO, NO, "hello", "hello")),
    (("ping", WEB), ("pong", NO, NO, NO, "pong")),
    (("ping", OTHER), ("pong", NO, NO, NO, "pong")),
    (("ping", "172.31.255.1"), ("pong",) * 5),
    # TLS: with a list only to names of it.
    (("tls", WEB, "web.example"), (f"tls {WEB} web.example", NO, f"tls {WEB} web.example", NO, f"tls {WEB} web.example")),
    (("tls", WEB, "WEB.example"), (f"tls {WEB} WEB.example", NO, f"tls {WEB} WEB.example", NO, f"tls {WEB} WEB.example")),
    (("tls", WEB, "evil.example"), (f"tls {WEB} evil.example", NO, NO, NO, f"tls {WEB} evil.example")),
    (("tls", WEB, "web.example.evil.example"), (f"tls {WEB} web.example.evil.example", NO, NO, NO, f"tls {WEB} web.example.evil.example")),
    (("tls", WEB, "web.example", 8443), (f"tls {WEB} web.example", NO, NO, f"tls {WEB} web.example", f"tls {WEB} web.example")),
    (("tls", WEB, "evil.example", 8443), (f"tls {WEB} evil.example", NO, NO, NO, f"tls {WEB} evil.example")),
    (("tls", WEB, None, 8443), (f"tls {WEB} None", NO, NO, NO, f"tls {WEB} None")),
    (("tls", WEB, None), (f"tls {WEB} None", NO, NO, NO, f"tls {WEB} None")),
    (("tls", OTHER, "web.example"), (f"tls {OTHER} web.example", NO, NO, NO, f"tls {OTHER} web.example")),
    (("tls", WILD, "x.y.wild.example"), (f"tls {WILD} x.y.wild.example", NO, f"tls {WILD} x.y.wild.example", NO,
                                         f"tls {WILD} x.y.wild.example")),
    (("garbage", WEB, 443, "474554202f20485454502f312e300d0a0d0a"), None),
    # Always closed.
    (("tcp", HOST_PUBLIC, 8080), None),
    (("tcp", HOST_PUBLIC, 22), None),
    (("tcp", HOST_LAN, 8080), (NO,) * 5),
    (("tcp", DATABASE, 5432), (NO,) * 5),
    (("ping", DATABASE), (NO,) * 5),
    (("tcp", METADATA, 80), (NO,) * 5),
    (("udp", METADATA, 53), (NO,) * 5),
    (("tcp", "172.31.255.1", 22), (NO,) * 5),
    (("tcp", "172.31.255.1", 8443), (NO,) * 5),
    (("udp", "172.31.255.1", 123), (NO,) * 5),
    (("tcp", "127.0.0.2", 80), None),
    (("tcp", "100.64.0.1", 80), (NO,) * 5),
    (("tcp", "192.168.1.1", 80), (NO,) * 5),
    (("tcp", "172.16.0.1", 80), (NO,) * 5),
    (("tcp", "168.63.129.16", 80), (NO,) * 5),
    (("udp", "239.1.1.1", 9999), None),
]


def expected(row):
    attempt, want = TABLE[row]
    return SPECIAL[attempt[:3]] if want is None else want


def wait_of(row):
    """How long an attempt waits for an answer: only where none shall come it is short."""
    if TABLE[row][0][0] == "garbage":
        return {}
    return {"wait": 0.7 if "silence" in expected(row) else 10}


@pytest.mark.parametrize("row", range(len(TABLE)), ids=[" ".join(map(str, a)) for a, _ in TABLE])
def test_attempt(world, row):
    net, bed, guests = world
    with concurrent.futures.ThreadPoolExecutor() as pool:  # where nothing comes, they wait together
        got = tuple(pool.map(lambda p: guests[p].attempt(*TABLE[row][0], **wait_of(row)), ORDER))
    assert got == tuple(expected(row)), dict(zip(ORDER, got))


SPECIAL = {
    # The server itself resets what is no TLS; the events tell who did (test_net_life).
    ("garbage", WEB, 443): (NO,) * 5,
    # The host's own public address: its services are closed, whatever the policy says.
    ("tcp", HOST_PUBLIC, 8080): (NO,) * 5,
    ("tcp", HOST_PUBLIC, 22): (NO,) * 5,
    ("tcp", "127.0.0.2", 80): (NO,) * 5,       # the guest's own loopback
    ("udp", "239.1.1.1", 9999): ("silence",) * 5,
}


# Ways past a list of names: web.example is a front that serves evil.example, too, at the same address, as CDNs do -------------------

EVIL = "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"
GOOD = "GET / HTTP/1.1\r\nHost: web.example\r\n\r\n"
POST = "POST / HTTP/1.1\r\nHost: web.example\r\n"
WAYS = {
    "another host": (("say", WEB, 80, EVIL), "host"),
    "another host, HTTP/1.0": (("say", WEB, 80, EVIL.replace("1.1", "1.0")), "host"),
    "no host": (("say", WEB, 80, "GET / HTTP/1.0\r\n\r\n"), "http"),
    "two hosts": (("say", WEB, 80, GOOD.replace("\r\n\r\n", "\r\nHost: evil.example\r\n\r\n")), "http"),
    "two hosts, the other first": (("say", WEB, 80, EVIL.replace("\r\n\r\n", "\r\nHost: web.example\r\n\r\n")), "http"),
    "a URL of another host": (("say", WEB, 80, GOOD.replace("/ ", "http://evil.example/ ", 1)), "http"),
    "connect": (("say", WEB, 80, "CONNECT evil.example:443 HTTP/1.1\r\nHost: web.example\r\n\r\n"), "http"),
    "plain bytes on 80": (("say", WEB, 80, "to evil: secret\r\n\r\n"), "http"),
    "lines that end in LF": (("say", WEB, 80, EVIL.replace("\r", "")), "http"),
    "TLS on 80": (("tls", WEB, "web.example", 80), "http"),
    "HTTP/2 at once": (("say", WEB, 80, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "http"),
    "the second request": (("say", WEB, 80, GOOD, EVIL), "host"),
    "a request behind the first": (("say", WEB, 80, GOOD + EVIL), "host"),
    "a request behind a body": (("say", WEB, 80, POST + "Content-Length: 5\r\n\r\n12345" + EVIL), "host"),
    "a request behind chunks": (("say", WEB, 80, POST + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + EVIL), "host"),
    "a request in chunks that have a length": (
        ("say", WEB, 80, POST + f"Transfer-Encoding: chunked\r\nContent-Length: {len(EVIL) + 5}\r\n\r\n0\r\n\r\n{EVIL}"), "http"),
    "a WebSocket that the server does not want": (
        ("say", WEB, 80, GOOD.replace("/ ", "/no ", 1).replace("\r\n\r\n", "\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"), EVIL), "host"),
    "HTTP/2 by upgrade": (("say", WEB, 80, GOOD.replace("\r\n\r\n", "\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"), EVIL), "host"),
    "TLS for another name": (("tls", WEB, "evil.example"), "sni"),
    "TLS without a name": (("tls", WEB, None), "sni"),
    "no TLS on 443": (("say", WEB, 443, GOOD), "sni"),
    "another port": (("say", WEB, 8080, EVIL), "port"),
    "the name's own host on another port": (("say", WEB, 8080, GOOD), "port"),
    "TLS on another port": (("tls", WEB, "evil.example", 8443), "port"),
    "the name's own TLS on another port": (("tls", WEB, "web.example", 8443), "port"),
    "UDP": (("udp", WEB, 9999), "port"),
    "QUIC": (("udp", WEB, 443), "port"),
    "DNS": (("name", "evil.example", "A", WEB, True), "port"),
    "an echo": (("ping", WEB), "port"),
}


@pytest.fixture(scope="module")
def front(world):
    net, bed, _ = world
    bed.do("ready 1")
    bed.do("take front list web.example,*.wild.example")
    g = Guest(net, bed, "front")
    for name in "web.example", "a.wild.example":
        g.attempt("name", name)
    return net, bed, g


@pytest.mark.parametrize("way", WAYS)
def test_a_bare_name_is_the_web_of_that_name_and_nothing_else(front, way):
    net, bed, g = front
    assert g.attempt("name", "web.example") == WEB
    net.clear()
    bed.events.clear()
    attempt, why = WAYS[way]
    got = g.attempt(*attempt)
    assert got.split()[-1] == "no", got
    assert "evil.example" not in net.world.ask("heard")
    e = bed.saw(slot="front", verdict="refused", why=why)
    assert e["addr"] == WEB and e["name"] == ("evil.example" if why == "host" or (why == "sni" and attempt[2] == "evil.example") else "web.example")


def test_requests_of_one_connection_may_be_many(front):
    """As apt does it: one connection, all that is wanted asked for at once; and other hosts of the list."""
    net, bed, g = front
    net.clear()
    apt = [f"GET /debian/pool/{i} HTTP/1.1\r\nHost: web.example\r\nUser-Agent: Debian APT-HTTP/1.3 (2.6.1)\r\n\r\n" for i in range(40)]
    got = g.attempt("say", WEB, 80, "".join(apt), answers=40)
    assert got.count(f"internet {WEB}:80") == 40, got
    got = g.attempt("say", WEB, 80, *apt[:4], answers=4)
    assert got.count(f"internet {WEB}:80") == 4, got
    other = GOOD.replace("web.example", "x.y.wild.example")
    bodies = (GOOD, POST + "Content-Length: 9\r\n\r\n" + "GET / HTT", POST + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n",
              other, GOOD)
    got = g.attempt("say", WEB, 80, "".join(bodies), answers=5)
    assert got.count(f"internet {WEB}:80") == 5 and f"{WEB}:80 9 bytes" in got and f"{WEB}:80 19 bytes" in got, got
    assert set(net.world.ask("heard")) == {"web.example", "x.y.wild.example"}
    bed.saw(slot="front", verdict="allowed", addr=WEB, port=80, name="x.y.wild.example")


def test_a_large_upload_and_a_large_answer_go_through(front):
    net, bed, g = front
    size = 3_000_000
    got = g.attempt("say", WEB, 80, POST + f"Content-Length: {size}\r\n\r\n" + "x" * size, answers=1, end=" bytes")
    assert f"{WEB}:80 {size} bytes" in got, got[-200:]
    chunk = "1000\r\n" + "y" * 4096 + "\r\n"
    got = g.attempt("say", WEB, 80, POST + "Transfer-Encoding: chunked\r\n\r\n" + chunk * 200 + "0\r\n\r\n" + GOOD, answers=2)
    assert f"{WEB}:80 {4096 * 200} bytes" in got, got[-200:]
    assert g.attempt("fetch", WEB, 80, host="web.example", limit_s=60) > 0


def test_a_websocket_of_the_name_goes_through(front):
    net, bed, g = front
    asks = GOOD.replace("\r\n\r\n", "\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n")
    got = g.attempt("say", WEB, 80, asks, "\x81\x85frame", answers=1, end="frame")
    assert got.startswith("HTTP/1.1 101") and got.split("\r\n\r\n")[1].startswith("\x81\x85frame"), got


def test_real_programs_reach_a_bare_name(front):
    net, bed, g = front
    assert g.run(f"curl -s -m 9 --resolve web.example:80:{WEB} http://web.example/ http://web.example/2")[1] == f"internet {WEB}:80" * 2
    assert g.run(f"curl -s -m 9 --http2 --resolve web.example:80:{WEB} http://web.example/")[1] == f"internet {WEB}:80"
    assert g.run(f"curl -sk -m 9 --resolve web.example:443:{WEB} https://web.example/")[1].startswith(f"tls {WEB}")
    assert g.run(f"curl -s -m 9 --connect-to ::{WEB}:80 http://evil.example/")[0] != 0
    assert g.run(f"curl -sk -m 9 --connect-to ::{WEB}:8443 https://evil.example:8443/")[0] != 0
    assert g.run(f"curl -s -m 9 -d @/etc/services -H 'Transfer-Encoding: chunked' --resolve web.example:80:{WEB} http://web.example/")[1].endswith(" bytes")


# What the operator says --------------------------------------------------------------------------------------------------


def operator(net, most, closed, *policies):
    b = net.bed(len(policies), DNS, "10.204.0.0/24", "open", 0, 0, 0, 0, most, closed)
    b.do(f"ready {len(policies)}")
    guests = []
    for i, policy in enumerate(policies):
        b.do(f"take op{i} {policy}")
        guests.append(Guest(net, b, f"op{i}"))
    return b, guests


@pytest.mark.parametrize("most, reached", [("off", ()), ("list", ("list",)), ("open", ("open", "default", "list"))])
def test_no_policy_is_more_than_the_operator_lets_be(world, most, reached):
    net = world[0]
    policies = {"open": "open", "default": "default", "list": f"list {WEB}"}
    b, guests = operator(net, most, "", *policies.values())
    for policy, g in zip(policies, guests):
        assert g.attempt("tcp", WEB, 80) == (f"internet {WEB}:80" if policy in reached else NO), (most, policy)
    b.do("policy op2 open")
    assert guests[2].attempt("tcp", OTHER, 80) == (f"internet {OTHER}:80" if "open" in reached else NO)
    for g in guests:
        g.close()
    b.end()


def test_what_the_operator_closes_no_list_opens(world):
    net = world[0]
    b, guests = operator(net, "open", f"{WEB} 11.1.1.2/31", "open", f"list web.example,{WEB},{OTHER}:80,0.0.0.0/0")
    for g in guests:
        assert g.attempt("tcp", WEB, 80, "web.example") == NO and g.attempt("tcp", OTHER, 80) == NO
        assert g.attempt("tcp", WILD, 80) == f"internet {WILD}:80"
        assert g.attempt("name", "web.example") == "REFUSED"
    b.saw(slot="op1", verdict="refused", addr=WEB, port=80, why="closed_range")
    b.saw(slot="op1", verdict="refused", name="web.example", why="rebind")
    for g in guests:
        g.close()
    b.end()


@pytest.mark.parametrize("wrong", [("opne", ""), ("list", "11.1.1.2/24"), ("list", "11.1.1.2/24 x")])
def test_what_the_operator_says_wrong_is_refused(world, wrong):
    net = world[0]
    done = subprocess.run(["ip", "netns", "exec", net.host, str(BED), "1", DNS, "10.205.0.0/24", "open", "0", "0", "0", "0", *wrong],
                          capture_output=True, text=True, timeout=patient(20), stdin=subprocess.DEVNULL)
    assert done.stdout.startswith("no bad_config egress_"), done


def test_a_slot_of_another_program_gets_the_rules_of_this_one(world):
    """After an upgrade, or when the operator has closed more: what lives is held to what holds now."""
    net = world[0]
    b, (g,) = operator(net, "open", "", f"list web.example,{OTHER},{WILD}")
    for addr in OTHER, WILD:
        assert g.attempt("tcp", addr, 80) == f"internet {addr}:80"
    assert g.attempt("hold", "wild", WILD, 80) == "held" and g.attempt("hold", "other", OTHER, 80) == "held"
    b.end(signal.SIGKILL)
    b = net.bed(1, DNS, "10.204.0.0/24", "open", 0, 0, 0, 0, "list", OTHER)
    b.do(f"adopt op {g.machine} list web.example,{OTHER},{WILD}")
    assert g.attempt("tcp", OTHER, 80) == NO and g.attempt("poke", "other") == "reset"
    assert g.attempt("tcp", WILD, 80) == f"internet {WILD}:80" and g.attempt("poke", "wild") == "ping"
    assert g.attempt("name", "web.example") == WEB and g.attempt("tcp", WEB, 80, "web.example") == f"internet {WEB}:80"
    b.do("limits op 5 0 0")
    assert g.attempt("many", WILD, 9000, 12) == 5
    g.close()
    b.end()
