/*
 * measure.h - what benchmarks are made of: series of numbers, native runs, what processes own
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { SERIES_MAX = 1000 };

struct series {
	double v[SERIES_MAX]; /* in the order they came */
	size_t n;
};

/* Values past SERIES_MAX are not kept. */
void series_add(struct series *s, double v);
/* q from 0 to 1, of the nearest rank. 0 of an empty series. */
double series_at(const struct series *s, double q);

/* One line {"key": ..., "value": ...} on stdout, at once; "um." of a key becomes put_engine. */
extern const char *put_engine;
void put(const char *key, double value);

double ms_since(uint64_t ns);

/*
 * Runs argv[0] here, pinned to a cpu, and waits for it. What it writes to stdout goes to out (may
 * be NULL), cut to n - 1 bytes and ended with a NUL; otherwise to /dev/null. -ECHILD unless it
 * exits with 0.
 */
int run_native(char *const *argv, unsigned cpu, char *out, size_t n);

/* All processes in the pid namespace of pid, itself included: a machine's kernel and its stubs. */
enum { FAMILY_MAX = 256 };
struct family {
	pid_t pids[FAMILY_MAX];
	size_t n;
};
int family_of(pid_t pid, struct family *ret);

/* Sums over a family, in KiB, of fields of smaps_rollup. */
struct memory {
	uint64_t private; /* Private_Clean + Private_Dirty: pages nobody else has mapped */
	uint64_t anon;    /* Pss_Anon: what it wrote that is not in any file */
};
struct memory family_memory(const struct family *f);

/* Context switches of all tasks so far, wanted and unwanted. */
uint64_t family_switches(const struct family *f);

/* What a file takes, in KiB; for a memfd that is memory. */
uint64_t file_kib(int fd);
