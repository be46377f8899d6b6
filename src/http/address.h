/*
 * http/address.h - addresses of clients: whom limits count as one, and whom they do not count
 * An address is 16 bytes, as of IPv6; one of IPv4 is ::ffff:a.b.c.d.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/err.h"

enum {
	ADDRESS = 16,
	ADDRESS_RANGES_MAX = 32,
};

struct address_range {
	uint8_t net[ADDRESS];
	unsigned bits;
};

/* False: it has none, like a unix socket. */
bool address_of(const struct sockaddr_storage *sa, uint8_t ret[ADDRESS]);

/* Keeps of it what stands for one customer: an IPv4 address, or the 64 bits of IPv6 one gets. */
void address_group(uint8_t address[ADDRESS]);

/* "127.0.0.0/8 ::1": addresses, or ranges of them, with spaces between. Kind: bad_config. */
int address_ranges_parse(const char *text, struct address_range ret[ADDRESS_RANGES_MAX], size_t *n,
                         struct err *e);
bool address_in(const uint8_t address[ADDRESS], const struct address_range *ranges, size_t n);
