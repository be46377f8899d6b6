#include "jail/cgroup.h"

#include <ctype.h>
#include <dirent.h>
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
	V1_SHARES = 1024,   /* what is weight 100 on v2 */
	FILE_MAX = 1 << 20, /* cgroup.procs of a machine at its pids limit stays far below */
	MAKE_TRIES = 100,   /* a tenant's group may go with its last machine while we add one */
	TENANT_NAME_MAX = 32,
	GROUP_MAX = 512, /* the path of a group in its tree */
};

/* No id of a machine has a dot in it. */
#define TENANT_GROUP "tenant."

static const struct {
	unsigned bit;
	const char *name;
} controllers[] = {{CG_MEMORY, "memory"},   {CG_CPU, "cpu"}, {CG_PIDS, "pids"},
                   {CG_CPUACCT, "cpuacct"}, {CG_IO, "io"},   {CG_IO, "blkio"}}; /* v1 */

struct tree {
	int fd; /* the mount point */
	bool v2;
	unsigned have; /* CG_* */
	bool tenants;  /* it shares something out: machines are below the groups of their tenants */
};

struct cg_host {
	struct cg_share share;
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

/* ids are checked and parents are short, so these always fit. */
static const char *join(const char *group, const char *file, char *buf)
{
	snprintf(buf, PATH_MAX, "%s/%s", group, file);
	return buf;
}

/* 64 bits of FNV-1a: any text becomes a name, and no user of the host learns the text from it. */
static void tenant_group(const char *tenant, char ret[TENANT_NAME_MAX])
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (const char *c = tenant; *c; c++)
		hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
	if (*tenant)
		snprintf(ret, TENANT_NAME_MAX, TENANT_GROUP "%016" PRIx64, hash);
	else
		snprintf(ret, TENANT_NAME_MAX, TENANT_GROUP "none");
}

/* The group that a machine of this tenant has in a tree. */
static const char *machine_group(const struct cg_host *h, const struct tree *t, const char *tenant,
                                 const char *id, char *buf)
{
	char group[TENANT_NAME_MAX];

	if (tenant && t->tenants) {
		tenant_group(tenant, group);
		snprintf(buf, GROUP_MAX, "%s/%s/%s", h->parent, group, id);
	} else {
		snprintf(buf, GROUP_MAX, "%s/%s", h->parent, id);
	}
	return buf;
}

static int put(const struct tree *t, const char *group, const char *file, const char *text)
{
	char path[PATH_MAX];

	return io_write_file(t->fd, join(group, file, path), text);
}

static int put_u64(const struct tree *t, const char *group, const char *file, uint64_t v)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64, v);
	return put(t, group, file, text);
}

