#include "bed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "db/sandboxes.h"
#include "db/snapshots.h"
#include "db/volumes.h"
#include "host/checkpoint.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/op.h"
#include "host/rewind.h"
#include "host/volume.h"

enum { TURN_MS = 2, SLOTS_AT = 64 << 10 };

/* ---- small things ---- */

static unsigned count_fds(void)
{
	autoclosedir DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	return n;
}

static unsigned count_names(const char *path, const char *prefix)
{
	autoclosedir DIR *d = opendir(path);
	struct dirent *de;
	unsigned n = 0;

	while (d && (de = readdir(d)))
		n += de->d_name[0] != '.' && !strncmp(de->d_name, prefix, strlen(prefix));
	return n;
}

static void file_make(const char *path, off_t size, const char *text)
{
	autoclose int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, size), 0);
	if (text)
		assert_int_equal(io_pwrite_full(fd, text, strlen(text), 0), 0);
}

static void tree_remove_all(int parent, const char *name)
{
	autoclosedir DIR *d = io_opendir(parent, name, O_NOFOLLOW);
	struct dirent *de;

	if (!d) {
		unlinkat(parent, name, 0);
		return;
	}
	while ((de = readdir(d)))
		if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0)
			tree_remove_all(dirfd(d), de->d_name);
	unlinkat(parent, name, AT_REMOVEDIR);
}

/* ---- making and opening ---- */

static void template_write(struct bed *b)
{
	char path[160], text[400];

	snprintf(path, sizeof(path), "%s/templates", b->data_dir);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/templates/base.json", b->data_dir);
	snprintf(text, sizeof(text),
	         "{\"name\": \"base\", \"image\": \"%s/root.img\", \"cpu\": 1,"
	         " \"memory_mb\": %d, \"disk_gb\": 1}",
	         b->dir, BED_MEMORY_MB);
	file_make(path, (off_t)strlen(text), text);
}

