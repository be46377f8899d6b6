/*
 * A sandbox comes to be, or leaves nothing.
 */
#include "fake/bed.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "host/host_internal.h"

/* The last create came to nothing, for this reason, and left nothing. */
static void expect_nothing(struct bed *b, const char *kind, size_t others)
{
	assert_string_equal(b->err.kind, kind);
	assert_int_equal(b->host->count, others);
	bed_check_leftovers(b);
}

static void a_create_starts_a_machine_with_a_guest(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	const char *out;

	assert_true(sb->pid > 0);
	assert_string_equal(sb->boot_mode, "snapshot");
	assert_string_equal(sb->isolation, "a-process");
	assert_int_equal(sb->memory_mb, BED_MEMORY_MB);
	assert_int_equal(bed_exec(b, sb, "echo hello; exit 3", &out), 3);
	assert_string_equal(out, "hello\n");
	bed_check_leftovers(b);
}

static void its_guest_is_told_who_it_is(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	const char *out;

	assert_int_equal(bed_exec(b, sb, "hostname", &out), 0);
	assert_memory_equal(out, sb->id, SANDBOX_ID);
	assert_int_equal(sb->generation, 2); /* the bake's was the first */
}

static void many_at_once_wait_for_one_bake(void **state)
{
	enum { N = 6 };
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();
	struct bed_answer a[N] = {0};

	for (size_t i = 0; i < N; i++) {
		a[i].bed = b;
		host_create(b->host, "t", &spec, NULL, bed_answered, &a[i]);
		assert_int_equal(b->host->newest->state, SANDBOX_CREATING);
	}
	for (size_t i = 0; i < N; i++)
		assert_int_equal(bed_wait_answer(b, &a[i]), 0);
	assert_int_equal(b->host->count, N);
	assert_int_equal(b->host->stats.creates, N);
	/* One machine was booted for the bake, and no other but those that were asked for. */
	assert_int_equal(fake_count(b->fake, FAKE_CALL_START), N + 1);
	bed_check_leftovers(b);
}

static void a_bake_is_made_once_for_all_pandads(void **state)
{
	struct bed *b = *state;

	bed_create_plain(b);
	bed_reopen(b);
	bed_create_plain(b);
	assert_int_equal(fake_count(b->fake, FAKE_CALL_START), 1);
	assert_int_equal(bed_snapshots(b, "tpl-"), 1);
}

static void an_unknown_template_is_refused_at_once(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();

	snprintf(spec.template, sizeof(spec.template), "none");
	assert_null(bed_create(b, &spec));
	expect_nothing(b, "template_not_found", 0);
	assert_non_null(strstr(b->err.text, "base")); /* it names those there are */
}

static void a_template_without_its_image_is_unusable(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();
	char path[120];

	snprintf(path, sizeof(path), "%s/root.img", b->dir);
	assert_int_equal(unlink(path), 0);
	assert_null(bed_create(b, &spec));
	expect_nothing(b, "template_unusable", 0);
}

static void a_bake_that_fails_is_tried_again(void **state)
{
	static const enum fake_call calls[] = {FAKE_CALL_START, FAKE_CALL_SNAPSHOT};
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();

	for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
		fake_fail(b->fake, calls[i], 1, EIO);
		assert_null(bed_create(b, &spec));
		expect_nothing(b, "fake_failed", 0);
		assert_int_equal(bed_snapshots(b, ""), 0);
	}
	bed_create_plain(b);
}

static void a_machine_that_does_not_start_is_undone(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();

	bed_create_plain(b);
	fake_fail(b->fake, FAKE_CALL_START, 1, ENOMEM);
	assert_null(bed_create(b, &spec));
	expect_nothing(b, "fake_failed", 1);
	bed_create_plain(b);
	bed_check_leftovers(b);
}

