#include <errno.h>

#include "db/events.h"
#include "db_bed.h"

static bool add_row(void *arg, const struct db_event *row)
{
	char *text = arg;
	size_t n = strlen(text);

	snprintf(text + n, 256 - n, "%lld %s %s %s %s %llu;", (long long)row->seq, row->tenant,
	         row->sandbox_id, row->type, row->payload, (unsigned long long)row->at_ms);
	return true;
}

static bool add_seq(void *arg, const struct db_event *row)
{
	char *text = arg;
	size_t n = strlen(text);

	snprintf(text + n, 256 - n, "%lld ", (long long)row->seq);
	return true;
}

static void put(struct db_bed *b, int64_t seq, const char *tenant, const char *sandbox_id,
                const char *type)
{
	const struct db_event row = {.seq = seq,
	                             .tenant = tenant,
	                             .sandbox_id = sandbox_id,
	                             .type = type,
	                             .payload = "",
	                             .at_ms = 1000};

	assert_int_equal(db_event_insert(b->db, &row, &b->e), 0);
}

static const char *tail(struct db_bed *b, const char *tenant, const char *sandbox_id, int64_t n)
{
	static char text[256];

	text[0] = 0;
	assert_int_equal(db_events_tail(b->db, tenant, sandbox_id, n, add_seq, text, &b->e), 0);
	return text;
}

static void an_event_is_read_back_as_it_was_written(void **state)
{
	struct db_bed *b = *state;
	const struct db_event row = {.seq = 5,
	                             .tenant = "t",
	                             .sandbox_id = "a",
	                             .type = "sandbox.created",
	                             .payload = "{}",
	                             .at_ms = 1000};
	char text[256] = "";

	assert_int_equal(db_event_insert(b->db, &row, &b->e), 0);
	db_bed_reopen(b);
	assert_int_equal(db_events_tail(b->db, NULL, NULL, 9, add_row, text, &b->e), 0);
	assert_string_equal(text, "5 t a sandbox.created {} 1000;");
}

static void the_highest_number_is_found_and_none_is_0(void **state)
{
	struct db_bed *b = *state;
	int64_t seq = 7;

	assert_int_equal(db_events_last(b->db, &seq, &b->e), 0);
	assert_int_equal(seq, 0);
	put(b, 41, "t", "a", "x");
	put(b, 40, "t", "a", "x");
	assert_int_equal(db_events_last(b->db, &seq, &b->e), 0);
	assert_int_equal(seq, 41);
}

static void a_number_is_taken_once(void **state)
{
	struct db_bed *b = *state;
	const struct db_event row = {
	    .seq = 1, .tenant = "t", .sandbox_id = "a", .type = "x", .payload = ""};

	put(b, 1, "t", "a", "x");
	assert_int_equal(db_event_insert(b->db, &row, &b->e), -EEXIST);
	assert_string_equal(b->e.kind, "exists");
}

static void a_tail_is_the_newest_with_the_oldest_of_them_first(void **state)
{
	struct db_bed *b = *state;

	put(b, 1, "t", "a", "x");
	put(b, 2, "t", "b", "x");
	put(b, 3, "u", "c", "x");
	put(b, 4, "t", "a", "x");
	assert_string_equal(tail(b, NULL, NULL, 2), "3 4 ");
	assert_string_equal(tail(b, "t", NULL, 9), "1 2 4 ");
	assert_string_equal(tail(b, "t", "a", 9), "1 4 ");
	assert_string_equal(tail(b, NULL, "a", 1), "4 ");
	assert_string_equal(tail(b, "u", "a", 9), "");
}

static void those_of_one_type_come_newest_first(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";

	put(b, 1, "t", "a", "x");
	put(b, 2, "t", "b", "y");
	put(b, 3, "u", "c", "x");
	put(b, 4, "t", "a", "x");
	put(b, 5, "t", "a", "x");
	assert_int_equal(db_events_of_type(b->db, "t", "x", 2, add_seq, text, &b->e), 0);
	assert_string_equal(text, "5 4 ");
}

static void those_of_the_network_are_trimmed_apart_from_all_others(void **state)
{
	struct db_bed *b = *state;

	put(b, 1, "t", "a", "sandbox.created");
	put(b, 2, "t", "a", "net.refused");
	put(b, 3, "t", "a", "network.x");
	put(b, 4, "t", "a", "net.refused");
	put(b, 5, "t", "a", "sandbox.killed");
	put(b, 6, "u", "b", "net.refused");
	put(b, 7, "u", "b", "x");
	assert_int_equal(db_events_drop(b->db, "t", true, 1, &b->e), 0);
	assert_string_equal(tail(b, NULL, NULL, 9), "1 3 4 5 6 7 ");
	assert_int_equal(db_events_drop(b->db, "t", false, 2, &b->e), 0);
	assert_string_equal(tail(b, NULL, NULL, 9), "4 5 6 7 ");
	assert_int_equal(db_events_drop(b->db, "t", true, 9, &b->e), 0);
	assert_string_equal(tail(b, NULL, NULL, 9), "5 6 7 ");
}

static bool add_count(void *arg, const char *tenant, bool net, uint64_t n)
{
	char *text = arg;
	size_t len = strlen(text);

	snprintf(text + len, 256 - len, "%s %d %llu;", tenant, net, (unsigned long long)n);
	return true;
}

