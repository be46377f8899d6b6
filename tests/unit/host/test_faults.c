/*
 * pandad is killed at each step that has a name (base/fault.h): the next one finds a sandbox that
 * is before or after, nothing that belongs to no record, and a machine that works.
 *
 * Each row of the table is one fault, or the nth time it is passed: what there was before, what
 * pandad was asked when it died, and what the next pandad has to find. tools/check-faults reads the
 * table: a fault without a row fails `make check`.
 */
#include "fake/bed.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/macro.h"
#include "host/archive.h"
#include "host/diff.h"
#include "host/host_internal.h"
#include "host/volume.h"
#include "template/build.h"

struct scene {
	struct bed *b;
	char id[SANDBOX_ID + 1];       /* of the sandbox there was */
	char snapshot[SANDBOX_ID + 1]; /* of its snapshot, where there was one */
};

struct row {
	const char *fault; /* PANDA_FAULT */
	void (*before)(struct scene *s);
	void (*ask)(struct scene *s);
	void (*after)(struct scene *s);
};

static struct sandbox *scene_sandbox(struct scene *s)
{
	return bed_find(s->b, s->id);
}

/* ---- what there was ---- */

static void there_is_nothing(struct scene *s)
{
}

static void there_is_a_sandbox(struct scene *s)
{
	struct sandbox *sb = bed_create_plain(s->b);

	memcpy(s->id, sb->id, sizeof(s->id));
	bed_remember(sb, 0, "before");
	assert_int_equal(bed_write(s->b, sb, "/work/note", "before"), 0);
}

static void there_is_a_paused_one(struct scene *s)
{
	there_is_a_sandbox(s);
	assert_int_equal(bed_pause(s->b, scene_sandbox(s)), 0);
}

static void there_is_a_sleeping_one(struct scene *s)
{
	there_is_a_sandbox(s);
	assert_int_equal(bed_hibernate(s->b, scene_sandbox(s)), 0);
}

static void there_is_a_snapshot(struct scene *s)
{
	struct host_snapshot snap;

	there_is_a_sandbox(s);
	assert_int_equal(bed_snapshot(s->b, scene_sandbox(s), "", &snap), 0);
	memcpy(s->snapshot, snap.id, sizeof(s->snapshot));
}

static void there_is_a_volume(struct scene *s)
{
	there_is_a_sandbox(s);
	assert_int_equal(bed_volume_create(s->b, "data", 16), 0);
}

static void there_is_an_attached_volume(struct scene *s)
{
	there_is_a_volume(s);
	assert_int_equal(bed_volume_attach(s->b, scene_sandbox(s), "data", "/data", false), 0);
	assert_int_equal(bed_write(s->b, scene_sandbox(s), "/data/note", "kept"), 0);
}

static void there_is_a_template_of_ours(struct scene *s)
{
	there_is_a_sandbox(s);
	assert_int_equal(bed_template_save(s->b, scene_sandbox(s), "mine", false), 0);
}

/* And the next pandad has another guest kernel. */
static void there_is_a_template_of_an_older_kernel(struct scene *s)
{
	there_is_a_template_of_ours(s);
	bed_kill(s->b, scene_sandbox(s));
	s->b->engine.kernel = "fake-2";
}

/* ---- what was asked ---- */

static void ask_create(struct scene *s)
{
	bed_create_plain(s->b);
}

static void ask_fork(struct scene *s)
{
	struct sandbox *children[2];

	bed_fork(s->b, scene_sandbox(s), 2, children);
}

static void ask_snapshot(struct scene *s)
{
	bed_snapshot(s->b, scene_sandbox(s), "", NULL);
}

static void ask_forget(struct scene *s)
{
	bed_snapshot_delete(s->b, s->snapshot);
}

static void ask_hibernate(struct scene *s)
{
	bed_hibernate(s->b, scene_sandbox(s));
}

