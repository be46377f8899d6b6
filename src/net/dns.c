#include "net/dns.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/macro.h"

enum {
	QR = 0x8000,
	OPCODE = 0x7800,
	TC = 0x0200,
	RD = 0x0100,
	RA = 0x0080,
	CD = 0x0010,
	RCODE = 0x000f,
	CLASS_IN = 1,
	JUMPS_MAX = 32,
};

/* What is left to read; a failed read makes it bad, and it stays so. */
struct dns_reader {
	const uint8_t *buf;
	size_t n, at;
	bool bad;
};

static uint16_t get16(struct dns_reader *r)
{
	uint16_t v;

	if (r->bad || r->n - r->at < 2) {
		r->bad = true;
		return 0;
	}
	v = (uint16_t)(r->buf[r->at] << 8 | r->buf[r->at + 1]);
	r->at += 2;
	return v;
}

static uint32_t get32(struct dns_reader *r)
{
	uint32_t hi = get16(r);

	return hi << 16 | get16(r);
}

static void skip(struct dns_reader *r, size_t n)
{
	if (r->bad || r->n - r->at < n)
		r->bad = true;
	else
		r->at += n;
}

static bool name_byte(uint8_t c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '-' || c == '_';
}

/*
 * Reads a name, follows pointers (each must lead before where its name began, so it ends), and
 * moves behind it. text may be NULL: then any bytes will do. The root is an empty text. wire, when
 * wanted, gets the bytes as they are.
 */