void bed_make(struct bed *b)
{
	char path[120];

	*b = (struct bed){.lifeline = {-1, -1}};
	/* Machines whose pandad was killed become ours: they can be waited for. */
	assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	log_filter_set(&(struct log_filter){.level = getenv("BED_LOG") ? LOG_INFO : LOG_ERROR});
	b->fds = count_fds();
	snprintf(b->dir, sizeof(b->dir), "%s/panda-bed-XXXXXX",
	         access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	assert_non_null(mkdtemp(b->dir));
	snprintf(b->run_dir, sizeof(b->run_dir), "%s/run", b->dir);
	snprintf(b->data_dir, sizeof(b->data_dir), "%s/data", b->dir);
	snprintf(b->rules, sizeof(b->rules), "%s/rules.json", b->dir);
	snprintf(b->upper, sizeof(b->upper), "%s/upper.img", b->dir);
	assert_int_equal(mkdir(b->run_dir, 0700), 0);
	assert_int_equal(mkdir(b->data_dir, 0700), 0);
	snprintf(path, sizeof(path), "%s/root.img", b->dir);
	file_make(path, 2 * MAP_PAGE, "root");
	file_make(b->upper, BED_DISK_BYTES, NULL);
	template_write(b);
	assert_int_equal(pipe2(b->lifeline, O_CLOEXEC), 0);
	b->config = (struct host_config){.run_dir = b->run_dir,
	                                 .data_dir = b->data_dir,
	                                 .upper_image = b->upper,
	                                 .threads = 4,
	                                 .memory_reserve = 1,
	                                 .disk_reserve = 1,
	                                 .prepare_ahead = 1,
	                                 .sandboxes_max = 4096,
	                                 .idle_s = 900,
	                                 .silent_s = 20,
	                                 .build_s = 1200,
	                                 .import_max = (uint64_t)1 << 30,
	                                 .machine_memory_max = (uint64_t)64 << 30,
	                                 .machine_disk_max = (uint64_t)64 << 30};
	b->engine = (struct engine){.name = "fake", .isolation = "a-process", .kernel = "fake-1"};
}

void bed_open_host(struct bed *b)
{
	assert_null(b->host);
	assert_int_equal(loop_new(&b->loop), 0);
	b->fake = fake_engine_new(b->rules, b->lifeline[0]);
	b->fake->engine = b->engine;
	if (host_open(b->loop, &b->fake->seam, &b->config, &b->host, &b->err) < 0)
		fail_msg("the host does not open: %s", b->err.text);
	bed_check(b);
}

static void drained(void *arg)
{
	struct bed *b = arg;

	b->err.code = 0;
	bed_wake(b);
}

void bed_close_host(struct bed *b)
{
	b->err.code = -1;
	host_drain(b->host, drained, b);
	bed_until(b, b->err.code == 0);
	host_close(b->host);
	loop_free(b->loop);
	b->fake->seam.free(&b->fake->seam);
	b->host = NULL;
	b->loop = NULL;
	b->fake = NULL;
}

void bed_reopen(struct bed *b)
{
	bed_close_host(b);
	bed_open_host(b);
}

/* Of machines whose pandad is no more: the others' the host has waited for. */
static void reap(void)
{
	uint64_t end = mono_ms() + BED_PATIENCE_MS;
	pid_t pid;

	while ((pid = waitpid(-1, NULL, WNOHANG)) >= 0) {
		if (pid == 0 && mono_ms() > end)
			fail_msg("a process is left over");
		if (pid == 0)
			poll(NULL, 0, 1);
	}
}

/* Of two beds, the one that goes first: not all processes are its own. */
void bed_leave(struct bed *b)
{
	close(b->lifeline[1]);
	close(b->lifeline[0]);
	tree_remove_all(AT_FDCWD, b->dir);
}

void bed_free(struct bed *b)
{
	if (b->host)
		bed_close_host(b);
	bed_leave(b);
	reap();
	assert_int_equal(count_fds(), b->fds);
}

int bed_setup(void **state)
{
	struct bed *b = calloc(1, sizeof(*b));

	bed_make(b);
	bed_open_host(b);
	*state = b;
	return 0;
}

void bed_empty(struct bed *b)
{
	if (!b->host)
		bed_open_host(b);
	for (struct sandbox *sb = b->host->newest, *next; sb; sb = next) {
		next = sb->next;
		host_kill(b->host, sb, "test", NULL, NULL);
	}
	bed_until(b, b->host->count == 0);
	bed_close_host(b);
	assert_int_equal(bed_machines(b), 0);
	assert_int_equal(bed_snapshots(b, "hib-"), 0);
	assert_int_equal(bed_snapshots(b, "was-"), 0);
}

/* What a test has left is killed, and nothing may remain of it. */
int bed_teardown(void **state)
{
	struct bed *b = *state;

	bed_rule(b, "mood", NULL);
	bed_empty(b);
	bed_free(b);
	free(b);
	return 0;
}

/* ---- in another process ---- */

bool bed_in_child(struct bed *b, const char *fault, void (*fn)(struct bed *b, void *arg), void *arg)
{
	pid_t pid;
	int status;

	assert_null(b->host);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		bed_open_host(b);
		if (fault) {
			setenv("PANDA_FAULT", fault, 1);
			fault_init();
		}
		fn(b, arg);
		_exit(0); /* without closing: also what a kill leaves, only later */
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		return true;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("the child ended with status 0x%x", (unsigned)status);
	return false;
}

/* ---- the loop ---- */

uint64_t bed_deadline(void)
{
	return mono_ms() + BED_PATIENCE_MS;
}

static void turn_over(void *arg)
{
	loop_stop(arg);
}

void bed_wake(struct bed *b)
{
	loop_stop(b->loop);
}

void bed_turn(struct bed *b, uint64_t deadline, const char *what, const char *file, int line)
{
	struct loop_timer t = {.fn = turn_over, .arg = b->loop};

	if (mono_ms() > deadline) {
		for (struct sandbox *sb = b->host->newest; sb; sb = sb->next)
			print_error("sandbox %s: %s, pid %d, %s, %s\n", sb->id,
			            sandbox_state_record(sb->state), (int)sb->pid,
			            sb->ops ? "at work" : "idle", sb->end);
		_cmocka_fail(file, line, "never became true: %s (last error: %s)", what,
		             b->err.text);
	}
	loop_timer_set(b->loop, &t, mono_ms() + TURN_MS);
	assert_true(loop_run(b->loop) >= 0);
	loop_timer_clear(b->loop, &t);
	bed_check(b);
}

void bed_check(struct bed *b)
{
	size_t n = 0, checkpoints = 0;

	/* While an operation is at work on one, its machine may come or go at any moment. */
	for (struct sandbox *sb = b->host->newest; sb; sb = sb->next, n++) {
		op_check(sb);
		if (sb->history)
			history_check(sb->history);
		checkpoints += sb->history ? sb->history->n : 0;
		if (!sb->ops)
			sandbox_check(sb);
	}
	assert_int_equal(checkpoints, b->host->checkpoints);
	assert_int_equal(n, b->host->count);
}

/* ---- operations ---- */

struct sandbox_spec bed_spec(void)
{
	struct sandbox_spec spec;

	spec_init(&spec);
	snprintf(spec.template, sizeof(spec.template), "base");
	spec.idle_s = 0;
	return spec;
}

void bed_answered(void *arg, const struct err *e, struct sandbox *sb)
{
	struct bed_answer *a = arg;

	a->done = true;
	a->sb = sb;
	a->r = e ? -e->code : 0;
	if (e)
		a->bed->err = *e;
	bed_wake(a->bed);
}

int bed_wait_answer(struct bed *b, struct bed_answer *a)
{
	bed_until(b, a->done);
	bed_check(b);
	return a->r;
}

struct sandbox *bed_create(struct bed *b, const struct sandbox_spec *spec)
{
	struct bed_answer a = {.bed = b};

	host_create(b->host, "t", spec, NULL, bed_answered, &a);
	bed_wait_answer(b, &a);
	return a.sb;
}

struct sandbox *bed_create_plain(struct bed *b)
{
	struct sandbox_spec spec = bed_spec();
	struct sandbox *sb = bed_create(b, &spec);

	if (!sb)
		fail_msg("create: %s", b->err.text);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	return sb;
}

int bed_pause(struct bed *b, struct sandbox *sb)
{
	struct bed_answer a = {.bed = b};

	host_pause(b->host, sb, bed_answered, &a);
	return bed_wait_answer(b, &a);
}

int bed_resume(struct bed *b, struct sandbox *sb)
{
	struct bed_answer a = {.bed = b};

	host_resume(b->host, sb, bed_answered, &a);
	return bed_wait_answer(b, &a);
}

int bed_hibernate(struct bed *b, struct sandbox *sb)
{
	struct bed_answer a = {.bed = b};

	host_hibernate(b->host, sb, bed_answered, &a);
	return bed_wait_answer(b, &a);
}

int bed_wake_up(struct bed *b, struct sandbox *sb)
{
	struct bed_answer a = {.bed = b};

	host_wake(b->host, sb, bed_answered, &a);
	return bed_wait_answer(b, &a);
}

int bed_kill(struct bed *b, struct sandbox *sb)
{
	struct bed_answer a = {.bed = b};

	host_kill(b->host, sb, "test", bed_answered, &a);
	return bed_wait_answer(b, &a);
}

struct forked {
	struct bed *bed;
	bool done;
	size_t n;
	struct sandbox **ret;
};

static void on_forked(void *arg, const struct err *e, struct host_forked *f)
{
	struct forked *k = arg;

	for (size_t i = 0; !e && i < f->count; i++) {
		k->ret[i] = f->children[i];
		k->n += f->children[i] != NULL;
		if (!f->children[i])
			k->bed->err = f->errors[i];
	}
	if (e)
		k->bed->err = *e;
	k->done = true;
	bed_wake(k->bed);
}

size_t bed_fork(struct bed *b, struct sandbox *sb, size_t count, struct sandbox **ret)
{
	struct forked k = {.bed = b, .ret = ret};

	memset(ret, 0, count * sizeof(*ret));
	host_fork(b->host, sb, count, NULL, NULL, NULL, on_forked, &k);
	bed_until(b, k.done);
	bed_check(b);
	return k.n;
}

void bed_snapped(void *arg, const struct err *e, const struct host_snapshot *s)
{
	struct bed_snapped *k = arg;

	k->done = true;
	k->r = e ? -e->code : 0;
	if (e)
		k->bed->err = *e;
	else if (k->ret)
		*k->ret = *s;
	bed_wake(k->bed);
}

int bed_snapshot(struct bed *b, struct sandbox *sb, const char *name, struct host_snapshot *ret)
{
	struct bed_snapped k = {.bed = b, .ret = ret};

	host_snapshot(b->host, sb, name, NULL, bed_snapped, &k);
	bed_until(b, k.done);
	bed_check(b);
	return k.r;
}

int bed_snapshot_delete(struct bed *b, const char *id)
{
	struct bed_answer a = {.bed = b};

	host_snapshot_delete(b->host, "t", id, bed_answered, &a);
	return bed_wait_answer(b, &a);
}

struct sandbox *bed_find(struct bed *b, const char *id)
{
	struct sandbox *sb = host_find(b->host, "t", id);

	if (!sb)
		fail_msg("sandbox %s is not there", id);
	return sb;
}

struct took {
	struct bed *bed;
	bool done;
	int r;
	char *id;
};

static void took_over(struct took *k, const struct err *e)
{
	k->done = true;
	k->r = e ? -e->code : 0;
	if (e)
		k->bed->err = *e;
	bed_wake(k->bed);
}

static void on_checkpoint(void *arg, const struct err *e, const struct checkpoint *c)
{
	struct took *k = arg;

	if (!e && k->id)
		memcpy(k->id, c->id, sizeof(c->id));
	took_over(k, e);
}

static int took_wait(struct took *k)
{
	struct bed *b = k->bed;

	bed_until(b, k->done);
	bed_check(b);
	return k->r;
}

int bed_checkpoint(struct bed *b, struct sandbox *sb, const char *name, char ret_id[37])
{
	struct took k = {.bed = b, .id = ret_id};

	host_checkpoint(b->host, sb, name, on_checkpoint, &k);
	return took_wait(&k);
}

int bed_rewind(struct bed *b, struct sandbox *sb, const char *to, unsigned steps)
{
	struct bed_answer a = {.bed = b};

	host_rewind(b->host, sb, to, steps, bed_answered, &a);
	return bed_wait_answer(b, &a);
}

static void on_template(void *arg, const struct err *e, struct template *t)
{
	took_over(arg, e);
}

int bed_template_save(struct bed *b, struct sandbox *sb, const char *name, bool replace)
{
	struct took k = {.bed = b};

	host_save_template(b->host, sb, name, replace, on_template, &k);
	return took_wait(&k);
}

static void on_volume(void *arg, const struct err *e, const struct volume_info *v)
{
	took_over(arg, e);
}

int bed_volume_create(struct bed *b, const char *name, uint64_t size_mb)
{
	struct took k = {.bed = b};

	volume_create(b->host, "t", name, size_mb, NULL, on_volume, &k);
	return took_wait(&k);
}

int bed_volume_copy(struct bed *b, const char *from, const char *name, bool snapshot)
{
	struct took k = {.bed = b};

	volume_copy(b->host, "t", from, name, snapshot, 0, NULL, on_volume, &k);
	return took_wait(&k);
}

int bed_volume_resize(struct bed *b, const char *name, uint64_t size_mb)
{
	struct took k = {.bed = b};

	volume_resize(b->host, "t", name, size_mb, NULL, on_volume, &k);
	return took_wait(&k);
}

int bed_volume_delete(struct bed *b, const char *name)
{
	struct bed_answer a = {.bed = b};

	volume_delete(b->host, "t", name, bed_answered, &a);
	return bed_wait_answer(b, &a);
}

int bed_volume_attach(struct bed *b, struct sandbox *sb, const char *name, const char *path,
                      bool read_only)
{
	AUTO(json_decrefp)
	json_t *item =
	    json_pack("{s:s, s:s, s:b}", "name", name, "path", path, "read_only", read_only);
	struct bed_answer a = {.bed = b};

	volume_attach(b->host, sb, item, bed_answered, &a);
	return bed_wait_answer(b, &a);
}

int bed_volume_detach(struct bed *b, struct sandbox *sb, const char *name, bool force)
{
	struct bed_answer a = {.bed = b};

	volume_detach(b->host, sb, name, force, bed_answered, &a);
	return bed_wait_answer(b, &a);
}

/* ---- what is inside ---- */

void bed_remember(struct sandbox *sb, unsigned slot, const char *text)
{
	char words[64] = "";

	snprintf(words, sizeof(words), "%s", text);
	fake_poke(sb->pid, SLOTS_AT + (uint64_t)slot * MAP_PAGE, words, sizeof(words));
}

void bed_recall(struct sandbox *sb, unsigned slot, char ret[64])
{
	fake_peek(sb->pid, SLOTS_AT + (uint64_t)slot * MAP_PAGE, ret, 64);
	ret[63] = 0;
}

static char *inside; /* what was read last */

static int guest_open(struct bed *b, struct sandbox *sb, struct guest **ret)
{
	int r = machine_guest(&b->host->machines, sb->machine, ret, &b->err);

	if (r == 0)
		guest_set_deadline(*ret, BED_PATIENCE_MS);
	return r;
}

int bed_write(struct bed *b, struct sandbox *sb, const char *path, const char *text)
{
	struct guest *g;
	int r = guest_open(b, sb, &g);

	if (r < 0)
		return r;
	r = guest_write_file(g, path, text, strlen(text), WIRE_WRITE_PARENTS, 0, &b->err);
	guest_free(g);
	return r;
}

static char *inside_take(char *p)
{
	free(inside);
	return inside = p;
}

const char *bed_read(struct bed *b, struct sandbox *sb, const char *path)
{
	char *text = NULL;
	struct guest *g;

	if (guest_open(b, sb, &g) < 0)
		return NULL;
	if (guest_read_file(g, path, 1 << 20, &text, NULL, &b->err) < 0)
		text = NULL;
	guest_free(g);
	return inside_take(text);
}

static void collect(void *arg, uint8_t chan, const void *p, size_t n)
{
	char **text = arg;
	char *all = NULL;

	if (asprintf(&all, "%s%.*s", *text ? *text : "", (int)n, (const char *)p) < 0)
		abort();
	free(*text);
	*text = all;
}

int bed_exec(struct bed *b, struct sandbox *sb, const char *script, const char **ret_out)
{
	char *text = NULL;
	struct guest_exec x = {.script = script, .output = collect, .arg = &text};
	struct guest_exit end;
	struct guest *g;
	int r = guest_open(b, sb, &g);

	if (r < 0)
		return r;
	r = guest_exec_wait(g, &x, &end, &b->err);
	guest_free(g);
	inside_take(text ? text : strdup(""));
	if (ret_out)
		*ret_out = inside;
	return r < 0 ? r : end.signaled ? 1000 + end.code : end.code;
}

/* ---- its guests ---- */

void bed_rule(struct bed *b, const char *heading, const char *json)
{
	json_t *all = json_load_file(b->rules, 0, NULL);
	autofree char *text = NULL;

	if (!all)
		all = json_object();
	if (json) {
		json_t *rule = json_loads(json, 0, NULL);

		assert_non_null(rule);
		json_object_set_new(all, heading, rule);
	} else {
		json_object_del(all, heading);
	}
	text = json_dumps(all, JSON_COMPACT);
	assert_int_equal(io_replace_file(AT_FDCWD, b->rules, text, strlen(text), 0600, false), 0);
	json_decref(all);
}

void bed_crash_machine(struct bed *b, struct sandbox *sb)
{
	assert_true(sb->pid > 0);
	assert_int_equal(kill(sb->pid, SIGKILL), 0);
	bed_until(b, sb->pid == 0);
}

/* ---- what is on disk ---- */

unsigned bed_machines(struct bed *b)
{
	char path[120];

	snprintf(path, sizeof(path), "%s/machines", b->run_dir);
	return count_names(path, "");
}

bool bed_stored(struct bed *b, const char *snapshot_id)
{
	char path[240];

	snprintf(path, sizeof(path), "%s/store/snapshots/%s", b->data_dir, snapshot_id);
	return access(path, F_OK) == 0;
}

unsigned bed_snapshots(struct bed *b, const char *prefix)
{
	char path[120];

	snprintf(path, sizeof(path), "%s/store/snapshots", b->data_dir);
	return count_names(path, prefix);
}

/* Children of this process that are no zombies: as subreaper it has those of dead pandads, too. */
unsigned bed_processes(void)
{
	autoclosedir DIR *d = opendir("/proc");
	struct dirent *de;
	unsigned n = 0;

	while (d && (de = readdir(d))) {
		autofree char *text = NULL;
		char path[300], state = 0;
		int parent = 0;
		char *p;

		snprintf(path, sizeof(path), "/proc/%s/stat", de->d_name);
		if (de->d_name[0] < '1' || de->d_name[0] > '9' ||
		    io_read_file(AT_FDCWD, path, 4096, &text, NULL) < 0 ||
		    !(p = strrchr(text, ')')))
			continue;
		if (sscanf(p + 1, " %c %d", &state, &parent) == 2 && parent == getpid() &&
		    state != 'Z' && state != 'X')
			n++;
	}
	return n;
}

static bool sandbox_counts(void *arg, const struct db_sandbox *row)
{
	return ++*(unsigned *)arg, true;
}

static bool snapshot_counts(void *arg, const struct db_snapshot *row)
{
	return ++*(unsigned *)arg, true;
}

static bool volume_counts(void *arg, const struct db_volume *row)
{
	return ++*(unsigned *)arg, true;
}

/* Files of volumes, and the copies that forks have of some. */
static void check_volumes(struct bed *b)
{
	char path[120];
	unsigned rows = 0, unfinished = 0, copies = 0;

	assert_int_equal(db_volumes_ready(b->host->db, volume_counts, &rows, &b->err), 0);
	assert_int_equal(db_volumes_unfinished(b->host->db, volume_counts, &unfinished, &b->err),
	                 0);
	assert_int_equal(unfinished, 0);
	for (struct sandbox *sb = b->host->newest; sb; sb = sb->next) {
		const json_t *v;
		size_t i;

		assert_false(sb->volumes_pending);
		json_array_foreach(sb->spec.volumes, i, v) {
			copies += json_object_get(v, "copy") != NULL;
		}
	}
	snprintf(path, sizeof(path), "%s/volumes", b->data_dir);
	assert_int_equal(count_names(path, "clone-"), copies);
	assert_int_equal(count_names(path, ""), rows + copies);
}

/* A row for each sandbox there is, and one for each snapshot that is no sandbox's or template's. */
static void check_records(struct bed *b)
{
	unsigned sandboxes = 0, snapshots = 0, unfinished = 0;
	struct db *db = b->host->db;

	assert_int_equal(db_sandboxes_each(db, sandbox_counts, &sandboxes, &b->err), 0);
	assert_int_equal(sandboxes, b->host->count);
	assert_int_equal(db_snapshots_unfinished(db, snapshot_counts, &unfinished, &b->err), 0);
	assert_int_equal(unfinished, 0);
	assert_int_equal(db_snapshots_each(db, NULL, NULL, snapshot_counts, &snapshots, &b->err),
	                 0);
	assert_int_equal(bed_snapshots(b, ""), bed_snapshots(b, "hib-") + bed_snapshots(b, "was-") +
	                                           bed_snapshots(b, "tpl-") + snapshots);
}

static bool at_peace(struct bed *b)
{
	for (struct sandbox *sb = b->host->newest; sb; sb = sb->next)
		if (sb->ops)
			return false;
	return b->host->nspare == b->host->config.prepare_ahead && !b->host->preparing;
}

void bed_check_leftovers(struct bed *b)
{
	unsigned alive = 0, asleep = 0, failed = 0;
	char path[120];

	host_fill_spare(b->host); /* what a failure has used up comes with the next sweep only */
	bed_until(b, at_peace(b) && !pool_busy(b->host->pool));
	for (struct sandbox *sb = b->host->newest; sb; sb = sb->next) {
		sandbox_check(sb);
		alive += sb->pid > 0;
		asleep += sb->state == SANDBOX_HIBERNATED;
		failed += sb->state == SANDBOX_FAILED;
	}
	/* One that was made ahead ends with its pandad: a moment later. */
	bed_until(b, bed_processes() == alive + b->host->nspare);
	assert_in_range(bed_machines(b), alive + b->host->nspare, alive + failed + b->host->nspare);
	snprintf(path, sizeof(path), "%s/disks", b->data_dir);
	assert_int_equal(count_names(path, ""), bed_machines(b));
	assert_int_equal(bed_snapshots(b, "hib-"), asleep);
	check_records(b);
	check_volumes(b);
}
