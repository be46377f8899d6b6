/*
 * net-dnsread - what our DNS parser reads, line by line, for a comparison with another one
 * (tests/e2e/test_net_dns.py) q HEX             -> ok NAME TYPE CLASS EDNS, or no RCODE a TYPE NAME
 * HEX   -> ok RCODE TC CHAIN(,) ADDRS(,), or no
 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "net/addr.h"
#include "net/dns.h"

static size_t unhex(const char *hex, uint8_t *ret, size_t max)
{
	size_t n = 0;
	unsigned v;

	for (; n < max && sscanf(hex, "%2x", &v) == 1; hex += 2)
		ret[n++] = (uint8_t)v;
	return n;
}

static void question(const uint8_t *buf, size_t n)
{
	struct dns_question q;
	int r = dns_parse_query(buf, n, &q);

	if (r < 0)
		printf("no %d\n", r == -EBADMSG ? -1 : -r);
	else
		printf("ok %s %u %u %d\n", q.name[0] ? q.name : ".", q.type, q.class, q.edns);
}

static void answer(unsigned type, const char *name, const uint8_t *buf, size_t n)
{
	struct dns_answer a;
	int r = dns_parse_answer(buf, n, n >= 2 ? (uint16_t)(buf[0] << 8 | buf[1]) : 0, name,
	                         (uint16_t)type, &a);

	if (r < 0) {
		printf("no %s\n", r == -ELOOP ? "loop" : "bad");
		return;
	}
	printf("ok %u %d ", a.rcode, a.truncated);
	for (size_t i = 0; i < a.n_chain; i++)
		printf("%s%s", i ? "," : "", a.chain[i]);
	printf("%s ", a.n_chain ? "" : "-");
	for (size_t i = 0; i < a.n_addrs; i++) {
		char text[ADDR_TEXT];

		addr_text(a.addrs[i], text);
		printf("%s%s", i ? "," : "", text);
	}
	printf("%s\n", a.n_addrs ? "" : "-");
}

int main(void)
{
	static char line[65536], hex[65536], name[300];
	static uint8_t buf[DNS_MESSAGE_MAX];
	unsigned type;

	while (fgets(line, sizeof(line), stdin)) {
		/* A copy of its own size, so that a sanitizer sees its end. */
		autofree uint8_t *exact = NULL;
		size_t n;

		hex[0] = '\0';
		if (sscanf(line, "q %65535s", hex) != 1 &&
		    sscanf(line, "a %u %299s %65535s", &type, name, hex) < 2)
			continue;
		n = unhex(hex, buf, sizeof(buf));
		exact = malloc(n ? n : 1);
		memcpy(exact, buf, n);
		if (line[0] == 'q')
			question(exact, n);
		else
			answer(type, name, exact, n);
		fflush(stdout);
	}
	return 0;
}