static void ask_wake(struct scene *s)
{
	struct sandbox *sb = scene_sandbox(s);

	bed_wake_up(s->b, sb);
	bed_until(s->b, !sb->ops); /* what comes after the answer */
}

static void ask_pause(struct scene *s)
{
	bed_pause(s->b, scene_sandbox(s));
}

static void ask_resume(struct scene *s)
{
	bed_resume(s->b, scene_sandbox(s));
}

static void ask_kill(struct scene *s)
{
	bed_kill(s->b, scene_sandbox(s));
}

static void ask_checkpoint(struct scene *s)
{
	bed_checkpoint(s->b, scene_sandbox(s), "", NULL);
}

static void ask_rewind(struct scene *s)
{
	struct sandbox *sb = scene_sandbox(s);

	assert_int_equal(bed_checkpoint(s->b, sb, "here", NULL), 0);
	bed_remember(sb, 0, "later");
	assert_int_equal(bed_write(s->b, sb, "/work/note", "later"), 0);
	if (sb->spec.volumes)
		assert_int_equal(bed_write(s->b, sb, "/data/note", "later"), 0);
	bed_rewind(s->b, sb, "here", 0);
	bed_until(s->b, !sb->ops);
}

static void ignore_diff(void *arg, const struct err *e, json_t *result)
{
	json_decref(result);
	*(bool *)arg = true;
}

static void ask_diff(struct scene *s)
{
	struct diff_options o = {.other = s->snapshot};
	bool done = false;

	host_diff(s->b->host, scene_sandbox(s), &o, ignore_diff, &done);
	bed_until(s->b, done);
}

static void ask_import(struct scene *s)
{
	struct host *h = s->b->host;
	struct host_snapshot snap;
	struct parcel_out *out;
	struct parcel_in *in;
	char id[SANDBOX_ID + 1], buf[65536];
	struct err e;
	ssize_t n;

	assert_int_equal(host_snapshot_get(h, "t", s->snapshot, &snap, &e), 0);
	assert_int_equal(parcel_open(h, &snap, &out, &e), 0);
	assert_int_equal(host_import_begin(h, "t", NULL, id, &e), 0);
	assert_int_equal(parcel_begin(h, id, false, &in, &e), 0);
	while ((n = parcel_read(out, buf, sizeof(buf))) > 0)
		assert_int_equal(parcel_feed(in, buf, (size_t)n, &e), 0);
	assert_int_equal(parcel_end(in, &snap, &e), 0);
	memcpy(snap.id, id, sizeof(id));
	host_import_end(h, &snap, &e);
}

static void ask_volume(struct scene *s)
{
	bed_volume_create(s->b, "data", 16);
}

static void ask_volume_delete(struct scene *s)
{
	bed_volume_delete(s->b, "data");
}

static void ask_attach(struct scene *s)
{
	bed_volume_attach(s->b, scene_sandbox(s), "data", "/data", false);
}

static void ask_detach(struct scene *s)
{
	bed_volume_detach(s->b, scene_sandbox(s), "data", false);
}

static void ask_resize(struct scene *s)
{
	bed_volume_resize(s->b, "data", 32);
}

static void ask_copy(struct scene *s)
{
	bed_volume_copy(s->b, "data", "copy", false);
}

static void ask_template(struct scene *s)
{
	bed_template_save(s->b, scene_sandbox(s), "mine", false);
}

static void ask_template_delete(struct scene *s)
{
	template_delete(s->b->host->depot.templates, "t", "mine", &s->b->err);
}

static void ask_create_from_ours(struct scene *s)
{
	struct sandbox_spec spec = bed_spec();

	snprintf(spec.template, sizeof(spec.template), "mine");
	bed_create(s->b, &spec);
}

