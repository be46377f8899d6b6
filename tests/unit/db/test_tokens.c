#include <errno.h>

#include "db/tokens.h"
#include "db_bed.h"

static const struct db_token one = {.hash = "h1",
                                    .prefix = "pds_1",
                                    .tenant = "t",
                                    .label = "laptop",
                                    .scopes = "admin,sandbox",
                                    .quota = "{}",
                                    .created_ms = 1000};

static bool add_row(void *arg, const struct db_token *row)
{
	char *text = arg;
	size_t n = strlen(text);

	snprintf(text + n, 256 - n, "%s %s %s %s %s %s %llu %s %llu;", row->hash, row->prefix,
	         row->tenant, row->label, row->scopes, row->quota,
	         (unsigned long long)row->created_ms, *row->maker ? row->maker : "-",
	         (unsigned long long)row->expires_ms);
	return true;
}

static const char *rows(struct db_bed *b)
{
	static char text[256];

	text[0] = 0;
	assert_int_equal(db_tokens_each(b->db, add_row, text, &b->e), 0);
	return text;
}

static void a_token_is_there_until_it_is_revoked(void **state)
{
	struct db_bed *b = *state;

	assert_int_equal(db_token_insert(b->db, &one, &b->e), 0);
	db_bed_reopen(b);
	assert_string_equal(rows(b), "h1 pds_1 t laptop admin,sandbox {} 1000 - 0;");
	assert_int_equal(db_token_delete(b->db, "h2", &b->e), 0);
	assert_string_equal(rows(b), "h1 pds_1 t laptop admin,sandbox {} 1000 - 0;");
	assert_int_equal(db_token_delete(b->db, "h1", &b->e), 0);
	assert_string_equal(rows(b), "");
}

static void a_token_is_rotated_with_what_it_made(void **state)
{
	struct db_bed *b = *state;
	struct db_token child = one, grandchild = one;

	child.hash = "h2";
	child.prefix = "pds_2";
	child.maker = "pds_1";
	child.expires_ms = 5;
	grandchild.hash = "h3";
	grandchild.prefix = "pds_3";
	grandchild.maker = "pds_2";
	assert_int_equal(db_token_insert(b->db, &one, &b->e), 0);
	assert_int_equal(db_token_insert(b->db, &child, &b->e), 0);
	assert_int_equal(db_token_insert(b->db, &grandchild, &b->e), 0);
	assert_int_equal(db_token_rotate(b->db, "h1", "pds_1", "h3", "pds_9", &b->e), -EEXIST);
	assert_int_equal(db_token_rotate(b->db, "h1", "pds_1", "h9", "pds_9", &b->e), 0);
	db_bed_reopen(b);
	assert_string_equal(rows(b), "h9 pds_9 t laptop admin,sandbox {} 1000 - 0;"
	                             "h2 pds_2 t laptop admin,sandbox {} 1000 pds_9 5;"
	                             "h3 pds_3 t laptop admin,sandbox {} 1000 pds_2 0;");
	assert_int_equal(db_token_orphan(b->db, "pds_9", &b->e), 0);
	assert_string_equal(rows(b), "h9 pds_9 t laptop admin,sandbox {} 1000 - 0;"
	                             "h2 pds_2 t laptop admin,sandbox {} 1000 - 5;"
	                             "h3 pds_3 t laptop admin,sandbox {} 1000 pds_2 0;");
}

static void a_hash_or_a_prefix_that_is_taken_is_refused(void **state)
{
	struct db_bed *b = *state;
	struct db_token other = one;

	assert_int_equal(db_token_insert(b->db, &one, &b->e), 0);
	other.prefix = "pds_2";
	assert_int_equal(db_token_insert(b->db, &other, &b->e), -EEXIST);
	other.prefix = one.prefix;
	other.hash = "h2";
	assert_int_equal(db_token_insert(b->db, &other, &b->e), -EEXIST);
	assert_string_equal(b->e.kind, "exists");
	other.prefix = "pds_2";
	assert_int_equal(db_token_insert(b->db, &other, &b->e), 0);
}

static void on_a_full_disk_none_is_added_and_one_can_be_revoked(void **state)
{
	struct db_bed *b = *state;
	struct db_token large = one;

	assert_int_equal(db_token_insert(b->db, &one, &b->e), 0);
	large.hash = "h2";
	large.prefix = "pds_2";
	large.label = db_bed_large();
	db_bed_fill(b);
	assert_full(b, db_token_insert(b->db, &large, &b->e));
	assert_int_equal(db_token_delete(b->db, "h1", &b->e), 0);
	assert_string_equal(rows(b), "");
}

static void a_damaged_row_is_given_as_it_is_read(void **state)
{
	struct db_bed *b = *state;

	db_bed_sql(b, "INSERT INTO tokens(hash, prefix, tenant, label, scopes, quota, created_at)"
	              " VALUES(NULL, '', 't', '', '', 'no JSON', 'never')");
	assert_string_equal(rows(b), "  t   no JSON 0 - 0;");
}

static void a_damaged_file_answers_nothing_and_says_so(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";

	assert_int_equal(db_token_insert(b->db, &one, &b->e), 0);
	db_bed_damage(b, "tokens");
	assert_damaged(b, db_tokens_each(b->db, add_row, text, &b->e));
	assert_string_equal(text, "");
	assert_damaged(b, db_token_delete(b->db, "h1", &b->e));
}

static void records_that_are_not_open_are_no_records(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";

	assert_not_open(b, db_token_insert(NULL, &one, &b->e));
	assert_not_open(b, db_token_delete(NULL, "h1", &b->e));
	assert_not_open(b, db_tokens_each(NULL, add_row, text, &b->e));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    db_bed_test(a_token_is_there_until_it_is_revoked),
	    db_bed_test(a_token_is_rotated_with_what_it_made),
	    db_bed_test(a_hash_or_a_prefix_that_is_taken_is_refused),
	    db_bed_test(on_a_full_disk_none_is_added_and_one_can_be_revoked),
	    db_bed_test(a_damaged_row_is_given_as_it_is_read),
	    db_bed_test(a_damaged_file_answers_nothing_and_says_so),
	    db_bed_test(records_that_are_not_open_are_no_records),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
