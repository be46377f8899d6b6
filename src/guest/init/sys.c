/*
 * guest/init/sys.c - the machine as a whole: figures, and becoming a new one
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/macro.h"
#include "guest/init/agent.h"
#include "wire/guest.h"

static ssize_t read_text(const char *path, char *buf, size_t n)
{
	autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t r = fd < 0 ? -1 : read(fd, buf, n - 1);

	buf[MAX(r, (ssize_t)0)] = 0;
	return r;
}

void sys_stats(struct conn *c, uint32_t id)
{
	unsigned long long v[8] = {0}, kib = 0;
	struct wire_stats m = {.generation = c->a->generation};
	struct statvfs fs;
	struct sysinfo si;
	char buf[1024], *at;
	long hz = sysconf(_SC_CLK_TCK);

	if (sysinfo(&si) == 0) {
		m.mem_total = (uint64_t)si.totalram * si.mem_unit;
		m.mem_free = (uint64_t)si.freeram * si.mem_unit;
		m.load1_milli = si.loads[0] * 1000ull >> SI_LOAD_SHIFT;
		m.load5_milli = si.loads[1] * 1000ull >> SI_LOAD_SHIFT;
		m.load15_milli = si.loads[2] * 1000ull >> SI_LOAD_SHIFT;
		m.processes = si.procs;
	}
	m.uptime_ms = clock_ns(CLOCK_BOOTTIME) / 1000000;
	m.mem_available = m.mem_free;
	if (read_text("/proc/meminfo", buf, sizeof(buf)) > 0 &&
	    (at = strstr(buf, "MemAvailable:")) && sscanf(at, "MemAvailable: %llu", &kib) == 1)
		m.mem_available = kib * 1024;
	/* user nice system idle iowait irq softirq steal */
	if (read_text("/proc/stat", buf, sizeof(buf)) > 0 &&
	    sscanf(buf, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3],
	           &v[4], &v[5], &v[6], &v[7]) == 8 &&
	    hz > 0) {
		m.cpu_busy_ms =
		    (v[0] + v[1] + v[2] + v[5] + v[6] + v[7]) * 1000 / (unsigned long)hz;
		m.cpu_idle_ms = (v[3] + v[4]) * 1000 / (unsigned long)hz;
	}
	if (statvfs("/", &fs) == 0) {
		m.disk_total = (uint64_t)fs.f_blocks * fs.f_frsize;
		m.disk_free = (uint64_t)fs.f_bavail * fs.f_frsize;
	}
	reply(c, id, WIRE_STATS_REPLY, &m);
	reply_end(c, id, 0, NULL);
}

/* ---- environment ---- */

static const char *const default_env[] = {
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "USER=root",
    "LANG=C.UTF-8",
};

/* The defaults, as far as mem (strings in wire form) does not replace them, then mem. */
static int set_env(struct agent *a, const struct wire_list *l)
{
	autofree char *mem = malloc(l->len + 1);
	autofree char **env = calloc(ARRAY_LEN(default_env) + l->count + 1, sizeof(*env));
	struct wire_list copy = *l;
	const char *kv;
	uint32_t pos = 0;
	unsigned n = 0;

	if (!mem || !env)
		return -ENOMEM;
	memcpy(mem, l->len ? l->p : (const uint8_t *)"", l->len);
	copy.p = (const uint8_t *)mem;
	for (size_t i = 0; i < ARRAY_LEN(default_env); i++) {
		size_t key = strcspn(default_env[i], "=") + 1;
		bool replaced = false;

		pos = 0;
		while ((kv = wire_list_next(&copy, &pos)))
			replaced |= strncmp(kv, default_env[i], key) == 0;
		if (!replaced)
			env[n++] = (char *)default_env[i];
	}
	pos = 0;
	while ((kv = wire_list_next(&copy, &pos)))
		env[n++] = (char *)kv;
	free(a->env_mem);
	free(a->env);
	a->env_mem = take_ptr(mem);
	a->env = take_ptr(env);
	a->n_env = n;
	return 0;
}

int sys_default_env(struct agent *a)
{
	return set_env(a, &(struct wire_list){0});
}

/* ---- reborn ---- */

static int add_entropy(int fd, const struct wire_bytes *b)
{
	struct {
		int bits, size;
		uint8_t data[512];
	} pool; /* struct rand_pool_info with room */

	if (!b->len)
		return 0;
	pool.size = (int)MIN(b->len, (uint32_t)sizeof(pool.data));
	pool.bits = pool.size * 8;
	memcpy(pool.data, b->p, (size_t)pool.size);
	if (ioctl(fd, RNDADDENTROPY, &pool) < 0 || ioctl(fd, RNDRESEEDCRNG, 0) < 0)
		return errno;
	return 0;
}

/* A file bind-mounted over /proc/sys/kernel/random/boot_id: each life has its own. */
static void new_boot_id(struct agent *a)
{
	uint8_t r[16];
	char text[64];

	if (a->boot_id_fd < 0 || getrandom(r, sizeof(r), GRND_NONBLOCK) != sizeof(r))
		return;
	r[6] = (r[6] & 0x0f) | 0x40;
	r[8] = (r[8] & 0x3f) | 0x80;
	snprintf(text, sizeof(text),
	         "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x\n", r[0],
	         r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9], r[10], r[11], r[12], r[13],
	         r[14], r[15]);
	(void)!pwrite(a->boot_id_fd, text, strlen(text), 0);
}

static bool is_machine_id(const struct wire_str *s)
{
	return s->len == 32 && strspn(s->p, "0123456789abcdef") == 32;
}

void sys_tell_generation(struct agent *a)
{
	char line[24];
	int n = snprintf(line, sizeof(line), "%llu\n", (unsigned long long)a->generation);

	if (a->generation_fd >= 0)
		(void)!pwrite(a->generation_fd, line, (size_t)n, 0); /* it only grows */
}

/* Entropy first: everything after it may already draw from it. */
static int become_new(struct agent *a, const struct wire_reborn *m)
{
	struct timespec ts = {.tv_sec = (time_t)(m->wall_ns / 1000000000u),
	                      .tv_nsec = (long)(m->wall_ns % 1000000000u)};
	char line[40];
	int err = add_entropy(a->random_fd, &m->entropy);

	if (m->wall_ns && clock_settime(CLOCK_REALTIME, &ts) < 0 && !err)
		err = errno;
	if (m->hostname.len && sethostname(m->hostname.p, m->hostname.len) < 0 && !err)
		err = errno;
	if (m->machine_id.len && a->machine_id_fd >= 0) {
		int n = snprintf(line, sizeof(line), "%s\n", m->machine_id.p);

		if (pwrite(a->machine_id_fd, line, (size_t)n, 0) < 0 && !err)
			err = errno;
	}
	new_boot_id(a);
	ssh_forget();
	sys_tell_generation(a); /* last: those who watch it find all else done */
	return err;
}

void sys_reborn(struct conn *c, uint32_t id, const struct wire_reborn *m)
{
	struct agent *a = c->a;
	int err;

	if ((m->machine_id.len && !is_machine_id(&m->machine_id)) || m->env.len > REBORN_ENV_MAX) {
		reply_end(c, id, EINVAL, "malformed reborn request");
		return;
	}
	err = -set_env(a, &m->env);
	a->generation = m->generation;
	if (a->init) { /* an ordinary process leaves the machine it runs on alone */
		int r = become_new(a, m);

		err = err ? err : r;
	}
	reply_end(c, id, err, NULL);
}
