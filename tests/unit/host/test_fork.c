/*
 * One moment of a sandbox, as children: each has what its parent had, and nothing that came later.
 */
#include "fake/bed.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "host/host_internal.h"

struct forked {
	struct bed *bed;
	bool done;
	size_t n;
	struct err err;
};

static void on_forked(void *arg, const struct err *e, struct host_forked *f)
{
	struct forked *k = arg;

	k->done = true;
	if (e)
		k->err = *e;
	for (size_t i = 0; !e && i < f->count; i++)
		k->n += f->children[i] != NULL;
	bed_wake(k->bed);
}

static void children_have_their_parents_memory_and_files(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *child[3];

	bed_remember(sb, 0, "before");
	assert_int_equal(bed_write(b, sb, "/dev/shm/note", "in memory"), 0);
	assert_int_equal(bed_write(b, sb, "/work/note", "on disk"), 0);
	assert_int_equal(bed_fork(b, sb, 3, child), 3);
	bed_remember(sb, 0, "after");
	assert_int_equal(bed_write(b, sb, "/work/note", "later"), 0);
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(child[i]->state, SANDBOX_RUNNING);
		assert_string_equal(child[i]->parent, sb->id);
		assert_string_equal(child[i]->boot_mode, "fork");
		assert_recalls(child[i], 0, "before");
		assert_string_equal(bed_read(b, child[i], "/dev/shm/note"), "in memory");
		assert_string_equal(bed_read(b, child[i], "/work/note"), "on disk");
	}
	assert_recalls(sb, 0, "after");
	assert_string_equal(bed_read(b, sb, "/work/note"), "later");
	bed_check_leftovers(b);
}

static void siblings_do_not_see_each_other(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *child[2];

	assert_int_equal(bed_fork(b, sb, 2, child), 2);
	bed_remember(child[0], 1, "mine");
	assert_int_equal(bed_write(b, child[0], "/mine", "x"), 0);
	assert_recalls(child[1], 1, "");
	assert_null(bed_read(b, child[1], "/mine"));
	assert_null(bed_read(b, sb, "/mine"));
	/* And of a child a child is made. */
	assert_int_equal(bed_fork(b, child[0], 1, &child[1]), 1);
	assert_recalls(child[1], 1, "mine");
	assert_int_equal(child[1]->generation, child[0]->generation + 1);
}

/* Layers that no page comes from any more are dropped: a line of descent may be long. */
static void a_long_line_of_forks_stays_short_of_layers(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *child;
	struct engine_machine m = ENGINE_MACHINE_EMPTY;

	for (unsigned i = 0; i < 12; i++) {
		char text[16];

		snprintf(text, sizeof(text), "life %u", i);
		bed_remember(sb, 0, text);
		assert_int_equal(bed_write(b, sb, "/work/life", text), 0);
		assert_int_equal(bed_fork(b, sb, 1, &child), 1);
		assert_recalls(child, 0, text);
		assert_string_equal(bed_read(b, child, "/work/life"), text);
		assert_int_equal(bed_kill(b, sb), 0);
		sb = child;
	}
	assert_int_equal(machine_adopt(&b->host->machines, sb->machine, &m, &b->err), 0);
	assert_in_range(m.image.memory.n, 1, 6);
	engine_machine_fini(&m);
}

static void children_outlive_their_parent(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *child;

	bed_remember(sb, 0, "handed down");
	assert_int_equal(bed_fork(b, sb, 1, &child), 1);
	assert_int_equal(bed_kill(b, sb), 0);
	assert_recalls(child, 0, "handed down");
	assert_int_equal(bed_hibernate(b, child), 0);
	assert_int_equal(bed_wake_up(b, child), 0);
	assert_recalls(child, 0, "handed down");
}

static void where_it_comes_from_stands_in_the_metadata(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();
	struct forked k = {.bed = b};
	AUTO(json_decrefp) json_t *more = json_pack("{s:s}", "colour", "blue");
	struct sandbox *sb, *child;
	const json_t *m;

	spec.metadata = json_pack("{s:s, s:s}", "colour", "red", "size", "large");
	sb = bed_create(b, &spec);
	json_decref(spec.metadata);
	assert_non_null(sb);
	host_fork(b->host, sb, 1, more, "a-tree", NULL, on_forked, &k);
	child = b->host->newest;
	bed_until(b, k.done);
	assert_int_equal(k.n, 1);
	m = child->spec.metadata;
	assert_string_equal(json_string_value(json_object_get(m, "parent_id")), sb->id);
	assert_string_equal(json_string_value(json_object_get(m, "colour")), "blue");
	assert_string_equal(json_string_value(json_object_get(m, "size")), "large");
	assert_string_equal(json_string_value(json_object_get(m, "fork_index")), "0");
	assert_string_equal(child->tree, "a-tree");
	assert_string_equal(json_string_value(json_object_get(sb->spec.metadata, "colour")), "red");
}

static void some_may_fail_and_the_others_live(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *child[3];
	size_t alive = 0;

	fake_fail(b->fake, FAKE_CALL_START, 2, EIO);
	assert_int_equal(bed_fork(b, sb, 3, child), 2);
	assert_string_equal(b->err.kind, "fake_failed");
	for (size_t i = 0; i < 3; i++)
		alive += child[i] && child[i]->state == SANDBOX_RUNNING;
	assert_int_equal(alive, 2);
	assert_int_equal(b->host->count, 3);
	bed_check_leftovers(b);
}

