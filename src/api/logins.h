/*
 * api/logins.h - requests with no token or an invalid one, counted per address
 * An address may have so many in a minute, and then no token of its requests is looked at until it
 * has waited. One that used a valid token lately is not shut out: many clients may be behind it.
 * Then valid tokens go on working, and only the failures are answered with 429.
 *
 * The table is of a fixed size. When many addresses come at once, those that were heard longest ago
 * are forgotten: they may try again. Pure; the caller brings the time.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bucket.h"
#include "base/err.h"
#include "http/address.h"

enum {
	LOGIN_SETS = 512,
	LOGIN_WAYS = 8, /* addresses in a set */
	LOGIN_VALID_MS = 600000,
};

struct login {
	uint8_t key[ADDRESS];
	bool used;
	struct bucket failed; /* in sixtieths of a request, so that the rate is one per minute */
	uint64_t heard_ms, valid_ms;
	bool valid; /* valid_ms is a time */
};

struct logins {
	unsigned per_minute; /* 0: no limit */
	uint64_t seed;       /* so that nobody knows which addresses share a set */
	struct login set[LOGIN_SETS][LOGIN_WAYS];
	uint64_t failures, refusals;
};

int logins_open(struct logins *l, unsigned per_minute, struct err *e);

/* May a token from there be looked at now? key NULL: not limited. False: *retry_s is set. */
bool login_begins(struct logins *l, const uint8_t *key, uint64_t now_ms, unsigned *retry_s);
/* There was none, or it is invalid. False: too many; answer 429 and not 401. */
bool login_failed(struct logins *l, const uint8_t *key, uint64_t now_ms, unsigned *retry_s);
void login_worked(struct logins *l, const uint8_t *key, uint64_t now_ms);