static void build(struct scene *s, const char *text)
{
	struct host *h = s->b->host;
	struct build_order *o;
	struct build_info info;
	struct err e;

	assert_int_equal(build_order_new(&h->depot, "t", &o, &e), 0);
	snprintf(o->info.name, sizeof(o->info.name), "built");
	o->dockerfile = strdup(text);
	o->dockerfile_len = strlen(text);
	assert_int_equal(build_order_complete(o, &e), 0);
	if (build_submit(o, &info, &e) < 0)
		fail_msg("%s", e.text);
	bed_until(s->b, build_get(templates_builds(h->depot.templates), "t", info.id, &info) &&
	                    (info.status == BUILD_DONE || info.status == BUILD_FAILED));
	if (info.status == BUILD_FAILED)
		fail_msg("%s", info.error);
}

static void ask_build(struct scene *s)
{
	build(s, "FROM base\nRUN true\n");
}

/* The program that unpacks is none of a fake guest's: it says that it has. */
static void ask_build_of_a_root(struct scene *s)
{
	bed_rule(s->b, "exec", "{\"python3\": {\"code\": 0}}");
	build(s, "FROM scratch\nENV A=1\n");
}

static void ask_nothing(struct scene *s)
{
	bed_until(s->b, s->b->host->nspare > 0);
}

/* ---- what the next pandad finds ---- */

static void nothing_is_there(struct scene *s)
{
	assert_int_equal(s->b->host->count, 0);
}

/* The sandbox and its memory are as they were, and it answers. */
static void expect_awake(struct scene *s, const char *memory)
{
	struct sandbox *sb = scene_sandbox(s);

	assert_int_equal(s->b->host->count, 1);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_recalls(sb, 0, memory);
	assert_string_equal(bed_read(s->b, sb, "/work/note"), memory);
	assert_int_equal(bed_exec(s->b, sb, "exit 7", NULL), 7);
}

static void it_goes_on(struct scene *s)
{
	expect_awake(s, "before");
}

static void it_goes_on_and_can_be_saved(struct scene *s)
{
	struct sandbox *child;

	it_goes_on(s);
	assert_int_equal(bed_fork(s->b, scene_sandbox(s), 1, &child), 1);
	assert_recalls(child, 0, "before");
	assert_int_equal(bed_kill(s->b, child), 0);
}

static void it_has_no_snapshot(struct scene *s)
{
	struct host_snapshot snap;

	it_goes_on_and_can_be_saved(s);
	assert_int_equal(bed_snapshots(s->b, ""), bed_snapshots(s->b, "tpl-"));
	if (s->snapshot[0])
		assert_int_equal(host_snapshot_get(s->b->host, "t", s->snapshot, &snap, &s->b->err),
		                 -ENOENT);
}

static void it_has_one_snapshot(struct scene *s)
{
	it_goes_on_and_can_be_saved(s);
	assert_int_equal(bed_snapshots(s->b, ""), 1 + bed_snapshots(s->b, "tpl-"));
	assert_true(bed_stored(s->b, s->snapshot));
}

static void it_sleeps(struct scene *s)
{
	struct sandbox *sb = scene_sandbox(s);

	assert_int_equal(sb->state, SANDBOX_HIBERNATED);
	assert_int_equal(bed_wake_up(s->b, sb), 0);
	it_goes_on(s);
	bed_until(s->b, !sb->ops);
}

static void it_is_paused(struct scene *s)
{
	struct sandbox *sb = scene_sandbox(s);

	assert_int_equal(sb->state, SANDBOX_PAUSED);
	assert_int_equal(bed_resume(s->b, sb), 0);
	it_goes_on(s);
}

static void it_was_not_put_back(struct scene *s)
{
	expect_awake(s, "later");
}

static void it_was_put_back(struct scene *s)
{
	expect_awake(s, "before");
	/* Volumes do not go back, and are there. */
	if (scene_sandbox(s)->spec.volumes)
		assert_string_equal(bed_read(s->b, scene_sandbox(s), "/data/note"), "later");
}

static void the_template_can_be_baked(struct scene *s)
{
	struct sandbox *sb;

	nothing_is_there(s);
	sb = bed_create_plain(s->b);
	assert_int_equal(bed_kill(s->b, sb), 0);
	assert_int_equal(bed_snapshots(s->b, "tpl-"), 1);
}

