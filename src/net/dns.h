/*
 * net/dns.h - the part of the DNS wire format a resolver with a leash needs
 * Pure: bytes in, structs out. Both sides may be hostile, the guest that asks and the server that
 * answers: every length is checked, compression pointers only go back and are counted, and a
 * name that a person could not type (other bytes than letters, digits, '-', '_') is refused.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	DNS_NAME_MAX = 253,      /* as text, without the last dot */
	DNS_WIRE_NAME_MAX = 255, /* with all lengths */
	DNS_HEADER = 12,
	DNS_UDP_MIN = 512,  /* who says nothing takes this */
	DNS_UDP_MAX = 1232, /* we promise and send no more over UDP */
	DNS_MESSAGE_MAX = 16384,
	DNS_CHAIN_MAX = 8,  /* CNAMEs from question to address */
	DNS_ADDRS_MAX = 32, /* more are left out */
	DNS_RECORDS_MAX = 256,
};

enum dns_type {
	DNS_A = 1,
	DNS_NS = 2,
	DNS_CNAME = 5,
	DNS_SOA = 6,
	DNS_PTR = 12,
	DNS_MX = 15,
	DNS_TXT = 16,
	DNS_AAAA = 28,
	DNS_SRV = 33,
	DNS_OPT = 41,
	DNS_SVCB = 64,
	DNS_HTTPS = 65,
	DNS_CAA = 257,
};

enum dns_rcode {
	DNS_NOERROR = 0,
	DNS_FORMERR = 1,
	DNS_SERVFAIL = 2,
	DNS_NXDOMAIN = 3,
	DNS_NOTIMP = 4,
	DNS_REFUSED = 5,
};

struct dns_question {
	uint16_t id;
	bool rd, cd;
	bool edns;
	uint16_t udp_max; /* what the asker takes: DNS_UDP_MIN to DNS_UDP_MAX */
	uint16_t type, class;
	uint8_t wire[DNS_WIRE_NAME_MAX]; /* as asked, upper and lower case kept */
	size_t wire_len;
	char name[DNS_NAME_MAX + 1]; /* lower case */
};

/*
 * A question from a guest. 0; -EBADMSG: not worth an answer (too short, or itself an answer);
 * otherwise the negative rcode to reply with (dns_build_error() needs only the bytes).
 */
int dns_parse_query(const uint8_t *buf, size_t n, struct dns_question *ret);

struct dns_answer {
	uint8_t rcode;
	bool truncated;
	uint32_t ttl_s; /* smallest of what is used */
	size_t n_chain; /* CNAMEs followed: chain[0] is what the question's name stands for */
	char chain[DNS_CHAIN_MAX][DNS_NAME_MAX + 1];
	size_t n_addrs;
	uint32_t addrs[DNS_ADDRS_MAX]; /* host byte order; of the last name in the chain */
	size_t answers_end;            /* the answer section ends here */
	size_t n_answers;
	bool has_other_addrs; /* A or AAAA records in an answer to something else */
};

/*
 * What an upstream server says to the question (id, type, class and name are compared; the name
 * without regard to case). -EBADMSG: not an answer to this; -EPROTO: it is, and malformed; -ELOOP:
 * CNAMEs in a circle or too many.
 */
int dns_parse_answer(const uint8_t *buf, size_t n, uint16_t id, const char *name, uint16_t type,
                     struct dns_answer *ret);

/* A question for upstream, with an offer of DNS_UDP_MAX bytes. name is clean (lower case, no last
 * dot). Length. */
size_t dns_build_query(uint16_t id, const char *name, uint16_t type,
                       uint8_t ret[DNS_HEADER + DNS_WIRE_NAME_MAX + 4 + 11]);

/*
 * The reply to q: the chain and the addresses, all with the same ttl; what does not fit into max
 * bytes is left out and the truncated bit set. max >= DNS_UDP_MIN. Returns the length.
 */
size_t dns_build_reply(const struct dns_question *q, const struct dns_answer *a, uint32_t ttl_s,
                       uint8_t *ret, size_t max);

/* An empty reply with this rcode. Same rules. */
size_t dns_build_rcode(const struct dns_question *q, unsigned rcode, uint8_t *ret, size_t max);

/* The header of a reply to bytes that could not be parsed as a question. n >= 2 bytes were read. */
size_t dns_build_error(const uint8_t *buf, size_t n, unsigned rcode, uint8_t ret[DNS_HEADER]);

/*
 * The answer section of an upstream message, under the question as q asked it; nothing of the other
 * sections. -EMSGSIZE: does not fit into max (send it truncated). Returns the length.
 */
int dns_copy_answers(const struct dns_question *q, const struct dns_answer *a, const uint8_t *buf,
                     uint8_t *ret, size_t max);

/*
 * Bits a guest can tell by having this name asked, in its part below the last two labels: no more
 * than 2^n names of one length weigh n or less.
 */
unsigned dns_weight(const char *name);
