/*
 * um-bench - what an engine does, in milliseconds and mebibytes: um, or what PANDA_ENGINE says
 * Calls machine and the engine directly, so no program's start-up counts. Prints one JSON line per
 * number; tests/bench/bench.py puts them beside targets and peers. Needs root. What it makes lives
 * in a directory of its own, and a second process clears it away whatever happens to the first.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/macro.h"
#include "bed.h"
#include "machine/guest.h"
#include "measure.h"

enum {
	BIG_MEMORY_MIB = 1024,
	HEAP_MIB = 256,
	FEW_HEAP_MIB = 16,
	BIG_HEAP_MIB = 500,
	IDLE_FORKS = 10,
	MANY_FORKS = 100,
	SETTLE_S = 1, /* until a restored guest has nothing left to do */
	CPUS_MAX = 64,
};

/* How often each thing is done: enough for its p50 (or p99), and no more. */
struct rounds {
	unsigned boot, restore, fork, dirty, exec, work, idle_s;
	unsigned ready_ms; /* a process that was made ahead is ready by then */
};
static const struct rounds full = {10, 200, 30, 4, 200, 9, 10, 3};
static const struct rounds quick = {3, 30, 8, 2, 50, 3, 3, 3};
static const struct rounds few = {3, 20, 5, 1, 10, 1, 3, 100};
static const struct rounds *rounds = &full;

/*
 * In an emulated machine, memory that held a guest's code is slow to clear, and it is what the next
 * guest gets: a boot would take half as long again, and that is nobody's fault.
 */
static void wipe(void)
{
	size_t size = (size_t)2 * BED_MEMORY_MIB << 20;
	volatile char *p;

	if (rounds != &few)
		return;
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return;
	madvise((void *)p, size, MADV_HUGEPAGE);
	for (size_t at = 0; at < size; at += 4096)
		p[at] = 1;
	munmap((void *)p, size);
}

/* Cold boots: until the agent answered, the engine's part of that, until /bin/true has run. */
struct boots {
	struct series all, engine, exec;
};

static int boot_one(struct bed *b, const struct engine_image *cold, struct boots *s, struct err *e)
{
	struct machine_info m;
	uint64_t t;
	int r;

	wipe();
	t = mono_ns();
	r = bed_start(b, cold, -1, &m, e);
	if (r < 0)
		return r;
	series_add(&s->all, ms_since(t));
	series_add(&s->engine, bed_engine_ms);
	r = bed_first_exec(b, m.id, e);
	series_add(&s->exec, ms_since(t));
	bed_end(b, &m);
	return r;
}

static void put_boots(const struct boots *s)
{
	put("um.boot_ms_p50", series_at(&s->all, 0.5));
	put("um.boot_exec_ms_p50", series_at(&s->exec, 0.5));
	put("um.boot_engine_ms_p50", series_at(&s->engine, 0.5));
}

static int bench_boot(struct bed *b, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image cold = ENGINE_IMAGE_EMPTY;
	struct boots s = {0};
	int r = bed_cold(b, BED_MEMORY_MIB, &cold, e);

	for (unsigned n = 0; r == 0 && n < rounds->boot; n++)
		r = boot_one(b, &cold, &s, e);
	if (r == 0)
		put_boots(&s);
	return r;
}

/* How machines came to life from an image, step by step. */
struct births {
	struct series still, snapshot; /* a fork only: the parent's stop, and the whole call */
	struct series engine, hello;   /* the engine's start; our books and the agent's answer */
	struct series exec, all;       /* /bin/true on a new connection; everything up to here */
	struct series cpu, stop; /* the machine's cpu time so far; how long it took to end it */
};

/* Says more than a clock while others use the cpu. */
static double cpu_ms(struct bed *b, const char *id)
{
	struct cg_stats st = {.cpu_ns = 0};

	cg_stats(b->cg, id, &st);
	return (double)st.cpu_ns / 1e6;
}

