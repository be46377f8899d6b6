#include "jail/cgroup.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/macro.h"

enum {
	V2_CONTROLLERS = CG_MEMORY | CG_CPU | CG_PIDS,
	CPU_PERIOD_US = 100000,
	FILE_MAX = 1 << 20, /* cgroup.procs of a machine at its pids limit stays far below */
};

static const struct {
	unsigned bit;
	const char *name;
} controllers[] = {{CG_MEMORY, "memory"},
                   {CG_CPU, "cpu"},
                   {CG_PIDS, "pids"},
                   {CG_CPUACCT, "cpuacct"}};

struct tree {
	int fd; /* the mount point */
	bool v2;
	unsigned have; /* CG_* */
};

struct cg_host {
	struct tree trees[CG_TREES_MAX];
	size_t n;
	char parent[128];
	char describe[128];
	char why[240];
};

static void append(char *buf, size_t cap, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void append(char *buf, size_t cap, const char *fmt, ...)
{
	size_t n = strlen(buf);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(buf + n, cap - n, fmt, ap);
	va_end(ap);
}

bool cg_id_valid(const char *id)
{
	size_t n = id ? strlen(id) : 0;

	if (n == 0 || n > CG_ID_MAX)
		return false;
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)id[i]) && id[i] != '-' && id[i] != '_')
			return false;
	return true;
}

/* ids are checked and parents are short, so this always fits. */
static const char *path_of(const struct cg_host *h, const char *id, const char *file, char *buf)
{
	snprintf(buf, PATH_MAX, "%s/%s%s%s", h->parent, id, file ? "/" : "", file ? file : "");
	return buf;
}

static int put(const struct cg_host *h, const struct tree *t, const char *id, const char *file,
               const char *text)
{
	char path[PATH_MAX];

	return io_write_file(t->fd, path_of(h, id, file, path), text);
}

static int put_u64(const struct cg_host *h, const struct tree *t, const char *id, const char *file,
                   uint64_t v)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64, v);
	return put(h, t, id, file, text);
}

static int get(const struct cg_host *h, const struct tree *t, const char *id, const char *file,
               char **ret)
{
	char path[PATH_MAX];

	return io_read_file(t->fd, path_of(h, id, file, path), FILE_MAX, ret, NULL);
}

static int parse_u64(const char *s, uint64_t *ret)
{
	unsigned long long v;
	char *end;

	if (!isdigit((unsigned char)*s))
		return -EINVAL;
	errno = 0;
	v = strtoull(s, &end, 10);
	if (errno || (*end && !isspace((unsigned char)*end)))
		return -EINVAL;
	*ret = v;
	return 0;
}

static int get_u64(const struct cg_host *h, const struct tree *t, const char *id, const char *file,
                   uint64_t *ret)
{
	autofree char *text = NULL;
	int r = get(h, t, id, file, &text);

	return r < 0 ? r : parse_u64(text, ret);
}

/* A line "key value" in files like memory.events and cpu.stat. */
static int get_key(const struct cg_host *h, const struct tree *t, const char *id, const char *file,
                   const char *key, uint64_t *ret)
{
	autofree char *text = NULL;
	size_t n = strlen(key);
	int r = get(h, t, id, file, &text);

	if (r < 0)
		return r;
	for (const char *p = text; p; p = strchr(p, '\n')) {
		p += *p == '\n';
		if (strncmp(p, key, n) == 0 && p[n] == ' ')
			return parse_u64(p + n + 1, ret);
	}
	return -ENODATA;
}

static bool has_word(const char *list, const char *word, const char *sep)
{
	size_t n = strlen(word);

	while (*list) {
		size_t k = strcspn(list, sep);

		if (k == n && memcmp(list, word, n) == 0)
			return true;
		list += k;
		list += strspn(list, sep);
	}
	return false;
}

static unsigned words_to_mask(const char *list, const char *sep)
{
	unsigned mask = 0;

	for (size_t i = 0; i < ARRAY_LEN(controllers); i++)
		if (has_word(list, controllers[i].name, sep))
			mask |= controllers[i].bit;
	return mask;
}

