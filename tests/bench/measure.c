#include "measure.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"

void series_add(struct series *s, double v)
{
	if (s->n < SERIES_MAX)
		s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double series_at(const struct series *s, double q)
{
	struct series sorted = *s;
	size_t below = 0;

	if (s->n == 0)
		return 0;
	while (below + 1 < s->n && (double)(below + 1) < q * (double)s->n)
		below++;
	qsort(sorted.v, sorted.n, sizeof(sorted.v[0]), by_value);
	return sorted.v[below];
}

const char *put_engine = "um";

void put(const char *key, double value)
{
	bool ours = !strncmp(key, "um.", 3);

	printf("{\"key\": \"%s%s\", \"value\": %.4f}\n", ours ? put_engine : "",
	       ours ? key + 2 : key, value);
	fflush(stdout);
}

double ms_since(uint64_t ns)
{
	return (double)(mono_ns() - ns) / 1e6;
}

static _Noreturn void become(char *const *argv, unsigned cpu, int out)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) == 0 && dup2(out, 1) >= 0)
		execvp(argv[0], argv);
	_exit(127);
}

int run_native(char *const *argv, unsigned cpu, char *out, size_t n)
{
	autoclose int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	int p[2] = {-1, -1}, status;
	size_t have = 0;
	ssize_t got;
	pid_t pid;

	if (null < 0 || (out && pipe2(p, O_CLOEXEC) < 0))
		return -errno;
	pid = vfork();
	if (pid == 0)
		become(argv, cpu, out ? p[1] : null);
	closep(&p[1]);
	while (out && (got = read(p[0], out + have, n - 1 - have)) > 0)
		have += (size_t)got;
	if (out)
		out[have] = 0;
	closep(&p[0]);
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return -errno;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -ECHILD;
}

static int pid_ns(pid_t pid, ino_t *ret)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/ns/pid", (int)pid);
	if (stat(path, &st) < 0)
		return -errno;
	*ret = st.st_ino;
	return 0;
}

int family_of(pid_t pid, struct family *ret)
{
	autoclosedir DIR *d = opendir("/proc");
	struct dirent *de;
	ino_t mine, other;
	int r;

	ret->n = 0;
	r = d ? pid_ns(pid, &mine) : -errno;
	if (r < 0)
		return r;
	while ((de = readdir(d))) {
		pid_t p = isdigit((unsigned char)de->d_name[0]) ? atoi(de->d_name) : 0;

		if (p > 0 && pid_ns(p, &other) == 0 && other == mine && ret->n < FAMILY_MAX)
			ret->pids[ret->n++] = p;
	}
	return 0;
}

/* The number behind "name:" at the start of a line. */
static uint64_t field(const char *text, const char *name)
{
	size_t n = strlen(name);

	for (const char *p = text; p; p = strchr(p, '\n')) {
		p += *p == '\n';
		if (!strncmp(p, name, n) && p[n] == ':')
			return strtoull(p + n + 1, NULL, 10);
	}
	return 0;
}

struct memory family_memory(const struct family *f)
{
	struct memory m = {0};

	for (size_t i = 0; i < f->n; i++) {
		autofree char *text = NULL;
		char path[64];

		snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)f->pids[i]);
		if (io_read_file(AT_FDCWD, path, 1 << 16, &text, NULL) < 0)
			continue;
		m.private += field(text, "Private_Clean") + field(text, "Private_Dirty");
		m.anon += field(text, "Pss_Anon");
	}
	return m;
}

uint64_t family_switches(const struct family *f)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < f->n; i++) {
		autoclosedir DIR *d = NULL;
		struct dirent *de;
		char path[64];

		snprintf(path, sizeof(path), "/proc/%d/task", (int)f->pids[i]);
		d = opendir(path);
		while (d && (de = readdir(d))) {
			autofree char *text = NULL;
			char status[32];

			snprintf(status, sizeof(status), "%.20s/status", de->d_name);
			if (de->d_name[0] == '.' ||
			    io_read_file(dirfd(d), status, 1 << 16, &text, NULL) < 0)
				continue;
			sum += field(text, "voluntary_ctxt_switches") +
			       field(text, "nonvoluntary_ctxt_switches");
		}
	}
	return sum;
}

uint64_t file_kib(int fd)
{
	struct stat st;

	return fstat(fd, &st) < 0 ? 0 : (uint64_t)st.st_blocks / 2;
}