/* From the image to the first answer, and away again. since_ns is when somebody asked for it. */
static int birth(struct bed *b, const struct engine_image *i, uint64_t since_ns, struct births *s,
                 struct err *e)
{
	uint64_t t = mono_ns();
	struct machine_info m;
	int r = bed_start(b, i, -1, &m, e);

	if (r < 0)
		return r;
	series_add(&s->engine, bed_engine_ms);
	series_add(&s->hello, ms_since(t) - bed_engine_ms);
	t = mono_ns();
	r = bed_first_exec(b, m.id, e);
	series_add(&s->exec, ms_since(t));
	series_add(&s->all, ms_since(since_ns));
	series_add(&s->cpu, cpu_ms(b, m.id));
	t = mono_ns();
	bed_end(b, &m);
	series_add(&s->stop, ms_since(t));
	return r;
}

static void put_births(const char *name, const struct births *s)
{
	const struct {
		const char *name;
		const struct series *s;
		double q;
	} rows[] = {{"ms_p50", &s->all, 0.5},
	            {"ms_p99", &s->all, 0.99},
	            {"ms_min", &s->all, 0}, /* what a calmer machine would show */
	            {"parent_stop_ms_p50", &s->still, 0.5},
	            {"snapshot_ms_p50", &s->snapshot, 0.5},
	            {"engine_ms_p50", &s->engine, 0.5},
	            {"hello_ms_p50", &s->hello, 0.5},
	            {"exec_ms_p50", &s->exec, 0.5},
	            {"cpu_ms_p50", &s->cpu, 0.5},
	            {"stop_ms_p50", &s->stop, 0.5}};
	char key[64];

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		snprintf(key, sizeof(key), "um.%s_%s", name, rows[i].name);
		if (rows[i].s->n)
			put(key, series_at(rows[i].s, rows[i].q));
	}
}

/*
 * With the process made ahead, and now and then without, for the difference. A host that emulates
 * is now faster, now slower: there boots stand between them, to be compared with.
 */
static int bench_restore(struct bed *b, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image cold = ENGINE_IMAGE_EMPTY;
	struct births ahead = {0}, bare = {0};
	struct boots boots = {0};
	int r = bed_cold(b, BED_MEMORY_MIB, &cold, e);

	for (unsigned n = 0; r == 0 && n < rounds->restore; n++) {
		if (rounds == &few && n % 4 == 0)
			r = boot_one(b, &cold, &boots, e);
		wipe();
		if (r == 0)
			r = bed_prepare(b, rounds->ready_ms, e);
		if (r == 0)
			r = birth(b, &b->warm, mono_ns(), &ahead, e);
		if (r == 0 && n % 4 == 2)
			r = birth(b, &b->warm, mono_ns(), &bare, e);
	}
	if (r < 0)
		return r;
	if (boots.all.n)
		put_boots(&boots);
	put_births("restore", &ahead);
	put("um.restore_bare_ms_p50", series_at(&bare.all, 0.5));
	return 0;
}

static int fork_one(struct bed *b, const char *parent, struct births *s, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	struct engine_snapshot_info info;
	uint64_t t;
	int r;

	wipe();
	r = bed_prepare(b, rounds->ready_ms, e);
	if (r < 0)
		return r;
	t = mono_ns();
	r = machine_snapshot(&b->ms, parent, &i, &info, e);
	if (r < 0)
		return r;
	series_add(&s->snapshot, ms_since(t));
	series_add(&s->still, (double)info.stop_ns / 1e6);
	return birth(b, &i, t, s, e);
}

/*
 * A parent that does little between two forks, and one that has written all of its heap since the
 * last: a session that was forked never before is like the second.
 */
