"""Attempts x policies in a little internet, every cell asserted; see little_internet.py."""
import concurrent.futures

import pytest

from little_internet import (BED, CDN, DATABASE, DNS, HOST_LAN, HOST_PUBLIC, METADATA, OTHER, WEB, WILD, LittleInternet, Guest)

pytestmark = pytest.mark.skipif(not BED.exists(), reason=f"no {BED}: build first")

POLICIES = {
    "open": "open",
    "off": "off",
    "names": "list web.example,*.wild.example,www.example",
    "port": "list web.example:8080",
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
    (("tcp", WEB, 80), (f"internet {WEB}:80", NO, f"internet {WEB}:80", NO, f"internet {WEB}:80")),
    (("tcp", WEB, 8080), (f"internet {WEB}:8080", NO, f"internet {WEB}:8080", f"internet {WEB}:8080", f"internet {WEB}:8080")),
    (("tcp", OTHER, 80), (f"internet {OTHER}:80", NO, NO, NO, f"internet {OTHER}:80")),
    (("tcp", CDN, 80), (f"internet {CDN}:80", NO, f"internet {CDN}:80", NO, f"internet {CDN}:80")),
    (("tcp", "11.1.1.5", 80), ("internet 11.1.1.5:80", NO, NO, NO, "internet 11.1.1.5:80")),
    (("udp", WEB, 9999), ("hello", NO, "hello", NO, "hello")),
    (("udp", OTHER, 9999), ("hello", NO, NO, NO, "hello")),
    (("udp", WEB, 443), ("hello", NO, NO, NO, "hello")),
    (("ping", WEB), ("pong", NO, "pong", NO, "pong")),
    (("ping", OTHER), ("pong", NO, NO, NO, "pong")),
    (("ping", "172.31.255.1"), ("pong",) * 5),
    # TLS: with a list only to names of it.
    (("tls", WEB, "web.example"), (f"tls {WEB} web.example", NO, f"tls {WEB} web.example", NO, f"tls {WEB} web.example")),
    (("tls", WEB, "WEB.example"), (f"tls {WEB} WEB.example", NO, f"tls {WEB} WEB.example", NO, f"tls {WEB} WEB.example")),
    (("tls", WEB, "evil.example"), (f"tls {WEB} evil.example", NO, NO, NO, f"tls {WEB} evil.example")),
    (("tls", WEB, "web.example.evil.example"), (f"tls {WEB} web.example.evil.example", NO, NO, NO, f"tls {WEB} web.example.evil.example")),
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
