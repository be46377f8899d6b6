#include "fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fault.h"
#include "power.h"

enum {
	NTH_MAX = 2000 /* more than any of these needs: a test that never ends fails instead */
};

static int try_write(struct fixture *f, struct err *e)
{
	return snapshot_write(&f->store, "one", &f->manifest, &f->memory, f->disks, f->state, e);
}

static void drop(struct fixture *f)
{
	struct err e;

	assert_int_equal(snapshot_delete(&f->store, "one", &e), 0);
	assert_int_equal(snapshot_gc(&f->store, NULL, NULL), 0);
	assert_int_equal(count_entries(f->store.snapshots), 0);
}

static void a_write_that_fails_leaves_nothing_and_can_be_repeated(enum fault what, void **state)
{
	struct fixture *f = *state;
	struct err e;
	int nth, r;

	for (nth = 1; nth < NTH_MAX; nth++) {
		fixture_forget_digests(f);
		e = (struct err){0};
		fault_arm(what, nth);
		r = try_write(f, &e);
		if (!fault_fired())
			break;
		if (r < 0) {
			const char *kind = what == FAULT_ALLOC   ? "no_memory"
			                   : what == FAULT_SPACE ? "snapshot_no_space"
			                                         : "snapshot_io";

			assert_string_equal(e.kind, kind);
			assert_int_equal(r, -e.code);
			assert_int_equal(count_entries(f->store.snapshots), 0);
			fixture_write(f, "one");
		} /* else it found another way, as with a copy where a link was not to be had */
		fixture_check(f, "one");
		drop(f);
	}
	assert_in_range(nth, 20, NTH_MAX - 1);
	assert_int_equal(r, 0);
	fixture_check(f, "one");
}

static void writing_survives_failing_allocations(void **state)
{
	a_write_that_fails_leaves_nothing_and_can_be_repeated(FAULT_ALLOC, state);
}

static void writing_survives_failing_calls(void **state)
{
	a_write_that_fails_leaves_nothing_and_can_be_repeated(FAULT_CALL, state);
}

static void writing_survives_a_full_disk_at_any_call(void **state)
{
	a_write_that_fails_leaves_nothing_and_can_be_repeated(FAULT_SPACE, state);
}

static void loading_fails_cleanly(enum fault what, void **state)
{
	struct fixture *f = *state;
	int nth, r;

	fixture_write(f, "one");
	for (nth = 1; nth < NTH_MAX; nth++) {
		struct snapshot *s = NULL;
		struct err e = {0};

		fault_arm(what, nth);
		r = snapshot_load(&f->store, "one", &f->host, SNAPSHOT_FULL, &s, &e);
		if (!fault_fired()) {
			assert_int_equal(r, 0);
			snapshot_free(s);
			break;
		}
		if (r == 0) { /* a second try helped */
			fixture_same(f, s);
			snapshot_free(s);
			continue;
		}
		assert_null(s);
		assert_string_equal(e.kind, what == FAULT_ALLOC ? "no_memory" : "snapshot_io");
	}
	assert_in_range(nth, 20, NTH_MAX - 1);
}

static void loading_survives_failing_allocations(void **state)
{
	loading_fails_cleanly(FAULT_ALLOC, state);
}

static void loading_survives_failing_calls(void **state)
{
	loading_fails_cleanly(FAULT_CALL, state);
}

static void compressed_forms_survive_it_too(void **state)
{
	struct fixture *f = *state;

	f->store.form = LAYER_SQUASHED;
	for (enum fault what = FAULT_ALLOC; what <= FAULT_SPACE; what++) {
		a_write_that_fails_leaves_nothing_and_can_be_repeated(what, state);
		drop(f);
		fixture_forget_digests(f);
	}
	for (enum fault what = FAULT_ALLOC; what <= FAULT_CALL; what++) {
		loading_fails_cleanly(what, state);
		drop(f);
	}
}

/* Runs snapshot_write() in a child that dies or stops before its nth call. */
static pid_t write_in_child(struct fixture *f, enum fault what, int nth, int *status)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		fault_arm(what, nth);
		_exit(try_write(f, NULL) == 0 ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, status, WUNTRACED), pid);
	return pid;
}

static bool snapshot_there(struct fixture *f)
{
	struct snapshot *s = NULL;
	struct err e = {0};
	int r = snapshot_load(&f->store, "one", &f->host, SNAPSHOT_FULL, &s, &e);

	snapshot_free(s);
	if (r < 0)
		assert_string_equal(e.kind, "snapshot_not_found"); /* all or nothing */
	return r == 0;
}

static void a_writer_killed_anywhere_leaves_all_or_nothing(void **state)
{
	struct fixture *f = *state;
	unsigned left_behind = 0, there = 0;
	int nth, status;

	for (nth = 1; nth < NTH_MAX; nth++) {
		unsigned dirs = 0;

		write_in_child(f, FAULT_KILL, nth, &status);
		if (WIFEXITED(status))
			break;
		assert_int_equal(WTERMSIG(status), SIGKILL);
		if (snapshot_there(f)) {
			there++;
		} else {
			assert_int_equal(snapshot_gc(&f->store, &dirs, NULL), 0);
			left_behind += dirs;
			assert_int_equal(count_entries(f->store.snapshots), 0);
			/* The machine still has its disk layer: then it may stay in layers/ too. */
			assert_in_range(count_entries(f->store.layers), 0, 1);
			fixture_write(f, "one");
			fixture_forget_digests(f);
		}
		fixture_check(f, "one");
		drop(f);
	}
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_in_range(nth, 20, NTH_MAX - 1);
	assert_in_range(left_behind, 10, NTH_MAX); /* the test did hit the middle */
	assert_in_range(there, 1, 3);              /* and the few calls behind the rename */
}