static int bench_fork(struct bed *b, struct err *e)
{
	struct births calm = {0}, dirty = {0};
	struct series page = {.n = 0};
	struct session s;
	int r = session_start(b, BED_MEMORY_MIB, rounds == &few ? FEW_HEAP_MIB : HEAP_MIB, &s, e);

	if (r < 0)
		return r;
	for (unsigned n = 0; r == 0 && n < rounds->dirty; n++) {
		uint64_t t = mono_ns();

		if (n) {
			r = session_rewrite(b, &s, e);
			series_add(&page, ms_since(t) * 1e3 / (HEAP_MIB * 256));
		}
		if (r == 0)
			r = fork_one(b, s.m.id, &dirty, e);
	}
	for (unsigned n = 0; r == 0 && n < rounds->fork; n++)
		r = fork_one(b, s.m.id, &calm, e);
	bed_end(b, &s.m);
	if (r < 0)
		return r;
	put_births("fork", &calm);
	put_births("fork_dirty", &dirty);
	put("um.fork_write_page_us", series_at(&page, 0.5)); /* the parent's first write after it */
	return 0;
}

/* The machine's newest memory layer; a machine talks to one controller at a time, so let go. */
static int newest_layer(struct bed *b, const char *id, int *ret, struct err *e)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	int r = machine_adopt(&b->ms, id, &m, e);

	if (r == 0)
		*ret = take_fd(&m.top);
	return r;
}

/*
 * What ten idle forks cost, counted twice. By pages: what their processes wrote (Pss_Anon, so a
 * page that two of them share counts once) and the files that are memory and did not exist before:
 * each child's newest layer, the saved state, and what the snapshot added to the parent's last
 * layer. By control groups: what the host charged to the children, page tables and kernel objects
 * too, but also page cache that a child happened to touch first. The larger one is our number.
 */
static int count_forks(struct bed *b, const struct machine_info *child, size_t n,
                       uint64_t shared_kib, struct err *e)
{
	uint64_t pages = shared_kib, groups = shared_kib, private = 0, tops = 0;
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++) {
		struct cg_stats cg = {.have = 0};
		autoclose int top = -1;
		struct memory mem;
		struct family f;

		r = newest_layer(b, child[i].id, &top, e);
		if (r < 0)
			return r;
		family_of(child[i].pid, &f);
		mem = family_memory(&f);
		cg_stats(b->cg, child[i].id, &cg);
		tops += file_kib(top);
		pages += mem.anon + file_kib(top);
		private += mem.private;
		groups += cg.memory_bytes >> 10;
	}
	put("um.fork10_500m_pages_mib", (double)pages / 1024);
	put("um.fork10_500m_cgroups_mib", (double)groups / 1024);
	put("um.fork10_500m_private_mib", (double)private / 1024);
	put("um.fork10_500m_tops_mib", (double)tops / 1024);
	put("um.fork10_500m_once_mib", (double)shared_kib / 1024);
	put("um.fork10_500m_extra_mib", (double)MAX(pages, groups) / 1024);
	return 0;
}

/* Starts n machines from an image; on failure those that run are the caller's to end, too. */
static int start_many(struct bed *b, const struct engine_image *i, struct machine_info *ret,
                      size_t n, size_t *ret_n, struct err *e)
{
	int r = 0;

	for (*ret_n = 0; *ret_n < n; (*ret_n)++) {
		r = bed_start(b, i, -1, &ret[*ret_n], e);
		if (r < 0)
			break;
	}
	return r;
}

static int bench_fork10(struct bed *b, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	struct machine_info child[IDLE_FORKS];
	struct session parent;
	autoclose int top = -1;
	uint64_t before, once;
	size_t n = 0;
	int r = session_start(b, BIG_MEMORY_MIB, BIG_HEAP_MIB, &parent, e);

	if (r < 0)
		return r;
	/* Else Python is caught on its way to pause(), and all forks go that way. */
	sleep(SETTLE_S);
	r = newest_layer(b, parent.m.id, &top, e);
	before = file_kib(top);
	if (r == 0)
		r = machine_snapshot(&b->ms, parent.m.id, &i, NULL, e);
	if (r == 0)
		r = start_many(b, &i, child, IDLE_FORKS, &n, e);
	if (r == 0) {
		sleep(SETTLE_S);
		once = file_kib(top) - before + file_kib(i.state);
		r = count_forks(b, child, n, once, e);
	}
	/* They were not idle because they were dead: each still answers. */
	for (size_t k = 0; r == 0 && k < n; k++)
		r = bed_first_exec(b, child[k].id, e);
	while (n > 0)
		bed_end(b, &child[--n]);
	bed_end(b, &parent.m);
	return r;
}

