#include <errno.h>

#include "db/volumes.h"
#include "db_bed.h"

static const struct db_volume one = {.tenant = "t",
                                     .name = "data",
                                     .file = "f1",
                                     .kind = "volume",
                                     .source = "",
                                     .size_bytes = 4096,
                                     .created_ms = 1000};

static bool add_row(void *arg, const struct db_volume *row)
{
	char *text = arg;
	size_t n = strlen(text);

	snprintf(text + n, 256 - n, "%s %s %s %s %s %llu %llu;", row->tenant, row->name, row->file,
	         row->kind, row->source, (unsigned long long)row->size_bytes,
	         (unsigned long long)row->created_ms);
	return true;
}

static bool add_name(void *arg, const struct db_volume *row)
{
	char *text = arg;
	size_t n = strlen(text);

	snprintf(text + n, 256 - n, "%s ", row->name);
	return true;
}

static bool count_to_two(void *arg, const struct db_volume *row)
{
	return ++*(int *)arg < 2;
}

static const char *names(struct db_bed *b, const char *tenant, const char *snapshots_of)
{
	static char text[256];

	text[0] = 0;
	assert_int_equal(db_volumes_each(b->db, tenant, snapshots_of, add_name, text, &b->e), 0);
	return text;
}

static const char *found(struct db_bed *b, const char *tenant, const char *name)
{
	static char text[256];

	text[0] = 0;
	assert_int_equal(db_volume_get(b->db, tenant, name, add_row, text, &b->e), 0);
	return text;
}

static const char *unfinished(struct db_bed *b)
{
	static char text[256];

	text[0] = 0;
	assert_int_equal(db_volumes_unfinished(b->db, add_name, text, &b->e), 0);
	return text;
}

/* A ready one; with a source it is a snapshot of that. */
static void put(struct db_bed *b, const char *tenant, const char *name, const char *file,
                const char *source)
{
	struct db_volume row = one;

	row.tenant = tenant;
	row.name = name;
	row.file = file;
	row.kind = source[0] ? "snapshot" : "volume";
	row.source = source;
	assert_int_equal(db_volume_insert(b->db, &row, &b->e), 0);
	assert_int_equal(db_volume_ready(b->db, file, &b->e), 0);
}

static void users_see_it_only_between_ready_and_deleting(void **state)
{
	struct db_bed *b = *state;

	assert_int_equal(db_volume_insert(b->db, &one, &b->e), 0);
	assert_string_equal(found(b, "t", "data"), "");
	assert_string_equal(unfinished(b), "data ");
	assert_int_equal(db_volume_ready(b->db, "f1", &b->e), 0);
	assert_string_equal(found(b, "t", "data"), "t data f1 volume  4096 1000;");
	assert_string_equal(found(b, "u", "data"), "");
	assert_int_equal(db_volume_deleting(b->db, "f1", &b->e), 0);
	assert_string_equal(found(b, "t", "data"), "");
	assert_string_equal(names(b, "t", NULL), "");
	db_bed_reopen(b);
	assert_string_equal(unfinished(b), "data ");
	assert_int_equal(db_volume_delete(b->db, "f1", &b->e), 0);
	assert_string_equal(unfinished(b), "");
}

static void a_name_is_taken_once_for_a_tenant(void **state)
{
	struct db_bed *b = *state;
	struct db_volume other = one;

	assert_int_equal(db_volume_insert(b->db, &one, &b->e), 0);
	other.file = "f2";
	assert_int_equal(db_volume_insert(b->db, &other, &b->e), -EEXIST);
	assert_string_equal(b->e.kind, "exists");
	other.tenant = "u";
	assert_int_equal(db_volume_insert(b->db, &other, &b->e), 0);
	other.tenant = "v"; /* no two have a file */
	assert_int_equal(db_volume_insert(b->db, &other, &b->e), -EEXIST);
}

