#include "um/cpu.h"

#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"

enum { CPUS_MAX = 1024 };

struct sample {
	uint64_t placed;         /* machines so far: breaks ties in turn */
	uint64_t idle[CPUS_MAX]; /* clock ticks */
};

static void read_idle(uint64_t idle[CPUS_MAX])
{
	autofree char *text = NULL;
	char *line;

	if (io_read_file(AT_FDCWD, "/proc/stat", 1 << 20, &text, NULL) < 0)
		return;
	for (line = text; line; line = strchr(line, '\n')) {
		unsigned cpu;
		unsigned long long v;

		line += *line == '\n';
		if (sscanf(line, "cpu%u %*u %*u %*u %llu", &cpu, &v) == 2 && cpu < CPUS_MAX)
			idle[cpu] = v;
	}
}

int cpu_choose(int run_dirfd)
{
	autoclose int fd = openat(run_dirfd, "cpus", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct sample old = {0}, now = {0};
	uint64_t most = 0;
	int best = -1;
	cpu_set_t may;
	int ncpu;

	CPU_ZERO(&may);
	if (sched_getaffinity(0, sizeof(may), &may) < 0)
		return -1;
	ncpu = CPU_COUNT(&may);
	if (fd >= 0) {
		flock(fd, LOCK_EX);
		io_pread_full(fd, &old, sizeof(old), 0);
	}
	read_idle(now.idle);
	now.placed = old.placed + 1;
	/* Start at another cpu each time, so that equally idle ones take turns. */
	for (int n = 0, i = 0, skip = (int)(old.placed % (uint64_t)ncpu); i < 2 * CPU_SETSIZE;
	     i++) {
		int cpu = i % CPU_SETSIZE;
		uint64_t idle;

		if (!CPU_ISSET(cpu, &may) || skip-- > 0)
			continue;
		idle = now.idle[cpu] - old.idle[cpu];
		if (best < 0 || idle > most) {
			most = idle;
			best = cpu;
		}
		if (++n == ncpu)
			break;
	}
	/* Samples too close together say nothing: keep the older one then. */
	if (fd >= 0) {
		if (most < 2)
			memcpy(now.idle, old.idle, sizeof(now.idle));
		if (io_pwrite_full(fd, &now, sizeof(now), 0) < 0)
			return best;
	}
	return best;
}
