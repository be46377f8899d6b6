/*
 * What is different between two machines, and a child's changes brought to its parent. The files
 * are those of fake guests; how lists are compared is in test_upper.c.
 */
#include "fake/bed.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "host/diff.h"
#include "host/host_internal.h"

struct answer {
	struct bed *bed;
	bool done;
	struct err err;
	json_t *result;
	char said[1024]; /* "+added ~changed -removed", in order */
};

static void on_diff(void *arg, const struct err *e, json_t *result)
{
	struct answer *a = arg;

	a->done = true;
	a->result = result;
	if (e)
		a->err = *e;
	bed_wake(a->bed);
}

static void say(struct answer *a, const char *list, char sign)
{
	const json_t *c;
	size_t i;

	json_array_foreach(json_object_get(a->result, list), i, c) {
		size_t n = strlen(a->said);
		const json_t *path = json_is_string(c) ? c : json_object_get(c, "path");

		snprintf(a->said + n, sizeof(a->said) - n, "%s%c%s", n ? " " : "", sign,
		         json_string_value(path));
	}
}

/* 0 or a negative errno; what it said is in a->said. */
static int answer_wait(struct answer *a)
{
	struct bed *b = a->bed;

	bed_until(b, a->done);
	bed_check(b);
	say(a, "added", '+');
	say(a, "changed", '~');
	say(a, "removed", '-');
	return a->result ? 0 : -a->err.code;
}

static void answer_fini(struct answer *a)
{
	json_decref(a->result);
}

static int diff(struct bed *b, struct sandbox *sb, const struct diff_options *o, char ret[1024])
{
	AUTO(answer_fini) struct answer a = {.bed = b};
	int r;

	host_diff(b->host, sb, o, on_diff, &a);
	r = answer_wait(&a);
	b->err = a.err;
	memcpy(ret, a.said, sizeof(a.said));
	return r;
}

static int merge(struct bed *b, struct sandbox *parent, const char *child, bool theirs, bool dry,
                 char ret[1024])
{
	AUTO(answer_fini) struct answer a = {.bed = b};
	int r;

	host_merge(b->host, parent, child, theirs, dry, on_diff, &a);
	r = answer_wait(&a);
	b->err = a.err;
	say(&a, "conflicts", '!');
	memcpy(ret, a.said, sizeof(a.said));
	return r;
}

static struct sandbox *with_files(struct bed *b)
{
	struct sandbox *sb = bed_create_plain(b);
	uint64_t now;

	assert_int_equal(bed_write(b, sb, "/work/same", "same"), 0);
	assert_int_equal(bed_write(b, sb, "/work/edited", "before"), 0);
	assert_int_equal(bed_write(b, sb, "/work/gone", "soon"), 0);
	/* Since when a child is one is known to the millisecond. */
	now = wall_ms();
	bed_until(b, wall_ms() > now + 1);
	return sb;
}

static void edit(struct bed *b, struct sandbox *sb)
{
	assert_int_equal(bed_write(b, sb, "/work/edited", "behind"), 0); /* of the same size */
	assert_int_equal(bed_write(b, sb, "/work/new", "fresh"), 0);
	assert_int_equal(bed_exec(b, sb, "rm /work/gone", NULL), 0);
}

static void over_its_template_it_has_what_was_written(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = with_files(b);
	struct diff_options o = {0};
	char said[1024];

	assert_int_equal(diff(b, sb, &o, said), 0);
	assert_string_equal(said, "+/work +/work/edited +/work/gone +/work/same +/workspace");
	assert_int_equal(sb->diffs, 0);
	assert_int_equal(sb->busy, 0);
}

static void against_a_snapshot_and_a_checkpoint(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = with_files(b);
	struct diff_options o = {0};
	struct host_snapshot s;
	char id[SANDBOX_ID + 1], said[1024];

	assert_int_equal(bed_snapshot(b, sb, "", &s), 0);
	assert_int_equal(bed_checkpoint(b, sb, "", id), 0);
	edit(b, sb);
	o.other = s.id;
	assert_int_equal(diff(b, sb, &o, said), 0);
	assert_string_equal(said, "+/work/new ~/work/edited -/work/gone");
	o.to_other = true;
	assert_int_equal(diff(b, sb, &o, said), 0);
	assert_string_equal(said, "+/work/gone ~/work/edited -/work/new");
	o.other = id;
	o.to_other = false;
	assert_int_equal(diff(b, sb, &o, said), 0);
	assert_string_equal(said, "+/work/new ~/work/edited -/work/gone");
	bed_check_leftovers(b); /* machines that were started to be asked are gone */
}

static void between_a_parent_and_its_child_even_asleep(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = with_files(b), *child;
	struct diff_options o = {.unified = true};
	char said[1024];

	assert_int_equal(bed_fork(b, sb, 1, &child), 1);
	edit(b, child);
	assert_int_equal(bed_hibernate(b, child), 0);
	assert_int_equal(bed_hibernate(b, sb), 0);
	o.other = sb->id;
	assert_int_equal(diff(b, child, &o, said), 0);
	assert_string_equal(said, "+/work/new ~/work/edited -/work/gone");
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_int_equal(child->state, SANDBOX_RUNNING);
	bed_until(b, !sb->ops && !child->ops);
	bed_check_leftovers(b);
}

