/*
 * What is measured inside a sandbox, and outside of it with the same program:
 *   work loop N      integer arithmetic, N rounds: milliseconds
 *   work syscall N   N times getppid(): microseconds for each
 *   work clock N     N times clock_gettime(): nanoseconds for each
 *   work fault MIB   touches fresh memory page by page: microseconds for each page
 *   work init        as PID 1 of a bare machine: all of these, then power off
 * Prints one number.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	PAGE = 4096,
	SLICES = 64,
};

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/*
 * All work is done in slices shorter than a scheduler's, and the median slice counts for all: so a
 * busy host, which takes the cpu away between slices, does not show.
 */
static double slice_us[SLICES];

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median_us(void)
{
	qsort(slice_us, SLICES, sizeof(slice_us[0]), by_value);
	return slice_us[SLICES / 2];
}

/* A multiplication and a look-up that depend on each other, in a table that fits a cpu's cache. */
static double loop_ms(unsigned long rounds)
{
	static uint32_t table[4096];
	uint32_t x = 1;

	for (uint32_t i = 0; i < 4096; i++)
		table[i] = i * 2654435761u;
	for (int k = 0; k < SLICES; k++) {
		double t = now_us();

		for (unsigned long i = 0; i < rounds / SLICES; i++)
			x = x * 1664525u + table[x >> 20] + 1013904223u;
		slice_us[k] = now_us() - t;
	}
	return x == 0 ? -1 : median_us() * SLICES / 1e3; /* x is used, so the loop stays */
}

static double syscall_us(unsigned long rounds)
{
	for (int k = 0; k < SLICES; k++) {
		double t = now_us();

		for (unsigned long i = 0; i < rounds / SLICES; i++)
			syscall(SYS_getppid);
		slice_us[k] = now_us() - t;
	}
	return median_us() * SLICES / (double)rounds;
}

static double clock_ns(unsigned long rounds)
{
	struct timespec ts;

	for (int k = 0; k < SLICES; k++) {
		double t = now_us();

		for (unsigned long i = 0; i < rounds / SLICES; i++)
			clock_gettime(CLOCK_REALTIME, &ts);
		slice_us[k] = now_us() - t;
	}
	return median_us() * SLICES * 1e3 / (double)rounds;
}

/* Huge pages would make this a measurement of the host's luck. */
static double fault_us(unsigned long mib)
{
	size_t n = mib << 20, each = n / PAGE / SLICES;
	char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	volatile char *at = p;

	if (p == MAP_FAILED)
		return -1;
	madvise(p, n, MADV_NOHUGEPAGE);
	for (int k = 0; k < SLICES; k++) {
		double t = now_us();

		for (size_t i = 0; i < each; i++, at += PAGE)
			*at = 1;
		slice_us[k] = now_us() - t;
	}
	return median_us() / (double)each;
}

int main(int argc, char **argv)
{
	unsigned long n = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;

	if (argc > 1 && getpid() == 1 && !strcmp(argv[1], "init")) {
		printf("work up %.3f\n", now_us() / 1e6);
		fflush(stdout);
		printf("work loop %.4f\n", loop_ms(20000000));
		printf("work syscall %.4f\n", syscall_us(200000));
		printf("work clock %.4f\n", clock_ns(200000));
		printf("work fault %.4f\n", fault_us(64));
		fflush(stdout);
		reboot(RB_POWER_OFF);
	}
	if (n == 0)
		return 2;
	if (!strcmp(argv[1], "loop"))
		printf("%.4f\n", loop_ms(n));
	else if (!strcmp(argv[1], "syscall"))
		printf("%.4f\n", syscall_us(n));
	else if (!strcmp(argv[1], "clock"))
		printf("%.4f\n", clock_ns(n));
	else if (!strcmp(argv[1], "fault"))
		printf("%.4f\n", fault_us(n));
	else
		return 2;
	return 0;
}
