#include "base/shares.h"

#include <stdlib.h>
#include <string.h>

#include "base/macro.h"

struct share *shares_of(struct shares *s, const char *name)
{
	size_t n = strlen(name) + 1;
	struct share **at, *sh;
	uint32_t h = 2166136261u;

	for (const char *p = name; *p; p++)
		h = (h ^ (unsigned char)*p) * 16777619u;
	at = &s->bucket[h % SHARES_BUCKETS];
	for (sh = *at; sh; sh = sh->next)
		if (strcmp(sh->name, name) == 0)
			return sh;
	sh = calloc(1, sizeof(*sh) + n);
	if (!sh)
		return NULL;
	memcpy(sh->name, name, n);
	sh->next = *at;
	*at = sh;
	return sh;
}

void shares_add(struct shares *s, struct share *of, uint64_t n)
{
	of->n += n;
	s->n += n;
}

void shares_gone(struct shares *s, struct share *of, uint64_t n)
{
	n = MIN(n, of->n);
	of->n -= n;
	s->n -= n;
}

struct share *shares_over(const struct shares *s, uint64_t *n)
{
	struct share *most = NULL;
	uint64_t over = 0;

	for (size_t i = 0; i < SHARES_BUCKETS; i++)
		for (struct share *sh = s->bucket[i]; sh; sh = sh->next)
			if (!most || sh->n > most->n)
				most = sh;
	if (!most)
		return NULL;
	/* An eighth above, so that not every row costs a search for the oldest. */
	if (s->each && most->n > s->each + s->each / 8)
		over = most->n - s->each;
	else if (s->all && s->n > s->all + s->all / 8)
		over = MIN(most->n, s->n - s->all);
	*n = MIN(over, (uint64_t)SHARES_BATCH);
	return over ? most : NULL;
}

void shares_free(struct shares *s)
{
	for (size_t i = 0; i < SHARES_BUCKETS; i++)
		while (s->bucket[i]) {
			struct share *sh = s->bucket[i];

			s->bucket[i] = sh->next;
			free(sh);
		}
	s->n = 0;
}