/* As many processes as there are cpus start the children, as a daemon's threads would. */
static int fork_all(struct bed *b, const struct engine_image *i, unsigned workers)
{
	pid_t pids[CPUS_MAX];
	int r = 0, status;

	for (unsigned w = 0; w < workers; w++) {
		pids[w] = fork();
		if (pids[w] == 0) {
			struct machine_info m;
			struct err e;

			for (unsigned k = w; k < MANY_FORKS; k += workers)
				if (bed_start(b, i, -1, &m, &e) < 0) {
					fprintf(stderr, "um-bench: %s\n", e.text);
					_exit(1);
				}
			_exit(0);
		}
	}
	for (unsigned w = 0; w < workers; w++)
		if (pids[w] < 0 || waitpid(pids[w], &status, 0) < 0 || status)
			r = -ECHILD;
	return r;
}

static void end_child_of(const struct machine_info *m, void *arg)
{
	struct bed *b = arg;

	if (m->generation > 1)
		bed_end(b, m);
}

static int bench_fork100(struct bed *b, struct err *e)
{
	unsigned cpus = (unsigned)MIN(sysconf(_SC_NPROCESSORS_ONLN), (long)CPUS_MAX);
	struct session parent;
	int r = session_start(b, BED_MEMORY_MIB, 1, &parent, e);

	if (r < 0)
		return r;
	for (int once = 0; r == 0 && once < 2; once++) {
		AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
		uint64_t t = mono_ns();

		r = machine_snapshot(&b->ms, parent.m.id, &i, NULL, e);
		if (r < 0)
			break;
		r = fork_all(b, &i, once ? 1 : cpus);
		if (r < 0)
			err_set(e, -r, "fork_failed", "not all of %d forks answered", MANY_FORKS);
		else
			put(once ? "um.fork100_serial_s" : "um.fork100_s", ms_since(t) / 1e3);
		machine_each(&b->ms, end_child_of, b, NULL);
	}
	bed_end(b, &parent.m);
	return r;
}

static int bench_idle(struct bed *b, struct err *e)
{
	autoclose int top = -1;
	struct cg_stats cg = {.have = 0};
	struct machine_info info;
	struct memory mem;
	struct family f;
	uint64_t switches;
	int r = bed_start(b, &b->warm, -1, &info, e);

	if (r < 0)
		return r;
	r = newest_layer(b, info.id, &top, e);
	if (r == 0) {
		sleep(SETTLE_S);
		family_of(info.pid, &f);
		switches = family_switches(&f);
		sleep(rounds->idle_s);
		switches = family_switches(&f) - switches;
		mem = family_memory(&f);
		cg_stats(b->cg, info.id, &cg);
		put("um.idle_wakeups_per_s", (double)switches / rounds->idle_s);
		put("um.idle_rss_mib", (double)(mem.anon + file_kib(top)) / 1024);
		put("um.idle_private_mib", (double)mem.private / 1024);
		put("um.idle_top_mib", (double)file_kib(top) / 1024);
		put("um.idle_cgroup_mib", (double)cg.memory_bytes / (1 << 20));
		put("um.idle_processes", (double)f.n);
	}
	bed_end(b, &info);
	return r;
}

/* --- the same work inside and outside, in turns, on one cpu
 * ------------------------------------ */

struct duel {
	struct series um, native;
};

