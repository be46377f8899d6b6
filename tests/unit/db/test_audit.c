#include <errno.h>

#include "db/audit.h"
#include "db_bed.h"

static bool add_row(void *arg, const struct db_audit *row)
{
	char *text = arg;
	size_t n = strlen(text);

	snprintf(text + n, 256 - n, "%lld %s %s %s %s %s %d %llu %s %llu;", (long long)row->seq,
	         row->tenant, row->actor, row->request_id, row->method, row->path, row->status,
	         (unsigned long long)row->at_ms, row->address, (unsigned long long)row->count);
	return true;
}

static bool add_seq(void *arg, const struct db_audit *row)
{
	char *text = arg;
	size_t n = strlen(text);

	snprintf(text + n, 256 - n, "%lld ", (long long)row->seq);
	return true;
}

static int put(struct db_bed *b, const char *tenant, const char *path, uint64_t at_ms)
{
	const struct db_audit row = {.tenant = tenant,
	                             .actor = "pds_1",
	                             .request_id = "r",
	                             .method = "POST",
	                             .path = path,
	                             .status = 201,
	                             .at_ms = at_ms,
	                             .address = "::1",
	                             .count = 3};

	return db_audit_insert(b->db, &row, &b->e);
}

static const char *since(struct db_bed *b, const char *tenant, uint64_t since_ms, int64_t n)
{
	static char text[256];

	text[0] = 0;
	assert_int_equal(db_audit_each(b->db, tenant, since_ms, n, add_seq, text, &b->e), 0);
	return text;
}

static void who_did_what_is_there_for_the_next_pandad(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";

	assert_int_equal(put(b, "t", "/v1/sandboxes", 1000), 0);
	db_bed_reopen(b);
	assert_int_equal(db_audit_each(b->db, "t", 0, 9, add_row, text, &b->e), 0);
	assert_string_equal(text, "1 t pds_1 r POST /v1/sandboxes 201 1000 ::1 3;");
}

static void the_newest_comes_first_and_only_since_then(void **state)
{
	struct db_bed *b = *state;

	for (uint64_t i = 1; i <= 4; i++)
		assert_int_equal(put(b, i == 3 ? "u" : "t", "/", 1000 * i), 0);
	assert_string_equal(since(b, NULL, 0, 9), "4 3 2 1 ");
	assert_string_equal(since(b, NULL, 0, 2), "4 3 ");
	assert_string_equal(since(b, "t", 2000, 9), "4 2 ");
	assert_string_equal(since(b, "t", 5000, 9), "");
}

static void the_oldest_of_one_tenant_can_go(void **state)
{
	struct db_bed *b = *state;

	assert_int_equal(db_audit_drop(b->db, "t", 2, &b->e), 0);
	for (uint64_t i = 1; i <= 6; i++)
		assert_int_equal(put(b, i % 2 ? "t" : "u", "/", 1000), 0);
	assert_int_equal(db_audit_drop(b->db, "t", 2, &b->e), 0);
	assert_string_equal(since(b, NULL, 0, 9), "6 5 4 2 ");
	assert_int_equal(db_audit_drop(b->db, "u", 9, &b->e), 0);
	assert_string_equal(since(b, NULL, 0, 9), "5 ");
}

static bool add_count(void *arg, const char *tenant, uint64_t n)
{
	char *text = arg;
	size_t len = strlen(text);

	snprintf(text + len, 256 - len, "%s %llu;", tenant, (unsigned long long)n);
	return true;
}

static void rows_are_counted_by_tenant(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";

	assert_int_equal(db_audit_counts(b->db, add_count, text, &b->e), 0);
	assert_string_equal(text, "");
	for (uint64_t i = 1; i <= 3; i++)
		assert_int_equal(put(b, i == 2 ? "" : "t", "/", 1000), 0);
	assert_int_equal(db_audit_counts(b->db, add_count, text, &b->e), 0);
	assert_string_equal(text, " 1;t 2;");
}

static void on_a_full_disk_a_transaction_of_them_is_lost_as_a_whole(void **state)
{
	struct db_bed *b = *state;

	assert_int_equal(put(b, "t", "/", 1000), 0);
	db_bed_fill(b);
	assert_int_equal(db_begin(b->db, &b->e), 0);
	assert_int_equal(put(b, "t", "/", 1000), 0);
	assert_full(b, put(b, "t", db_bed_large(), 1000));
	db_rollback(b->db);
	assert_string_equal(since(b, NULL, 0, 9), "1 ");
}

static void a_damaged_row_is_given_as_it_is_read(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";

	db_bed_sql(b, "INSERT INTO audit(tenant, actor, request_id, method, path, status, at)"
	              " VALUES('t', '', '', '', '', 'good', 'never')");
	assert_int_equal(db_audit_each(b->db, NULL, 0, 9, add_row, text, &b->e), 0);
	assert_string_equal(text, "1 t     0 0  1;");
}

static void a_damaged_file_answers_nothing_and_says_so(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";

	assert_int_equal(put(b, "t", "/", 1000), 0);
	db_bed_damage(b, "audit");
	assert_damaged(b, put(b, "t", "/", 1000));
	assert_damaged(b, db_audit_each(b->db, NULL, 0, 9, add_seq, text, &b->e));
	db_bed_damage(b, "audit_tenant");
	assert_damaged(b, db_audit_drop(b->db, "t", 1, &b->e));
	assert_damaged(b, db_audit_counts(b->db, add_count, text, &b->e));
	assert_damaged(b, db_audit_each(b->db, "t", 0, 9, add_seq, text, &b->e));
	assert_string_equal(text, "");
}

static void records_that_are_not_open_are_no_records(void **state)
{
	struct db_bed *b = *state;
	const struct db_audit row = {.tenant = ""};
	char text[256] = "";

	assert_not_open(b, db_audit_insert(NULL, &row, &b->e));
	assert_not_open(b, db_audit_drop(NULL, "t", 1, &b->e));
	assert_not_open(b, db_audit_counts(NULL, add_count, text, &b->e));
	assert_not_open(b, db_audit_each(NULL, NULL, 0, 9, add_seq, text, &b->e));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    db_bed_test(who_did_what_is_there_for_the_next_pandad),
	    db_bed_test(the_newest_comes_first_and_only_since_then),
	    db_bed_test(the_oldest_of_one_tenant_can_go),
	    db_bed_test(rows_are_counted_by_tenant),
	    db_bed_test(on_a_full_disk_a_transaction_of_them_is_lost_as_a_whole),
	    db_bed_test(a_damaged_row_is_given_as_it_is_read),
	    db_bed_test(a_damaged_file_answers_nothing_and_says_so),
	    db_bed_test(records_that_are_not_open_are_no_records),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
