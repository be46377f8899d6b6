#include "http/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static void from_v4(const void *v4, uint8_t ret[ADDRESS])
{
	memset(ret, 0, ADDRESS);
	ret[10] = ret[11] = 0xff;
	memcpy(ret + 12, v4, 4);
}

bool address_of(const struct sockaddr_storage *sa, uint8_t ret[ADDRESS])
{
	if (sa->ss_family == AF_INET)
		from_v4(&((const struct sockaddr_in *)sa)->sin_addr, ret);
	else if (sa->ss_family == AF_INET6)
		memcpy(ret, &((const struct sockaddr_in6 *)sa)->sin6_addr, ADDRESS);
	else
		return false;
	return true;
}

static bool is_v4(const uint8_t address[ADDRESS])
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	return memcmp(address, mapped, sizeof(mapped)) == 0;
}

void address_group(uint8_t address[ADDRESS])
{
	if (!is_v4(address))
		memset(address + 8, 0, ADDRESS - 8);
}

/* One word of n bytes. */
static bool parse_one(const char *p, size_t n, struct address_range *ret)
{
	char word[64], *slash, *end;
	unsigned all = 128;
	uint8_t v4[4];

	if (n >= sizeof(word))
		return false;
	memcpy(word, p, n);
	word[n] = 0;
	slash = strchr(word, '/');
	if (slash)
		*slash++ = 0;
	if (inet_pton(AF_INET, word, v4) == 1) {
		from_v4(v4, ret->net);
		all = 32;
	} else if (inet_pton(AF_INET6, word, ret->net) != 1) {
		return false;
	}
	ret->bits = 128;
	if (!slash)
		return true;
	if (strspn(slash, "0123456789") == 0 || strlen(slash) > 3)
		return false;
	ret->bits = (unsigned)strtoul(slash, &end, 10);
	if (*end || ret->bits > all)
		return false;
	ret->bits += 128 - all;
	return true;
}

int address_ranges_parse(const char *text, struct address_range ret[ADDRESS_RANGES_MAX], size_t *n,
                         struct err *e)
{
	*n = 0;
	for (const char *p = text; *(p += strspn(p, " \t"));) {
		size_t len = strcspn(p, " \t");

		if (*n == ADDRESS_RANGES_MAX)
			return err_set(e, E2BIG, "bad_config", "proxies: at most %d addresses",
			               ADDRESS_RANGES_MAX);
		if (!parse_one(p, len, &ret[*n]))
			return err_set(e, EINVAL, "bad_config",
			               "proxies: '%.*s' is no address and no range like 10.0.0.0/8",
			               (int)(len < 60 ? len : 60), p);
		++*n;
		p += len;
	}
	return 0;
}

static bool in_range(const uint8_t address[ADDRESS], const struct address_range *r)
{
	unsigned whole = r->bits / 8, rest = r->bits % 8;

	if (memcmp(address, r->net, whole) != 0)
		return false;
	return rest == 0 || (address[whole] ^ r->net[whole]) >> (8 - rest) == 0;
}

bool address_in(const uint8_t address[ADDRESS], const struct address_range *ranges, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (in_range(address, &ranges[i]))
			return true;
	return false;
}