/* The time of the whole call, or, with out, the number the program prints. */
static int one_turn(struct bed *b, struct guest *g, char *const *um, char *const *native,
                    bool printed, struct duel *d, struct err *e)
{
	char text[64] = "";
	uint64_t t = mono_ns();
	int r;

	r = bed_run(g, um, text, sizeof(text), e);
	if (r < 0)
		return r;
	series_add(&d->um, printed ? strtod(text, NULL) : ms_since(t));
	t = mono_ns();
	r = run_native(native, b->cpu, text, sizeof(text));
	if (r < 0)
		return err_set(e, -r, "native_failed", "cannot run %s here", native[0]);
	series_add(&d->native, printed ? strtod(text, NULL) : ms_since(t));
	return 0;
}

static int duel(struct bed *b, struct guest *g, char *const *um, char *const *native,
                unsigned turns, bool printed, const char *name, struct duel *d, struct err *e)
{
	char key[64];
	int r = 0;

	*d = (struct duel){0};
	for (unsigned n = 0; r == 0 && n < turns; n++)
		r = one_turn(b, g, um, native, printed, d, e);
	if (r < 0)
		return r;
	snprintf(key, sizeof(key), "um.%s", name);
	put(key, series_at(&d->um, 0.5));
	snprintf(key, sizeof(key), "native.%s", name);
	put(key, series_at(&d->native, 0.5));
	return 0;
}

/* Of neighbours in time, so that a host that slows down for a while does not take sides. */
static double ratio(const struct duel *d)
{
	struct series s = {.n = 0};

	for (size_t i = 0; i < d->um.n; i++)
		series_add(&s, d->native.v[i] / d->um.v[i]);
	return series_at(&s, 0.5);
}

static int bench_work(struct bed *b, struct err *e)
{
	static const struct {
		const char *verb, *amount, *name;
	} jobs[] = {{"loop", "20000000", "loop_ms"},
	            {"syscall", "20000", "syscall_us"},
	            {"clock", "100000", "clock_ns"},
	            {"fault", "64", "fault_us"}};
	char *const py[] = {"/usr/bin/python3", "-c", "sum(i * i % 7 for i in range(1000000))",
	                    NULL};
	struct machine_info m;
	struct guest *g = NULL;
	struct duel d;
	int r = bed_start(b, &b->warm, (int)b->cpu, &m, e);

	if (r < 0)
		return r;
	r = machine_guest(&b->ms, m.id, &g, e);
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(jobs); i++) {
		char *um[] = {"/usr/local/bin/work", (char *)jobs[i].verb, (char *)jobs[i].amount,
		              NULL};
		char *native[] = {b->work, um[1], um[2], NULL};

		r = duel(b, g, um, native, rounds->work, true, jobs[i].name, &d, e);
		if (r == 0 && i == 0)
			put("um.cpu_ratio", ratio(&d));
	}
	if (r == 0)
		r = duel(b, g, py, py, rounds->work, false, "python_loop_ms", &d, e);
	if (r == 0)
		r = duel(b, g, true_argv, true_argv, rounds->exec, false, "exec_ms_p50", &d, e);
	if (r == 0)
		r = duel(b, g, python_argv, python_argv, rounds->exec / 5, false, "python_ms_p50",
		         &d, e);
	guest_free(g);
	bed_end(b, &m);
	return r;
}

static const struct part {
	const char *name;
	int (*run)(struct bed *b, struct err *e);
} parts[] = {
    {"boot", bench_boot},       {"restore", bench_restore}, {"fork", bench_fork},
    {"work", bench_work},       {"idle", bench_idle},       {"fork10", bench_fork10},
    {"fork100", bench_fork100},
};

static unsigned last_cpu(void)
{
	unsigned last = 0;
	cpu_set_t set;

	CPU_ZERO(&set);
	sched_getaffinity(0, sizeof(set), &set);
	for (unsigned i = 0; i < CPU_SETSIZE; i++)
		last = CPU_ISSET(i, &set) ? i : last;
	return last;
}

