#include <errno.h>

#include "db/sandboxes.h"
#include "db_bed.h"

static const struct db_sandbox one = {
    .id = "sb-1", .tenant = "t", .state = "creating", .doc = "{\"a\":1}", .created_ms = 2000};

/* "id tenant state doc created;" of each row. */
static bool add_row(void *arg, const struct db_sandbox *row)
{
	char *text = arg;
	size_t n = strlen(text);

	snprintf(text + n, 256 - n, "%s %s %s %s %llu;", row->id, row->tenant, row->state, row->doc,
	         (unsigned long long)row->created_ms);
	return true;
}

static const char *rows(struct db_bed *b)
{
	static char text[256];

	text[0] = 0;
	assert_int_equal(db_sandboxes_each(b->db, add_row, text, &b->e), 0);
	return text;
}

static bool first_only(void *arg, const struct db_sandbox *row)
{
	++*(int *)arg;
	return false;
}

static void a_sandbox_on_record_is_there_for_the_next_pandad(void **state)
{
	struct db_bed *b = *state;

	assert_int_equal(db_sandbox_insert(b->db, &one, &b->e), 0);
	db_bed_reopen(b);
	assert_string_equal(rows(b), "sb-1 t creating {\"a\":1} 2000;");
}

static void an_update_changes_state_and_doc_of_that_one_and_nothing_else(void **state)
{
	struct db_bed *b = *state;
	struct db_sandbox two = one;

	two.id = "sb-2";
	two.created_ms = 3000;
	assert_int_equal(db_sandbox_insert(b->db, &one, &b->e), 0);
	assert_int_equal(db_sandbox_insert(b->db, &two, &b->e), 0);
	assert_int_equal(db_sandbox_update(b->db, "sb-1", "running", "{}", &b->e), 0);
	assert_string_equal(rows(b), "sb-1 t running {} 2000;sb-2 t creating {\"a\":1} 3000;");
	assert_int_equal(db_sandbox_update(b->db, "sb-3", "running", "{}", &b->e), 0);
	assert_string_equal(rows(b), "sb-1 t running {} 2000;sb-2 t creating {\"a\":1} 3000;");
}

static void the_oldest_comes_first_and_a_reader_may_stop(void **state)
{
	struct db_bed *b = *state;
	struct db_sandbox older = one;
	int n = 0;

	older.id = "sb-0";
	older.created_ms = 1000;
	assert_int_equal(db_sandbox_insert(b->db, &one, &b->e), 0);
	assert_int_equal(db_sandbox_insert(b->db, &older, &b->e), 0);
	assert_string_equal(rows(b),
	                    "sb-0 t creating {\"a\":1} 1000;sb-1 t creating {\"a\":1} 2000;");
	assert_int_equal(db_sandboxes_each(b->db, first_only, &n, &b->e), 0);
	assert_int_equal(n, 1);
}

static void a_taken_id_is_refused_and_its_row_stays(void **state)
{
	struct db_bed *b = *state;
	struct db_sandbox other = one;

	other.tenant = "u";
	assert_int_equal(db_sandbox_insert(b->db, &one, &b->e), 0);
	assert_int_equal(db_sandbox_insert(b->db, &other, &b->e), -EEXIST);
	assert_string_equal(b->e.kind, "exists");
	assert_string_equal(rows(b), "sb-1 t creating {\"a\":1} 2000;");
}

static void a_deleted_one_is_known_no_more_and_may_be_deleted_again(void **state)
{
	struct db_bed *b = *state;
	bool known = false;

	assert_int_equal(db_sandbox_insert(b->db, &one, &b->e), 0);
	assert_int_equal(db_sandbox_known(b->db, "sb-1", &known, &b->e), 0);
	assert_true(known);
	assert_int_equal(db_sandbox_delete(b->db, "sb-1", &b->e), 0);
	assert_int_equal(db_sandbox_known(b->db, "sb-1", &known, &b->e), 0);
	assert_false(known);
	assert_int_equal(db_sandbox_delete(b->db, "sb-1", &b->e), 0);
	assert_string_equal(rows(b), "");
}

