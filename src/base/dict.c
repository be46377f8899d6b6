#include "base/dict.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct dict_entry {
	struct dict_entry *next;
	const char *key;
	void *value;
};

struct dict {
	struct dict_entry **slots;
	size_t nslots, count;
};

static size_t slot_of(const struct dict *d, const char *key)
{
	uint64_t h = 0xcbf29ce484222325;

	for (; *key; key++)
		h = (h ^ (unsigned char)*key) * 0x100000001b3;
	return (size_t)(h ^ h >> 32) & (d->nslots - 1);
}

static struct dict_entry **place_of(const struct dict *d, const char *key)
{
	struct dict_entry **p = &d->slots[slot_of(d, key)];

	while (*p && strcmp((*p)->key, key) != 0)
		p = &(*p)->next;
	return p;
}

int dict_new(struct dict **ret)
{
	struct dict *d = calloc(1, sizeof(*d));

	if (!d)
		return -ENOMEM;
	d->nslots = 64;
	d->slots = calloc(d->nslots, sizeof(struct dict_entry *));
	if (!d->slots) {
		free(d);
		return -ENOMEM;
	}
	*ret = d;
	return 0;
}

void dict_free(struct dict *d)
{
	if (!d)
		return;
	for (size_t i = 0; i < d->nslots; i++)
		while (d->slots[i]) {
			struct dict_entry *e = d->slots[i];

			d->slots[i] = e->next;
			free(e);
		}
	free(d->slots);
	free(d);
}

/* Chains that grow long are an inconvenience, no error: without memory it stays as it is. */
static void grow(struct dict *d)
{
	struct dict_entry **old = d->slots,
			  **slots = calloc(d->nslots * 2, sizeof(struct dict_entry *));
	size_t n = d->nslots;

	if (!slots)
		return;
	d->slots = slots;
	d->nslots = n * 2;
	for (size_t i = 0; i < n; i++)
		while (old[i]) {
			struct dict_entry *e = old[i];
			size_t s = slot_of(d, e->key);

			old[i] = e->next;
			e->next = slots[s];
			slots[s] = e;
		}
	free(old);
}

int dict_put(struct dict *d, const char *key, void *value)
{
	struct dict_entry *e, **p;

	if (d->count >= d->nslots)
		grow(d);
	p = place_of(d, key);
	if (*p)
		return -EEXIST;
	e = malloc(sizeof(*e));
	if (!e)
		return -ENOMEM;
	*e = (struct dict_entry){.key = key, .value = value};
	*p = e;
	d->count++;
	return 0;
}

void *dict_get(const struct dict *d, const char *key)
{
	struct dict_entry *e = *place_of(d, key);

	return e ? e->value : NULL;
}

void dict_del(struct dict *d, const char *key)
{
	struct dict_entry **p = place_of(d, key), *e = *p;

	if (!e)
		return;
	*p = e->next;
	free(e);
	d->count--;
}

size_t dict_count(const struct dict *d)
{
	return d->count;
}
