/*
 * net/addr.h - IPv4 addresses as numbers in host byte order, and which of them are always closed
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	ADDR_TEXT = 16,
};

struct addr_net {
	uint32_t first, last;
	unsigned prefix;
};

/* Strict: four decimal numbers, no leading zeros. -EINVAL. */
int addr_parse(const char *text, uint32_t *ret);

/* "a.b.c.d/p" with no bits set behind the prefix. -EINVAL. */
int addr_parse_net(const char *text, struct addr_net *ret);

/* "a.b.c.d" or "a.b.c.d:port". */
int addr_parse_port(const char *text, uint16_t default_port, uint32_t *ret, uint16_t *ret_port);

/* "1" to "65535", nothing else. */
int addr_parse_number16(const char *text, uint16_t *ret);

void addr_text(uint32_t a, char ret[ADDR_TEXT]);

/*
 * What no policy opens: this host, private and shared ranges, link-local with the metadata
 * addresses, documentation, benchmarks, multicast, reserved, broadcast.
 */
struct addr_range {
	const char *net, *what;
};

extern const struct addr_range addr_closed_ranges[];
extern const size_t addr_n_closed_ranges;

/* NULL: public. Otherwise what it is. */
const char *addr_closed(uint32_t a);
