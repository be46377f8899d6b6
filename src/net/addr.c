#include "net/addr.h"

#include <errno.h>
#include <string.h>

#include "base/macro.h"

const struct addr_range addr_closed_ranges[] = {
    {"0.0.0.0/8", "this network"},
    {"10.0.0.0/8", "private"},
    {"100.64.0.0/10", "shared by carriers"},
    {"127.0.0.0/8", "loopback"},
    {"168.63.129.16/32",
     "a metadata service"}, /* Azure's, a public address that never leaves a host */
    {"169.254.0.0/16", "link-local and metadata services"},
    {"172.16.0.0/12", "private"},
    {"192.0.0.0/24", "reserved"},
    {"192.0.2.0/24", "documentation"},
    {"192.88.99.0/24", "reserved"},
    {"192.168.0.0/16", "private"},
    {"198.18.0.0/15", "benchmarks"},
    {"198.51.100.0/24", "documentation"},
    {"203.0.113.0/24", "documentation"},
    {"224.0.0.0/4", "multicast"},
    {"240.0.0.0/4", "reserved"},
};
const size_t addr_n_closed_ranges = ARRAY_LEN(addr_closed_ranges);

/* Decimal without leading zeros, up to max; moves *s behind it. */
static int number(const char **s, uint32_t max, uint32_t *ret)
{
	const char *p = *s;
	uint32_t v = 0;

	if (*p < '0' || *p > '9' || (p[0] == '0' && p[1] >= '0' && p[1] <= '9'))
		return -EINVAL;
	for (; *p >= '0' && *p <= '9'; p++) {
		v = v * 10 + (uint32_t)(*p - '0');
		if (v > max)
			return -EINVAL;
	}
	*s = p;
	*ret = v;
	return 0;
}

static int dotted(const char **s, uint32_t *ret)
{
	uint32_t a = 0, v;

	for (int i = 0; i < 4; i++) {
		if (i && *(*s)++ != '.')
			return -EINVAL;
		if (number(s, 255, &v) < 0)
			return -EINVAL;
		a = a << 8 | v;
	}
	*ret = a;
	return 0;
}

int addr_parse(const char *text, uint32_t *ret)
{
	uint32_t a;

	if (dotted(&text, &a) < 0 || *text)
		return -EINVAL;
	*ret = a;
	return 0;
}

int addr_parse_net(const char *text, struct addr_net *ret)
{
	uint32_t a, p, mask;

	if (dotted(&text, &a) < 0 || *text++ != '/' || number(&text, 32, &p) < 0 || *text)
		return -EINVAL;
	mask = p ? ~0u << (32 - p) : 0;
	if (a & ~mask)
		return -EINVAL;
	*ret = (struct addr_net){.first = a, .last = a | ~mask, .prefix = p};
	return 0;
}

int addr_parse_number16(const char *text, uint16_t *ret)
{
	uint32_t v;

	if (number(&text, 65535, &v) < 0 || *text || v == 0)
		return -EINVAL;
	*ret = (uint16_t)v;
	return 0;
}

int addr_parse_port(const char *text, uint16_t default_port, uint32_t *ret, uint16_t *ret_port)
{
	uint16_t port = default_port;
	uint32_t a;

	if (dotted(&text, &a) < 0)
		return -EINVAL;
	if (*text && (*text != ':' || addr_parse_number16(text + 1, &port) < 0))
		return -EINVAL;
	*ret = a;
	*ret_port = port;
	return 0;
}

void addr_text(uint32_t a, char ret[ADDR_TEXT])
{
	snprintf(ret, ADDR_TEXT, "%u.%u.%u.%u", a >> 24, a >> 16 & 255, a >> 8 & 255, a & 255);
}

const char *addr_closed(uint32_t a)
{
	struct addr_net net;

	for (size_t i = 0; i < addr_n_closed_ranges; i++) {
		if (addr_parse_net(addr_closed_ranges[i].net, &net) < 0)
			return "unknown"; /* cannot be; a test reads them all */
		if (a >= net.first && a <= net.last)
			return addr_closed_ranges[i].what;
	}
	return NULL;
}
