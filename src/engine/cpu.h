/*
 * engine/cpu.h - which cpu a machine runs on
 * A machine's kernel and its processes hand work to each other all the time and must share one
 * cpu. Which one is decided by load since the last decision, of any process.
 */
#pragma once
#include <sched.h>
#include <stdint.h>

enum { CPUS_MAX = 1024 };

struct cpu_sample {
	uint64_t placed;         /* machines so far: breaks ties in turn */
	uint64_t idle[CPUS_MAX]; /* clock ticks */
};

/*
 * Of the cpus in may, the one that idled most since sample *s was taken, judged by stat, the text
 * of /proc/stat; -1 when may is empty. *s becomes the sample for the next decision.
 */
int cpu_pick(struct cpu_sample *s, const char *stat, const cpu_set_t *may);

/* The least loaded cpu this process may use. Samples are kept in file "cpus" of run_dirfd. */
int cpu_choose(int run_dirfd);
