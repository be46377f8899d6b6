#include "engine/cpu.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"

static void read_idle(const char *stat, uint64_t idle[CPUS_MAX])
{
	for (const char *line = stat; line; line = strchr(line, '\n')) {
		unsigned cpu;
		unsigned long long v;

		line += *line == '\n';
		/* "cpu" and a blank is the sum of all of them. */
		if (!strncmp(line, "cpu", 3) && isdigit((unsigned char)line[3]) &&
		    sscanf(line, "cpu%u %*u %*u %*u %llu", &cpu, &v) == 2 && cpu < CPUS_MAX)
			idle[cpu] = v;
	}
}

int cpu_pick(struct cpu_sample *s, const char *stat, const cpu_set_t *may)
{
	int ncpu = CPU_COUNT(may), best = -1;
	uint64_t now[CPUS_MAX] = {0}, most = 0;

	if (ncpu == 0)
		return -1;
	read_idle(stat, now);
	/* Start at another cpu each time, so that equally idle ones take turns. */
	for (int n = 0, i = 0, skip = (int)(s->placed % (uint64_t)ncpu); n < ncpu; i++) {
		int cpu = i % CPU_SETSIZE;
		uint64_t idle;

		if (!CPU_ISSET(cpu, may) || skip-- > 0)
			continue;
		/* The kernel's count may step back a little, and the file may be from before a
		 * boot. */
		idle = now[cpu] > s->idle[cpu] ? now[cpu] - s->idle[cpu] : 0;
		if (best < 0 || idle > most) {
			most = idle;
			best = cpu;
		}
		n++;
	}
	/* Samples too close together say nothing: keep the older one then. */
	if (most >= 2)
		memcpy(s->idle, now, sizeof(now));
	s->placed++;
	return best;
}

int cpu_choose(int run_dirfd)
{
	autoclose int fd = openat(run_dirfd, "cpus", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	autofree char *stat = NULL;
	struct cpu_sample s = {0};
	cpu_set_t may;
	int best;

	CPU_ZERO(&may);
	if (sched_getaffinity(0, sizeof(may), &may) < 0)
		return -1;
	if (fd >= 0) {
		flock(fd, LOCK_EX);
		if (io_pread_full(fd, &s, sizeof(s), 0) < 0)
			s = (struct cpu_sample){0};
	}
	if (io_read_file(AT_FDCWD, "/proc/stat", 1 << 20, &stat, NULL) < 0)
		return -1;
	best = cpu_pick(&s, stat, &may);
	/* A sample that cannot be kept makes the next choice worse, no more. */
	if (fd >= 0)
		(void)io_pwrite_full(fd, &s, sizeof(s), 0);
	return best;
}
