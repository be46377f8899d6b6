/*
 * Two bytes of choice, then a DNS message. Read as a guest's question and as a server's answer.
 * What was read can be told, and what we tell can be read again and says the same.
 */
#include <stdlib.h>
#include <string.h>

#include "net/dns.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
	if (!ok)
		abort();
}

static void clean(const char *name)
{
	must(strlen(name) <= DNS_NAME_MAX);
	must(name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.")] == '\0');
}

static void as_question(const uint8_t *buf, size_t n, size_t max)
{
	struct dns_answer a = {.n_chain = 1, .chain = {"a.example"}, .n_addrs = 2, .addrs = {1, 2}},
			  back;
	uint8_t out[4096];
	struct dns_question q;
	size_t len;

	if (dns_parse_query(buf, n, &q) < 0)
		return;
	clean(q.name);
	must(q.udp_max >= DNS_UDP_MIN && q.udp_max <= DNS_UDP_MAX);
	len = dns_build_reply(&q, &a, 60, out, max);
	must(len <= max);
	if (q.class == 1 && q.type == DNS_A) {
		must(dns_parse_answer(out, len, q.id, q.name, DNS_A, &back) == 0);
		if (strcmp(q.name, "a.example") != 0)
			must(back.truncated || (back.n_chain == 1 && back.n_addrs == 2));
	}
	dns_weight(q.name);
}

static void as_answer(const uint8_t *buf, size_t n, uint16_t type, size_t max)
{
	struct dns_question q;
	struct dns_answer a, back;
	uint8_t ask[512], out[4096];
	uint16_t id = n >= 2 ? (uint16_t)(buf[0] << 8 | buf[1]) : 0;
	size_t len;
	int r;

	len = dns_build_query(id, "web.example", type, ask);
	must(dns_parse_query(ask, len, &q) == 0);
	r = dns_parse_answer(buf, n, id, "web.example", type, &a);
	if (r < 0)
		return;
	must(a.n_chain <= DNS_CHAIN_MAX && a.n_addrs <= DNS_ADDRS_MAX && a.answers_end <= n);
	for (size_t i = 0; i < a.n_chain; i++)
		clean(a.chain[i]);
	if (type != DNS_A) {
		r = dns_copy_answers(&q, &a, buf, out, max);
		if (r >= 0) {
			must((size_t)r <= max);
			must(dns_parse_answer(out, (size_t)r, id, "web.example", type, &back) == 0);
			must(back.n_answers == a.n_answers);
		}
		return;
	}
	len = dns_build_reply(&q, &a, 60, out, max);
	must(len <= max);
	must(dns_parse_answer(out, len, id, "web.example", DNS_A, &back) == 0);
	if (back.truncated)
		return;
	must(back.n_chain == a.n_chain && back.n_addrs == a.n_addrs);
	must(memcmp(back.addrs, a.addrs, a.n_addrs * sizeof(a.addrs[0])) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint16_t types[] = {DNS_A, DNS_TXT, DNS_MX, DNS_CNAME};
	size_t max;

	if (size < 2)
		return 0;
	max = DNS_UDP_MIN + (size_t)data[1] * 14;
	if (data[0] & 1)
		as_question(data + 2, size - 2, max);
	else
		as_answer(data + 2, size - 2, types[data[0] >> 1 & 3], max);
	return 0;
}
