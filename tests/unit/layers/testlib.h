/*
 * Shared by the tests of this room: cmocka, a private directory, random numbers that repeat.
 */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layers/set.h"

/* A fresh directory, opened; tmpdir_remove() empties and removes it with all below. */
int tmpdir_make(char path[64]);
void tmpdir_remove(const char *path);

/* xorshift: the same seed gives the same test, so a failure can be seen again. */
uint32_t rnd(uint64_t *state);

/* layer_save() and its sync. */
int save_layer(struct layer *l, int dir);

/* The content of n pages as the machine would see it. */
int read_set(const struct set *s, uint64_t page, uint64_t n, void *buf);
