/*
 * A snapshot goes out as one file and comes back; what a stranger has changed in it is refused.
 */
#include "fake/bed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "db/snapshots.h"
#include "host/archive.h"
#include "host/archive_internal.h"
#include "host/host_internal.h"
#include "layers/digest.h"

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

/* 0, and its id; or what was wrong, and nothing is left of it. any: an admin sends it. */
static int import_as(struct bed *b, bool any, const char *p, size_t n, size_t piece,
                     char ret[SANDBOX_ID + 1])
{
	struct host_snapshot s = {.id = ""};
	struct parcel_in *in;
	int r = host_import_begin(b->host, "t", NULL, s.id, &b->err);

	assert_int_equal(r, 0);
	assert_int_equal(parcel_begin(b->host, s.id, any, &in, &b->err), 0);
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

static int import_it(struct bed *b, const char *p, size_t n, size_t piece, char ret[SANDBOX_ID + 1])
{
	return import_as(b, false, p, n, piece, ret);
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

static enum snapshot_origin origin_of(struct bed *b, const char *id)
{
	struct host_snapshot s;

	assert_int_equal(host_snapshot_get(b->host, "t", id, &s, &b->err), 0);
	return s.origin;
}

static void it_goes_to_another_host_that_knows_this_one(void **state)
{
	struct bed *b = *state, other;
	struct host_snapshot s = taken(b);
	struct file f = export_it(b, &s, 65536);
	struct sandbox_spec spec = bed_spec();
	char keys[100], line[SIGNATURE_KEY + 20];
	struct sandbox *sb;

	bed_make(&other);
	bed_open_host(&other);
	/* Not yet: its key is in no file there. */
	assert_int_equal(import_it(&other, f.p, f.n, 65536, NULL), -EPERM);
	assert_string_equal(other.err.kind, "archive_untrusted");
	assert_non_null(strstr(other.err.text, b->host->archive_key.public));
	assert_int_equal(bed_snapshots(&other, ""), 0);
	bed_close_host(&other);
	snprintf(keys, sizeof(keys), "%s/keys", other.dir);
	snprintf(line, sizeof(line), "%s the first\n", b->host->archive_key.public);
	assert_int_equal(io_replace_file(AT_FDCWD, keys, line, strlen(line), 0600, false), 0);
	other.config.import_keys = keys;
	bed_open_host(&other);
	assert_int_equal(import_it(&other, f.p, f.n, 65536, spec.from_snapshot), 0);
	assert_int_equal(origin_of(&other, spec.from_snapshot), SNAPSHOT_SIGNED);
	sb = bed_create(&other, &spec);
	assert_non_null(sb);
	assert_recalls(sb, 9, "travels");
	assert_int_equal(bed_kill(&other, sb), 0);
	bed_close_host(&other);
	bed_leave(&other);
	free(f.p);
}

/* And that is known of it from then on, also when it is exported again. */
static void an_admin_may_bring_one_from_a_host_that_is_not_known(void **state)
{
	struct bed *b = *state, other;
	struct host_snapshot s = taken(b), got;
	struct file f = export_it(b, &s, 65536), again;
	struct sandbox_spec spec = bed_spec();
	struct sandbox *sb;

	bed_make(&other);
	bed_open_host(&other);
	assert_int_equal(import_as(&other, true, f.p, f.n, 65536, spec.from_snapshot), 0);
	assert_int_equal(origin_of(&other, spec.from_snapshot), SNAPSHOT_UNKNOWN_KEY);
	bed_reopen(&other);
	assert_int_equal(origin_of(&other, spec.from_snapshot), SNAPSHOT_UNKNOWN_KEY);
	sb = bed_create(&other, &spec);
	assert_non_null(sb);
	assert_recalls(sb, 9, "travels");
	assert_int_equal(host_snapshot_get(other.host, "t", spec.from_snapshot, &got, &other.err),
	                 0);
	again = export_it(&other, &got, 65536);
	assert_int_equal(import_it(&other, again.p, again.n, 65536, NULL), -EPERM);
	assert_string_equal(other.err.kind, "archive_untrusted");
	assert_int_equal(import_as(&other, true, again.p, again.n, 65536, spec.from_snapshot), 0);
	assert_int_equal(origin_of(&other, spec.from_snapshot), SNAPSHOT_UNSIGNED);
	free(again.p);
	free(f.p);
	assert_int_equal(bed_kill(&other, sb), 0);
	bed_close_host(&other);
	bed_leave(&other);
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

/* --- forged ones ------------------------------------------------------------------------------ */

/* The text of the i-th file, which the caller frees; *ret_at is where its header is. */
static char *member(const struct file *f, unsigned i, size_t *ret_at)
{
	struct tar_header h;
	size_t at = 0, n;
	char *text;

	for (;;) {
		memcpy(&h, f->p + at, TAR_BLOCK);
		n = strtoul(h.size, NULL, 8);
		if (i-- == 0)
			break;
		at += TAR_BLOCK + tar_padded(n);
	}
	text = strndup(f->p + at + TAR_BLOCK, n);
	assert_non_null(text);
	*ret_at = at;
	return text;
}

static size_t put_member(char *to, const char *name, const char *text)
{
	struct tar_header h = {.type = '0', .magic = "ustar", .version = "00"};
	size_t n = strlen(text);

	snprintf(h.name, sizeof(h.name), "%s", name);
	snprintf(h.size, sizeof(h.size), "%011zo", n & 0777777777);
	snprintf(h.sum, sizeof(h.sum), "%06o", tar_sum(&h));
	h.sum[7] = ' ';
	memcpy(to, &h, TAR_BLOCK);
	memset(to + TAR_BLOCK, 0, tar_padded(n));
	memcpy(to + TAR_BLOCK, text, n);
	return TAR_BLOCK + tar_padded(n);
}

/* One word of a text by another. */
static char *with(const char *text, const char *was, const char *now)
{
	const char *at = strstr(text, was);
	char *ret;

	assert_non_null(at);
	assert_true(asprintf(&ret, "%.*s%s%s", (int)(at - text), text, now, at + strlen(was)) > 0);
	return ret;
}

/* What a text says of itself, made true again: 64 hex digits at `at`, of what begins at `from`. */
static void seal(char *at, const char *from, size_t n)
{
	char hex[DIGEST_TEXT];
	struct digest d;

	assert_int_equal(digest_bytes(from, n, &d), 0);
	digest_text(&d, hex);
	memcpy(at, hex, DIGEST_TEXT - 1);
}

/*
 * As one would who knows the format: a word of the manifest by another, a word of the record by
 * another (NULL: neither), with all digests made anew, and with the signature or without it.
 */
static struct file forge(const struct file *f, const char *was, const char *now,
                         const char *record_was, const char *record_now, bool keep_signature)
{
	size_t head = strlen("{\"sha256\":\""), body = head + DIGEST_TEXT - 1 + strlen("\",");
	size_t at_record, at_manifest, at_state;
	autofree char *record = member(f, 0, &at_record), *manifest = member(f, 1, &at_manifest);
	autofree char *state = member(f, 2, &at_state), *text = NULL;
	struct file ret = {.p = malloc(f->n + 65536)};
	json_t *j;

	assert_non_null(ret.p);
	if (was) {
		char *other = with(manifest, was, now);

		free(manifest);
		manifest = other;
		seal(manifest + head, manifest + body, strlen(manifest + body));
	}
	if (record_was) {
		char *other = with(record, record_was, record_now);

		free(record);
		record = other;
	}
	j = json_loads(record, 0, NULL);
	assert_non_null(j);
	if (json_object_get(j, "manifest_sha256")) {
		char hex[DIGEST_TEXT] = "";

		seal(hex, manifest, strlen(manifest));
		json_object_set_new(j, "manifest_sha256", json_string(hex));
	}
	if (!keep_signature)
		json_object_del(j, "signature");
	text = json_dumps(j, JSON_COMPACT);
	json_decref(j);
	assert_non_null(text);
	ret.n = put_member(ret.p, "record.json", text);
	ret.n += put_member(ret.p + ret.n, "manifest.json", manifest);
	memcpy(ret.p + ret.n, f->p + at_state, f->n - at_state);
	ret.n += f->n - at_state;
	return ret;
}

struct forgery {
	const char *was, *now, *record_was, *record_now;
	const char *admin; /* what an admin hears of it; NULL: it comes in */
};

static const struct forgery forgeries[] = {
    {"\"memory_size\":16777216", "\"memory_size\":214748364800", NULL, NULL, "too_large"},
    {"\"memory_size\":16777216", "\"memory_size\":1099511627776", NULL, NULL, "parcel_invalid"},
    {"\"memory_size\":16777216", "\"memory_size\":4096", NULL, NULL, "parcel_invalid"},
    {"\"size\":8388608", "\"size\":107374182400", NULL, NULL, "too_large"},
    {"\"size\":8388608", "\"size\":429496729600", NULL, NULL, "parcel_invalid"},
    {"\"size\":8388608", "\"size\":8384512", NULL, NULL, "parcel_invalid"},
    {"\"read_only\":false", "\"read_only\":7", NULL, NULL, "parcel_invalid"},
    {NULL, NULL, "\"template\":\"base\"", "\"template\":\"none\"", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static void a_tenant_cannot_forge_one(void **state)
{
	struct bed *b = *state;
	struct host_snapshot s = taken(b);
	struct file f = export_it(b, &s, 65536);

	for (size_t i = 0; i < ARRAY_LEN(forgeries); i++) {
		const struct forgery *x = &forgeries[i];

		for (int keep = 0; keep < 2; keep++) {
			struct file it =
			    forge(&f, x->was, x->now, x->record_was, x->record_now, keep);
			bool same = !x->was && !x->record_was && keep;
			int r = import_it(b, it.p, it.n, 65536, NULL);

			assert_int_equal(r, same ? 0 : keep ? -EINVAL : -EPERM);
			if (!same)
				assert_string_equal(b->err.kind,
				                    keep ? "parcel_invalid" : "archive_untrusted");
			free(it.p);
		}
	}
	free(f.p);
}

static void an_admin_hears_what_is_wrong_with_one(void **state)
{
	struct bed *b = *state;
	struct host_snapshot s = taken(b);
	struct file f = export_it(b, &s, 65536);

	for (size_t i = 0; i < ARRAY_LEN(forgeries); i++) {
		const struct forgery *x = &forgeries[i];
		struct file it = forge(&f, x->was, x->now, x->record_was, x->record_now, false);
		char id[SANDBOX_ID + 1];
		int r = import_as(b, true, it.p, it.n, 65536, id);

		if (x->admin) {
			assert_true(r < 0);
			assert_string_equal(b->err.kind, x->admin);
		} else {
			assert_int_equal(r, 0);
			assert_int_equal(origin_of(b, id), SNAPSHOT_UNSIGNED);
			assert_int_equal(bed_snapshot_delete(b, id), 0);
		}
		free(it.p);
	}
	free(f.p);
	bed_check_leftovers(b);
}

static void one_of_another_is_not_made_ones_own_by_its_signature(void **state)
{
	struct bed *b = *state;
	struct host_snapshot s = taken(b), t = taken(b);
	struct file f = export_it(b, &s, 65536), g = export_it(b, &t, 65536), mix;
	size_t at, after;

	/* The record of one, and all else of the other. */
	free(member(&f, 1, &after));
	free(member(&g, 1, &at));
	mix = (struct file){.p = malloc(after + g.n - at), .n = after + g.n - at};
	memcpy(mix.p, f.p, after);
	memcpy(mix.p + after, g.p + at, g.n - at);
	assert_int_equal(import_it(b, mix.p, mix.n, 65536, NULL), -EINVAL);
	assert_string_equal(b->err.kind, "parcel_invalid");
	assert_int_equal(import_as(b, true, mix.p, mix.n, 65536, NULL), -EINVAL);
	free(mix.p);
	free(f.p);
	free(g.p);
}

static void its_memory_counts_though_its_template_is_unknown(void **state)
{
	struct bed *b = *state;
	struct host_snapshot s = taken(b), got;
	struct file f = export_it(b, &s, 65536);
	struct file it =
	    forge(&f, NULL, NULL, "\"template\":\"base\"", "\"template\":\"none\"", false);
	struct sandbox_spec spec = bed_spec();
	struct quota quota = {.memory_mb = BED_MEMORY_MB - 1};
	struct bed_answer a = {.bed = b}, c = {.bed = b};

	assert_int_equal(import_as(b, true, it.p, it.n, 65536, spec.from_snapshot), 0);
	free(it.p);
	free(f.p);
	assert_int_equal(host_snapshot_get(b->host, "t", spec.from_snapshot, &got, &b->err), 0);
	assert_int_equal(got.memory_mb, BED_MEMORY_MB);
	assert_int_equal(got.disk_gb, 1);
	host_create(b->host, "t", &spec, &quota, bed_answered, &a);
	assert_int_equal(bed_wait_answer(b, &a), -EDQUOT);
	quota.memory_mb = BED_MEMORY_MB;
	host_create(b->host, "t", &spec, &quota, bed_answered, &c);
	assert_int_equal(bed_wait_answer(b, &c), 0);
	assert_int_equal(c.sb->memory_mb, BED_MEMORY_MB);
}

/* pandad 0.1.0 put neither on record. */
static void the_memory_of_an_old_one_is_read_from_its_manifest(void **state)
{
	struct bed *b = *state;
	struct host_snapshot s = taken(b);
	struct sandbox_spec spec = bed_spec();
	struct quota quota = {.memory_mb = BED_MEMORY_MB - 1};
	struct bed_answer a = {.bed = b}, c = {.bed = b};

	assert_int_equal(db_snapshot_ready(b->host->db, s.id, s.sandbox_id,
	                                   "{\"name\": \"luggage\", \"template\": \"base\","
	                                   " \"size_bytes\": 1, \"generation\": 2}",
	                                   &b->err),
	                 0);
	snprintf(spec.from_snapshot, sizeof(spec.from_snapshot), "%s", s.id);
	host_create(b->host, "t", &spec, &quota, bed_answered, &a);
	assert_int_equal(bed_wait_answer(b, &a), -EDQUOT);
	host_create(b->host, "t", &spec, NULL, bed_answered, &c);
	assert_int_equal(bed_wait_answer(b, &c), 0);
	assert_int_equal(c.sb->memory_mb, BED_MEMORY_MB);
	assert_recalls(c.sb, 9, "travels");
}

static void one_that_is_longer_than_the_host_takes_is_refused(void **state)
{
	struct bed *b = *state;
	struct host_snapshot s = taken(b);
	struct file f = export_it(b, &s, 65536);

	b->host->config.import_max = f.n - 1;
	assert_int_equal(import_it(b, f.p, f.n, 65536, NULL), -EFBIG);
	assert_string_equal(b->err.kind, "too_large");
	assert_non_null(strstr(b->err.text, "import_max_mb"));
	b->host->config.import_max = f.n;
	assert_int_equal(import_it(b, f.p, f.n, 65536, NULL), 0);
	free(f.p);
}

static void only_so_many_come_in_at_once(void **state)
{
	struct bed *b = *state;
	char mine[HOST_TENANT_IMPORTS_MAX][SANDBOX_ID + 1],
	    others[HOST_IMPORTS_MAX][SANDBOX_ID + 1];
	char id[SANDBOX_ID + 1], tenant[16];
	size_t n = 0;

	for (size_t i = 0; i < HOST_TENANT_IMPORTS_MAX; i++)
		assert_int_equal(host_import_begin(b->host, "t", NULL, mine[i], &b->err), 0);
	assert_int_equal(host_import_begin(b->host, "t", NULL, id, &b->err), -EAGAIN);
	assert_string_equal(b->err.kind, "too_many");
	for (; n < HOST_IMPORTS_MAX - HOST_TENANT_IMPORTS_MAX; n++) {
		snprintf(tenant, sizeof(tenant), "t%zu", n);
		assert_int_equal(host_import_begin(b->host, tenant, NULL, others[n], &b->err), 0);
	}
	assert_int_equal(host_import_begin(b->host, "last", NULL, id, &b->err), -EAGAIN);
	assert_string_equal(b->err.kind, "too_many");
	host_import_undo(b->host, mine[0]);
	assert_int_equal(host_import_begin(b->host, "last", NULL, id, &b->err), 0);
	host_import_undo(b->host, id);
	for (size_t i = 1; i < HOST_TENANT_IMPORTS_MAX; i++)
		host_import_undo(b->host, mine[i]);
	while (n)
		host_import_undo(b->host, others[--n]);
	bed_check_leftovers(b);
}

static uint64_t next(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return *seed >> 33;
}

/* Of a few hundred damaged ones each is refused in words, or is the machine that it was. */
static void damage_at_random_is_refused_in_words_or_is_none(void **state)
{
	static const char *const words[] = {"parcel_invalid", "archive_untrusted", "too_large",
	                                    "snapshot_foreign"};
	struct bed *b = *state;
	struct host_snapshot s = taken(b);
	struct file f = export_it(b, &s, 65536), bare = forge(&f, NULL, NULL, NULL, NULL, false);
	unsigned refused = 0;

	for (uint64_t seed = 1; seed <= 400; seed++) {
		const struct file *from = seed % 2 ? &f : &bare;
		struct file it = {.p = malloc(from->n), .n = from->n};
		char id[SANDBOX_ID + 1];
		uint64_t x = seed;
		bool told = false;

		memcpy(it.p, from->p, from->n);
		for (uint64_t flips = 1 + next(&x) % 4; flips; flips--) {
			/* mostly where something is said, not where data is */
			size_t at = next(&x) % (next(&x) % 4 ? MIN(it.n, (size_t)8192) : it.n);

			if (next(&x) % 3)
				it.p[at] = (char)(it.p[at] ^ 1 << next(&x) % 8);
			else
				it.p[at] = (char)next(&x);
		}
		if (next(&x) % 8 == 0)
			it.n = next(&x) % it.n;
		if (import_as(b, seed % 4 < 2, it.p, it.n, 65536, id) == 0) {
			assert_int_equal(bed_snapshot_delete(b, id), 0);
		} else {
			for (size_t i = 0; i < ARRAY_LEN(words); i++)
				told |= !strcmp(b->err.kind, words[i]);
			if (!told)
				fail_msg("seed %llu: %s: %s", (unsigned long long)seed, b->err.kind,
				         b->err.text);
			refused++;
		}
		free(it.p);
	}
	assert_true(refused > 200);
	free(bare.p);
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
	    bed_test(it_goes_to_another_host_that_knows_this_one),
	    bed_test(an_admin_may_bring_one_from_a_host_that_is_not_known),
	    bed_test(a_tenant_cannot_forge_one),
	    bed_test(an_admin_hears_what_is_wrong_with_one),
	    bed_test(one_of_another_is_not_made_ones_own_by_its_signature),
	    bed_test(its_memory_counts_though_its_template_is_unknown),
	    bed_test(the_memory_of_an_old_one_is_read_from_its_manifest),
	    bed_test(one_that_is_longer_than_the_host_takes_is_refused),
	    bed_test(only_so_many_come_in_at_once),
	    bed_test(damage_at_random_is_refused_in_words_or_is_none),
	    bed_test(one_that_is_cut_off_anywhere_is_refused),
	    bed_test(one_that_was_changed_anywhere_is_refused_or_the_same),
	    bed_test(files_of_other_kinds_are_refused),
	    bed_test(members_out_of_order_are_refused),
	    bed_test(one_of_another_kernel_is_refused),
	    bed_test(a_quota_counts_those_that_come),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