static void they_are_counted_by_tenant_and_kind(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";

	put(b, 1, "t", "a", "net.refused");
	put(b, 2, "t", "b", "net.allowed");
	put(b, 3, "t", "a", "network.x");
	put(b, 4, "u", "c", "net.refused");
	assert_int_equal(db_events_counts(b->db, add_count, text, &b->e), 0);
	assert_string_equal(text, "t 0 1;t 1 2;u 1 1;");
}

static void one_type_of_one_sandbox_can_be_trimmed(void **state)
{
	struct db_bed *b = *state;
	uint64_t gone = 7;

	put(b, 1, "t", "a", "x");
	put(b, 2, "t", "a", "y");
	put(b, 3, "t", "b", "x");
	put(b, 4, "t", "a", "x");
	put(b, 5, "t", "a", "x");
	assert_int_equal(db_events_trim_type(b->db, "a", "x", 2, &gone, &b->e), 0);
	assert_int_equal(gone, 1);
	assert_string_equal(tail(b, NULL, NULL, 9), "2 3 4 5 ");
	assert_int_equal(db_events_trim_type(b->db, "a", "x", 9, &gone, &b->e), 0);
	assert_int_equal(gone, 0);
	assert_string_equal(tail(b, NULL, NULL, 9), "2 3 4 5 ");
}

static void on_a_full_disk_an_event_is_lost_and_older_ones_stay(void **state)
{
	struct db_bed *b = *state;
	const struct db_event large = {
	    .seq = 2, .tenant = "t", .sandbox_id = "a", .type = "x", .payload = db_bed_large()};

	put(b, 1, "t", "a", "x");
	db_bed_fill(b);
	assert_full(b, db_event_insert(b->db, &large, &b->e));
	assert_string_equal(tail(b, NULL, NULL, 9), "1 ");
	assert_int_equal(db_events_drop(b->db, "t", false, 9, &b->e), 0);
	assert_string_equal(tail(b, NULL, NULL, 9), "");
}

static void a_damaged_row_is_given_as_it_is_read(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";

	db_bed_sql(b, "INSERT INTO events(seq, tenant, sandbox_id, type, payload, at)"
	              " VALUES(-3, '', 17, '', '{', -1)");
	assert_int_equal(db_events_tail(b->db, NULL, NULL, 9, add_row, text, &b->e), 0);
	assert_string_equal(text, "-3  17  { 0;");
}

static void a_damaged_file_answers_nothing_and_says_so(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";
	int64_t seq = 7;
	uint64_t gone;

	put(b, 1, "t", "a", "x");
	db_bed_damage(b, "events");
	assert_damaged(b, db_events_last(b->db, &seq, &b->e));
	assert_int_equal(seq, 7);
	assert_damaged(b, db_events_tail(b->db, NULL, NULL, 9, add_seq, text, &b->e));
	assert_damaged(b, db_events_of_type(b->db, "t", "x", 9, add_seq, text, &b->e));
	db_bed_damage(b, "events_sandbox");
	assert_damaged(b, db_events_tail(b->db, NULL, "a", 9, add_seq, text, &b->e));
	assert_damaged(b, db_events_trim_type(b->db, "a", "x", 0, &gone, &b->e));
	db_bed_damage(b, "events_share");
	assert_damaged(b, db_events_drop(b->db, "t", false, 1, &b->e));
	assert_damaged(b, db_events_counts(b->db, add_count, text, &b->e));
	assert_string_equal(text, "");
}

static void records_that_are_not_open_are_no_records(void **state)
{
	struct db_bed *b = *state;
	const struct db_event row = {.seq = 1, .tenant = "", .sandbox_id = "", .type = ""};
	char text[256] = "";
	int64_t seq;
	uint64_t gone;

	assert_not_open(b, db_event_insert(NULL, &row, &b->e));
	assert_not_open(b, db_events_last(NULL, &seq, &b->e));
	assert_not_open(b, db_events_tail(NULL, NULL, NULL, 9, add_seq, text, &b->e));
	assert_not_open(b, db_events_of_type(NULL, "t", "x", 9, add_seq, text, &b->e));
	assert_not_open(b, db_events_drop(NULL, "t", true, 9, &b->e));
	assert_not_open(b, db_events_counts(NULL, add_count, text, &b->e));
	assert_not_open(b, db_events_trim_type(NULL, "a", "x", 9, &gone, &b->e));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    db_bed_test(an_event_is_read_back_as_it_was_written),
	    db_bed_test(the_highest_number_is_found_and_none_is_0),
	    db_bed_test(a_number_is_taken_once),
	    db_bed_test(a_tail_is_the_newest_with_the_oldest_of_them_first),
	    db_bed_test(those_of_one_type_come_newest_first),
	    db_bed_test(those_of_the_network_are_trimmed_apart_from_all_others),
	    db_bed_test(they_are_counted_by_tenant_and_kind),
	    db_bed_test(one_type_of_one_sandbox_can_be_trimmed),
	    db_bed_test(on_a_full_disk_an_event_is_lost_and_older_ones_stay),
	    db_bed_test(a_damaged_row_is_given_as_it_is_read),
	    db_bed_test(a_damaged_file_answers_nothing_and_says_so),
	    db_bed_test(records_that_are_not_open_are_no_records),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
