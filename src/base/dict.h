/*
 * base/dict.h - finds things by name
 * Keys are borrowed: they live in the thing they name. One thread.
 */
#pragma once
#include <stddef.h>

struct dict;

int dict_new(struct dict **ret);
void dict_free(struct dict *d);

/* -EEXIST, -ENOMEM. */
int dict_put(struct dict *d, const char *key, void *value);
void *dict_get(const struct dict *d, const char *key); /* NULL when it is not there */
void dict_del(struct dict *d, const char *key);
size_t dict_count(const struct dict *d);
