#include "base/glob.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
	PARTS_MAX = 1024, /* more than a path we take can have */
};

struct part {
	const char *p;
	size_t n;
};

/* A class at p: how long it is, and whether c is in it. 0: it has no end. */
static size_t class_at(const char *p, size_t n, char c, bool *ret)
{
	bool not = n > 1 && (p[1] == '^' || p[1] == '!'), in = false;
	size_t i = 1 + not, first = i;

	for (; i < n && (p[i] != ']' || i == first); i++) {
		char low, high;

		if (p[i] == '\\' && i + 1 < n)
			i++;
		low = high = p[i];
		if (i + 2 < n && p[i + 1] == '-' && p[i + 2] != ']') {
			high = p[i + 2];
			i += 2;
		}
		in |= low <= c && c <= high;
	}
	if (i >= n)
		return 0;
	*ret = in != not ;
	return i + 1;
}

/* One character of the pattern against c: how much of the pattern that was, 0: no match. */
static size_t one(const char *p, size_t n, char c)
{
	bool in;
	size_t k;

	if (*p == '?')
		return 1;
	if (*p == '\\' && n > 1)
		return p[1] == c ? 2 : 0;
	if (*p == '[' && (k = class_at(p, n, c, &in)))
		return in ? k : 0;
	return *p == c ? 1 : 0;
}

/* Going back to the last star is enough: what an earlier one could take, the last one can, too. */
static bool part_match(const struct part *pattern, const struct part *s)
{
	size_t p = 0, i = 0, star = SIZE_MAX, from = 0, k;

	while (i < s->n) {
		if (p < pattern->n && pattern->p[p] == '*') {
			star = ++p;
			from = i;
		} else if (p < pattern->n && (k = one(pattern->p + p, pattern->n - p, s->p[i]))) {
			p += k;
			i++;
		} else if (star != SIZE_MAX) {
			p = star;
			i = ++from;
		} else {
			return false;
		}
	}
	while (p < pattern->n && pattern->p[p] == '*')
		p++;
	return p == pattern->n;
}

static size_t parts_of(const char *s, struct part *ret)
{
	size_t n = 0;

	while (n < PARTS_MAX) {
		ret[n].p = s;
		ret[n].n = strcspn(s, "/");
		s += ret[n++].n;
		if (!*s++)
			return n;
	}
	return 0;
}

bool glob_match(const char *pattern, const char *path)
{
	struct part want[PARTS_MAX], have[PARTS_MAX];
	size_t nwant = parts_of(pattern, want), nhave = parts_of(path, have);
	bool reach[PARTS_MAX + 1] = {true}; /* the pattern so far can have eaten i parts */

	if (!nwant || !nhave)
		return false;
	for (size_t w = 0; w < nwant; w++) {
		bool any = want[w].n == 2 && !memcmp(want[w].p, "**", 2), was = reach[0];

		reach[0] = any && was;
		for (size_t i = 1; i <= nhave; i++) {
			bool before = reach[i];

			reach[i] = any ? before || reach[i - 1]
			               : was && part_match(&want[w], &have[i - 1]);
			was = before;
		}
	}
	return reach[nhave];
}