/* --- main
 * -------------------------------------------------------------------------------------- */

static bool wanted(const char *name, char **names)
{
	for (char **n = names; *n; n++)
		if (!strcmp(*n, name))
			return true;
	return !*names;
}

static int measure(struct bed *b, char **names)
{
	struct err e = {0};
	int failed = 0;

	if (bed_open(b, &e) < 0 || bed_bake(b, &e) < 0) {
		fprintf(stderr, "um-bench: %s\n", e.text);
		return 1;
	}
	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		if (!wanted(parts[i].name, names) || parts[i].run(b, &e) >= 0)
			continue;
		fprintf(stderr, "um-bench: %s: %s\n", parts[i].name, e.text);
		failed = 1;
	}
	engine_image_fini(&b->warm);
	return failed;
}

static volatile pid_t worker;

static void stop_worker(int signo)
{
	kill(worker, SIGKILL);
}

static const char *place(void)
{
	struct statfs fs;

	if (getenv("PANDA_RUN"))
		return getenv("PANDA_RUN");
	/* /run is memory on a real host; some containers have it on a disk */
	return statfs("/run", &fs) == 0 && fs.f_type == TMPFS_MAGIC ? "/run" : "/dev/shm";
}

static const char usage[] =
    "usage: um-bench [-q] [PART]...\n"
    "  -q   fewer rounds; twice: very few, for a host that emulates\n"
    "Parts: boot restore fork work idle fork10 fork100\n"
    "Environment: PANDA_ENGINE (um), PANDA_KERNEL or PANDA_VMM and PANDA_VMLINUX, PANDA_IMAGE,\n"
    "PANDA_UPPER; PANDA_RUN: where to make a directory for machines\n";

int main(int argc, char **argv)
{
	struct bed b = {.warm = ENGINE_IMAGE_EMPTY};
	char run_dir[PATH_MAX], store_dir[] = "/var/tmp/um-bench-XXXXXX";
	int c, status;
	ssize_t n;

	while ((c = getopt(argc, argv, "q")) != -1) {
		if (c != 'q') {
			fputs(usage, stderr);
			return 2;
		}
		rounds = rounds == &quick ? &few : &quick;
	}
	b.kind = getenv("PANDA_ENGINE") ? getenv("PANDA_ENGINE") : "um";
	b.kernel = getenv("PANDA_KERNEL");
	b.vmm = getenv("PANDA_VMM");
	b.vmlinux = getenv("PANDA_VMLINUX");
	b.image = getenv("PANDA_IMAGE");
	b.upper = getenv("PANDA_UPPER");
	put_engine = b.kind;
	if ((!b.kernel && !b.vmlinux) || !b.image || !b.upper) {
		fputs(usage, stderr);
		return 2;
	}
	n = readlink("/proc/self/exe", b.work, sizeof(b.work) - 8);
	b.work[MAX(n, 0)] = 0;
	snprintf(strrchr(b.work, '/') + 1, 8, "work");
	snprintf(run_dir, sizeof(run_dir), "%s/um-bench-XXXXXX", place());
	b.run_dir = mkdtemp(run_dir);
	b.store_dir = mkdtemp(store_dir);
	if (!b.run_dir || !b.store_dir) {
		perror("um-bench: mkdtemp");
		return 1;
	}
	b.cpu = last_cpu();
	signal(SIGPIPE, SIG_IGN);
	signal(SIGINT, stop_worker);
	signal(SIGTERM, stop_worker);
	worker = fork();
	if (worker == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_CHILD_SUBREAPER,
		      1); /* machines started by fork_all() are ours to reap */
		_exit(measure(&b, argv + optind));
	}
	while (worker > 0 && waitpid(worker, &status, 0) < 0 && errno == EINTR)
		continue;
	bed_clear(&b);
	return worker > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
