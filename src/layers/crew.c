#include "layers/crew.h"

#include <pthread.h>
#include <sched.h>

#include "base/macro.h"

enum {
	EACH_PAGES = 1024,
	CPUS_MAX = 4,
};

void crew_run(unsigned n, void *(*fn)(void *arg), void *arg)
{
	pthread_t threads[CREW_MAX];
	unsigned have = 0;

	while (have + 1 < MIN(n, (unsigned)CREW_MAX) &&
	       pthread_create(&threads[have], NULL, fn, arg) == 0)
		have++;
	fn(arg);
	for (unsigned i = 0; i < have; i++)
		pthread_join(threads[i], NULL);
}

unsigned crew_for(uint64_t pages)
{
	uint64_t n = MIN(pages / EACH_PAGES, (uint64_t)CPUS_MAX);
	cpu_set_t cpus;

	if (n <= 1 || sched_getaffinity(0, sizeof(cpus), &cpus) < 0)
		return 1;
	return (unsigned)MIN(n, (uint64_t)CPU_COUNT(&cpus));
}