static void children_of_a_fork_are_all_on_record_or_none_is(void **state)
{
	struct db_bed *b = *state;
	struct db_sandbox child = one;

	assert_int_equal(db_sandbox_insert(b->db, &one, &b->e), 0);
	assert_int_equal(db_begin(b->db, &b->e), 0);
	child.id = "sb-2";
	assert_int_equal(db_sandbox_insert(b->db, &child, &b->e), 0);
	child.id = "sb-1";
	assert_int_equal(db_sandbox_insert(b->db, &child, &b->e), -EEXIST);
	db_rollback(b->db);
	assert_string_equal(rows(b), "sb-1 t creating {\"a\":1} 2000;");
}

static void on_a_full_disk_the_row_stays_as_it_was_and_can_be_deleted(void **state)
{
	struct db_bed *b = *state;
	struct db_sandbox two = one;

	two.id = "sb-2";
	two.doc = db_bed_large();
	assert_int_equal(db_sandbox_insert(b->db, &one, &b->e), 0);
	db_bed_fill(b);
	assert_full(b, db_sandbox_insert(b->db, &two, &b->e));
	assert_full(b, db_sandbox_update(b->db, "sb-1", "running", db_bed_large(), &b->e));
	assert_string_equal(rows(b), "sb-1 t creating {\"a\":1} 2000;");
	assert_int_equal(db_sandbox_delete(b->db, "sb-1", &b->e), 0);
	assert_string_equal(rows(b), "");
}

static void a_damaged_row_is_given_as_it_is_read(void **state)
{
	struct db_bed *b = *state;

	db_bed_sql(b, "INSERT INTO sandboxes(id, tenant, state, created_at, doc)"
	              " VALUES(NULL, 't', x'ff', -1, 17)");
	assert_string_equal(rows(b), " t \xff 17 0;");
	db_bed_sql(b, "UPDATE sandboxes SET created_at = 'yesterday', state = ''");
	assert_string_equal(rows(b), " t  17 0;");
}

static void a_damaged_file_answers_nothing_and_says_so(void **state)
{
	struct db_bed *b = *state;
	bool known = true;
	int n = 0;

	assert_int_equal(db_sandbox_insert(b->db, &one, &b->e), 0);
	db_bed_damage(b, "sandboxes");
	assert_damaged(b, db_sandboxes_each(b->db, first_only, &n, &b->e));
	assert_int_equal(n, 0);
	assert_damaged(b, db_sandbox_update(b->db, "sb-1", "running", "{}", &b->e));
	db_bed_reopen(b);
	db_bed_damage(b, "sqlite_autoindex_sandboxes_1");
	assert_damaged(b, db_sandbox_known(b->db, "sb-1", &known, &b->e));
	assert_true(known); /* untouched: who asks must not take it for an answer */
}

static void records_that_are_not_open_are_no_records(void **state)
{
	struct db_bed *b = *state;
	bool known = true;
	int n = 0;

	assert_not_open(b, db_sandbox_insert(NULL, &one, &b->e));
	assert_not_open(b, db_sandbox_update(NULL, "sb-1", "running", "{}", &b->e));
	assert_not_open(b, db_sandbox_delete(NULL, "sb-1", &b->e));
	assert_not_open(b, db_sandboxes_each(NULL, first_only, &n, &b->e));
	assert_not_open(b, db_sandbox_known(NULL, "sb-1", &known, &b->e));
	assert_true(known);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    db_bed_test(a_sandbox_on_record_is_there_for_the_next_pandad),
	    db_bed_test(an_update_changes_state_and_doc_of_that_one_and_nothing_else),
	    db_bed_test(the_oldest_comes_first_and_a_reader_may_stop),
	    db_bed_test(a_taken_id_is_refused_and_its_row_stays),
	    db_bed_test(a_deleted_one_is_known_no_more_and_may_be_deleted_again),
	    db_bed_test(children_of_a_fork_are_all_on_record_or_none_is),
	    db_bed_test(on_a_full_disk_the_row_stays_as_it_was_and_can_be_deleted),
	    db_bed_test(a_damaged_row_is_given_as_it_is_read),
	    db_bed_test(a_damaged_file_answers_nothing_and_says_so),
	    db_bed_test(records_that_are_not_open_are_no_records),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
