#include <errno.h>

#include "db/settings.h"
#include "db_bed.h"

static void a_setting_is_there_for_the_next_pandad(void **state)
{
	struct db_bed *b = *state;
	char value[8];

	assert_int_equal(db_setting_set(b->db, "key", "one", &b->e), 0);
	db_bed_reopen(b);
	assert_int_equal(db_setting_get(b->db, "key", value, sizeof(value), &b->e), 0);
	assert_string_equal(value, "one");
}

static void a_setting_that_is_not_there_is_empty(void **state)
{
	struct db_bed *b = *state;
	char value[8] = "before";

	assert_int_equal(db_setting_set(b->db, "other", "one", &b->e), 0);
	assert_int_equal(db_setting_get(b->db, "key", value, sizeof(value), &b->e), 0);
	assert_string_equal(value, "");
}

static void a_new_value_takes_the_place_of_the_one_before(void **state)
{
	struct db_bed *b = *state;
	char value[8];

	assert_int_equal(db_setting_set(b->db, "key", "one", &b->e), 0);
	assert_int_equal(db_setting_set(b->db, "key", "two", &b->e), 0);
	assert_int_equal(db_setting_get(b->db, "key", value, sizeof(value), &b->e), 0);
	assert_string_equal(value, "two");
}

static void a_value_is_given_whole_or_not_at_all(void **state)
{
	struct db_bed *b = *state;
	char value[8] = "before";

	assert_int_equal(db_setting_set(b->db, "key", "1234567", &b->e), 0);
	assert_int_equal(db_setting_get(b->db, "key", value, sizeof(value), &b->e), 0);
	assert_string_equal(value, "1234567");
	assert_int_equal(db_setting_set(b->db, "key", "12345678", &b->e), 0);
	assert_int_equal(db_setting_get(b->db, "key", value, sizeof(value), &b->e), -E2BIG);
	assert_string_equal(b->e.kind, "db_failed");
	assert_string_equal(value, "1234567");
}

static void on_a_full_disk_the_value_before_stays(void **state)
{
	struct db_bed *b = *state;
	char value[8];

	assert_int_equal(db_setting_set(b->db, "key", "one", &b->e), 0);
	db_bed_fill(b);
	assert_full(b, db_setting_set(b->db, "key", db_bed_large(), &b->e));
	assert_int_equal(db_setting_get(b->db, "key", value, sizeof(value), &b->e), 0);
	assert_string_equal(value, "one");
}

static void a_damaged_file_answers_nothing_and_says_so(void **state)
{
	struct db_bed *b = *state;
	char value[8] = "before";

	assert_int_equal(db_setting_set(b->db, "key", "one", &b->e), 0);
	db_bed_damage(b, "settings");
	assert_damaged(b, db_setting_get(b->db, "key", value, sizeof(value), &b->e));
	assert_string_equal(value, "before");
	assert_damaged(b, db_setting_set(b->db, "key", "two", &b->e));
}

static void records_that_are_not_open_are_no_records(void **state)
{
	struct db_bed *b = *state;
	char value[8];

	assert_not_open(b, db_setting_get(NULL, "key", value, sizeof(value), &b->e));
	assert_not_open(b, db_setting_set(NULL, "key", "one", &b->e));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    db_bed_test(a_setting_is_there_for_the_next_pandad),
	    db_bed_test(a_setting_that_is_not_there_is_empty),
	    db_bed_test(a_new_value_takes_the_place_of_the_one_before),
	    db_bed_test(a_value_is_given_whole_or_not_at_all),
	    db_bed_test(on_a_full_disk_the_value_before_stays),
	    db_bed_test(a_damaged_file_answers_nothing_and_says_so),
	    db_bed_test(records_that_are_not_open_are_no_records),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
