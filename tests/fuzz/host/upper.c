/*
 * What a guest says it has written, twice, with a byte 1 between the two; then a unified diff of
 * the same two halves. The promises: what is taken is sorted, absolute and without "..", nothing is
 * different from itself, what is added one way is removed the other, and a text's diff to itself is
 * empty.
 */
#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "host/unified.h"
#include "host/upper.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int parse(const uint8_t *p, size_t n, struct upper *ret)
{
	char *copy = malloc(n + 1);

	assert(copy);
	memcpy(copy, p, n);
	return upper_parse(copy, n, ret);
}

static void sound(const struct upper *u)
{
	for (size_t i = 0; i < u->n; i++) {
		assert(u->at[i].path[0] == '/' && !strstr(u->at[i].path, "/../"));
		assert(i == 0 || strcmp(u->at[i - 1].path, u->at[i].path) < 0);
		assert(upper_find(u, u->at[i].path, strlen(u->at[i].path)) == &u->at[i]);
	}
}

static bool count(void *arg, const char *path, enum upper_change change,
                  const struct upper_file *from, const struct upper_file *to)
{
	size_t *n = arg;

	assert(path && (from->type == '-') == (change == UPPER_ADDED));
	assert((to->type == '-') == (change == UPPER_REMOVED));
	n[change]++;
	return true;
}

static void compare(const struct upper *a, const struct upper *b)
{
	size_t there[4] = {0}, back[4] = {0}, self[4] = {0};

	upper_compare(a, a, count, self);
	assert(!self[0] && !self[1] && !self[2] && !self[3]);
	upper_compare(a, b, count, there);
	upper_compare(b, a, count, back);
	assert(there[UPPER_ADDED] == back[UPPER_REMOVED]);
	assert(there[UPPER_REMOVED] == back[UPPER_ADDED]);
}

static void texts(const char *a, size_t na, const char *b, size_t nb)
{
	char *t = NULL;

	if (unified_diff(a, na, b, nb, &t) == 0)
		assert((na == nb && !memcmp(a, b, na)) == !*t);
	free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *cut = size ? memchr(data, 1, size) : NULL;
	size_t na = cut ? (size_t)(cut - data) : size, nb = cut ? size - na - 1 : 0;
	const uint8_t *second = cut ? cut + 1 : data + size;
	struct upper a = {0}, b = {0};

	if (parse(data, na, &a) == 0 && parse(second, nb, &b) == 0) {
		sound(&a);
		sound(&b);
		compare(&a, &b);
	}
	upper_fini(&a);
	upper_fini(&b);
	if (size)
		texts((const char *)data, na, (const char *)second, nb);
	return 0;
}
