#include "host/upper.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void upper_fini(struct upper *u)
{
	free(u->bytes);
	free(u->at);
	*u = (struct upper){0};
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct upper_entry *)a)->path, ((const struct upper_entry *)b)->path);
}

static bool type_valid(char c)
{
	return c && strchr("fldow-", c);
}

/* Absolute, with no way out of the root. */
static bool path_valid(const char *p)
{
	if (p[0] != '/' || !p[1])
		return false;
	for (; *p; p += strcspn(p + 1, "/") + 1) {
		size_t n = strcspn(p + 1, "/");

		if (n == 0 || (n == 1 && p[1] == '.') || (n == 2 && p[1] == '.' && p[2] == '.'))
			return false;
	}
	return true;
}

static int parse_one(char *line, struct upper_entry *ret)
{
	unsigned long long size, low_size;
	long long mtime, low_mtime, ctime;
	struct upper_entry e = {0};
	int at = 0;

	if (sscanf(line, "%c %o %u %u %llu %lld %lld %c %o %llu %lld %n", &e.now.type, &e.now.mode,
	           &e.uid, &e.gid, &size, &mtime, &ctime, &e.low.type, &e.low.mode, &low_size,
	           &low_mtime, &at) != 11 ||
	    at == 0 || !type_valid(e.now.type) || !type_valid(e.low.type) || !path_valid(line + at))
		return -EBADMSG;
	if (e.now.type == 'w')
		e.now.type = '-';
	if (e.low.type == 'w')
		e.low.type = '-';
	e.now.size = size;
	e.now.mtime_ns = mtime;
	e.ctime_ns = ctime;
	e.low.size = low_size;
	e.low.mtime_ns = low_mtime;
	e.path = line + at;
	*ret = e;
	return 0;
}

int upper_parse(char *bytes, size_t n, struct upper *ret)
{
	struct upper u = {.bytes = bytes};
	size_t cap = 0;
	int r = 0;

	for (size_t i = 0; r == 0 && i < n;) {
		char *line = bytes + i, *end = memchr(line, 0, n - i), *target, *end2;

		target = end ? end + 1 : NULL;
		end2 = end ? memchr(target, 0, n - (size_t)(target - bytes)) : NULL;
		if (!end2) {
			r = -EBADMSG; /* cut off */
			break;
		}
		if (u.n == UPPER_ENTRIES_MAX)
			r = -E2BIG;
		if (r == 0 && u.n == cap) {
			size_t more = cap ? 2 * cap : 256;
			void *p = reallocarray(u.at, more, sizeof(*u.at));

			if (!p) {
				r = -ENOMEM;
				break;
			}
			u.at = p;
			cap = more;
		}
		if (r == 0)
			r = parse_one(line, &u.at[u.n]);
		if (r == 0)
			u.at[u.n++].target = target;
		i = (size_t)(end2 + 1 - bytes);
	}
	if (r == 0 && u.n)
		qsort(u.at, u.n, sizeof(*u.at), by_path);
	for (size_t i = 1; r == 0 && i < u.n; i++)
		if (!strcmp(u.at[i - 1].path, u.at[i].path))
			r = -EBADMSG;
	if (r < 0) {
		upper_fini(&u);
		return r;
	}
	*ret = u;
	return 0;
}

const struct upper_entry *upper_find(const struct upper *u, const char *path, size_t len)
{
	size_t lo = 0, hi = u->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int c = strncmp(u->at[mid].path, path, len);

		if (c == 0 && u->at[mid].path[len])
			c = 1;
		if (c == 0)
			return &u->at[mid];
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return NULL;
}

/* What a machine has at this path; low is what its template has there. */
static struct upper_file upper_state(const struct upper *u, const char *path,
                                     const struct upper_file *low)
{
	static const struct upper_file nothing = {.type = '-'};
	const struct upper_entry *e = upper_find(u, path, strlen(path));

	if (e)
		return e->now;
	/* Nothing can be below what is no directory (any more). */
	for (const char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
		e = upper_find(u, path, (size_t)(p - path));
		if (e && e->now.type != 'd')
			return nothing;
	}
	return *low;
}

static const char *target_of(const struct upper *u, const char *path)
{
	const struct upper_entry *e = upper_find(u, path, strlen(path));

	return e ? e->target : NULL;
}

void upper_compare(const struct upper *a, const struct upper *b,
                   bool (*fn)(void *arg, const char *path, enum upper_change change,
                              const struct upper_file *from, const struct upper_file *to),
                   void *arg)
{
	size_t i = 0, k = 0;
	bool go_on = true;

	while (go_on && (i < a->n || k < b->n)) {
		int c = i == a->n ? 1 : k == b->n ? -1 : strcmp(a->at[i].path, b->at[k].path);
		const struct upper_entry *e = c <= 0 ? &a->at[i] : &b->at[k];
		struct upper_file from = upper_state(a, e->path, &e->low);
		struct upper_file to = upper_state(b, e->path, &e->low);
		enum upper_change change = UPPER_CHANGED;
		bool same = false;

		i += c <= 0;
		k += c >= 0;
		if (from.type == '-' && to.type == '-')
			continue;
		if (from.type == '-')
			change = UPPER_ADDED;
		else if (to.type == '-')
			change = UPPER_REMOVED;
		else if (from.type != to.type || from.mode != to.mode)
			change = UPPER_CHANGED;
		else if (from.type == 'f' && from.size != to.size)
			change = UPPER_CHANGED;
		else if (from.type == 'f' && from.mtime_ns != to.mtime_ns)
			change = UPPER_TOUCHED;
		else if (from.type == 'l') {
			const char *x = target_of(a, e->path), *y = target_of(b, e->path);

			/* One of them is the template's: a program that wrote a link anew
			 * meant it. */
			same = x && y ? !strcmp(x, y) : from.mtime_ns == to.mtime_ns;
		} else
			same = true;
		if (!same)
			go_on = fn(arg, e->path, change, &from, &to);
	}
}
