/*
 * A snapshot goes out as one file and comes back; what a stranger has changed in it is refused.
 */
#include "fake/bed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "host/archive.h"
#include "host/host_internal.h"

struct file {
	char *p;
	size_t n;
};

static struct file export_it(struct bed *b, const struct host_snapshot *s, size_t piece)
{
	struct file f = {0};
	struct parcel_out *out;
	uint64_t length;
	ssize_t n;

	assert_int_equal(parcel_open(b->host, s, &out, &b->err), 0);
	length = parcel_length(out);
	f.p = malloc(length);
	assert_non_null(f.p);
	while ((n = parcel_read(out, f.p + f.n, MIN(piece, (size_t)length - f.n + 1))) > 0)
		f.n += (size_t)n;
	assert_int_equal(n, 0);
	parcel_close(out);
	assert_int_equal(f.n, length); /* as it said before the first byte */
	return f;
}

/* 0, and its id; or what was wrong, and nothing is left of it. */
static int import_it(struct bed *b, const char *p, size_t n, size_t piece, char ret[SANDBOX_ID + 1])
{
	struct host_snapshot s = {.id = ""};
	struct parcel_in *in;
	int r = host_import_begin(b->host, "t", NULL, s.id, &b->err);

	assert_int_equal(r, 0);
	assert_int_equal(parcel_begin(b->host, s.id, &in, &b->err), 0);
	for (size_t at = 0; r == 0 && at < n; at += piece)
		r = parcel_feed(in, p + at, MIN(piece, n - at), &b->err);
	if (r == 0)
		r = parcel_end(in, &s, &b->err);
	parcel_free(in);
	if (r == 0)
		r = host_import_end(b->host, &s, &b->err);
	if (r < 0)
		host_import_undo(b->host, s.id);
	else if (ret)
		memcpy(ret, s.id, sizeof(s.id));
	return r;
}

static struct host_snapshot taken(struct bed *b)
{
	struct sandbox *sb = bed_create_plain(b);
	struct host_snapshot s;

	bed_remember(sb, 9, "travels");
	assert_int_equal(bed_write(b, sb, "/work/note", "travels, too"), 0);
	assert_int_equal(bed_snapshot(b, sb, "luggage", &s), 0);
	assert_int_equal(bed_kill(b, sb), 0);
	return s;
}

static void what_comes_back_is_what_went_out(void **state)
{
	static const size_t pieces[] = {1 << 20, 65536, 4097, 511};
	struct bed *b = *state;
	struct host_snapshot s = taken(b), got;

	for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
		struct file f = export_it(b, &s, pieces[i]);
		struct sandbox_spec spec = bed_spec();
		struct sandbox *sb;
		char id[SANDBOX_ID + 1];

		assert_int_equal(import_it(b, f.p, f.n, pieces[i], id), 0);
		free(f.p);
		assert_int_equal(host_snapshot_get(b->host, "t", id, &got, &b->err), 0);
		assert_string_equal(got.name, "luggage");
		assert_string_equal(got.template, "base");
		assert_int_equal(got.generation, s.generation);
		snprintf(spec.from_snapshot, sizeof(spec.from_snapshot), "%s", id);
		sb = bed_create(b, &spec);
		assert_non_null(sb);
		assert_recalls(sb, 9, "travels");
		assert_string_equal(bed_read(b, sb, "/work/note"), "travels, too");
		assert_int_equal(bed_kill(b, sb), 0);
		bed_check_leftovers(b);
	}
}

static void it_goes_to_another_host(void **state)
{
	struct bed *b = *state, other;
	struct host_snapshot s = taken(b);
	struct file f = export_it(b, &s, 65536);
	struct sandbox_spec spec = bed_spec();
	struct sandbox *sb;

	bed_make(&other);
	bed_open_host(&other);
	assert_int_equal(import_it(&other, f.p, f.n, 65536, spec.from_snapshot), 0);
	sb = bed_create(&other, &spec);
	assert_non_null(sb);
	assert_recalls(sb, 9, "travels");
	assert_int_equal(bed_kill(&other, sb), 0);
	bed_close_host(&other);
	bed_leave(&other);
	free(f.p);
}

static void one_that_is_cut_off_anywhere_is_refused(void **state)
{
	struct bed *b = *state;
	struct host_snapshot s = taken(b);
	struct file f = export_it(b, &s, 65536);
	size_t step = f.n / 41 + 1;

	for (size_t n = 0; n + 1024 < f.n; n += step) { /* tar pads its end as it likes */
		assert_true(import_it(b, f.p, n, 65536, NULL) < 0);
		assert_string_equal(b->err.kind, "parcel_invalid");
	}
	free(f.p);
	bed_check_leftovers(b);
}