/* Another time and the same content is no change. */
static void a_file_that_was_only_touched_is_the_same(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = with_files(b), *child;
	struct diff_options o = {0};
	char said[1024];

	assert_int_equal(bed_fork(b, sb, 1, &child), 1);
	assert_int_equal(bed_write(b, child, "/work/same", "same"), 0);
	o.other = sb->id;
	assert_int_equal(diff(b, child, &o, said), 0);
	assert_string_equal(said, "");
}

static void what_cannot_be_compared_is_told(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = with_files(b);
	struct sandbox_spec spec = bed_spec();
	struct diff_options o = {.other = "00000000-0000-0000-0000-000000000000"};
	char said[1024];

	assert_int_equal(diff(b, sb, &o, said), -ENOENT);
	assert_int_equal(bed_template_save(b, sb, "mine", false), 0);
	snprintf(spec.template, sizeof(spec.template), "mine");
	o.other = bed_create(b, &spec)->id;
	assert_int_equal(diff(b, sb, &o, said), -EBUSY);
	assert_string_equal(b->err.kind, "conflict");
	assert_int_equal(bed_pause(b, sb), 0);
	o.other = NULL;
	assert_int_equal(diff(b, sb, &o, said), -EBUSY);
	assert_string_equal(b->err.kind, "sandbox_paused");
	assert_int_equal(sb->diffs, 0);
	assert_int_equal(sb->busy, 0);
	bed_check_leftovers(b);
}

/* The program in the guest is the guest's: what it says is not believed. */
static void a_guest_that_says_nonsense_fails_the_diff(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = with_files(b);
	struct diff_options o = {0};
	char said[1024];

	bed_rule(b, "refuse", "{\"exec\": {\"err\": 5, \"text\": \"no\"}}");
	assert_int_equal(diff(b, sb, &o, said), -EIO);
	bed_rule(b, "refuse", NULL);
	bed_rule(b, "mood", "{\"*\": \"garbage\"}");
	assert_true(diff(b, sb, &o, said) < 0);
	bed_rule(b, "mood", NULL);
	assert_int_equal(diff(b, sb, &o, said), 0);
}

static void a_childs_changes_are_brought_to_its_parent(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = with_files(b), *child;
	char said[1024];

	assert_int_equal(bed_fork(b, sb, 1, &child), 1);
	edit(b, child);
	assert_int_equal(merge(b, sb, child->id, false, true, said), 0); /* dry */
	assert_string_equal(said, "+/work/new ~/work/edited -/work/gone");
	assert_string_equal(bed_read(b, sb, "/work/edited"), "before");
	assert_int_equal(merge(b, sb, child->id, false, false, said), 0);
	assert_string_equal(said, "+/work/new ~/work/edited -/work/gone");
	assert_string_equal(bed_read(b, sb, "/work/edited"), "behind");
	assert_string_equal(bed_read(b, sb, "/work/new"), "fresh");
	assert_null(bed_read(b, sb, "/work/gone"));
	assert_string_equal(bed_read(b, sb, "/work/same"), "same");
}

static void what_both_have_changed_is_a_conflict(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = with_files(b), *child;
	char said[1024];

	assert_int_equal(bed_fork(b, sb, 1, &child), 1);
	assert_int_equal(bed_write(b, child, "/work/edited", "the child's"), 0);
	assert_int_equal(bed_write(b, child, "/work/new", "of the child"), 0);
	assert_int_equal(bed_write(b, sb, "/work/edited", "the parent's own"), 0);
	assert_int_equal(merge(b, sb, child->id, false, false, said), 0);
	assert_non_null(strstr(said, "!/work/edited"));
	assert_string_equal(bed_read(b, sb, "/work/edited"), "the parent's own");
	assert_null(bed_read(b, sb, "/work/new")); /* all or nothing */
	assert_int_equal(merge(b, sb, child->id, true, false, said), 0);
	assert_string_equal(bed_read(b, sb, "/work/edited"), "the child's");
	assert_string_equal(bed_read(b, sb, "/work/new"), "of the child");
}

static void only_children_are_merged(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = with_files(b), *other = bed_create_plain(b);
	char said[1024];

	assert_int_equal(merge(b, sb, other->id, false, false, said), -EBUSY);
	assert_string_equal(b->err.kind, "conflict");
	assert_int_equal(merge(b, sb, "none", false, false, said), -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(over_its_template_it_has_what_was_written),
	    bed_test(against_a_snapshot_and_a_checkpoint),
	    bed_test(between_a_parent_and_its_child_even_asleep),
	    bed_test(a_file_that_was_only_touched_is_the_same),
	    bed_test(what_cannot_be_compared_is_told),
	    bed_test(a_guest_that_says_nonsense_fails_the_diff),
	    bed_test(a_childs_changes_are_brought_to_its_parent),
	    bed_test(what_both_have_changed_is_a_conflict),
	    bed_test(only_children_are_merged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
