/*
 * Snapshots: taken, listed, started from, deleted by their owner and by the rules of retention.
 */
#include "fake/bed.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "db/db.h"
#include "db/db_internal.h"
#include "host/host_internal.h"

struct names {
	size_t n;
	char name[32][SNAPSHOT_NAME_MAX + 1];
};

static bool note_name(void *arg, const struct host_snapshot *s)
{
	struct names *l = arg;

	snprintf(l->name[l->n++], sizeof(l->name[0]), "%s", s->name[0] ? s->name : s->id);
	return true;
}

static size_t count_snapshots(struct bed *b, const char *sandbox)
{
	struct names l = {0};

	assert_int_equal(host_snapshots(b->host, "t", sandbox, note_name, &l, &b->err), 0);
	return l.n;
}

static struct sandbox *create_from(struct bed *b, const char *snapshot)
{
	struct sandbox_spec spec = bed_spec();

	snprintf(spec.from_snapshot, sizeof(spec.from_snapshot), "%s", snapshot);
	return bed_create(b, &spec);
}

static void what_is_started_from_one_is_as_it_was_then(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *copy;
	struct host_snapshot s;

	bed_remember(sb, 2, "then");
	assert_int_equal(bed_write(b, sb, "/work/note", "then"), 0);
	assert_int_equal(bed_snapshot(b, sb, "a name", &s), 0);
	assert_string_equal(s.name, "a name");
	assert_string_equal(s.sandbox_id, sb->id);
	assert_int_equal(s.generation, sb->generation);
	assert_true(s.size_bytes > 0);
	bed_remember(sb, 2, "now");
	assert_int_equal(bed_kill(b, sb), 0);
	copy = create_from(b, s.id);
	assert_non_null(copy);
	assert_recalls(copy, 2, "then");
	assert_string_equal(bed_read(b, copy, "/work/note"), "then");
	assert_int_equal(copy->generation, s.generation + 1);
	assert_string_equal(copy->spec.template, "base");
	bed_check_leftovers(b);
}

static void they_are_listed_for_their_owner(void **state)
{
	struct bed *b = *state;
	struct sandbox *a = bed_create_plain(b), *c = bed_create_plain(b);
	struct names l = {0};
	struct host_snapshot s;

	assert_int_equal(bed_snapshot(b, a, "one", &s), 0);
	assert_int_equal(bed_snapshot(b, a, "two", NULL), 0);
	assert_int_equal(bed_snapshot(b, c, "three", NULL), 0);
	assert_int_equal(count_snapshots(b, NULL), 3);
	assert_int_equal(count_snapshots(b, a->id), 2);
	assert_int_equal(host_snapshots(b->host, "other", NULL, note_name, &l, &b->err), 0);
	assert_int_equal(l.n, 0);
	assert_int_equal(host_snapshot_get(b->host, "other", s.id, &s, &b->err), -ENOENT);
	assert_string_equal(b->err.kind, "snapshot_not_found");
}

static void a_deleted_one_is_gone_and_its_machines_run_on(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *copy;
	struct host_snapshot s;

	bed_remember(sb, 2, "kept");
	assert_int_equal(bed_snapshot(b, sb, "", &s), 0);
	copy = create_from(b, s.id);
	assert_non_null(copy);
	assert_int_equal(bed_snapshot_delete(b, s.id), 0);
	assert_false(bed_stored(b, s.id));
	assert_int_equal(bed_snapshot_delete(b, s.id), -ENOENT);
	assert_null(create_from(b, s.id));
	assert_string_equal(b->err.kind, "snapshot_not_found");
	assert_recalls(copy, 2, "kept");
	assert_int_equal(bed_hibernate(b, copy), 0);
	assert_int_equal(bed_wake_up(b, copy), 0);
	assert_recalls(copy, 2, "kept");
	bed_check_leftovers(b);
}

static void one_that_fails_leaves_nothing(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	fake_fail(b->fake, FAKE_CALL_SNAPSHOT, 1, EIO);
	assert_int_equal(bed_snapshot(b, sb, "", NULL), -EIO);
	assert_int_equal(count_snapshots(b, NULL), 0);
	bed_check_leftovers(b);
	assert_int_equal(bed_exec(b, sb, "true", NULL), 0);
	assert_int_equal(bed_snapshot(b, sb, "", NULL), 0);
}

static void paused_ones_stay_paused_and_sleeping_ones_wake(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_int_equal(bed_pause(b, sb), 0);
	assert_int_equal(bed_snapshot(b, sb, "", NULL), 0);
	assert_int_equal(sb->state, SANDBOX_PAUSED);
	assert_int_equal(bed_hibernate(b, sb), 0);
	assert_int_equal(bed_snapshot(b, sb, "", NULL), 0);
	assert_int_equal(sb->state, SANDBOX_RUNNING);
	assert_int_equal(count_snapshots(b, sb->id), 2);
}

static void one_that_goes_while_it_is_read_starts_nothing(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct host_snapshot s;

	assert_int_equal(bed_snapshot(b, sb, "", &s), 0);
	assert_int_equal(depot_drop_snapshot(&b->host->depot, s.id, &b->err), 0);
	assert_null(create_from(b, s.id));
	assert_int_equal(b->host->count, 1);
	assert_int_equal(bed_snapshot_delete(b, s.id), 0);
	bed_check_leftovers(b);
}

