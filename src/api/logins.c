#include "api/logins.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/bucket.h"
#include "base/err.h"
#include "http/address.h"

enum {
	ONE = 60, /* sixtieths */
};

int logins_open(struct logins *l, unsigned per_minute, struct err *e)
{
	l->per_minute = per_minute;
	if (getrandom(&l->seed, sizeof(l->seed), 0) != sizeof(l->seed))
		return err_set(e, EIO, "internal", "no entropy for the table of logins");
	return 0;
}

static struct login *set_of(struct logins *l, const uint8_t *key)
{
	uint64_t h = l->seed;

	for (int i = 0; i < ADDRESS; i++)
		h = (h ^ key[i]) * 1099511628211u;
	h ^= h >> 32;
	return l->set[h % LOGIN_SETS];
}

static struct login *find(struct logins *l, const uint8_t *key)
{
	struct login *set = set_of(l, key);

	for (int i = 0; i < LOGIN_WAYS; i++)
		if (set[i].used && memcmp(set[i].key, key, ADDRESS) == 0)
			return &set[i];
	return NULL;
}

/* In place of the one that was heard longest ago. */
static struct login *take(struct logins *l, const uint8_t *key, uint64_t now_ms)
{
	struct login *at = find(l, key), *set = set_of(l, key);

	if (!at) {
		at = set;
		for (int i = 1; i < LOGIN_WAYS && at->used; i++)
			if (!set[i].used || set[i].heard_ms < at->heard_ms)
				at = &set[i];
		*at = (struct login){.used = true};
		memcpy(at->key, key, ADDRESS);
	}
	at->heard_ms = now_ms;
	return at;
}

static bool lately_valid(const struct login *at, uint64_t now_ms)
{
	return at->valid && now_ms - at->valid_ms < LOGIN_VALID_MS;
}

static bool refuse(struct logins *l, const struct login *at, unsigned *retry_s)
{
	uint64_t ms =
	    bucket_wait_ms(&at->failed, l->per_minute, (uint64_t)l->per_minute * ONE, ONE);

	l->refusals++;
	*retry_s = (unsigned)((ms + 999) / 1000);
	return false;
}

bool login_begins(struct logins *l, const uint8_t *key, uint64_t now_ms, unsigned *retry_s)
{
	uint64_t burst = (uint64_t)l->per_minute * ONE;
	struct login *at = key && l->per_minute ? find(l, key) : NULL;

	if (!at || lately_valid(at, now_ms))
		return true;
	at->heard_ms = now_ms;
	(void)bucket_take(&at->failed, now_ms, l->per_minute, burst, 0); /* what time gave back */
	if (bucket_wait_ms(&at->failed, l->per_minute, burst, ONE) == 0)
		return true;
	return refuse(l, at, retry_s);
}

bool login_failed(struct logins *l, const uint8_t *key, uint64_t now_ms, unsigned *retry_s)
{
	struct login *at;

	l->failures++;
	if (!key || !l->per_minute)
		return true;
	at = take(l, key, now_ms);
	if (bucket_take(&at->failed, now_ms, l->per_minute, (uint64_t)l->per_minute * ONE, ONE))
		return true;
	return refuse(l, at, retry_s);
}

void login_worked(struct logins *l, const uint8_t *key, uint64_t now_ms)
{
	struct login *at;

	if (!key || !l->per_minute)
		return;
	at = take(l, key, now_ms);
	at->valid = true;
	at->valid_ms = now_ms;
}