/* What a guest may say instead of what it was asked. */
static void a_guest_that_misbehaves_at_birth_is_undone(void **state)
{
	static const struct {
		const char *mood, *kind;
	} cases[] = {
	    {"{\"*\": \"garbage\"}", NULL},  {"{\"*\": \"length\"}", NULL},
	    {"{\"*\": \"stranger\"}", NULL}, {"{\"*\": \"flood\"}", NULL},
	    {"{\"*\": \"hangup\"}", NULL},   {"{\"*\": \"die\"}", NULL},
	};
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();

	bed_create_plain(b); /* the bake is there */
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		bed_rule(b, "mood", cases[i].mood);
		b->err.kind = "";
		assert_null(bed_create(b, &spec));
		assert_string_not_equal(b->err.kind, "");
		assert_int_equal(b->host->count, 1);
		bed_rule(b, "mood", NULL);
	}
	bed_check_leftovers(b);
	bed_create_plain(b);
}

static void a_guest_that_refuses_its_identity_is_undone(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();

	bed_create_plain(b);
	bed_rule(b, "refuse", "{\"reborn\": {\"err\": 5, \"text\": \"no\"}}");
	assert_null(bed_create(b, &spec));
	bed_rule(b, "refuse", NULL);
	assert_int_equal(b->err.code, EIO);
	assert_int_equal(b->host->count, 1);
	bed_check_leftovers(b);
}

static void a_sandbox_can_be_killed_before_it_is_there(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();
	struct bed_answer made = {.bed = b}, killed = {.bed = b};

	bed_create_plain(b);
	fake_close(b->fake, FAKE_CALL_START);
	host_create(b->host, "t", &spec, NULL, bed_answered, &made);
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_START) == 1);
	host_kill(b->host, b->host->newest, "test", bed_answered, &killed);
	assert_false(killed.done);
	fake_open(b->fake, FAKE_CALL_START);
	assert_int_equal(bed_wait_answer(b, &killed), 0);
	assert_true(made.done); /* it was, for a moment */
	assert_int_equal(b->host->count, 1);
	bed_check_leftovers(b);
}

static void others_do_not_find_it(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);

	assert_ptr_equal(host_find(b->host, "t", sb->id), sb);
	assert_ptr_equal(host_find(b->host, NULL, sb->id), sb);
	assert_null(host_find(b->host, "other", sb->id));
	assert_null(host_find(b->host, "t", "none"));
}

static void what_it_was_asked_with_is_on_record(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();
	struct sandbox *sb;
	char id[SANDBOX_ID + 1];

	spec.ttl_s = 3600;
	spec.idle_s = 77;
	spec.auto_hibernate_s = 88;
	spec.snapshots_keep = 3;
	spec.persistent = true;
	spec.metadata = json_pack("{s:s}", "for", "a test");
	spec.env = json_pack("{s:s}", "A", "1");
	sb = bed_create(b, &spec);
	assert_non_null(sb);
	json_decref(spec.metadata);
	json_decref(spec.env);
	memcpy(id, sb->id, sizeof(id));
	bed_reopen(b);
	sb = bed_find(b, id);
	assert_int_equal(sb->spec.ttl_s, 3600);
	assert_int_equal(sb->spec.idle_s, 77);
	assert_int_equal(sb->spec.auto_hibernate_s, 88);
	assert_int_equal(sb->spec.snapshots_keep, 3);
	assert_true(sb->spec.persistent);
	assert_string_equal(json_string_value(json_object_get(sb->spec.metadata, "for")), "a test");
	assert_string_equal(json_string_value(json_object_get(sb->spec.env, "A")), "1");
	assert_string_equal(sb->spec.template, "base");
	assert_int_equal(sb->generation, 2);
}

static void metadata_can_be_replaced_and_stays_so(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	char id[SANDBOX_ID + 1];

	memcpy(id, sb->id, sizeof(id));
	assert_int_equal(host_set_metadata(b->host, sb, json_pack("{s:i}", "n", 5), &b->err), 0);
	assert_int_equal(host_set_life(b->host, sb, 500, 1, &b->err), 0);
	bed_reopen(b);
	sb = bed_find(b, id);
	assert_int_equal(json_integer_value(json_object_get(sb->spec.metadata, "n")), 5);
	assert_int_equal(sb->spec.ttl_s, 500);
	assert_true(sb->spec.persistent);
}