static void create_from_ours(struct scene *s)
{
	struct sandbox_spec spec = bed_spec();
	struct sandbox *sb;

	snprintf(spec.template, sizeof(spec.template), "mine");
	sb = bed_create(s->b, &spec);
	if (!sb)
		fail_msg("create: %s", s->b->err.text);
	assert_string_equal(bed_read(s->b, sb, "/work/note"), "before");
	assert_int_equal(bed_kill(s->b, sb), 0);
}

static void our_template_works(struct scene *s)
{
	create_from_ours(s);
	assert_non_null(template_find(s->b->host->depot.templates, "t", "mine", NULL));
	/* The host's own bake, when it was made, and ours. */
	assert_in_range(bed_snapshots(s->b, "tpl-"), 1, 2);
}

static void our_template_is_there(struct scene *s)
{
	it_goes_on_and_can_be_saved(s);
	our_template_works(s);
	assert_int_equal(bed_snapshots(s->b, "tpl-"), 2);
}

static void our_template_is_not_there(struct scene *s)
{
	it_goes_on_and_can_be_saved(s);
	assert_null(template_find(s->b->host->depot.templates, "t", "mine", NULL));
	assert_int_equal(bed_snapshots(s->b, "tpl-"), 1);
}

static void no_build_is_there(struct scene *s)
{
	assert_null(template_find(s->b->host->depot.templates, "t", "built", NULL));
	ask_build(s);
	assert_non_null(template_find(s->b->host->depot.templates, "t", "built", NULL));
}

static void expect_volume(struct scene *s, const char *name, uint64_t mb)
{
	struct volume_info v;

	if (!mb) {
		assert_int_equal(volume_get(s->b->host, "t", name, &v, &s->b->err), -ENOENT);
		return;
	}
	assert_int_equal(volume_get(s->b->host, "t", name, &v, &s->b->err), 0);
	assert_int_equal(v.size_bytes, mb << 20);
}

static void no_volume_is_there(struct scene *s)
{
	expect_volume(s, "data", 0);
	assert_int_equal(bed_volume_create(s->b, "data", 16), 0);
	assert_int_equal(bed_volume_delete(s->b, "data"), 0);
}

static void the_volume_is_attached(struct scene *s)
{
	struct sandbox *sb = scene_sandbox(s);

	it_goes_on(s);
	assert_int_equal(json_array_size(sb->spec.volumes), 1);
	assert_int_equal(bed_write(s->b, sb, "/data/more", "works"), 0);
	assert_string_equal(bed_read(s->b, sb, "/data/more"), "works");
	assert_int_equal(bed_volume_detach(s->b, sb, "data", false), 0);
	assert_null(bed_read(s->b, sb, "/data/more"));
}

static void the_volume_is_as_it_was(struct scene *s)
{
	assert_string_equal(bed_read(s->b, scene_sandbox(s), "/data/note"), "kept");
	expect_volume(s, "data", 16);
	the_volume_is_attached(s);
}

static void the_volume_has_grown(struct scene *s)
{
	expect_volume(s, "data", 32);
	the_volume_is_attached(s);
}

static void there_is_no_copy(struct scene *s)
{
	expect_volume(s, "copy", 0);
	the_volume_is_as_it_was(s);
}

/* ---- the table ---- */