static int get(const struct tree *t, const char *group, const char *file, char **ret)
{
	char path[PATH_MAX];

	return io_read_file(t->fd, join(group, file, path), FILE_MAX, ret, NULL);
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

static int get_u64(const struct tree *t, const char *group, const char *file, uint64_t *ret)
{
	autofree char *text = NULL;
	int r = get(t, group, file, &text);

	return r < 0 ? r : parse_u64(text, ret);
}

/* A line "key value" in files like memory.events and cpu.stat. */
static int get_key(const struct tree *t, const char *group, const char *file, const char *key,
                   uint64_t *ret)
{
	autofree char *text = NULL;
	size_t n = strlen(key);
	int r = get(t, group, file, &text);

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

/* The controllers named in a file of dir that we work with; none when it cannot be read. */
static unsigned v2_listed(const struct cg_host *h, int fd, const char *dir, const char *file)
{
	autofree char *words = NULL;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	if (io_read_file(fd, path, FILE_MAX, &words, NULL) < 0)
		return 0;
	return words_to_mask(words, " \n") & (V2_CONTROLLERS | (h->share.io_weight ? CG_IO : 0));
}

/* Children of dir get a controller only if dir says so, and dir only if its parent did. */
static int v2_enable(const struct cg_host *h, int fd, const char *dir)
{
	unsigned missing = v2_listed(h, fd, dir, "cgroup.controllers") &
	                   ~v2_listed(h, fd, dir, "cgroup.subtree_control");
	char path[PATH_MAX], words[64] = "";

	if (!missing)
		return 0;
	snprintf(path, sizeof(path), "%s/cgroup.subtree_control", dir);
	for (size_t i = 0; i < ARRAY_LEN(controllers); i++)
		if ((missing & controllers[i].bit) && strcmp(controllers[i].name, "blkio") != 0)
			append(words, sizeof(words), "%s+%s", *words ? " " : "",
			       controllers[i].name);
	return io_write_file(fd, path, words);
}

/* mkdir -p of the parent; on v2 with the controllers switched on all the way down. */
static int tree_make_parent(const struct cg_host *h, struct tree *t)
{
	const char *parent = h->parent;
	char path[PATH_MAX] = ".";
	size_t n = 0;
	int r = 0;

	while (parent[n]) {
		if (t->v2)
			r = v2_enable(h, t->fd, path);
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
	r = v2_enable(h, t->fd, path);
	t->have = v2_listed(h, t->fd, path, "cgroup.subtree_control");
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
	r = t.fd < 0 ? -errno : tree_make_parent(h, &t);
	if (r < 0) {
		append(h->why, sizeof(h->why), "%s%s/%s: %s", *h->why ? "; " : "", mount, h->parent,
		       strerror(-r));
		if (t.fd >= 0)
			close(t.fd);
		return;
	}
	t.tenants = t.have & (CG_CPU | CG_IO);
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
	have = words_to_mask(opts + 1, ",") & ~(h->share.io_weight ? 0u : CG_IO);
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
				if ((h->trees[i].have & controllers[k].bit) &&
				    strcmp(controllers[k].name, v2 ? "blkio" : "io") != 0)
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

int cg_open(const char *mountinfo, const char *parent, const struct cg_share *share,
            struct cg_host **ret)
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
	if (share)
		h->share = *share;
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

/* ---- what a group may use ---- */

/* v1 wants memory+swap never below memory: raising goes the other way round than lowering. */
static int v1_limit_memory(const struct tree *t, const char *group, uint64_t max)
{
	static const char mem[] = "memory.limit_in_bytes", both[] = "memory.memsw.limit_in_bytes";
	int r = put_u64(t, group, mem, max), s;

	if (r < 0 && r != -EINVAL)
		return r;
	s = put_u64(t, group, both, max);
	if (s < 0 && s != -ENOENT) /* no swap accounting on this host: nothing to say */
		return s;
	return r < 0 ? put_u64(t, group, mem, max) : 0;
}

static int v2_limit_memory(const struct tree *t, const char *group, uint64_t max)
{
	int r = put_u64(t, group, "memory.max", max);

	if (r < 0)
		return r;
	r = put(t, group, "memory.swap.max", "0");
	if (r < 0 && r != -ENOENT)
		return r;
	/* Half a machine is no machine: when one process must go, all go. */
	return put(t, group, "memory.oom.group", "1");
}

/* 0: as much as there is. */
static int limit_cpu(const struct tree *t, const char *group, unsigned percent)
{
	uint64_t quota_us = (uint64_t)CPU_PERIOD_US * percent / 100;
	char text[64];
	int r;

	if (t->v2) {
		snprintf(text, sizeof(text), "%" PRIu64 " %d", quota_us, CPU_PERIOD_US);
		return put(t, group, "cpu.max", percent ? text : "max");
	}
	if (!percent)
		return put(t, group, "cpu.cfs_quota_us", "-1");
	r = put_u64(t, group, "cpu.cfs_period_us", CPU_PERIOD_US);
	return r < 0 ? r : put_u64(t, group, "cpu.cfs_quota_us", quota_us);
}

static int weigh_cpu(const struct tree *t, const char *group, unsigned weight)
{
	if (t->v2)
		return put_u64(t, group, "cpu.weight", weight);
	return put_u64(t, group, "cpu.shares", MAX((uint64_t)weight * V1_SHARES / 100, 2u));
}

/* Which file there is depends on the scheduler of the host's disks; it may be none. */
static void weigh_io(const struct tree *t, const char *group, unsigned weight)
{
	static const char *const files[2][2] = {{"blkio.bfq.weight", "blkio.weight"},
	                                        {"io.weight", "io.bfq.weight"}};

	for (size_t i = 0; i < ARRAY_LEN(files[0]); i++)
		(void)put_u64(t, group, files[t->v2][i], weight);
}

static int tree_limit(const struct cg_host *h, const struct tree *t, const char *group, bool tenant,
                      const struct cg_limits *lim)
{
	unsigned percent = lim->cpu_max_percent, most = h->share.tenant_cpu_percent;
	int r = 0;

	if (tenant && most && percent > most)
		percent = most; /* v1 refuses a group more than the one above it has */
	if ((t->have & CG_MEMORY) && lim->memory_max)
		r = (t->v2 ? v2_limit_memory : v1_limit_memory)(t, group, lim->memory_max);
	if (r == 0 && (t->have & CG_CPU) && percent)
		r = limit_cpu(t, group, percent);
	if (r == 0 && (t->have & CG_PIDS) && lim->pids_max)
		r = put_u64(t, group, "pids.max", lim->pids_max);
	return r;
}

int cg_limit(const struct cg_host *h, const char *tenant, const char *id,
             const struct cg_limits *lim)
{
	char group[GROUP_MAX];
	int r = 0;

	if (!cg_id_valid(id))
		return -EINVAL;
	for (size_t i = 0; i < h->n && r == 0; i++) {
		const struct tree *t = &h->trees[i];

		r = tree_limit(h, t, machine_group(h, t, tenant, id, group), tenant, lim);
	}
	return r;
}

/* ---- groups of machines, and those of tenants above them ---- */

/*
 * Each tenant's group weighs the same, which is what a new group weighs. What only one thread may
 * do is done by the one that made it; a machine in it needs its controllers at once.
 */
static int make_tenant(const struct cg_host *h, const struct tree *t, const char *group)
{
	bool made = mkdirat(t->fd, group, 0755) == 0;
	int r = made || errno == EEXIST ? 0 : -errno;

	if (r == 0 && t->v2)
		r = v2_enable(h, t->fd, group);
	if (r < 0 || !made || !(t->have & CG_CPU) || !h->share.tenant_cpu_percent)
		return r;
	r = limit_cpu(t, group, h->share.tenant_cpu_percent);
	if (r == -ENOENT) /* a kernel without CONFIG_CFS_BANDWIDTH */
		r = -ENOTSUP;
	if (r < 0)
		unlinkat(t->fd, group, AT_REMOVEDIR);
	return r;
}

static int make_group(const struct cg_host *h, const struct tree *t, const char *tenant,
                      const char *id)
{
	char group[GROUP_MAX], *slash;
	int r = 0;

	machine_group(h, t, tenant, id, group);
	slash = strrchr(group, '/');
	for (int i = 0; i < MAKE_TRIES; i++) {
		if (tenant && t->tenants) {
			*slash = 0;
			r = make_tenant(h, t, group);
			*slash = '/';
		}
		if (r == 0)
			r = mkdirat(t->fd, group, 0755) < 0 ? -errno : 0;
		if (r != -ENOENT && r != -ENODEV)
			break;
		r = i + 1 == MAKE_TRIES ? r : 0;
	}
	return r;
}

/* A tenant's group goes with its last machine. */
static int remove_group(const struct cg_host *h, const struct tree *t, const char *group)
{
	char above[GROUP_MAX];
	size_t n = strlen(h->parent) + 1;

	if (unlinkat(t->fd, group, AT_REMOVEDIR) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (strncmp(group + n, TENANT_GROUP, strlen(TENANT_GROUP)) == 0) {
		snprintf(above, sizeof(above), "%.*s", (int)(strrchr(group, '/') - group), group);
		unlinkat(t->fd, above, AT_REMOVEDIR);
	}
	return 0;
}

int cg_create(const struct cg_host *h, const char *tenant, const char *id)
{
	char group[GROUP_MAX];
	size_t i;
	int r = 0;

	if (!cg_id_valid(id))
		return -EINVAL;
	for (i = 0; i < h->n && r == 0; i++)
		r = make_group(h, &h->trees[i], tenant, id);
	if (r < 0)
		for (i--; i--;)
			remove_group(h, &h->trees[i],
			             machine_group(h, &h->trees[i], tenant, id, group));
	return r;
}

static bool tree_has(const struct tree *t, const char *group)
{
	return faccessat(t->fd, group, F_OK, 0) == 0;
}

/*
 * The group of this machine in a tree, where its tenant is not known; "": it has none. One that is
 * being moved has two; then it is the one that it leaves.
 */
static void find_group(const struct cg_host *h, const struct tree *t, const char *id,
                       char ret[GROUP_MAX])
{
	autoclosedir DIR *d = NULL;
	struct dirent *e;
	int fd;

	if (tree_has(t, machine_group(h, t, NULL, id, ret)))
		return;
	if (t->tenants && tree_has(t, machine_group(h, t, "", id, ret)))
		return;
	*ret = 0;
	if (!t->tenants)
		return;
	fd = openat(t->fd, h->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	d = fd < 0 ? NULL : fdopendir(fd);
	if (!d && fd >= 0)
		close(fd);
	while (d && (e = readdir(d))) {
		if (strncmp(e->d_name, TENANT_GROUP, strlen(TENANT_GROUP)) != 0)
			continue;
		snprintf(ret, GROUP_MAX, "%s/%s/%s", h->parent, e->d_name, id);
		if (tree_has(t, ret))
			return;
	}
	*ret = 0;
}

static void tree_stats(const struct cg_host *h, const struct tree *t, const char *group,
                       struct cg_stats *s)
{
	uint64_t usage_us;

	if (t->have & CG_MEMORY) {
		if (get_u64(t, group, t->v2 ? "memory.current" : "memory.usage_in_bytes",
		            &s->memory_bytes) == 0)
			s->have |= CG_MEMORY;
		(void)get_u64(t, group, t->v2 ? "memory.peak" : "memory.max_usage_in_bytes",
		              &s->memory_peak_bytes);
		(void)get_key(t, group, t->v2 ? "memory.events" : "memory.oom_control", "oom_kill",
		              &s->oom_kills);
	}
	if ((t->have & CG_PIDS) && get_u64(t, group, "pids.current", &s->pids) == 0)
		s->have |= CG_PIDS;
	if ((t->have & CG_CPUACCT) && get_u64(t, group, "cpuacct.usage", &s->cpu_ns) == 0)
		s->have |= CG_CPUACCT;
	/* v2 has this one even where the cpu controller is off; an own v1 counter is finer. */
	if (t->v2 && !(cg_have(h) & CG_CPUACCT) &&
	    get_key(t, group, "cpu.stat", "usage_usec", &usage_us) == 0) {
		s->cpu_ns = usage_us * 1000;
		s->have |= CG_CPUACCT;
	}
}

int cg_stats(const struct cg_host *h, const char *id, struct cg_stats *ret)
{
	struct cg_stats s = {0};
	char group[GROUP_MAX];
	bool found = false;

	if (!cg_id_valid(id))
		return -EINVAL;
	for (size_t i = 0; i < h->n; i++) {
		find_group(h, &h->trees[i], id, group);
		if (!*group)
			continue;
		found = true;
		tree_stats(h, &h->trees[i], group, &s);
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

static int pids_read(const struct tree *t, const char *group, struct pids *ret)
{
	autofree char *text = NULL;
	size_t lines = 0;
	int r = get(t, group, "cgroup.procs", &text);

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
 * A pid read from a file may be another process's by the time we use it. So: open pidfds, read the
 * list again, and only those still on it count. The others' fd is -1 then.
 */
static int pids_hold_on(const struct tree *t, const char *group, struct pids *ret)
{
	AUTO(pids_fini) struct pids after = {0};
	int r;

	r = pids_read(t, group, ret);
	if (r < 0 || ret->n == 0)
		return r;
	for (size_t i = 0; i < ret->n; i++)
		if (ret->v[i].pid > 0)
			ret->v[i].fd = (int)syscall(SYS_pidfd_open, ret->v[i].pid, 0);
	r = pids_read(t, group, &after);
	for (size_t i = 0; r == 0 && i < ret->n; i++) {
		if (ret->v[i].fd >= 0 && !pids_hold(&after, ret->v[i].pid)) {
			close(ret->v[i].fd);
			ret->v[i].fd = -1;
		}
	}
	return r;
}

/* Returns how many were there at first. */
static int group_kill(const struct tree *t, const char *group)
{
	AUTO(pids_fini) struct pids there = {0};
	int r;

	if (t->v2) { /* all of them, without a look at each */
		r = pids_read(t, group, &there);
		if (r < 0 || there.n == 0 || put(t, group, "cgroup.kill", "1") == 0)
			return r < 0 ? r : (int)there.n;
		pids_fini(&there);
		there = (struct pids){0};
	}
	r = pids_hold_on(t, group, &there);
	for (size_t i = 0; r == 0 && i < there.n; i++)
		if (there.v[i].fd >= 0)
			syscall(SYS_pidfd_send_signal, there.v[i].fd, SIGKILL, NULL, 0);
	return r < 0 ? r : (int)there.n;
}

int cg_kill(const struct cg_host *h, const char *id, unsigned timeout_ms)
{
	uint64_t end = mono_ms() + timeout_ms;
	char group[GROUP_MAX];

	if (!cg_id_valid(id))
		return -EINVAL;
	for (;;) {
		int left = 0;

		for (size_t i = 0; i < h->n; i++) {
			int r;

			find_group(h, &h->trees[i], id, group);
			r = *group ? group_kill(&h->trees[i], group) : 0;
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
	char group[GROUP_MAX];

	if (!cg_id_valid(id))
		return -EINVAL;
	for (size_t i = 0; i < h->n;) {
		int r = 0;

		find_group(h, &h->trees[i], id, group);
		if (!*group) {
			i++;
			continue;
		}
		r = remove_group(h, &h->trees[i], group);
		if (r == 0)
			continue; /* a move that was not finished leaves two */
		/* The last process is a zombie already, but its exit has not finished yet. */
		if (r != -EBUSY || mono_ms() >= end)
			return r;
		poll(NULL, 0, 1);
	}
	return 0;
}

/* ---- whose it is ---- */

/* The first of a machine's processes is the one that starts the others: it is moved first. */
static int move_processes(const struct tree *t, const char *from, const char *to)
{
	AUTO(pids_fini) struct pids there = {0};
	int r = pids_hold_on(t, from, &there);

	for (size_t i = 0; r == 0 && i < there.n; i++) {
		if (there.v[i].fd < 0)
			continue;
		r = put_u64(t, to, "cgroup.procs", (uint64_t)there.v[i].pid);
		if (r == -ESRCH) /* it has ended */
			r = 0;
	}
	return r < 0 ? r : (int)there.n;
}

/* What it was limited to, it is limited to there. A file that this host lacks says nothing. */
static int copy_limits(const struct tree *t, const char *from, const char *to)
{
	static const char *const v1[] = {"memory.limit_in_bytes", "memory.memsw.limit_in_bytes",
	                                 "cpu.cfs_period_us", "cpu.cfs_quota_us", "pids.max"};
	static const char *const v2[] = {"memory.max", "memory.swap.max", "memory.oom.group",
	                                 "cpu.max", "pids.max"};
	int r = 0;

	for (size_t i = 0; r == 0 && i < ARRAY_LEN(v1); i++) {
		const char *file = t->v2 ? v2[i] : v1[i];
		autofree char *text = NULL;

		if (get(t, from, file, &text) < 0)
			continue;
		r = put(t, to, file, text);
		if (r == -EINVAL) /* v1, and its tenant may use less than that */
			r = 0;
	}
	return r;
}

static int tree_move(const struct cg_host *h, const struct tree *t, const char *id,
                     const char *tenant, uint64_t end)
{
	char from[GROUP_MAX], to[GROUP_MAX];
	int r = 0;

	machine_group(h, t, tenant, id, to);
	find_group(h, t, id, from);
	if (!*from || !strcmp(from, to))
		return 0;
	r = make_group(h, t, tenant, id);
	if (r == -EEXIST) /* a move that was not finished */
		r = 0;
	if (r == 0)
		r = copy_limits(t, from, to);
	if (r < 0)
		return r;
	for (;;) {
		r = move_processes(t, from, to);
		if (r == 0)
			r = remove_group(h, t, from);
		if (r <= 0 && r != -EBUSY)
			return r;
		if (mono_ms() >= end)
			return -ETIMEDOUT;
		if (r == -EBUSY)
			poll(NULL, 0, 1);
	}
}

int cg_move(const struct cg_host *h, const char *id, const char *tenant, unsigned timeout_ms)
{
	uint64_t end = mono_ms() + timeout_ms;
	int r = 0;

	if (!cg_id_valid(id) || !tenant)
		return -EINVAL;
	for (size_t i = 0; i < h->n && r == 0; i++)
		if (h->trees[i].tenants)
			r = tree_move(h, &h->trees[i], id, tenant, end);
	return r;
}

void cg_settle(const struct cg_host *h)
{
	for (size_t i = 0; i < h->n; i++) {
		const struct tree *t = &h->trees[i];
		int fd = openat(t->fd, h->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		autoclosedir DIR *d = fd < 0 ? NULL : fdopendir(fd);
		char group[GROUP_MAX];
		struct dirent *e;

		if (!d && fd >= 0)
			close(fd);
		if ((t->have & CG_CPU) && h->share.cpu_weight)
			(void)weigh_cpu(t, h->parent, h->share.cpu_weight);
		if ((t->have & CG_IO) && h->share.io_weight)
			weigh_io(t, h->parent, h->share.io_weight);
		while (d && (e = readdir(d))) {
			if (strncmp(e->d_name, TENANT_GROUP, strlen(TENANT_GROUP)) != 0)
				continue;
			snprintf(group, sizeof(group), "%s/%s", h->parent, e->d_name);
			if (unlinkat(t->fd, group, AT_REMOVEDIR) < 0 && (t->have & CG_CPU))
				(void)limit_cpu(t, group, h->share.tenant_cpu_percent);
		}
	}
}

int cg_v2_dir(const struct cg_host *h, const char *tenant, const char *id)
{
	char group[GROUP_MAX];

	for (size_t i = 0; i < h->n; i++) {
		if (h->trees[i].v2) {
			int fd = openat(h->trees[i].fd,
			                machine_group(h, &h->trees[i], tenant, id, group),
			                O_RDONLY | O_DIRECTORY | O_CLOEXEC);

			return fd < 0 ? -errno : fd;
		}
	}
	return -ENOENT;
}

int cg_v1_joins(const struct cg_host *h, const char *tenant, const char *id, struct cg_join *ret,
                size_t *ret_n)
{
	char group[GROUP_MAX];
	size_t n = 0;

	if (!cg_id_valid(id))
		return -EINVAL;
	for (size_t i = 0; i < h->n; i++) {
		if (h->trees[i].v2)
			continue;
		ret[n].tree = h->trees[i].fd;
		machine_group(h, &h->trees[i], tenant, id, group);
		snprintf(ret[n].path, sizeof(ret[n].path), "%.240s/tasks", group);
		n++;
	}
	*ret_n = n;
	return 0;
}
