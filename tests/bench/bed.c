#include "bed.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/macro.h"
#include "engine/engines.h"
#include "jail/jail.h"
#include "machine/guest.h"
#include "measure.h"
#include "wire/guest.h"

#define SESSION_LIMIT ((uint64_t)8 << 30)

/* The engine's own start, with a clock around it: what is left of a start is machine_start()'s. */
static int (*real_start)(struct engines *e, const struct engine_start *s,
                         struct engine_machine *ret, struct err *err);
double bed_engine_ms;

static int timed_start(struct engines *e, const struct engine_start *s, struct engine_machine *ret,
                       struct err *err)
{
	uint64_t t = mono_ns();
	int r = real_start(e, s, ret, err);

	bed_engine_ms = ms_since(t);
	return r;
}

int bed_open(struct bed *b, struct err *e)
{
	struct engines_config cfg = {.engine = b->kind,
	                             .kernel = b->kernel,
	                             .vmm = b->vmm,
	                             .vmlinux = b->vmlinux,
	                             .run_dir = b->run_dir,
	                             .jail_want = JAIL_ALL};
	autoclose int dir = -1;
	int r;

	r = engines_new(&cfg, &b->engines, e);
	if (r == 0)
		r = machines_open(&b->ms, b->engines, b->run_dir, e);
	if (r < 0)
		return r;
	real_start = b->engines->start;
	b->engines->start = timed_start;
	dir = open(b->store_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = dir < 0 ? -errno : snapshot_store_open(dir, &b->store);
	if (r == 0)
		r = cg_open(NULL, "panda", NULL, &b->cg);
	return r < 0 ? err_set(e, -r, "store", "cannot open %s: %s", b->store_dir, strerror(-r))
	             : 0;
}

static void remove_one(const struct machine_info *m, void *arg)
{
	machine_remove(arg, m->id, NULL);
}

void bed_clear(struct bed *b)
{
	char *const rm[] = {"rm", "-rf", (char *)b->run_dir, (char *)b->store_dir, NULL};
	struct engines_config cfg = {.engine = b->kind,
	                             .kernel = b->kernel,
	                             .vmm = b->vmm,
	                             .vmlinux = b->vmlinux,
	                             .run_dir = b->run_dir};

	if (engines_new(&cfg, &b->engines, NULL) == 0) {
		if (machines_open(&b->ms, b->engines, b->run_dir, NULL) == 0) {
			machine_each(&b->ms, remove_one, &b->ms, NULL);
			machines_close(&b->ms);
		}
		b->engines->free(b->engines);
	}
	run_native(rm, b->cpu, NULL, 0);
}

int bed_prepare(struct bed *b, unsigned wait_ms, struct err *e)
{
	int r;

	machine_new_id(b->id);
	b->prepared = true;
	r = machine_prepare(&b->ms, b->id, e);
	usleep(wait_ms * 1000);
	return r;
}

int bed_start(struct bed *b, const struct engine_image *i, int cpu, struct machine_info *ret,
              struct err *e)
{
	struct engine_start s = {.id = b->id,
	                         .image = i,
	                         .cpu = cpu,
	                         .memory_limit = b->memory_limit};

	if (!b->prepared)
		machine_new_id(b->id);
	s.prepared = b->prepared;
	b->prepared = false;
	return machine_start(&b->ms, &s, NULL, i->state < 0 ? 1 : 2, ret, e);
}

void bed_end(struct bed *b, const struct machine_info *m)
{
	machine_remove(&b->ms, m->id, NULL);
	waitpid(m->pid, NULL, 0);
}

struct text {
	char *p;
	size_t n, have;
};

static void keep(void *arg, uint8_t chan, const void *p, size_t n)
{
	struct text *t = arg;

	if (chan != WIRE_OUT || !t->p)
		return;
	n = MIN(n, t->n - 1 - t->have);
	memcpy(t->p + t->have, p, n);
	t->have += n;
	t->p[t->have] = 0;
}

int bed_run(struct guest *g, char *const *argv, char *out, size_t n, struct err *e)
{
	struct text text = {.p = out, .n = n};
	struct guest_exec x = {.argv = argv, .output = keep, .arg = &text};
	struct guest_exit done;
	int r;

	guest_set_deadline(g, BED_GUEST_MS);
	r = guest_exec_wait(g, &x, &done, e);
	if (r == 0 && (done.signaled || done.code))
		return err_set(e, ECHILD, "exec_failed", "%s: %s %d", argv[0],
		               done.signaled ? "signal" : "exit code", done.code);
	return r;
}

char *const true_argv[] = {"/bin/true", NULL};
char *const python_argv[] = {"/usr/bin/python3", "-c", "print(1)", NULL};

int bed_first_exec(struct bed *b, const char *id, struct err *e)
{
	struct guest *g = NULL;
	int r = machine_guest(&b->ms, id, &g, e);

	if (r == 0)
		r = bed_run(g, true_argv, NULL, 0, e);
	guest_free(g);
	return r;
}

int bed_cold(struct bed *b, unsigned mib, struct engine_image *ret, struct err *e)
{
	return engine_image_cold((uint64_t)mib << 20, b->image, b->upper, ret, e);
}

static int push_work(struct bed *b, struct guest *g, struct err *e)
{
	autoclose int fd = open(b->work, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return err_set(e, errno, "work_missing", "cannot open %s", b->work);
	return guest_write_from_fd(g, "/usr/local/bin/work", fd, 0, 0755, e);
}

int bed_bake(struct bed *b, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	AUTO(engine_image_fini) struct engine_image live = ENGINE_IMAGE_EMPTY;
	struct machine_info m;
	struct guest *g = NULL;
	int r;

	r = bed_cold(b, BED_MEMORY_MIB, &i, e);
	if (r == 0)
		r = bed_start(b, &i, -1, &m, e);
	if (r < 0)
		return r;
	r = machine_guest(&b->ms, m.id, &g, e);
	if (r == 0)
		r = push_work(b, g, e);
	for (int n = 0; r == 0 && n < 3; n++) {
		r = bed_run(g, true_argv, NULL, 0, e);
		if (r == 0)
			r = bed_run(g, python_argv, NULL, 0, e);
	}
	guest_free(g);
	if (r == 0)
		r = machine_bake(&b->ms, m.id, &live, e);
	if (r == 0)
		r = machine_save(&live, &b->store, "warm", NULL, e);
	bed_end(b, &m);
	return r < 0 ? r : machine_load(&b->ms, &b->store, "warm", false, &b->warm, e);
}

static const char session_code[] =
    "import signal, sys\n"
    "def write(*_):\n"
    "    for i in range(0, len(heap), 4096):\n"
    "        heap[i] ^= 1\n"
    "    open('/tmp/ready', 'w').close()\n"
    "heap = bytearray(b'panda' * 8192)[:4096] * (256 * int(sys.argv[1]))\n"
    "signal.signal(signal.SIGUSR1, write)\n"
    "write()\n"
    "while True:\n"
    "    signal.pause()\n";

static int wait_ready(struct guest *g, struct err *e)
{
	uint64_t deadline = mono_ms() + BED_GUEST_MS;
	struct wire_file st;
	int r;

	guest_set_deadline(g, BED_GUEST_MS + 1000);
	while ((r = guest_stat(g, "/tmp/ready", true, &st, e)) == -ENOENT) {
		if (mono_ms() >= deadline)
			return err_set(e, ETIMEDOUT, "guest_silent", "Python was not ready in %d s",
			               BED_GUEST_MS / 1000);
		usleep(5000);
	}
	return r;
}

int session_start(struct bed *b, unsigned memory_mib, unsigned heap_mib, struct session *ret,
                  struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	char mib[16];
	char *argv[] = {"/usr/bin/python3", "-c", (char *)session_code, mib, NULL};
	struct guest_exec x = {.argv = argv};
	struct session s;
	struct guest *g = NULL;
	int r;

	snprintf(mib, sizeof(mib), "%u", heap_mib);
	r = bed_cold(b, memory_mib, &i, e);
	/* What forks have sealed stays charged to the machine that wrote it. */
	b->memory_limit = SESSION_LIMIT;
	if (r == 0)
		r = bed_start(b, &i, -1, &s.m, e);
	b->memory_limit = 0;
	if (r < 0)
		return r;
	r = machine_guest(&b->ms, s.m.id, &g, e);
	if (r == 0)
		r = bed_run(g, true_argv, NULL, 0,
		            e); /* no session is forked before its first command */
	if (r == 0)
		r = guest_exec_start(g, &x, &s.python, e);
	if (r == 0)
		r = wait_ready(g, e);
	guest_free(g);
	if (r < 0) {
		bed_end(b, &s.m);
		return r;
	}
	*ret = s;
	return 0;
}

/* When a machine has died of what was asked of it, that is the error. Returns r. */
static int explain(struct bed *b, const char *id, int r, struct err *e)
{
	struct machine_info m;

	if (r < 0 && machine_look(&b->ms, id, &m, NULL) == 0 && !m.alive)
		err_prefix(e, "machine %s %s", id, m.end);
	return r;
}

int session_rewrite(struct bed *b, const struct session *s, struct err *e)
{
	struct guest *g = NULL;
	int r = machine_guest(&b->ms, s->m.id, &g, e);

	if (r == 0)
		r = guest_remove(g, "/tmp/ready", false, e);
	if (r == 0)
		r = guest_exec_signal(g, s->python, SIGUSR1, 0, e);
	if (r == 0)
		r = wait_ready(g, e);
	guest_free(g);
	return explain(b, s->m.id, r, e);
}
