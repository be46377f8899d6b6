#include "host/unified.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

struct line {
	const char *p;
	size_t n; /* with its newline */
};

struct text {
	struct line *at;
	int n;
};

static int split(const char *p, size_t n, struct text *ret)
{
	const char *end = p + n;

	if (memchr(p, 0, n))
		return -EILSEQ;
	ret->at = calloc(UNIFIED_LINES_MAX, sizeof(*ret->at));
	if (!ret->at)
		return -ENOMEM;
	while (p < end) {
		const char *nl = memchr(p, '\n', (size_t)(end - p));
		size_t len = nl ? (size_t)(nl + 1 - p) : (size_t)(end - p);

		if (ret->n == UNIFIED_LINES_MAX)
			return -E2BIG;
		ret->at[ret->n++] = (struct line){p, len};
		p += len;
	}
	return 0;
}

static bool same(const struct line *x, const struct line *y)
{
	return x->n == y->n && !memcmp(x->p, y->p, x->n);
}

/*
 * The shortest script of edits (Myers 1986): v[k] is how far diagonal k has come with d edits, and
 * every v is kept so that the way can be walked back. Fills edits, '-' for a line of a that goes
 * and
 * '+' for one of b that comes: where[] is at which lines. Returns how many, or -E2BIG.
 */
struct edit {
	char kind;
	int a, b;
};

static int script(const struct text *a, const struct text *b, struct edit edits[UNIFIED_EDITS_MAX])
{
	enum { W = 2 * UNIFIED_EDITS_MAX + 3, MID = UNIFIED_EDITS_MAX + 1 };
	autofree int *all = calloc((size_t)(UNIFIED_EDITS_MAX + 1) * W, sizeof(int));
	autofree int *v = calloc(W, sizeof(int));
	int d, k, x, y, n;

	if (!all || !v)
		return -ENOMEM;
	for (d = 0; d <= UNIFIED_EDITS_MAX; d++) {
		memcpy(all + (size_t)d * W, v, W * sizeof(int));
		for (k = -d; k <= d; k += 2) {
			bool down = k == -d || (k != d && v[MID + k - 1] < v[MID + k + 1]);

			x = down ? v[MID + k + 1] : v[MID + k - 1] + 1;
			y = x - k;
			while (x < a->n && y >= 0 && y < b->n && same(&a->at[x], &b->at[y])) {
				x++;
				y++;
			}
			v[MID + k] = x;
			if (x >= a->n && y >= b->n)
				goto found;
		}
	}
	return -E2BIG;
found:
	n = d;
	x = a->n;
	y = b->n;
	for (; d > 0; d--) {
		const int *w = all + (size_t)d * W;
		bool down;

		k = x - y;
		down = k == -d || (k != d && w[MID + k - 1] < w[MID + k + 1]);
		k = down ? k + 1 : k - 1;
		x = w[MID + k];
		y = x - k;
		edits[d - 1] = (struct edit){down ? '+' : '-', x, y};
	}
	return n;
}

static void put(FILE *f, char kind, const struct line *l)
{
	fputc(kind, f);
	fwrite(l->p, 1, l->n, f);
	if (l->p[l->n - 1] != '\n')
		fputs("\n\\ No newline at end of file\n", f);
}

/* Edits first..last are near enough to share a hunk. */
static void hunk(FILE *f, const struct text *a, const struct text *b, const struct edit *first,
                 const struct edit *last)
{
	int from = first->a < UNIFIED_CONTEXT ? 0 : first->a - UNIFIED_CONTEXT, plus = 0, minus = 0;
	int to = last->a + (last->kind == '-') + UNIFIED_CONTEXT, b_from, x = from;

	if (first->b - (first->a - from) < 0)
		from = x = first->a - first->b;
	if (to > a->n)
		to = a->n;
	for (const struct edit *e = first; e <= last; e++) {
		plus += e->kind == '+';
		minus += e->kind == '-';
	}
	b_from = first->b - (first->a - from);
	fprintf(f, "@@ -%d,%d +%d,%d @@\n", to - from ? from + 1 : from, to - from,
	        to - from - minus + plus ? b_from + 1 : b_from, to - from - minus + plus);
	for (const struct edit *e = first; e <= last; e++) {
		while (x < e->a)
			put(f, ' ', &a->at[x++]);
		if (e->kind == '-')
			put(f, '-', &a->at[x++]);
		else
			put(f, '+', &b->at[e->b]);
	}
	while (x < to)
		put(f, ' ', &a->at[x++]);
}

int unified_diff(const char *pa, size_t na, const char *pb, size_t nb, char **ret)
{
	autofree struct edit *edits = calloc(UNIFIED_EDITS_MAX, sizeof(*edits));
	struct text a = {0}, b = {0};
	char *text = NULL;
	size_t len = 0;
	FILE *f = NULL;
	int n, r;

	r = edits ? split(pa, na, &a) : -ENOMEM;
	if (r == 0)
		r = split(pb, nb, &b);
	n = r < 0 ? r : script(&a, &b, edits);
	if (n >= 0)
		f = open_memstream(&text, &len);
	r = n < 0 ? n : f ? 0 : -ENOMEM;
	for (int i = 0; f && i < n;) {
		int last = i;

		while (last + 1 < n && edits[last + 1].a - edits[last].a <= 2 * UNIFIED_CONTEXT)
			last++;
		hunk(f, &a, &b, &edits[i], &edits[last]);
		i = last + 1;
	}
	if (f && fclose(f) != 0)
		r = -ENOMEM;
	free(a.at);
	free(b.at);
	if (r < 0)
		free(text);
	else
		*ret = text;
	return r;
}
