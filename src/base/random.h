/*
 * base/random.h - random bytes of the kernel, for names and keys
 */
#pragma once
#include <stddef.h>

/*
 * At most 256 bytes, which getrandom(2) gives whole or not at all. Ends the process when the kernel
 * gives none: a pandad without random numbers would give two sandboxes one name.
 */
void random_fill(void *p, size_t n);