/* The controllers named in a file of dir; none when it cannot be read. */
static unsigned v2_listed(int fd, const char *dir, const char *file)
{
	autofree char *words = NULL;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	if (io_read_file(fd, path, FILE_MAX, &words, NULL) < 0)
		return 0;
	return words_to_mask(words, " \n") & V2_CONTROLLERS;
}

/* Children of dir get a controller only if dir says so, and dir only if its parent did. */
static int v2_enable(int fd, const char *dir)
{
	unsigned missing = v2_listed(fd, dir, "cgroup.controllers") &
	                   ~v2_listed(fd, dir, "cgroup.subtree_control");
	char path[PATH_MAX], words[64] = "";

	if (!missing)
		return 0;
	snprintf(path, sizeof(path), "%s/cgroup.subtree_control", dir);
	for (size_t i = 0; i < ARRAY_LEN(controllers); i++)
		if (missing & controllers[i].bit)
			append(words, sizeof(words), "%s+%s", *words ? " " : "",
			       controllers[i].name);
	return io_write_file(fd, path, words);
}

/* mkdir -p of the parent; on v2 with the controllers switched on all the way down. */
static int tree_make_parent(struct tree *t, const char *parent)
{
	char path[PATH_MAX] = ".";
	size_t n = 0;
	int r = 0;

	while (parent[n]) {
		if (t->v2)
			r = v2_enable(t->fd, path);
		if (r < 0)
			return r;
		n += strcspn(parent + n, "/");
		memcpy(path, parent, n);
		path[n] = 0;
		if (mkdirat(t->fd, path, 0755) < 0 && errno != EEXIST)
			return -errno;
		n += strspn(parent + n, "/");
	}
	if (faccessat(t->fd, parent, W_OK, AT_EACCESS) < 0) /* root made it once, we are not root */
		return -errno;
	if (!t->v2)
		return 0;
	r = v2_enable(t->fd, path);
	t->have = v2_listed(t->fd, path, "cgroup.subtree_control");
	return r;
}

