/*
 * A byte that says which port, then what a guest says there. The same gets out however it is cut,
 * and what gets out on port 80 names no host but those of the list: our own parser, or another one
 * that looks for lines, finds no other.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/macro.h"
#include "net/leash.h"
#include "net/net.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct run {
	struct leash leash;
	uint8_t held[LEASH_BYTES_MAX];
	size_t n, n_out;
	uint8_t out[LEASH_BYTES_MAX];
	bool refused;
};

static void must(int ok)
{
	if (!ok)
		abort();
}

static void say(struct run *r, const struct net_policy *p, const uint8_t *data, size_t size,
                size_t piece)
{
	while (size && !r->refused) {
		size_t part = MIN(piece, size);
		ssize_t eaten = 1;

		memcpy(r->held + r->n, data, part);
		r->n += part;
		data += part;
		size -= part;
		while (r->n && eaten > 0) {
			size_t had = r->n;
			bool told;

			eaten = leash_judge(&r->leash, p, r->held, &r->n, &told);
			must(r->n <= had && (eaten < 0 || (size_t)eaten <= r->n));
			if (eaten < 0) {
				must(eaten == -EPERM && r->leash.why);
				r->refused = true;
				break;
			}
			if (told)
				must(policy_allows_name(p, r->leash.name, r->leash.port));
			memcpy(r->out + r->n_out, r->held, (size_t)eaten);
			r->n_out += (size_t)eaten;
			r->n -= (size_t)eaten;
			memmove(r->held, r->held + eaten, r->n);
		}
	}
}

/* Every line "Host: x" of a head that went out is for a.example; bodies may say anything. */
static void hosts_are_good(const uint8_t *out, size_t n)
{
	const char *text = (const char *)out;

	if (memmem(text, n, "ength", 5) || memmem(text, n, "hunked", 6) ||
	    memmem(text, n, "ENGTH", 5) || memmem(text, n, "HUNKED", 6))
		return;
	for (const char *p = text; (p = memmem(p, n - (size_t)(p - text), "\nHost: ", 7)); p += 7) {
		size_t left = n - (size_t)(p + 7 - text);

		must(left >= 9 && strncasecmp(p + 7, "a.example", 9) == 0);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const entries[] = {"a.example", "*.a.example", "a.example:22"};
	static const uint16_t ports[] = {80, 443, 22, 80};
	static const size_t pieces[] = {1, 5, 4096};
	static struct run first, other;
	static struct net_policy *p;
	uint16_t port;

	if (size < 1 || size > LEASH_BYTES_MAX / 2)
		return 0;
	if (!p)
		must(net_policy_new(NET_LIST, entries, ARRAY_LEN(entries), &p, NULL) == 0);
	port = ports[data[0] & 3];
	memset(&first, 0, sizeof(first));
	leash_init(&first.leash, port);
	say(&first, p, data + 1, size - 1, size);
	if (port == 80 && !first.leash.free)
		hosts_are_good(first.out, first.n_out);
	for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
		memset(&other, 0, sizeof(other));
		leash_init(&other.leash, port);
		say(&other, p, data + 1, size - 1, pieces[i]);
		must(other.refused == first.refused);
		if (port == 80 && first.leash.http != LEASH_CHUNKS)
			must(other.n_out >= first.n_out &&
			     memcmp(other.out, first.out, first.n_out) == 0);
	}
	return 0;
}
