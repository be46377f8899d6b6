"""Our DNS parser and dnspython's read the same messages: well-formed ones, and the same with bytes changed."""
import random
import subprocess

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest

from little_internet import BED

READ = BED.with_name("net-dnsread")
pytestmark = pytest.mark.skipif(not READ.exists(), reason=f"no {READ}: build first")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"


@pytest.fixture(scope="module")
def read():
    p = subprocess.Popen([READ], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(line):
        p.stdin.write(line + "\n")
        p.stdin.flush()
        return p.stdout.readline().split()
    yield ask
    p.stdin.close()
    assert p.wait(5) == 0


def a_name(rng):
    return ".".join("".join(rng.choice(LETTERS) for _ in range(rng.randint(1, rng.choice((5, 20, 63))))) for _ in range(rng.randint(1, 3))) + "."


def test_questions(read):
    rng = random.Random(5)
    for _ in range(500):
        name, kind = a_name(rng), rng.choice(("A", "AAAA", "TXT", "MX", "HTTPS"))
        q = dns.message.make_query(name, kind, use_edns=rng.choice((0, False)), payload=rng.choice((512, 1232, 4096)))
        got = read("q " + q.to_wire().hex())
        assert got == ["ok", name[:-1].lower(), str(int(dns.rdatatype.from_text(kind))), "1", str(int(q.edns >= 0))]


def answer(rng):
    name = "web.example."
    q = dns.message.make_query(name, "A")
    r = dns.message.make_response(q)
    r.set_rcode(rng.choice((dns.rcode.NOERROR,) * 4 + (dns.rcode.NXDOMAIN,)))
    owner, sets, chain = name, [], []
    for _ in range(rng.choice((0, 0, 1, 2, 5))):
        target = a_name(rng)
        sets.append(dns.rrset.from_text(owner, rng.randint(0, 9999), "IN", "CNAME", target))
        chain.append(target[:-1].lower())
        owner = target
    addrs = [f"{rng.randint(1, 223)}.{rng.randint(0, 255)}.{rng.randint(0, 255)}.{rng.randint(0, 255)}" for _ in range(rng.randint(0, 12))]
    if addrs:
        sets.append(dns.rrset.from_text(owner, 60, "IN", "A", *addrs))
    for _ in range(rng.randint(0, 2)):
        sets.append(dns.rrset.from_text(a_name(rng), 60, "IN", *rng.choice((("A", "9.9.9.9"), ("TXT", '"noise"'), ("AAAA", "2001::1")))))
    rng.shuffle(sets)
    r.answer = sets
    return r, chain, set(addrs)


def test_answers(read):
    rng = random.Random(6)
    for _ in range(500):
        r, chain, addrs = answer(rng)
        got = read("a 1 web.example " + r.to_wire().hex())
        assert got[0] == "ok" and int(got[1]) == r.rcode(), got
        assert ([] if got[3] == "-" else got[3].split(",")) == chain
        assert (set() if got[4] == "-" else set(got[4].split(","))) == addrs


def test_changed_answers_say_the_same_to_both(read):
    """What we still accept, dnspython reads as the same chain and addresses; it never says less than we do."""
    rng = random.Random(7)
    both = ours = theirs = 0
    for _ in range(4000):
        r, _, _ = answer(rng)
        wire = bytearray(r.to_wire())
        for _ in range(rng.randint(1, 3)):
            wire[rng.randrange(2, len(wire))] = rng.choice((0, 1, 12, 0xC0, 255, rng.randrange(256)))
        if rng.random() < 0.2:
            wire = wire[:rng.randrange(len(wire))]
        got = read("a 1 web.example " + bytes(wire).hex())
        try:
            m = dns.message.from_wire(bytes(wire), one_rr_per_rrset=True, ignore_trailing=True, raise_on_truncation=False)
        except (dns.exception.DNSException, ValueError, NotImplementedError, KeyError):
            m = None
        if got[0] != "ok":
            theirs += m is not None
            continue
        ours += 1
        if m is None:
            continue  # they also read the other sections, which we do not use
        chain, addrs, owner = [], set(), dns.name.from_text("web.example.")
        records = [rr for rr in m.answer if rr.rdclass == 1]
        while True:
            step = [rr for rr in records if rr.rdtype == 5 and rr.name == owner]
            if not step:
                break
            owner = step[0][0].target
            chain.append(owner.to_text(omit_final_dot=True).lower())
        for rr in records:
            if rr.rdtype == 1 and rr.name == owner:
                addrs.add(rr[0].address)
        assert ([] if got[3] == "-" else got[3].split(",")) == chain, bytes(wire).hex()
        assert (set() if got[4] == "-" else set(got[4].split(","))) == addrs, bytes(wire).hex()
        both += 1
    assert both > 500 and theirs > 100, (both, ours, theirs)
