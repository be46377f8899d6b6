#include <errno.h>

#include "db/snapshots.h"
#include "db_bed.h"

static const struct db_snapshot one = {
    .id = "s1", .tenant = "t", .sandbox_id = "sb-1", .doc = "{}", .created_ms = 1000};

static bool add_row(void *arg, const struct db_snapshot *row)
{
	char *text = arg;
	size_t n = strlen(text);

	snprintf(text + n, 256 - n, "%s %s %s %s %llu;", row->id, row->tenant, row->sandbox_id,
	         row->doc, (unsigned long long)row->created_ms);
	return true;
}

static bool add_id(void *arg, const struct db_snapshot *row)
{
	char *text = arg;
	size_t n = strlen(text);

	snprintf(text + n, 256 - n, "%s ", row->id);
	return true;
}

static const char *ready(struct db_bed *b, const char *tenant, const char *sandbox_id)
{
	static char text[256];

	text[0] = 0;
	assert_int_equal(db_snapshots_each(b->db, tenant, sandbox_id, add_id, text, &b->e), 0);
	return text;
}

static const char *unfinished(struct db_bed *b)
{
	static char text[256];

	text[0] = 0;
	assert_int_equal(db_snapshots_unfinished(b->db, add_id, text, &b->e), 0);
	return text;
}

/* A ready one. */
static void put(struct db_bed *b, const char *id, const char *tenant, const char *sandbox_id,
                uint64_t created_ms)
{
	const struct db_snapshot row = {.id = id,
	                                .tenant = tenant,
	                                .sandbox_id = sandbox_id,
	                                .doc = "{}",
	                                .created_ms = created_ms};

	assert_int_equal(db_snapshot_insert(b->db, &row, &b->e), 0);
	assert_int_equal(db_snapshot_ready(b->db, id, sandbox_id, "{}", &b->e), 0);
}

static void users_see_it_only_between_ready_and_deleting(void **state)
{
	struct db_bed *b = *state;
	char row[256] = "";

	assert_int_equal(db_snapshot_insert(b->db, &one, &b->e), 0);
	assert_string_equal(ready(b, NULL, NULL), "");
	assert_string_equal(unfinished(b), "s1 ");
	assert_int_equal(db_snapshot_ready(b->db, "s1", "sb-2", "{\"n\":1}", &b->e), 0);
	assert_string_equal(unfinished(b), "");
	assert_int_equal(db_snapshot_get(b->db, "t", "s1", add_row, row, &b->e), 0);
	assert_string_equal(row, "s1 t sb-2 {\"n\":1} 1000;");
	assert_int_equal(db_snapshot_deleting(b->db, "s1", &b->e), 0);
	assert_string_equal(ready(b, NULL, NULL), "");
	row[0] = 0;
	assert_int_equal(db_snapshot_get(b->db, "t", "s1", add_row, row, &b->e), 0);
	assert_string_equal(row, "");
	db_bed_reopen(b);
	assert_string_equal(unfinished(b), "s1 ");
	assert_int_equal(db_snapshot_delete(b->db, "s1", &b->e), 0);
	assert_string_equal(unfinished(b), "");
}

static void another_tenant_does_not_see_it_and_the_host_does(void **state)
{
	struct db_bed *b = *state;
	char row[256] = "";

	put(b, "s1", "t", "sb-1", 1000);
	assert_int_equal(db_snapshot_get(b->db, "u", "s1", add_id, row, &b->e), 0);
	assert_string_equal(row, "");
	assert_string_equal(ready(b, "u", NULL), "");
	assert_int_equal(db_snapshot_get(b->db, NULL, "s1", add_id, row, &b->e), 0);
	assert_string_equal(row, "s1 ");
	assert_string_equal(ready(b, NULL, NULL), "s1 ");
}

static void the_newest_comes_first_and_those_of_one_sandbox_can_be_asked_for(void **state)
{
	struct db_bed *b = *state;

	put(b, "s1", "t", "sb-1", 1000);
	put(b, "s3", "t", "sb-2", 3000);
	put(b, "s2", "t", "sb-1", 2000);
	put(b, "s0", "t", "sb-1", 2000);
	assert_string_equal(ready(b, "t", NULL), "s3 s0 s2 s1 ");
	assert_string_equal(ready(b, "t", "sb-1"), "s0 s2 s1 ");
}

static void a_quota_counts_those_that_are_being_made_too(void **state)
{
	struct db_bed *b = *state;
	uint64_t n = 7;

	assert_int_equal(db_snapshots_count(b->db, "t", &n, &b->e), 0);
	assert_int_equal(n, 0);
	put(b, "s2", "t", "sb-1", 1000);
	put(b, "s3", "u", "sb-2", 1000);
	assert_int_equal(db_snapshot_insert(b->db, &one, &b->e), 0);
	assert_int_equal(db_snapshots_count(b->db, "t", &n, &b->e), 0);
	assert_int_equal(n, 2);
}