static void volumes_and_snapshots_of_volumes_are_listed_apart_or_together(void **state)
{
	struct db_bed *b = *state;

	put(b, "t", "data", "f1", "");
	put(b, "t", "code", "f2", "");
	put(b, "t", "data-1", "f3", "data");
	put(b, "t", "code-1", "f4", "code");
	put(b, "u", "hers", "f5", "");
	assert_string_equal(names(b, "t", NULL), "code data ");
	assert_string_equal(names(b, "t", "data"), "data-1 ");
	assert_string_equal(names(b, "t", ""), "code code-1 data data-1 ");
	assert_string_equal(names(b, "u", ""), "hers ");
}

static void it_only_grows(void **state)
{
	struct db_bed *b = *state;

	put(b, "t", "data", "f1", "");
	assert_int_equal(db_volume_grow(b->db, "t", "data", 8192, &b->e), 0);
	assert_string_equal(found(b, "t", "data"), "t data f1 volume  8192 1000;");
	assert_int_equal(db_volume_grow(b->db, "t", "data", 4096, &b->e), 0);
	assert_int_equal(db_volume_grow(b->db, "u", "data", 65536, &b->e), 0);
	assert_string_equal(found(b, "t", "data"), "t data f1 volume  8192 1000;");
}

static void all_of_them_can_be_looked_at_a_few_at_a_time(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";
	int n = 0;

	put(b, "t", "c", "f3", "");
	put(b, "t", "a", "f1", "");
	put(b, "u", "b", "f2", "");
	assert_int_equal(db_volumes_after(b->db, "", 2, add_name, text, &b->e), 0);
	assert_string_equal(text, "a b ");
	assert_int_equal(db_volumes_after(b->db, "f2", 2, add_name, text, &b->e), 0);
	assert_string_equal(text, "a b c ");
	assert_int_equal(db_volumes_after(b->db, "", 3, count_to_two, &n, &b->e), 0);
	assert_int_equal(n, 2);
}

static void a_quota_counts_those_that_are_being_made_too(void **state)
{
	struct db_bed *b = *state;
	uint64_t n = 7, bytes = 7;

	assert_int_equal(db_volumes_usage(b->db, "t", &n, &bytes, &b->e), 0);
	assert_int_equal(n, 0);
	assert_int_equal(bytes, 0);
	assert_int_equal(db_volume_insert(b->db, &one, &b->e), 0);
	put(b, "t", "code", "f2", "");
	put(b, "u", "data", "f3", "");
	assert_int_equal(db_volumes_usage(b->db, "t", &n, &bytes, &b->e), 0);
	assert_int_equal(n, 2);
	assert_int_equal(bytes, 8192);
}

static void the_next_pandad_is_rid_of_the_unfinished_and_keeps_the_rest(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";
	bool known = false;

	put(b, "t", "kept", "f2", "");
	assert_int_equal(db_volume_insert(b->db, &one, &b->e), 0);
	assert_int_equal(db_volume_known(b->db, "f1", &known, &b->e), 0);
	assert_true(known);
	assert_int_equal(db_volumes_delete_unfinished(b->db, &b->e), 0);
	assert_int_equal(db_volumes_ready(b->db, add_name, text, &b->e), 0);
	assert_string_equal(text, "kept ");
	assert_int_equal(db_volume_known(b->db, "f1", &known, &b->e), 0);
	assert_false(known);
}

static void on_a_full_disk_none_is_added_and_one_can_be_deleted(void **state)
{
	struct db_bed *b = *state;
	struct db_volume large = one;

	put(b, "t", "data", "f1", "");
	large.name = db_bed_large();
	large.file = "f2";
	db_bed_fill(b);
	assert_full(b, db_volume_insert(b->db, &large, &b->e));
	assert_string_equal(names(b, "t", ""), "data ");
	assert_int_equal(db_volume_delete(b->db, "f1", &b->e), 0);
	assert_string_equal(names(b, "t", ""), "");
}