static void a_parent_that_cannot_be_sealed_has_no_children_and_goes_on(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *child[2];

	fake_fail(b->fake, FAKE_CALL_SNAPSHOT, 1, EIO);
	assert_int_equal(bed_fork(b, sb, 2, child), 0);
	assert_int_equal(b->host->count, 1);
	assert_int_equal(bed_exec(b, sb, "true", NULL), 0);
	bed_check_leftovers(b);
	assert_int_equal(bed_fork(b, sb, 2, child), 2);
}

static void a_parent_that_stands_still_is_not_forked(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *child;

	assert_int_equal(bed_pause(b, sb), 0);
	assert_int_equal(bed_fork(b, sb, 1, &child), 0);
	assert_string_equal(b->err.kind, "sandbox_paused");
	assert_int_equal(b->host->count, 1);
	bed_crash_machine(b, sb);
	assert_int_equal(bed_fork(b, sb, 1, &child), 0);
	assert_string_equal(b->err.kind, "sandbox_failed");
}

static void a_sleeping_parent_wakes_up_first(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *child[2];

	bed_remember(sb, 3, "dreamt");
	assert_int_equal(bed_hibernate(b, sb), 0);
	assert_int_equal(bed_fork(b, sb, 1, child), 1);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_recalls(child[0], 3, "dreamt");
	/* And when it cannot be woken there are no children, and it sleeps on. */
	assert_int_equal(bed_hibernate(b, sb), 0);
	fake_fail(b->fake, FAKE_CALL_START, 1, EIO);
	assert_int_equal(bed_fork(b, sb, 2, child), 0);
	assert_int_equal(sb->state, SANDBOX_HIBERNATED);
	bed_check_leftovers(b);
}

static void numbers_out_of_range_are_refused(void **state)
{
	static const size_t counts[] = {0, 65, 1 << 20};
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
		struct forked k = {.bed = b};

		host_fork(b->host, sb, counts[i], NULL, NULL, NULL, on_forked, &k);
		assert_true(k.done);
		assert_string_equal(k.err.kind, "bad_request");
	}
	assert_int_equal(b->host->count, 1);
}

static void all_children_count_for_the_quota_before_any_is_made(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct quota quota = {.sandboxes = 3};
	struct forked k = {.bed = b}, ok = {.bed = b};

	host_fork(b->host, sb, 3, NULL, NULL, &quota, on_forked, &k);
	assert_true(k.done);
	assert_string_equal(k.err.kind, "quota_exceeded");
	assert_int_equal(b->host->count, 1);
	host_fork(b->host, sb, 2, NULL, NULL, &quota, on_forked, &ok);
	bed_until(b, ok.done);
	assert_int_equal(ok.n, 2);
}

static void a_child_can_be_killed_before_it_runs(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct forked k = {.bed = b};
	struct bed_answer killed = {.bed = b};

	fake_close(b->fake, FAKE_CALL_START);
	host_fork(b->host, sb, 2, NULL, NULL, NULL, on_forked, &k);
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_START) == 2);
	host_kill(b->host, b->host->newest, "test", bed_answered, &killed);
	fake_open(b->fake, FAKE_CALL_START);
	bed_until(b, k.done && killed.done);
	assert_int_equal(killed.r, 0);
	assert_int_equal(b->host->count, 2);
	bed_check_leftovers(b);
}

static void a_parent_can_be_killed_while_its_children_start(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct forked k = {.bed = b};

	bed_remember(sb, 0, "last words");
	fake_close(b->fake, FAKE_CALL_START);
	host_fork(b->host, sb, 1, NULL, NULL, NULL, on_forked, &k);
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_START) == 1);
	assert_int_equal(bed_kill(b, sb), 0);
	fake_open(b->fake, FAKE_CALL_START);
	bed_until(b, k.done);
	assert_int_equal(k.n, 1);
	assert_int_equal(b->host->count, 1);
	assert_recalls(b->host->newest, 0, "last words");
	bed_check_leftovers(b);
}

static void what_waits_behind_a_fork_has_its_turn_then(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct forked k = {.bed = b};
	struct bed_answer paused = {.bed = b};

	fake_close(b->fake, FAKE_CALL_SNAPSHOT);
	host_fork(b->host, sb, 1, NULL, NULL, NULL, on_forked, &k);
	host_pause(b->host, sb, bed_answered, &paused);
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_SNAPSHOT) == 1);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_false(paused.done);
	fake_open(b->fake, FAKE_CALL_SNAPSHOT);
	bed_until(b, k.done && paused.done);
	assert_int_equal(k.n, 1);
	assert_int_equal(sb->state, SANDBOX_PAUSED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(children_have_their_parents_memory_and_files),
	    bed_test(siblings_do_not_see_each_other),
	    bed_test(a_long_line_of_forks_stays_short_of_layers),
	    bed_test(children_outlive_their_parent),
	    bed_test(where_it_comes_from_stands_in_the_metadata),
	    bed_test(some_may_fail_and_the_others_live),
	    bed_test(a_parent_that_cannot_be_sealed_has_no_children_and_goes_on),
	    bed_test(a_parent_that_stands_still_is_not_forked),
	    bed_test(a_sleeping_parent_wakes_up_first),
	    bed_test(numbers_out_of_range_are_refused),
	    bed_test(all_children_count_for_the_quota_before_any_is_made),
	    bed_test(a_child_can_be_killed_before_it_runs),
	    bed_test(a_parent_can_be_killed_while_its_children_start),
	    bed_test(what_waits_behind_a_fork_has_its_turn_then),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