static void one_is_known_in_any_state(void **state)
{
	struct db_bed *b = *state;
	bool known = true;

	assert_int_equal(db_snapshot_known(b->db, "s1", &known, &b->e), 0);
	assert_false(known);
	assert_int_equal(db_snapshot_insert(b->db, &one, &b->e), 0);
	assert_int_equal(db_snapshot_known(b->db, "s1", &known, &b->e), 0);
	assert_true(known);
	assert_int_equal(db_snapshot_insert(b->db, &one, &b->e), -EEXIST);
	assert_string_equal(b->e.kind, "exists");
}

static void on_a_full_disk_none_is_added_and_one_can_be_deleted(void **state)
{
	struct db_bed *b = *state;
	struct db_snapshot large = one;

	large.id = "s2";
	large.doc = db_bed_large();
	put(b, "s1", "t", "sb-1", 1000);
	db_bed_fill(b);
	assert_full(b, db_snapshot_insert(b->db, &large, &b->e));
	assert_full(b, db_snapshot_ready(b->db, "s1", "sb-1", db_bed_large(), &b->e));
	assert_string_equal(ready(b, "t", NULL), "s1 ");
	assert_int_equal(db_snapshot_delete(b->db, "s1", &b->e), 0);
	assert_string_equal(ready(b, "t", NULL), "");
}

static void a_damaged_row_is_given_as_it_is_read(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";

	db_bed_sql(b, "INSERT INTO snapshots(id, tenant, sandbox_id, state, created_at, doc)"
	              " VALUES(NULL, 't', '', 'ready', 'never', 'no JSON')");
	assert_int_equal(db_snapshots_each(b->db, "t", NULL, add_row, text, &b->e), 0);
	assert_string_equal(text, " t  no JSON 0;");
	db_bed_sql(b, "UPDATE snapshots SET state = 'what?'");
	assert_string_equal(ready(b, NULL, NULL), "");
	assert_string_equal(unfinished(b), " ");
}

static void a_damaged_file_answers_nothing_and_says_so(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";
	uint64_t n = 7;
	bool known = true;

	put(b, "s1", "t", "sb-1", 1000);
	db_bed_damage(b, "snapshots");
	assert_damaged(b, db_snapshots_each(b->db, NULL, NULL, add_id, text, &b->e));
	assert_damaged(b, db_snapshots_unfinished(b->db, add_id, text, &b->e));
	assert_damaged(b, db_snapshot_get(b->db, "t", "s1", add_id, text, &b->e));
	assert_string_equal(text, "");
	db_bed_damage(b, "snapshots_tenant");
	assert_damaged(b, db_snapshots_count(b->db, "t", &n, &b->e));
	assert_int_equal(n, 7);
	db_bed_damage(b, "sqlite_autoindex_snapshots_1");
	assert_damaged(b, db_snapshot_known(b->db, "s1", &known, &b->e));
	assert_true(known);
}

static void records_that_are_not_open_are_no_records(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";
	uint64_t n;
	bool known;

	assert_not_open(b, db_snapshot_insert(NULL, &one, &b->e));
	assert_not_open(b, db_snapshot_ready(NULL, "s1", "sb-1", "{}", &b->e));
	assert_not_open(b, db_snapshot_deleting(NULL, "s1", &b->e));
	assert_not_open(b, db_snapshot_delete(NULL, "s1", &b->e));
	assert_not_open(b, db_snapshot_get(NULL, "t", "s1", add_id, text, &b->e));
	assert_not_open(b, db_snapshots_each(NULL, NULL, NULL, add_id, text, &b->e));
	assert_not_open(b, db_snapshots_unfinished(NULL, add_id, text, &b->e));
	assert_not_open(b, db_snapshots_count(NULL, "t", &n, &b->e));
	assert_not_open(b, db_snapshot_known(NULL, "s1", &known, &b->e));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    db_bed_test(users_see_it_only_between_ready_and_deleting),
	    db_bed_test(another_tenant_does_not_see_it_and_the_host_does),
	    db_bed_test(the_newest_comes_first_and_those_of_one_sandbox_can_be_asked_for),
	    db_bed_test(a_quota_counts_those_that_are_being_made_too),
	    db_bed_test(one_is_known_in_any_state),
	    db_bed_test(on_a_full_disk_none_is_added_and_one_can_be_deleted),
	    db_bed_test(a_damaged_row_is_given_as_it_is_read),
	    db_bed_test(a_damaged_file_answers_nothing_and_says_so),
	    db_bed_test(records_that_are_not_open_are_no_records),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