/* The guest is told to keep back what its disk has more than was asked for. */
static void a_smaller_disk_is_told_to_the_guest(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb;
	const char *blocks;

	assert_int_equal(truncate(b->upper, (off_t)3 << 30), 0);
	sb = bed_create_plain(b); /* of 3 GiB, and the template says 1 */
	assert_int_equal(sb->disk_gb, 1);
	blocks = bed_read(b, sb, "/sys/fs/ext4/pblk1/reserved_clusters");
	assert_non_null(blocks);
	assert_string_equal(blocks, "524288"); /* of 4096 bytes: 2 GiB */
}

static void a_guest_that_does_not_say_how_large_its_disk_is_is_undone(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();

	assert_int_equal(truncate(b->upper, (off_t)3 << 30), 0);
	bed_create_plain(b);
	bed_rule(b, "refuse", "{\"stats\": {\"err\": 5, \"text\": \"no\"}}");
	assert_null(bed_create(b, &spec));
	bed_rule(b, "refuse", NULL);
	assert_int_equal(b->host->count, 1);
	bed_check_leftovers(b);
}

static void with_no_network_it_has_no_address(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct host_net net;
	const char *mac;
	char ip[16];

	host_address(sb, ip, &mac);
	assert_string_equal(ip, "");
	host_net(b->host, sb, &net);
	assert_int_equal(net.up_bytes, 0);
	assert_null(b->host->net);
}

static void a_host_that_closes_takes_no_more(void **state)
{
	struct bed *b = *state;
	struct sandbox_spec spec = bed_spec();

	b->host->depot.closing = true;
	assert_null(bed_create(b, &spec));
	assert_string_equal(b->err.kind, "shutting_down");
	b->host->depot.closing = false;
}

struct drained {
	struct bed *bed;
	bool done;
};

static void drained(void *arg)
{
	struct drained *d = arg;

	d->done = true;
	bed_wake(d->bed);
}

static void a_host_that_closes_waits_for_what_has_begun(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct bed_answer first = {.bed = b}, second = {.bed = b};
	struct drained d = {.bed = b};

	fake_close(b->fake, FAKE_CALL_SNAPSHOT);
	host_hibernate(b->host, sb, bed_answered, &first);
	host_pause(b->host, sb, bed_answered, &second); /* which waits for its turn */
	bed_until(b, fake_waiting(b->fake, FAKE_CALL_SNAPSHOT) == 1);
	host_drain(b->host, drained, &d);
	assert_false(d.done);
	fake_open(b->fake, FAKE_CALL_SNAPSHOT);
	bed_until(b, d.done);
	assert_true(first.done && second.done);
	assert_null(sb->ops);
	assert_int_equal(pool_busy(b->host->pool), 0);
	b->host->depot.closing = false;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(a_create_starts_a_machine_with_a_guest),
	    bed_test(its_guest_is_told_who_it_is),
	    bed_test(many_at_once_wait_for_one_bake),
	    bed_test(a_bake_is_made_once_for_all_pandads),
	    bed_test(an_unknown_template_is_refused_at_once),
	    bed_test(a_template_without_its_image_is_unusable),
	    bed_test(a_bake_that_fails_is_tried_again),
	    bed_test(a_machine_that_does_not_start_is_undone),
	    bed_test(a_guest_that_misbehaves_at_birth_is_undone),
	    bed_test(a_guest_that_refuses_its_identity_is_undone),
	    bed_test(a_sandbox_can_be_killed_before_it_is_there),
	    bed_test(others_do_not_find_it),
	    bed_test(what_it_was_asked_with_is_on_record),
	    bed_test(metadata_can_be_replaced_and_stays_so),
	    bed_test(a_smaller_disk_is_told_to_the_guest),
	    bed_test(a_guest_that_does_not_say_how_large_its_disk_is_is_undone),
	    bed_test(with_no_network_it_has_no_address),
	    bed_test(a_host_that_closes_takes_no_more),
	    bed_test(a_host_that_closes_waits_for_what_has_begun),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