static void get_name(struct dns_reader *r, char *text, uint8_t *wire, size_t *wire_len)
{
	size_t at = r->at, out = 0, total = 1, lowest = r->at;
	bool jumped = false;
	int jumps = 0;

	if (wire)
		*wire_len = 0;
	while (!r->bad) {
		uint8_t len;

		if (at >= r->n)
			goto bad;
		len = r->buf[at];
		if (len >= 0xc0) {
			size_t to;

			if (r->n - at < 2 || wire || ++jumps > JUMPS_MAX)
				goto bad;
			to = (size_t)(len & 0x3f) << 8 | r->buf[at + 1];
			/* Only back; and there is no name in the header, whose bytes are ours when
			 * we answer. */
			if (to >= lowest || to < DNS_HEADER)
				goto bad;
			if (!jumped)
				r->at = at + 2;
			jumped = true;
			lowest = at = to;
			continue;
		}
		if (len > 63 || r->n - at < (size_t)len + 1)
			goto bad;
		if (wire) {
			if (*wire_len + len + 1 > DNS_WIRE_NAME_MAX)
				goto bad;
			memcpy(wire + *wire_len, r->buf + at, (size_t)len + 1);
			*wire_len += (size_t)len + 1;
		}
		at += (size_t)len + 1;
		if (len == 0)
			break;
		total += (size_t)len + 1;
		if (total > DNS_WIRE_NAME_MAX)
			goto bad;
		if (!text)
			continue;
		if (out)
			text[out++] = '.';
		for (size_t i = at - len; i < at; i++) {
			uint8_t c = r->buf[i];

			if (!name_byte(c))
				goto bad;
			text[out++] = (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
		}
	}
	if (r->bad)
		goto bad;
	if (text)
		text[out] = '\0';
	if (!jumped)
		r->at = at;
	return;
bad:
	r->bad = true;
	if (text)
		text[0] = '\0';
}

int dns_parse_query(const uint8_t *buf, size_t n, struct dns_question *ret)
{
	struct dns_reader r = {.buf = buf, .n = n};
	struct dns_question q = {.udp_max = DNS_UDP_MIN};
	uint16_t flags, qd, an, ns, ar;

	if (n < DNS_HEADER)
		return -EBADMSG;
	q.id = get16(&r);
	flags = get16(&r);
	qd = get16(&r);
	an = get16(&r);
	ns = get16(&r);
	ar = get16(&r);
	if (flags & QR)
		return -EBADMSG;
	if (flags & OPCODE)
		return -DNS_NOTIMP;
	if (qd != 1 || an || ns || ar > 1)
		return -DNS_FORMERR;
	q.rd = flags & RD;
	q.cd = flags & CD;
	get_name(&r, q.name, q.wire, &q.wire_len);
	q.type = get16(&r);
	q.class = get16(&r);
	if (r.bad)
		return -DNS_FORMERR;
	if (ar) {
		uint16_t type, size, len;
		uint32_t more;

		get_name(&r, NULL, NULL, NULL);
		type = get16(&r);
		size = get16(&r);
		more = get32(&r); /* extended rcode, version, DO: none of them is of use here */
		len = get16(&r);
		skip(&r, len);
		if (r.bad || type != DNS_OPT || more >> 24)
			return -DNS_FORMERR;
		q.edns = true;
		if (size > DNS_UDP_MIN)
			q.udp_max = MIN(size, (uint16_t)DNS_UDP_MAX);
	}
	if (r.at != n)
		return -DNS_FORMERR;
	*ret = q;
	return 0;
}

struct dns_record {
	char owner[DNS_NAME_MAX + 1];
	uint16_t type;
	uint32_t ttl;
	uint32_t addr;
	char target[DNS_NAME_MAX + 1];
};

/* The next record; what it says matters only for A and CNAME. Owners of others may have any
 * bytes. */
static void get_record(struct dns_reader *r, struct dns_record *ret)
{
	struct dns_reader before = *r;
	uint16_t class, len;
	size_t end;

	get_name(r, NULL, NULL, NULL);
	ret->type = get16(r);
	class = get16(r);
	ret->ttl = get32(r);
	len = get16(r);
	if (r->bad || r->n - r->at < len) {
		r->bad = true;
		return;
	}
	end = r->at + len;
	if (ret->ttl > INT32_MAX)
		ret->ttl = 0; /* RFC 2181, 8 */
	if (class != CLASS_IN)
		ret->type = 0;
	ret->owner[0] = ret->target[0] = '\0';
	if (ret->type == DNS_A || ret->type == DNS_CNAME)
		get_name(&before, ret->owner, NULL, NULL);
	if (before.bad) {
		r->bad = true;
		return;
	}
	if (ret->type == DNS_A) {
		if (len != 4)
			r->bad = true;
		ret->addr = get32(r);
	} else if (ret->type == DNS_CNAME) {
		get_name(r, ret->target, NULL, NULL);
	} else {
		r->at = end;
	}
	if (r->at != end)
		r->bad = true;
}

/* Walks the answer section from its start and adds what is said about the last name of the
 * chain. */
static int follow(struct dns_reader r, size_t count, const char *name, struct dns_answer *a)
{
	const char *cur = name;
	struct dns_reader start = r;
	struct dns_record rec;

	/* Each turn finds the CNAME of cur; servers put them in any order. */
	for (;;) {
		bool found = false;

		r = start;
		for (size_t i = 0; i < count && !found; i++) {
			get_record(&r, &rec);
			if (rec.type == DNS_CNAME && strcmp(rec.owner, cur) == 0)
				found = true;
		}
		if (!found)
			break;
		if (a->n_chain == DNS_CHAIN_MAX)
			return -ELOOP;
		memcpy(a->chain[a->n_chain], rec.target, sizeof(rec.target));
		a->ttl_s = MIN(a->ttl_s, rec.ttl);
		cur = a->chain[a->n_chain++];
		if (cur[0] == '\0')
			return -EPROTO;
	}
	r = start;
	for (size_t i = 0; i < count; i++) {
		get_record(&r, &rec);
		if (rec.type != DNS_A || strcmp(rec.owner, cur) != 0)
			continue;
		if (a->n_addrs < DNS_ADDRS_MAX)
			a->addrs[a->n_addrs++] = rec.addr;
		a->ttl_s = MIN(a->ttl_s, rec.ttl);
	}
	return 0;
}

int dns_parse_answer(const uint8_t *buf, size_t n, uint16_t id, const char *name, uint16_t type,
                     struct dns_answer *ret)
{
	struct dns_reader r = {.buf = buf, .n = n}, answers;
	char asked[DNS_NAME_MAX + 1];
	uint8_t wire[DNS_WIRE_NAME_MAX];
	uint16_t flags, qd, an, t, class;
	struct dns_record rec;
	size_t wire_len;
	int rc = 0;

	if (n < DNS_HEADER || n > DNS_MESSAGE_MAX || get16(&r) != id)
		return -EBADMSG;
	flags = get16(&r);
	qd = get16(&r);
	an = get16(&r);
	skip(&r, 4);
	if (!(flags & QR) || flags & OPCODE || qd != 1 || an > DNS_RECORDS_MAX)
		return -EBADMSG;
	get_name(&r, asked, wire, &wire_len); /* wire: so it is not compressed */
	t = get16(&r);
	class = get16(&r);
	if (r.bad || t != type || class != CLASS_IN || strcmp(asked, name) != 0)
		return -EBADMSG;

	memset(ret, 0, sizeof(*ret));
	ret->rcode = flags & RCODE;
	ret->truncated = flags & TC;
	ret->ttl_s = UINT32_MAX;
	answers = r;
	for (size_t i = 0; i < an; i++) {
		get_record(&r, &rec);
		if (r.bad)
			break;
		ret->n_answers++;
		ret->answers_end = r.at;
		if (rec.type == DNS_AAAA || (rec.type == DNS_A && type != DNS_A))
			ret->has_other_addrs = true;
	}
	if (ret->n_answers == 0)
		ret->answers_end = answers.at;
	/* A cut message may end anywhere, it is asked again over TCP; a whole one may not. */
	if (ret->n_answers < an && !ret->truncated)
		return -EPROTO;
	if (type == DNS_A)
		rc = follow(answers, ret->n_answers, name, ret);
	return rc;
}

struct writer {
	uint8_t *buf;
	size_t n, max;
	bool full;
};

static void put(struct writer *w, const void *bytes, size_t n)
{
	if (w->full || w->max - w->n < n) {
		w->full = true;
		return;
	}
	memcpy(w->buf + w->n, bytes, n);
	w->n += n;
}

static void put16(struct writer *w, unsigned v)
{
	uint8_t b[2] = {(uint8_t)(v >> 8), (uint8_t)v};

	put(w, b, 2);
}

static void put32(struct writer *w, uint32_t v)
{
	put16(w, v >> 16);
	put16(w, v & 0xffff);
}

static void put_name(struct writer *w, const char *name)
{
	while (*name) {
		size_t n = strcspn(name, ".");
		uint8_t len = (uint8_t)n;

		put(w, &len, 1);
		put(w, name, n);
		name += n + (name[n] == '.');
	}
	put(w, "", 1);
}

static void put_opt(struct writer *w)
{
	put(w, "", 1);
	put16(w, DNS_OPT);
	put16(w, DNS_UDP_MAX);
	put32(w, 0);
	put16(w, 0);
}

size_t dns_build_query(uint16_t id, const char *name, uint16_t type,
                       uint8_t ret[DNS_HEADER + DNS_WIRE_NAME_MAX + 4 + 11])
{
	struct writer w = {.buf = ret, .max = DNS_HEADER + DNS_WIRE_NAME_MAX + 4 + 11};

	put16(&w, id);
	put16(&w, RD);
	put16(&w, 1);
	put32(&w, 0);
	put16(&w, 1);
	put_name(&w, name);
	put16(&w, type);
	put16(&w, CLASS_IN);
	put_opt(&w);
	assert(!w.full);
	return w.n;
}

static void put_header(struct writer *w, const struct dns_question *q, unsigned rcode, unsigned n)
{
	put16(w, q->id);
	put16(w, QR | RA | (q->rd ? RD : 0) | (q->cd ? CD : 0) | (rcode & RCODE));
	put16(w, 1);
	put16(w, n);
	put16(w, 0);
	put16(w, q->edns ? 1 : 0);
	put(w, q->wire, q->wire_len);
	put16(w, q->type);
	put16(w, q->class);
}

static void set16(uint8_t *buf, size_t at, unsigned v)
{
	buf[at] = (uint8_t)(v >> 8);
	buf[at + 1] = (uint8_t)v;
}

size_t dns_build_reply(const struct dns_question *q, const struct dns_answer *a, uint32_t ttl_s,
                       uint8_t *ret, size_t max)
{
	size_t tail = q->edns ? 11 : 0, mark;
	struct writer w = {.buf = ret, .max = max - tail};
	unsigned owner = DNS_HEADER, n = 0;

	assert(max >= DNS_UDP_MIN);
	put_header(&w, q, a->rcode, 0);
	for (size_t i = 0; i < a->n_chain && !w.full; i++) {
		unsigned target;

		mark = w.n;
		put16(&w, 0xc000 | owner);
		put16(&w, DNS_CNAME);
		put16(&w, CLASS_IN);
		put32(&w, ttl_s);
		put16(&w, 0);
		target = (unsigned)w.n;
		put_name(&w, a->chain[i]);
		if (w.full) {
			w.n = mark;
			break;
		}
		set16(ret, target - 2, (unsigned)(w.n - target));
		owner = target;
		n++;
	}
	for (size_t i = 0; i < a->n_addrs && !w.full; i++) {
		mark = w.n;
		put16(&w, 0xc000 | owner);
		put16(&w, DNS_A);
		put16(&w, CLASS_IN);
		put32(&w, ttl_s);
		put16(&w, 4);
		put32(&w, a->addrs[i]);
		if (w.full) {
			w.n = mark;
			break;
		}
		n++;
	}
	set16(ret, 6, n);
	if (w.full) {
		ret[2] |= TC >> 8;
		w.full = false;
	}
	w.max = max;
	if (q->edns)
		put_opt(&w);
	assert(!w.full);
	return w.n;
}

size_t dns_build_rcode(const struct dns_question *q, unsigned rcode, uint8_t *ret, size_t max)
{
	struct dns_answer *a = &(struct dns_answer){.rcode = (uint8_t)rcode};

	return dns_build_reply(q, a, 0, ret, max);
}

size_t dns_build_error(const uint8_t *buf, size_t n, unsigned rcode, uint8_t ret[DNS_HEADER])
{
	memset(ret, 0, DNS_HEADER);
	memcpy(ret, buf, MIN(n, (size_t)2));
	set16(ret, 2, QR | RA | rcode);
	return DNS_HEADER;
}

int dns_copy_answers(const struct dns_question *q, const struct dns_answer *a, const uint8_t *buf,
                     uint8_t *ret, size_t max)
{
	struct writer w = {.buf = ret, .max = max};
	size_t from;

	/* The question has the same length there, so pointers into it and behind it stay right. */
	put_header(&w, q, a->rcode, (unsigned)a->n_answers);
	from = w.n;
	assert(a->answers_end >= from || w.full);
	put(&w, buf + from, a->answers_end - from);
	if (q->edns)
		put_opt(&w);
	return w.full ? -EMSGSIZE : (int)w.n;
}

/*
 * As a coder that learns would write it: each byte costs the less the more often it came before.
 * That is a code, so there are at most 2^n names of n bits, whatever a sender thinks of; dots
 * count, since words can be told by where they are.
 */
unsigned dns_weight(const char *name)
{
	static const double letters = 39; /* a to z, 0 to 9, '-', '_', '.' */
	unsigned count[256] = {0}, n = 0;
	const char *end = name + strlen(name);
	double bits = 0;

	for (int dots = 0; end > name; end--)
		if (end[-1] == '.' && ++dots == 2)
			break;
	for (const char *p = name; p < end; p++)
		bits += log2((n++ + letters / 2) / (count[(uint8_t)*p]++ + 0.5));
	return (unsigned)ceil(bits);
}