static void a_damaged_row_is_given_as_it_is_read(void **state)
{
	struct db_bed *b = *state;

	put(b, "t", "data", "f1", "");
	db_bed_sql(b, "UPDATE volumes SET size = -4096, created_at = 'never', kind = 'odd'");
	assert_string_equal(found(b, "t", "data"), "t data f1 odd  0 0;");
	assert_string_equal(names(b, "t", NULL), "");
	assert_string_equal(names(b, "t", ""), "data ");
}

static void a_damaged_file_answers_nothing_and_says_so(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";
	uint64_t n = 7, bytes = 7;
	bool known = true;

	put(b, "t", "data", "f1", "");
	db_bed_damage(b, "volumes");
	assert_damaged(b, db_volumes_ready(b->db, add_name, text, &b->e));
	assert_damaged(b, db_volumes_unfinished(b->db, add_name, text, &b->e));
	assert_damaged(b, db_volumes_delete_unfinished(b->db, &b->e));
	assert_damaged(b, db_volumes_each(b->db, "t", NULL, add_name, text, &b->e));
	assert_damaged(b, db_volumes_after(b->db, "", 9, add_name, text, &b->e));
	assert_damaged(b, db_volume_get(b->db, "t", "data", add_name, text, &b->e));
	assert_damaged(b, db_volumes_usage(b->db, "t", &n, &bytes, &b->e));
	assert_string_equal(text, "");
	assert_int_equal(n, 7);
	assert_int_equal(bytes, 7);
	db_bed_damage(b, "sqlite_autoindex_volumes_1");
	assert_damaged(b, db_volume_known(b->db, "f1", &known, &b->e));
	assert_true(known);
}

static void records_that_are_not_open_are_no_records(void **state)
{
	struct db_bed *b = *state;
	char text[256] = "";
	uint64_t n, bytes;
	bool known;

	assert_not_open(b, db_volume_insert(NULL, &one, &b->e));
	assert_not_open(b, db_volume_ready(NULL, "f1", &b->e));
	assert_not_open(b, db_volume_grow(NULL, "t", "data", 8192, &b->e));
	assert_not_open(b, db_volume_deleting(NULL, "f1", &b->e));
	assert_not_open(b, db_volume_delete(NULL, "f1", &b->e));
	assert_not_open(b, db_volume_get(NULL, "t", "data", add_name, text, &b->e));
	assert_not_open(b, db_volumes_each(NULL, "t", NULL, add_name, text, &b->e));
	assert_not_open(b, db_volumes_after(NULL, "", 9, add_name, text, &b->e));
	assert_not_open(b, db_volumes_usage(NULL, "t", &n, &bytes, &b->e));
	assert_not_open(b, db_volume_known(NULL, "f1", &known, &b->e));
	assert_not_open(b, db_volumes_unfinished(NULL, add_name, text, &b->e));
	assert_not_open(b, db_volumes_delete_unfinished(NULL, &b->e));
	assert_not_open(b, db_volumes_ready(NULL, add_name, text, &b->e));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    db_bed_test(users_see_it_only_between_ready_and_deleting),
	    db_bed_test(a_name_is_taken_once_for_a_tenant),
	    db_bed_test(volumes_and_snapshots_of_volumes_are_listed_apart_or_together),
	    db_bed_test(it_only_grows),
	    db_bed_test(all_of_them_can_be_looked_at_a_few_at_a_time),
	    db_bed_test(a_quota_counts_those_that_are_being_made_too),
	    db_bed_test(the_next_pandad_is_rid_of_the_unfinished_and_keeps_the_rest),
	    db_bed_test(on_a_full_disk_none_is_added_and_one_can_be_deleted),
	    db_bed_test(a_damaged_row_is_given_as_it_is_read),
	    db_bed_test(a_damaged_file_answers_nothing_and_says_so),
	    db_bed_test(records_that_are_not_open_are_no_records),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
