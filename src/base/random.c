#include "base/random.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/random.h>

void random_fill(void *p, size_t n)
{
	assert(n <= 256);
	if (getrandom(p, n, 0) != (ssize_t)n)
		abort();
}