static const struct row rows[] = {
    {"create.recorded", there_is_a_sandbox, ask_create, it_goes_on},
    {"create.started", there_is_a_sandbox, ask_create, it_goes_on},
    {"fork.recorded", there_is_a_sandbox, ask_fork, it_goes_on_and_can_be_saved},
    {"fork.sealed", there_is_a_sandbox, ask_fork, it_goes_on_and_can_be_saved},
    {"fork.started", there_is_a_sandbox, ask_fork, it_goes_on_and_can_be_saved},
    {"snapshot.recorded", there_is_a_sandbox, ask_snapshot, it_has_no_snapshot},
    {"snapshot.sealed", there_is_a_sandbox, ask_snapshot, it_has_no_snapshot},
    {"snapshot.saved", there_is_a_sandbox, ask_snapshot, it_has_no_snapshot},
    {"forget.recorded", there_is_a_snapshot, ask_forget, it_has_no_snapshot},
    {"forget.deleted", there_is_a_snapshot, ask_forget, it_has_no_snapshot},
    {"hibernate.recorded", there_is_a_sandbox, ask_hibernate, it_goes_on_and_can_be_saved},
    {"hibernate.paused", there_is_a_sandbox, ask_hibernate, it_goes_on_and_can_be_saved},
    {"hibernate.sealed", there_is_a_sandbox, ask_hibernate, it_goes_on_and_can_be_saved},
    {"hibernate.saved", there_is_a_sandbox, ask_hibernate, it_sleeps},
    {"hibernate.stopped", there_is_a_sandbox, ask_hibernate, it_sleeps},
    {"wake.recorded", there_is_a_sleeping_one, ask_wake, it_sleeps},
    {"wake.started", there_is_a_sleeping_one, ask_wake, it_sleeps},
    {"wake.running", there_is_a_sleeping_one, ask_wake, it_goes_on_and_can_be_saved},
    {"wake.kept", there_is_a_sleeping_one, ask_wake, it_goes_on_and_can_be_saved},
    {"pause.done", there_is_a_sandbox, ask_pause, it_is_paused},
    {"resume.done", there_is_a_paused_one, ask_resume, it_is_paused},
    {"kill.recorded", there_is_a_sandbox, ask_kill, nothing_is_there},
    {"kill.stopped", there_is_a_sandbox, ask_kill, nothing_is_there},
    {"kill.cleaned", there_is_a_sandbox, ask_kill, nothing_is_there},
    {"kill.recorded", there_is_a_sleeping_one, ask_kill, nothing_is_there},
    {"kill.stopped", there_is_a_sleeping_one, ask_kill, nothing_is_there},
    {"checkpoint.sealed", there_is_a_sandbox, ask_checkpoint, it_goes_on_and_can_be_saved},
    {"diff.started", there_is_a_snapshot, ask_diff, it_has_one_snapshot},
    {"import.recorded", there_is_a_snapshot, ask_import, it_has_one_snapshot},
    {"import.verified", there_is_a_snapshot, ask_import, it_has_one_snapshot},
    {"rewind.begun", there_is_a_sandbox, ask_rewind, it_was_not_put_back},
    {"rewind.started", there_is_a_sandbox, ask_rewind, it_was_not_put_back},
    {"rewind.recorded", there_is_a_sandbox, ask_rewind, it_was_put_back},
    {"rewind.stopped", there_is_a_sandbox, ask_rewind, it_was_put_back},
    {"rewind.cleaned", there_is_a_sandbox, ask_rewind, it_was_put_back},
    {"rewind.started", there_is_an_attached_volume, ask_rewind, it_was_not_put_back},
    {"rewind.recorded", there_is_an_attached_volume, ask_rewind, it_was_put_back},
    {"rewind.stopped", there_is_an_attached_volume, ask_rewind, it_was_put_back},
    {"rewind.cleaned", there_is_an_attached_volume, ask_rewind, it_was_put_back},
    {"bake.booted", there_is_nothing, ask_create, the_template_can_be_baked},
    {"bake.sealed", there_is_nothing, ask_create, the_template_can_be_baked},
    {"bake.saved", there_is_nothing, ask_create, the_template_can_be_baked},
    {"rebake.booted", there_is_a_template_of_an_older_kernel, ask_create_from_ours,
     our_template_works},
    {"rebake.saved", there_is_a_template_of_an_older_kernel, ask_create_from_ours,
     our_template_works},
    {"rebake.put", there_is_a_template_of_an_older_kernel, ask_create_from_ours,
     our_template_works},
    {"build.kept", there_is_a_sandbox, ask_build, no_build_is_there},
    {"build.baked", there_is_a_sandbox, ask_build, no_build_is_there},
    {"unpack.done", there_is_a_sandbox, ask_build_of_a_root, no_build_is_there},
    {"save.sealed", there_is_a_sandbox, ask_template, our_template_is_not_there},
    {"save.saved", there_is_a_sandbox, ask_template, our_template_is_not_there},
    {"save.written", there_is_a_sandbox, ask_template, our_template_is_not_there},
    {"save.put", there_is_a_sandbox, ask_template, our_template_is_there},
    {"save.unlinked", there_is_a_template_of_ours, ask_template_delete, our_template_is_not_there},
    {"volume.recorded", there_is_nothing, ask_volume, no_volume_is_there},
    {"volume.made", there_is_nothing, ask_volume, no_volume_is_there},
    {"volume.delete_recorded", there_is_a_volume, ask_volume_delete, no_volume_is_there},
    {"attach.recorded", there_is_a_volume, ask_attach, the_volume_is_attached},
    {"attach.done", there_is_a_volume, ask_attach, the_volume_is_attached},
    {"detach.recorded", there_is_an_attached_volume, ask_detach, the_volume_is_as_it_was},
    {"detach.done", there_is_an_attached_volume, ask_detach, the_volume_is_as_it_was},
    {"resize.grown", there_is_an_attached_volume, ask_resize, the_volume_is_as_it_was},
    {"resize.recorded", there_is_an_attached_volume, ask_resize, the_volume_has_grown},
    {"resize.done", there_is_an_attached_volume, ask_resize, the_volume_has_grown},
    {"copy.recorded", there_is_an_attached_volume, ask_copy, there_is_no_copy},
    {"copy.made", there_is_an_attached_volume, ask_copy, there_is_no_copy},
    {"prepare.done", there_is_a_sandbox, ask_nothing, it_goes_on},
};