static void it_can_be_started_when_its_template_is_gone(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b), *copy;
	struct sandbox_spec spec = bed_spec();
	struct host_snapshot s;

	assert_int_equal(bed_template_save(b, sb, "mine", false), 0);
	snprintf(spec.template, sizeof(spec.template), "mine");
	copy = bed_create(b, &spec);
	assert_non_null(copy);
	bed_remember(copy, 4, "orphan");
	assert_int_equal(bed_snapshot(b, copy, "", &s), 0);
	assert_int_equal(template_delete(b->host->depot.templates, "t", "mine", &b->err), 0);
	copy = create_from(b, s.id);
	assert_non_null(copy);
	assert_recalls(copy, 4, "orphan");
}

static void another_kernel_cannot_go_on_with_it(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct host_snapshot s;

	assert_int_equal(bed_snapshot(b, sb, "", &s), 0);
	bed_close_host(b);
	b->engine.kernel = "fake-2";
	bed_open_host(b);
	assert_null(create_from(b, s.id));
	assert_string_equal(b->err.kind, "snapshot_foreign");
	bed_check_leftovers(b);
}

static void a_quota_counts_them(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct quota quota = {.snapshots = 2};

	for (unsigned i = 0; i < 3; i++) {
		struct bed_snapped k = {.bed = b};

		host_snapshot(b->host, sb, "", &quota, bed_snapped, &k);
		bed_until(b, k.done);
		assert_int_equal(k.r, i < 2 ? 0 : -EDQUOT);
	}
	assert_string_equal(b->err.kind, "quota_exceeded");
}

/* ---- retention ---- */

static void only_the_last_so_many_of_a_sandbox_are_kept(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();
	struct sandbox *sb, *other = bed_create_plain(b);
	struct host_snapshot s[4];

	spec.snapshots_keep = 2;
	sb = bed_create(b, &spec);
	assert_non_null(sb);
	assert_int_equal(bed_snapshot(b, other, "", NULL), 0);
	assert_int_equal(bed_snapshot(b, sb, "named", NULL), 0);
	for (unsigned i = 0; i < 4; i++) {
		uint64_t now = wall_ms();

		assert_int_equal(bed_snapshot(b, sb, "", &s[i]), 0);
		bed_until(b, wall_ms() > now); /* newest first needs two times */
	}
	bed_until(b, count_snapshots(b, sb->id) == 3);
	assert_true(bed_stored(b, s[3].id));
	assert_true(bed_stored(b, s[2].id));
	assert_false(host_snapshot_get(b->host, "t", s[0].id, &s[0], &b->err) == 0);
	assert_int_equal(count_snapshots(b, other->id), 1);
	bed_check_leftovers(b);
}

static void they_go_when_they_are_too_old(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();
	struct host_snapshot old, named;
	struct sandbox *sb;

	spec.snapshots_max_age_s = 3600;
	sb = bed_create(b, &spec);
	assert_non_null(sb);
	assert_int_equal(bed_snapshot(b, sb, "", &old), 0);
	assert_int_equal(bed_snapshot(b, sb, "named", &named), 0);
	assert_in_range(old.expires_ms, wall_ms() + 3500 * 1000, wall_ms() + 3600 * 1000);
	assert_int_equal(named.expires_ms, 0);
	retain_sweep(b->host);
	assert_int_equal(count_snapshots(b, NULL), 2);
	/* An hour later, as its record says. */
	assert_int_equal(db_run(b->host->db, &b->err,
	                        "UPDATE snapshots SET doc = json_set(doc, '$.expires_ms', 5)"
	                        " WHERE id = ?",
	                        "t", old.id),
	                 0);
	b->host->expires_ms = 5;
	retain_sweep(b->host);
	bed_until(b, count_snapshots(b, NULL) == 1);
	bed_check_leftovers(b);
	assert_true(bed_stored(b, named.id));
}

static void the_next_pandad_looks_at_their_age(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct host_snapshot s;

	assert_int_equal(bed_snapshot(b, sb, "", &s), 0);
	assert_int_equal(db_run(b->host->db, &b->err,
	                        "UPDATE snapshots SET doc = json_set(doc, '$.expires_ms', 5)", ""),
	                 0);
	bed_reopen(b);
	bed_until(b, count_snapshots(b, NULL) == 0); /* by its first sweep */
	bed_check_leftovers(b);
}

static void all_of_a_tenant_are_not_larger_than_is_kept(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb;
	struct host_snapshot first, s;

	b->config.snapshots_total = 1; /* less than any: only the newest stays */
	bed_reopen(b);
	sb = bed_create_plain(b);
	assert_int_equal(bed_snapshot(b, sb, "", &first), 0);
	assert_true(bed_stored(b, first.id));
	assert_int_equal(bed_snapshot(b, sb, "", &s), 0);
	bed_until(b, count_snapshots(b, NULL) == 1);
	assert_int_equal(host_snapshot_get(b->host, "t", s.id, &s, &b->err), 0);
	bed_check_leftovers(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(what_is_started_from_one_is_as_it_was_then),
	    bed_test(they_are_listed_for_their_owner),
	    bed_test(a_deleted_one_is_gone_and_its_machines_run_on),
	    bed_test(one_that_fails_leaves_nothing),
	    bed_test(paused_ones_stay_paused_and_sleeping_ones_wake),
	    bed_test(one_that_goes_while_it_is_read_starts_nothing),
	    bed_test(it_can_be_started_when_its_template_is_gone),
	    bed_test(another_kernel_cannot_go_on_with_it),
	    bed_test(a_quota_counts_them),
	    bed_test(only_the_last_so_many_of_a_sandbox_are_kept),
	    bed_test(they_go_when_they_are_too_old),
	    bed_test(the_next_pandad_looks_at_their_age),
	    bed_test(all_of_a_tenant_are_not_larger_than_is_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