/* Any changed byte is found: by the tar's sums, by a digest, or because it means nothing. */
static void one_that_was_changed_anywhere_is_refused_or_the_same(void **state)
{
	struct bed *b = *state;
	struct host_snapshot s = taken(b);
	struct file f = export_it(b, &s, 65536);
	unsigned refused = 0, taken_in = 0;

	for (size_t at = 3; at < f.n; at += f.n / 97 + 1) {
		struct sandbox_spec spec = bed_spec();
		struct sandbox *sb;

		f.p[at] ^= 0x40;
		if (import_it(b, f.p, f.n, 65536, spec.from_snapshot) < 0) {
			refused++;
		} else { /* in padding, or in words without a digest: the machine is whole */
			taken_in++;
			sb = bed_create(b, &spec);
			assert_non_null(sb);
			assert_recalls(sb, 9, "travels");
			assert_string_equal(bed_read(b, sb, "/work/note"), "travels, too");
			assert_int_equal(bed_kill(b, sb), 0);
			assert_int_equal(bed_snapshot_delete(b, spec.from_snapshot), 0);
		}
		f.p[at] ^= 0x40;
	}
	assert_true(refused > 8 && taken_in > 0);
	free(f.p);
	bed_check_leftovers(b);
}

static void files_of_other_kinds_are_refused(void **state)
{
	struct bed *b = *state;
	char noise[4096];

	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (char)(i * 131 + 7);
	assert_true(import_it(b, noise, sizeof(noise), 512, NULL) < 0);
	assert_string_equal(b->err.kind, "parcel_invalid");
	memset(noise, 0, sizeof(noise)); /* an empty tar */
	assert_true(import_it(b, noise, sizeof(noise), 512, NULL) < 0);
	assert_true(import_it(b, noise, 0, 512, NULL) < 0);
	bed_check_leftovers(b);
}

static void members_out_of_order_are_refused(void **state)
{
	struct bed *b = *state;
	struct host_snapshot s = taken(b);
	struct file f = export_it(b, &s, 65536);

	/* Without its first member, and with it twice. */
	assert_true(import_it(b, f.p + 1024, f.n - 1024, 65536, NULL) < 0);
	assert_string_equal(b->err.kind, "parcel_invalid");
	{
		autofree char *twice = malloc(f.n + 1024);

		memcpy(twice, f.p, 1024);
		memcpy(twice + 1024, f.p, f.n);
		assert_true(import_it(b, twice, f.n + 1024, 65536, NULL) < 0);
	}
	assert_string_equal(b->err.kind, "parcel_invalid");
	free(f.p);
	bed_check_leftovers(b);
}

static void one_of_another_kernel_is_refused(void **state)
{
	struct bed *b = *state;
	struct host_snapshot s = taken(b);
	struct file f = export_it(b, &s, 65536);

	bed_close_host(b);
	b->engine.kernel = "fake-2";
	bed_open_host(b);
	assert_true(import_it(b, f.p, f.n, 65536, NULL) < 0);
	assert_string_equal(b->err.kind, "snapshot_foreign");
	free(f.p);
	bed_check_leftovers(b);
}

static void a_quota_counts_those_that_come(void **state)
{
	struct bed *b = *state;
	struct quota quota = {.snapshots = 1};
	char id[SANDBOX_ID + 1];

	taken(b);
	assert_int_equal(host_import_begin(b->host, "t", &quota, id, &b->err), -EDQUOT);
	assert_string_equal(b->err.kind, "quota_exceeded");
	assert_int_equal(host_import_begin(b->host, "other", &quota, id, &b->err), 0);
	/* Until it is whole it cannot be seen, and the next pandad removes it. */
	assert_int_equal(host_snapshot_get(b->host, "other", id, &(struct host_snapshot){0},
	                                   &b->err),
	                 -ENOENT);
	bed_reopen(b);
	bed_check_leftovers(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(what_comes_back_is_what_went_out),
	    bed_test(it_goes_to_another_host),
	    bed_test(one_that_is_cut_off_anywhere_is_refused),
	    bed_test(one_that_was_changed_anywhere_is_refused_or_the_same),
	    bed_test(files_of_other_kinds_are_refused),
	    bed_test(members_out_of_order_are_refused),
	    bed_test(one_of_another_kernel_is_refused),
	    bed_test(a_quota_counts_those_that_come),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