struct ask {
	const struct row *row;
	struct scene *scene;
};

static void ask_in_child(struct bed *b, void *arg)
{
	struct ask *a = arg;

	a->row->ask(a->scene);
}

static void the_next_pandad_finds_it_before_or_after(void **state)
{
	const struct row *row = *state;
	struct bed b;
	struct scene s = {.b = &b};
	struct ask ask = {row, &s};

	bed_make(&b);
	bed_open_host(&b);
	row->before(&s);
	bed_close_host(&b);
	if (!bed_in_child(&b, row->fault, ask_in_child, &ask))
		fail_msg("it was not killed: nothing passes %s", row->fault);
	bed_open_host(&b);
	row->after(&s);
	bed_check_leftovers(&b);
	/* Once more: what one pandad has mended, the next one leaves as it is. */
	bed_reopen(&b);
	bed_check_leftovers(&b);
	bed_empty(&b);
	bed_free(&b);
}

static void every_fault_has_a_row(void **state)
{
	for (size_t f = 0; fault_names[f]; f++) {
		bool found = false;

		for (size_t i = 0; i < ARRAY_LEN(rows); i++)
			found = found || !strcmp(rows[i].fault, fault_names[f]);
		if (!found)
			fail_msg("no row says what is to be found after %s", fault_names[f]);
	}
}

int main(int argc, char **argv)
{
	struct CMUnitTest tests[ARRAY_LEN(rows) + 1] = {cmocka_unit_test(every_fault_has_a_row)};
	size_t n = 1;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) /* or only those named so */
		if (argc < 2 || !strncmp(rows[i].fault, argv[1], strlen(argv[1])))
			tests[n++] =
			    (struct CMUnitTest){.name = rows[i].fault,
			                        .test_func =
			                            the_next_pandad_finds_it_before_or_after,
			                        .initial_state = (void *)&rows[i]};
	return _cmocka_run_group_tests("faults", tests, n, NULL, NULL);
}
