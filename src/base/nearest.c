#include "base/nearest.h"

#include <string.h>

#include "base/macro.h"

enum {
	LETTERS_MAX = 40, /* what is longer is near to nothing */
};

struct nearest nearest_to(const char *word)
{
	size_t wrong = MAX(strlen(word) / 3, (size_t)1);

	return (struct nearest){.word = word, .cost = wrong + 1};
}

/* What it takes to make b of a, by the table of all their beginnings. */
static size_t cost(const char *a, size_t na, const char *b, size_t nb)
{
	size_t t[LETTERS_MAX + 1][LETTERS_MAX + 1];

	for (size_t i = 0; i <= na; i++)
		t[i][0] = i;
	for (size_t k = 0; k <= nb; k++)
		t[0][k] = k;
	for (size_t i = 1; i <= na; i++)
		for (size_t k = 1; k <= nb; k++) {
			size_t c = t[i - 1][k - 1] + (a[i - 1] != b[k - 1]);

			c = MIN(c, t[i - 1][k] + 1);
			c = MIN(c, t[i][k - 1] + 1);
			if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
				c = MIN(c, t[i - 2][k - 2] + 1);
			t[i][k] = c;
		}
	return t[na][nb];
}

void nearest_try(struct nearest *n, const char *known)
{
	size_t na = strlen(n->word), nb = strlen(known), c;

	if (na > LETTERS_MAX || nb > LETTERS_MAX)
		return;
	c = cost(n->word, na, known, nb);
	if (c < n->cost) {
		n->cost = c;
		n->found = known;
	}
}