static void gc_beside_a_writer_stopped_anywhere_breaks_nothing(void **state)
{
	struct fixture *f = *state;
	int nth, status;

	for (nth = 1; nth < NTH_MAX; nth++) {
		pid_t pid = write_in_child(f, FAULT_STOP, nth, &status);

		if (WIFEXITED(status))
			break;
		assert_true(WIFSTOPPED(status));
		assert_int_equal(snapshot_gc(&f->store, NULL, NULL), 0);
		assert_int_equal(kill(pid, SIGCONT), 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
		fixture_check(f, "one");
		drop(f);
	}
	assert_in_range(nth, 20, NTH_MAX - 1);
}

/* What is left must be one of the two, and a place to go on from. */
static void a_writer_whose_power_is_cut_anywhere(void **state, enum cut how)
{
	struct fixture *f = *state;
	unsigned there = 0, gone = 0;
	int nth, status;

	for (nth = 1; nth < NTH_MAX; nth++) {
		power_watch(f->path);
		write_in_child(f, FAULT_KILL, nth, &status);
		if (WIFEXITED(status)) { /* it has answered: that must hold without power, too */
			assert_int_equal(WEXITSTATUS(status), 0);
			power_cut(how);
			assert_true(snapshot_there(f));
			power_end();
			break;
		}
		power_cut(how);
		power_end();
		if (snapshot_there(f)) {
			there++;
			fixture_check(f, "one");
		} else {
			gone++;
			assert_int_equal(snapshot_gc(&f->store, NULL, NULL), 0);
			fixture_write(f, "one");
			fixture_forget_digests(f);
		}
		fixture_check(f, "one");
		drop(f);
	}
	assert_in_range(nth, 20, NTH_MAX - 1);
	assert_in_range(gone, 20, NTH_MAX);
	fixture_check(f, "one");
}

static void a_power_cut_anywhere_leaves_all_or_nothing(void **state)
{
	a_writer_whose_power_is_cut_anywhere(state, CUT_ALL);
}

static void bytes_that_were_not_synced_are_missed_by_nobody(void **state)
{
	a_writer_whose_power_is_cut_anywhere(state, CUT_BYTES);
}

static void compressed_too(void **state)
{
	struct fixture *f = *state;

	f->store.form = LAYER_SQUASHED;
	a_writer_whose_power_is_cut_anywhere(state, CUT_BYTES);
}

/* Runs delete and gc in a child that dies before its nth call. */
static void delete_in_child(struct fixture *f, int nth, int *status)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		fault_arm(FAULT_KILL, nth);
		snapshot_delete(&f->store, "one", NULL);
		snapshot_gc(&f->store, NULL, NULL);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, status, 0), pid);
}

/* CUTS: only the process dies. */
static void deleting_and_collecting_killed_anywhere(void **state, enum cut how)
{
	struct fixture *f = *state;
	unsigned before;
	int nth, status = 0;

	fixture_write(f, "two"); /* shares all layers, and must not notice */
	before = count_entries(f->store.layers);
	for (nth = 1; nth < NTH_MAX; nth++) {
		struct err e;

		fixture_write(f, "one");
		power_watch(f->path);
		delete_in_child(f, nth, &status);
		if (how != CUTS)
			power_cut(how);
		power_end();
		if (WIFEXITED(status))
			break;
		if (snapshot_there(f)) {
			fixture_check(f, "one");
			assert_int_equal(snapshot_delete(&f->store, "one", &e), 0);
		}
		fixture_check(f, "two");
		assert_int_equal(snapshot_gc(&f->store, NULL, NULL), 0);
		fixture_check(f, "two");
		assert_int_equal(count_entries(f->store.snapshots), 1);
		assert_int_equal(count_entries(f->store.layers), before);
	}
	assert_in_range(nth, 8, NTH_MAX - 1);
	assert_false(snapshot_there(f)); /* it was told that it is gone */
	fixture_check(f, "two");
}

static void a_delete_killed_anywhere_leaves_all_or_nothing(void **state)
{
	deleting_and_collecting_killed_anywhere(state, CUTS);
}

static void a_delete_without_power_leaves_all_or_nothing(void **state)
{
	deleting_and_collecting_killed_anywhere(state, CUT_ALL);
}

static void everything_is_synced_before_it_gets_its_name(void **state)
{
	struct fixture *f = *state;
	struct err e;

	sync_watch();
	assert_int_equal(try_write(f, &e), 0);
	assert_true(sync_was_kept(f->store.snapshots));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    with_fixture(writing_survives_failing_allocations),
	    with_fixture(writing_survives_failing_calls),
	    with_fixture(writing_survives_a_full_disk_at_any_call),
	    with_fixture(loading_survives_failing_allocations),
	    with_fixture(loading_survives_failing_calls),
	    with_fixture(compressed_forms_survive_it_too),
	    with_fixture(a_writer_killed_anywhere_leaves_all_or_nothing),
	    with_fixture(gc_beside_a_writer_stopped_anywhere_breaks_nothing),
	    with_fixture(everything_is_synced_before_it_gets_its_name),
	    with_fixture(a_power_cut_anywhere_leaves_all_or_nothing),
	    with_fixture(bytes_that_were_not_synced_are_missed_by_nobody),
	    with_fixture(compressed_too),
	    with_fixture(a_delete_killed_anywhere_leaves_all_or_nothing),
	    with_fixture(a_delete_without_power_leaves_all_or_nothing),
	};

	/* Thousands of syncs; what is synced when is watched here, not waited for. */
	if (access("/dev/shm", W_OK) == 0)
		setenv("TMPDIR", "/dev/shm", 0);
	json_set_alloc_funcs(fault_malloc, free);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
