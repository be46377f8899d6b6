/*
 * A template from a sandbox: what starts from it is where that one was, and the events that say
 * what was done to whom.
 */
#include "fake/bed.h"

#include <errno.h>
#include <string.h>

#include "base/macro.h"
#include "db/events.h"
#include "host/host_internal.h"

static struct sandbox *create_from(struct bed *b, const char *template)
{
	struct sandbox_spec spec = bed_spec();

	snprintf(spec.template, sizeof(spec.template), "%s", template);
	return bed_create(b, &spec);
}

static void its_sandboxes_start_where_the_other_one_was(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *copy;

	bed_remember(sb, 5, "installed");
	assert_int_equal(bed_write(b, sb, "/work/note", "installed, too"), 0);
	assert_int_equal(bed_template_save(b, sb, "mine", false), 0);
	bed_remember(sb, 5, "later");
	for (unsigned i = 0; i < 2; i++) {
		copy = create_from(b, "mine");
		assert_non_null(copy);
		assert_string_equal(copy->spec.template, "mine");
		assert_int_equal(copy->memory_mb, BED_MEMORY_MB);
		assert_recalls(copy, 5, "installed");
		assert_string_equal(bed_read(b, copy, "/work/note"), "installed, too");
		bed_check_leftovers(b);
		bed_reopen(b); /* and those of the next pandad */
	}
}

static void one_is_replaced_only_when_that_was_asked_for(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *copy;

	bed_remember(sb, 5, "first");
	assert_int_equal(bed_template_save(b, sb, "mine", false), 0);
	bed_remember(sb, 5, "second");
	assert_int_equal(bed_template_save(b, sb, "mine", false), -EEXIST);
	assert_string_equal(b->err.kind, "exists");
	assert_int_equal(bed_snapshots(b, "tpl-"), 2);
	assert_int_equal(bed_template_save(b, sb, "mine", true), 0);
	bed_until(b, bed_snapshots(b, "tpl-") == 2); /* the old bake goes */
	copy = create_from(b, "mine");
	assert_non_null(copy);
	assert_recalls(copy, 5, "second");
	bed_check_leftovers(b);
}

static void that_of_everybody_is_not_replaced(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_true(bed_template_save(b, sb, "base", true) < 0);
	assert_string_equal(b->err.kind, "forbidden");
	assert_int_equal(template_delete(b->host->depot.templates, "t", "base", &b->err), -EPERM);
	assert_true(bed_template_save(b, sb, "no/name", true) < 0);
	assert_string_equal(b->err.kind, "bad_request");
	bed_check_leftovers(b);
}

static void others_do_not_see_it(void **state)
{
	struct bed *b = *state;
	struct templates *ts = b->host->depot.templates;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_template_save(b, sb, "mine", false), 0);
	assert_non_null(template_find(ts, "t", "mine", NULL));
	assert_null(template_find(ts, "other", "mine", NULL));
	assert_int_equal(template_delete(ts, "other", "mine", &b->err), -ENOENT);
}

static void a_deleted_one_takes_no_sandbox_with_it(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *copy;

	bed_remember(sb, 5, "kept");
	assert_int_equal(bed_template_save(b, sb, "mine", false), 0);
	copy = create_from(b, "mine");
	assert_non_null(copy);
	assert_int_equal(template_delete(b->host->depot.templates, "t", "mine", &b->err), 0);
	assert_null(create_from(b, "mine"));
	assert_string_equal(b->err.kind, "template_not_found");
	assert_recalls(copy, 5, "kept");
	assert_int_equal(bed_hibernate(b, copy), 0);
	assert_int_equal(bed_wake_up(b, copy), 0);
	assert_recalls(copy, 5, "kept");
	bed_until(b, bed_snapshots(b, "tpl-") == 1);
	bed_check_leftovers(b);
}

static void one_that_cannot_be_saved_leaves_nothing(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	fake_fail(b->fake, FAKE_CALL_SNAPSHOT, 1, EIO);
	assert_int_equal(bed_template_save(b, sb, "mine", false), -EIO);
	assert_null(template_find(b->host->depot.templates, "t", "mine", NULL));
	assert_int_equal(bed_snapshots(b, "tpl-"), 1);
	assert_int_equal(bed_exec(b, sb, "true", NULL), 0);
	assert_int_equal(bed_volume_create(b, "data", 16), 0);
	assert_int_equal(bed_volume_attach(b, sb, "data", "/data", false), 0);
	assert_int_equal(bed_template_save(b, sb, "mine", false), -EINVAL);
	assert_string_equal(b->err.kind,
	                    "bad_request"); /* its sandboxes would not have the volume */
	bed_check_leftovers(b);
}