static void host_add(struct cg_host *h, const char *mount, bool v2, unsigned have)
{
	struct tree t = {.v2 = v2, .have = have};
	int r;

	for (size_t i = 0; i < h->n; i++)
		if (v2 ? h->trees[i].v2 : (h->trees[i].have & have) != 0)
			return; /* the same tree, mounted a second time */
	if (h->n == CG_TREES_MAX)
		return;
	t.fd = open(mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = t.fd < 0 ? -errno : tree_make_parent(&t, h->parent);
	if (r < 0) {
		append(h->why, sizeof(h->why), "%s%s/%s: %s", *h->why ? "; " : "", mount, h->parent,
		       strerror(-r));
		if (t.fd >= 0)
			close(t.fd);
		return;
	}
	h->trees[h->n++] = t;
}

/* "36 35 98:0 /root /mount/point opts [tags] - type source superopts", see proc(5). */
static void host_add_line(struct cg_host *h, char *line)
{
	char *tail = strstr(line, " - "), *mount = line, *opts;
	unsigned have;

	if (!tail)
		return;
	*tail = 0;
	for (int i = 0; i < 4; i++) {
		mount = strchr(mount, ' ');
		if (!mount)
			return;
		mount++;
	}
	mount[strcspn(mount, " ")] = 0;
	tail += 3;
	opts = strrchr(tail, ' ');
	if (!opts)
		return;
	have = words_to_mask(opts + 1, ",");
	if (strncmp(tail, "cgroup2 ", 8) == 0)
		host_add(h, mount, true, 0);
	else if (strncmp(tail, "cgroup ", 7) == 0 && have)
		host_add(h, mount, false, have);
}

static void host_describe(struct cg_host *h)
{
	for (int v2 = 0; v2 < 2; v2++) {
		char words[64] = "";

		for (size_t i = 0; i < h->n; i++) {
			if (h->trees[i].v2 != v2)
				continue;
			for (size_t k = 0; k < ARRAY_LEN(controllers); k++)
				if (h->trees[i].have & controllers[k].bit)
					append(words, sizeof(words), " %s", controllers[k].name);
			if (v2)
				append(words, sizeof(words), " kill");
		}
		if (*words)
			append(h->describe, sizeof(h->describe), "%sv%d:%s",
			       *h->describe ? "; " : "", 1 + v2, words);
	}
	if (!*h->describe)
		append(h->describe, sizeof(h->describe), "none");
}

int cg_open(const char *mountinfo, const char *parent, struct cg_host **ret)
{
	autofree char *text = NULL;
	struct cg_host *h;
	char *line, *next;

	if (!*parent || *parent == '/' || strstr(parent, "..") ||
	    strlen(parent) >= sizeof(h->parent))
		return -EINVAL;
	if (mountinfo) {
		text = strdup(mountinfo);
		if (!text)
			return -ENOMEM;
	} else {
		int r = io_read_file(AT_FDCWD, "/proc/self/mountinfo", FILE_MAX, &text, NULL);

		if (r < 0)
			return r;
	}
	h = calloc(1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	snprintf(h->parent, sizeof(h->parent), "%s", parent);
	for (line = text; line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		host_add_line(h, line);
	}
	host_describe(h);
	*ret = h;
	return 0;
}

void cg_close(struct cg_host *h)
{
	if (!h)
		return;
	for (size_t i = 0; i < h->n; i++)
		close(h->trees[i].fd);
	free(h);
}

unsigned cg_have(const struct cg_host *h)
{
	unsigned have = 0;

	for (size_t i = 0; i < h->n; i++)
		have |= h->trees[i].have;
	return have;
}

const char *cg_describe(const struct cg_host *h)
{
	return h->describe;
}

const char *cg_why(const struct cg_host *h)
{
	return h->why;
}

int cg_create(const struct cg_host *h, const char *id)
{
	char path[PATH_MAX];
	size_t i;
	int r = 0;

	if (!cg_id_valid(id))
		return -EINVAL;
	path_of(h, id, NULL, path);
	for (i = 0; i < h->n; i++) {
		if (mkdirat(h->trees[i].fd, path, 0755) < 0) {
			r = -errno;
			break;
		}
	}
	if (r < 0)
		while (i--)
			unlinkat(h->trees[i].fd, path, AT_REMOVEDIR);
	return r;
}

/* v1 wants memory+swap never below memory: raising goes the other way round than lowering. */
static int v1_limit_memory(const struct cg_host *h, const struct tree *t, const char *id,
                           uint64_t max)
{
	static const char mem[] = "memory.limit_in_bytes", both[] = "memory.memsw.limit_in_bytes";
	int r = put_u64(h, t, id, mem, max), s;

	if (r < 0 && r != -EINVAL)
		return r;
	s = put_u64(h, t, id, both, max);
	if (s < 0 && s != -ENOENT) /* no swap accounting on this host: nothing to say */
		return s;
	return r < 0 ? put_u64(h, t, id, mem, max) : 0;
}

static int v2_limit_memory(const struct cg_host *h, const struct tree *t, const char *id,
                           uint64_t max)
{
	int r = put_u64(h, t, id, "memory.max", max);

	if (r < 0)
		return r;
	r = put(h, t, id, "memory.swap.max", "0");
	if (r < 0 && r != -ENOENT)
		return r;
	/* Half a machine is no machine: when one process must go, all go. */
	return put(h, t, id, "memory.oom.group", "1");
}

static int limit_cpu(const struct cg_host *h, const struct tree *t, const char *id,
                     unsigned percent)
{
	uint64_t quota_us = (uint64_t)CPU_PERIOD_US * percent / 100;
	char text[64];
	int r;

	if (t->v2) {
		snprintf(text, sizeof(text), "%" PRIu64 " %d", quota_us, CPU_PERIOD_US);
		return put(h, t, id, "cpu.max", text);
	}
	r = put_u64(h, t, id, "cpu.cfs_period_us", CPU_PERIOD_US);
	return r < 0 ? r : put_u64(h, t, id, "cpu.cfs_quota_us", quota_us);
}

int cg_limit(const struct cg_host *h, const char *id, const struct cg_limits *lim)
{
	int r = 0;

	if (!cg_id_valid(id))
		return -EINVAL;
	for (size_t i = 0; i < h->n && r == 0; i++) {
		const struct tree *t = &h->trees[i];

		if ((t->have & CG_MEMORY) && lim->memory_max)
			r = (t->v2 ? v2_limit_memory : v1_limit_memory)(h, t, id, lim->memory_max);
		if (r == 0 && (t->have & CG_CPU) && lim->cpu_max_percent)
			r = limit_cpu(h, t, id, lim->cpu_max_percent);
		if (r == 0 && (t->have & CG_PIDS) && lim->pids_max)
			r = put_u64(h, t, id, "pids.max", lim->pids_max);
	}
	return r;
}

static void tree_stats(const struct cg_host *h, const struct tree *t, const char *id,
                       struct cg_stats *s)
{
	uint64_t usage_us;

	if (t->have & CG_MEMORY) {
		if (get_u64(h, t, id, t->v2 ? "memory.current" : "memory.usage_in_bytes",
		            &s->memory_bytes) == 0)
			s->have |= CG_MEMORY;
		(void)get_u64(h, t, id, t->v2 ? "memory.peak" : "memory.max_usage_in_bytes",
		              &s->memory_peak_bytes);
		(void)get_key(h, t, id, t->v2 ? "memory.events" : "memory.oom_control", "oom_kill",
		              &s->oom_kills);
	}
	if ((t->have & CG_PIDS) && get_u64(h, t, id, "pids.current", &s->pids) == 0)
		s->have |= CG_PIDS;
	if ((t->have & CG_CPUACCT) && get_u64(h, t, id, "cpuacct.usage", &s->cpu_ns) == 0)
		s->have |= CG_CPUACCT;
	/* v2 has this one even where the cpu controller is off; an own v1 counter is finer. */
	if (t->v2 && !(cg_have(h) & CG_CPUACCT) &&
	    get_key(h, t, id, "cpu.stat", "usage_usec", &usage_us) == 0) {
		s->cpu_ns = usage_us * 1000;
		s->have |= CG_CPUACCT;
	}
}

static bool tree_has(const struct cg_host *h, const struct tree *t, const char *id)
{
	char path[PATH_MAX];

	return faccessat(t->fd, path_of(h, id, NULL, path), F_OK, 0) == 0;
}

int cg_stats(const struct cg_host *h, const char *id, struct cg_stats *ret)
{
	struct cg_stats s = {0};
	bool found = false;

	if (!cg_id_valid(id))
		return -EINVAL;
	for (size_t i = 0; i < h->n; i++) {
		found |= tree_has(h, &h->trees[i], id);
		tree_stats(h, &h->trees[i], id, &s);
	}
	if (!found)
		return -ENOENT;
	*ret = s;
	return 0;
}

struct pids {
	struct {
		pid_t pid;
		int fd;
	} * v;
	size_t n;
};

static void pids_fini(struct pids *p)
{
	for (size_t i = 0; i < p->n; i++)
		if (p->v[i].fd >= 0)
			close(p->v[i].fd);
	free(p->v);
}

static int pids_read(const struct cg_host *h, const struct tree *t, const char *id,
                     struct pids *ret)
{
	autofree char *text = NULL;
	size_t lines = 0;
	int r = get(h, t, id, "cgroup.procs", &text);

	if (r == -ENOENT || r == -ENODEV) /* removed, or going away under our hands */
		return 0;
	if (r < 0)
		return r;
	for (const char *c = text; *c; c++)
		lines += *c == '\n';
	ret->v = calloc(lines + 1, sizeof(*ret->v));
	if (!ret->v)
		return -ENOMEM;
	for (char *p = text; *p; ret->n++) {
		ret->v[ret->n].pid = (pid_t)strtol(p, &p, 10);
		ret->v[ret->n].fd = -1;
		p += strspn(p, "\n");
		if (*p && !isdigit((unsigned char)*p))
			return -EBADMSG;
	}
	return 0;
}

static bool pids_hold(const struct pids *p, pid_t pid)
{
	for (size_t i = 0; i < p->n; i++)
		if (p->v[i].pid == pid)
			return true;
	return false;
}

/*
 * A pid read from a file may be another process's by the time we kill it. So: open pidfds, read the
 * list again, and signal only those still on it. Returns how many were there at first.
 */
static int tree_kill(const struct cg_host *h, const struct tree *t, const char *id)
{
	AUTO(pids_fini) struct pids before = {0}, after = {0};
	int r;

	r = pids_read(h, t, id, &before);
	if (r < 0 || before.n == 0)
		return r;
	if (t->v2 && put(h, t, id, "cgroup.kill", "1") == 0)
		return (int)before.n;
	for (size_t i = 0; i < before.n; i++)
		if (before.v[i].pid > 0)
			before.v[i].fd = (int)syscall(SYS_pidfd_open, before.v[i].pid, 0);
	r = pids_read(h, t, id, &after);
	if (r < 0)
		return r;
	for (size_t i = 0; i < before.n; i++)
		if (before.v[i].fd >= 0 && pids_hold(&after, before.v[i].pid))
			syscall(SYS_pidfd_send_signal, before.v[i].fd, SIGKILL, NULL, 0);
	return (int)before.n;
}

int cg_kill(const struct cg_host *h, const char *id, unsigned timeout_ms)
{
	uint64_t end = mono_ms() + timeout_ms;

	if (!cg_id_valid(id))
		return -EINVAL;
	for (;;) {
		int left = 0;

		for (size_t i = 0; i < h->n; i++) {
			int r = tree_kill(h, &h->trees[i], id);

			if (r < 0)
				return r;
			left += r;
		}
		if (!left)
			return 0;
		if (mono_ms() >= end)
			return -ETIMEDOUT;
		poll(NULL, 0, 1);
	}
}

int cg_remove(const struct cg_host *h, const char *id, unsigned timeout_ms)
{
	uint64_t end = mono_ms() + timeout_ms;
	char path[PATH_MAX];

	if (!cg_id_valid(id))
		return -EINVAL;
	path_of(h, id, NULL, path);
	for (size_t i = 0; i < h->n;) {
		if (unlinkat(h->trees[i].fd, path, AT_REMOVEDIR) == 0 || errno == ENOENT) {
			i++;
			continue;
		}
		/* The last process is a zombie already, but its exit has not finished yet. */
		if (errno != EBUSY || mono_ms() >= end)
			return -errno;
		poll(NULL, 0, 1);
	}
	return 0;
}

int cg_v2_dir(const struct cg_host *h, const char *id)
{
	char path[PATH_MAX];

	for (size_t i = 0; i < h->n; i++) {
		if (h->trees[i].v2) {
			int fd = openat(h->trees[i].fd, path_of(h, id, NULL, path),
			                O_RDONLY | O_DIRECTORY | O_CLOEXEC);

			return fd < 0 ? -errno : fd;
		}
	}
	return -ENOENT;
}

int cg_v1_joins(const struct cg_host *h, const char *id, struct cg_join *ret, size_t *ret_n)
{
	size_t n = 0;

	if (!cg_id_valid(id))
		return -EINVAL;
	for (size_t i = 0; i < h->n; i++) {
		if (h->trees[i].v2)
			continue;
		ret[n].tree = h->trees[i].fd;
		snprintf(ret[n].path, sizeof(ret[n].path), "%s/%s/tasks", h->parent, id);
		n++;
	}
	*ret_n = n;
	return 0;
}