static void a_paused_one_stays_paused_and_a_sleeping_one_wakes(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_pause(b, sb), 0);
	assert_int_equal(bed_template_save(b, sb, "paused", false), 0);
	assert_int_equal(sb->state, SANDBOX_PAUSED);
	assert_int_equal(bed_hibernate(b, sb), 0);
	assert_int_equal(bed_template_save(b, sb, "asleep", false), 0);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_non_null(create_from(b, "paused"));
	assert_non_null(create_from(b, "asleep"));
}

static void another_kernel_bakes_it_again_from_its_disk(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *copy;

	bed_remember(sb, 5, "in memory");
	assert_int_equal(bed_write(b, sb, "/work/note", "on disk"), 0);
	assert_int_equal(bed_template_save(b, sb, "mine", false), 0);
	bed_kill(b, sb);
	bed_close_host(b);
	b->engine.kernel = "fake-2";
	bed_open_host(b);
	copy = create_from(b, "mine");
	assert_non_null(copy);
	assert_string_equal(bed_read(b, copy, "/work/note"), "on disk");
	assert_recalls(copy, 5, ""); /* what ran in it does not */
	assert_non_null(
	    json_object_get(template_find(b->host->depot.templates, "t", "mine", NULL)->doc,
	                    "rebaked"));
	bed_check_leftovers(b);
}

/* What is baked for copies that are made ahead was itself started from a bake. */
static void an_engine_that_copies_ahead_has_its_bakes_rehearsed(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb;

	bed_close_host(b);
	b->engine.copies_ahead = true;
	bed_open_host(b);
	sb = bed_create_plain(b);
	/* Booted, rehearsed, created. */
	assert_int_equal(fake_count(b->fake, FAKE_CALL_START), 3);
	assert_int_equal(bed_exec(b, sb, "true", NULL), 0);
	bed_check_leftovers(b);
}

/* ---- events ---- */

struct told {
	size_t n;
	char types[24][32];
};

static bool note_type(void *arg, const struct db_event *row)
{
	struct told *t = arg;

	if (t->n < ARRAY_LEN(t->types))
		snprintf(t->types[t->n++], sizeof(t->types[0]), "%s", row->type);
	return true;
}

static void what_is_done_to_a_sandbox_is_told_in_order(void **state)
{
	static const char *const want[] = {
	    "sandbox.running",     "sandbox.paused",     "sandbox.resumed",
	    "sandbox.snapshotted", "sandbox.hibernated", "sandbox.woken",
	    "sandbox.rewound",     "sandbox.forked",     "vm.died",
	    "sandbox.deleted",
	};
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *child;
	struct told told = {0};
	char id[SANDBOX_ID + 1];

	memcpy(id, sb->id, sizeof(id));
	assert_int_equal(bed_pause(b, sb), 0);
	assert_int_equal(bed_resume(b, sb), 0);
	assert_int_equal(bed_snapshot(b, sb, "", NULL), 0);
	assert_int_equal(bed_hibernate(b, sb), 0);
	assert_int_equal(bed_wake_up(b, sb), 0);
	assert_int_equal(bed_checkpoint(b, sb, "", NULL), 0);
	assert_int_equal(bed_rewind(b, sb, NULL, 1), 0);
	assert_int_equal(bed_fork(b, sb, 1, &child), 1);
	bed_crash_machine(b, sb);
	assert_int_equal(bed_kill(b, sb), 0);
	assert_int_equal(db_events_tail(b->host->db, "t", id, ARRAY_LEN(told.types), note_type,
	                                &told, &b->err),
	                 0);
	for (size_t i = 0; i < MIN(told.n, ARRAY_LEN(want)); i++)
		assert_string_equal(told.types[i], want[i]);
	assert_int_equal(told.n, ARRAY_LEN(want));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(its_sandboxes_start_where_the_other_one_was),
	    bed_test(one_is_replaced_only_when_that_was_asked_for),
	    bed_test(that_of_everybody_is_not_replaced),
	    bed_test(others_do_not_see_it),
	    bed_test(a_deleted_one_takes_no_sandbox_with_it),
	    bed_test(one_that_cannot_be_saved_leaves_nothing),
	    bed_test(a_paused_one_stays_paused_and_a_sleeping_one_wakes),
	    bed_test(another_kernel_bakes_it_again_from_its_disk),
	    bed_test(an_engine_that_copies_ahead_has_its_bakes_rehearsed),
	    bed_test(what_is_done_to_a_sandbox_is_told_in_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
