#include "layers/manifest.h"

#include <inttypes.h>
#include <jansson.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/macro.h"
#include "layers/digest.h"
#include "layers/map.h"
#include "layers/set.h"

static const char head_open[] = "{\"sha256\":\"", head_close[] = "\",";

enum {
	HEAD_OPEN = sizeof(head_open) - 1,
	HEAD_LEN = HEAD_OPEN + DIGEST_TEXT - 1 + sizeof(head_close) - 1,
};

static void json_freep(json_t **j)
{
	json_decref(*j);
}

void manifest_flags_fini(struct manifest_flags *f)
{
	free(f->at);
	*f = (struct manifest_flags){0};
}

void manifest_fini(struct manifest *m)
{
	manifest_flags_fini(&m->cpu_flags);
	free(m->memory.at);
	for (size_t i = 0; i < ARRAY_LEN(m->disks); i++)
		free(m->disks[i].layers.at);
	*m = (struct manifest){0};
}

/* These words end up in messages and logs. */
static bool plain(const char *s)
{
	for (; *s; s++)
		if (*s < ' ' || *s > '~')
			return false;
	return true;
}

/* A path that stays below the directory it starts from. */
static bool stays_below(const char *path)
{
	const char *p = path;

	do {
		size_t n = strcspn(p, "/");

		if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
			return false;
		p += n;
	} while (*p++);
	return true;
}

static bool valid_disk(const struct manifest_disk *d)
{
	if (!d->name[0] || !plain(d->name) || d->size == 0 ||
	    d->size > MAP_PAGES_MAX * (uint64_t)MAP_PAGE)
		return false;
	if (d->is_image)
		return d->read_only && plain(d->image_path) && stays_below(d->image_path);
	return d->size % MAP_PAGE == 0;
}

/* The rules between reading and writing: what we print we must be able to parse. */
static const char *invalid_field(const struct manifest *m)
{
	if (!m->engine[0] || !plain(m->engine))
		return "engine";
	if (!m->kernel[0] || !plain(m->kernel))
		return "kernel";
	if (!plain(m->template))
		return "template";
	if (!plain(m->parent))
		return "parent";
	if (m->memory_size == 0 || m->memory_size % MAP_PAGE ||
	    m->memory_size > MAP_PAGES_MAX * (uint64_t)MAP_PAGE)
		return "memory_size";
	if (m->state_size > INT64_MAX)
		return "state";
	if (m->created_at_ms > INT64_MAX)
		return "created_at_ms";
	for (size_t i = 0; i < m->ndisks; i++) {
		if (!valid_disk(&m->disks[i]))
			return "disks";
		for (size_t k = 0; k < i; k++)
			if (strcmp(m->disks[i].name, m->disks[k].name) == 0)
				return "disks";
	}
	return NULL;
}

static bool get_text(const json_t *o, const char *key, char *ret, size_t room)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_string(v) || json_string_length(v) == 0 || json_string_length(v) >= room)
		return false;
	memcpy(ret, json_string_value(v), json_string_length(v) + 1);
	return true;
}

static bool get_text_or_null(const json_t *o, const char *key, char *ret, size_t room)
{
	return json_is_null(json_object_get(o, key)) || get_text(o, key, ret, room);
}

static bool get_u64(const json_t *o, const char *key, uint64_t *ret)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_integer(v) || json_integer_value(v) < 0)
		return false;
	*ret = (uint64_t)json_integer_value(v);
	return true;
}

static bool get_digest(const json_t *o, const char *key, struct digest *ret)
{
	char text[DIGEST_TEXT];

	return get_text(o, key, text, sizeof(text)) && digest_parse(text, ret) == 0;
}

/* These return -EBADMSG for a wrong value, or -ENOMEM. */
static int get_layers(const json_t *o, const char *key, struct manifest_layers *ret)
{
	const json_t *v = json_object_get(o, key), *entry;
	size_t i;

	if (!json_is_array(v) || json_array_size(v) > SET_LAYERS_MAX)
		return -EBADMSG;
	ret->at = calloc(json_array_size(v) + 1, sizeof(*ret->at));
	if (!ret->at)
		return -ENOMEM;
	ret->n = json_array_size(v);
	json_array_foreach(v, i, entry) {
		if (json_object_size(entry) != 2 ||
		    !get_digest(entry, "digest", &ret->at[i].digest) ||
		    !get_u64(entry, "pages", &ret->at[i].pages))
			return -EBADMSG;
	}
	return 0;
}

static int get_flags(const json_t *o, const char *key, struct manifest_flags *ret)
{
	const json_t *v = json_object_get(o, key), *entry;
	size_t i;

	if (!json_is_array(v) || json_array_size(v) > MANIFEST_FLAGS_MAX)
		return -EBADMSG;
	ret->at = calloc(json_array_size(v) + 1, sizeof(*ret->at));
	if (!ret->at)
		return -ENOMEM;
	ret->n = json_array_size(v);
	json_array_foreach(v, i, entry) {
		size_t n = json_string_length(entry); /* 0 when it is no string */

		if (n == 0 || n >= MANIFEST_FLAG || !plain(json_string_value(entry)))
			return -EBADMSG;
		memcpy(ret->at[i], json_string_value(entry), n);
	}
	return 0;
}

static int get_disk(const json_t *o, struct manifest_disk *d)
{
	const json_t *image = json_object_get(o, "image"), *ro = json_object_get(o, "read_only");

	if (json_object_size(o) != 4 || !get_text(o, "name", d->name, sizeof(d->name)) ||
	    !get_u64(o, "size", &d->size) || !json_is_boolean(ro))
		return -EBADMSG;
	d->read_only = json_is_true(ro);
	if (!image)
		return get_layers(o, "layers", &d->layers);
	d->is_image = true;
	if (json_object_size(image) != 2 || !get_digest(image, "digest", &d->image) ||
	    !get_text(image, "path", d->image_path, sizeof(d->image_path)))
		return -EBADMSG;
	return 0;
}

static int get_disks(const json_t *o, const char *key, struct manifest *m)
{
	const json_t *v = json_object_get(o, key), *entry;
	size_t i;
	int r;

	if (!json_is_array(v) || json_array_size(v) > MANIFEST_DISKS_MAX)
		return -EBADMSG;
	json_array_foreach(v, i, entry) {
		m->ndisks = i + 1;
		r = get_disk(entry, &m->disks[i]);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Fills m, or names the field that is not as it must be. */
static int get_all(const json_t *o, struct manifest *m, const char **bad)
{
	const json_t *state = json_object_get(o, "state");
	uint64_t page_size = 0;
	int r;

	*bad = NULL;
	if (json_object_size(o) != 13) /* those below, format and sha256; all are required */
		*bad = "list of fields";
	else if (!get_text(o, "engine", m->engine, sizeof(m->engine)))
		*bad = "engine";
	else if (!get_text(o, "kernel", m->kernel, sizeof(m->kernel)))
		*bad = "kernel";
	else if (!get_u64(o, "memory_size", &m->memory_size))
		*bad = "memory_size";
	else if (!get_u64(o, "page_size", &page_size) || page_size != MAP_PAGE)
		*bad = "page_size";
	else if (json_object_size(state) != 2 || !get_digest(state, "digest", &m->state) ||
	         !get_u64(state, "size", &m->state_size))
		*bad = "state";
	else if (!get_text_or_null(o, "template", m->template, sizeof(m->template)))
		*bad = "template";
	else if (!get_text_or_null(o, "parent", m->parent, sizeof(m->parent)))
		*bad = "parent";
	else if (!get_u64(o, "created_at_ms", &m->created_at_ms))
		*bad = "created_at_ms";
	if (*bad)
		return -EBADMSG;
	*bad = "cpu_flags";
	r = get_flags(o, *bad, &m->cpu_flags);
	if (r < 0)
		return r;
	*bad = "memory";
	r = get_layers(o, *bad, &m->memory);
	if (r < 0)
		return r;
	*bad = "disks";
	r = get_disks(o, *bad, m);
	if (r < 0)
		return r;
	*bad = invalid_field(m);
	return *bad ? -EBADMSG : 0;
}

static int corrupt(struct err *e, const char *what)
{
	return err_set(e, EBADMSG, "snapshot_corrupt",
	               "manifest.json is damaged (%s); delete the snapshot and take it again",
	               what);
}

/*
 * The text of o and a NUL, counted in *ret_len. Into a buffer that is large enough beforehand:
 * jansson 2.14 loses text without a word when a buffer of its own cannot grow.
 */
static int dump(const json_t *o, char **ret, size_t *ret_len)
{
	size_t len = json_dumpb(o, NULL, 0, JSON_COMPACT);
	autofree char *buf = len ? malloc(len + 1) : NULL;

	if (!buf || json_dumpb(o, buf, len, JSON_COMPACT) != len)
		return -ENOMEM;
	buf[len] = 0;
	*ret = take_ptr(buf);
	*ret_len = len + 1;
	return 0;
}

/*
 * Is this object what the text says? Printed again it must be the same, so a text has one meaning
 * and one spelling, and an allocation that failed unseen inside jansson cannot change a word.
 */
static int check_spelling(const json_t *o, const char *buf, size_t len)
{
	autofree char *again = NULL;
	size_t n;
	int r = dump(o, &again, &n);

	if (r < 0)
		return r;
	again[n - 1] = '\n';
	return n == len && memcmp(buf, again, n) == 0 ? 0 : -EBADMSG;
}

static int load(const char *buf, size_t len, json_t **ret, uint64_t *ret_format)
{
	AUTO(json_freep) json_t *o = NULL;
	int r;

	errno = 0;
	o = json_loadb(buf, len, JSON_REJECT_DUPLICATES, NULL);
	if (errno == ENOMEM) /* jansson calls this a syntax error, or says nothing */
		return -ENOMEM;
	if (!json_is_object(o) || !get_u64(o, "format", ret_format))
		return -EBADMSG;
	/* How other formats are spelled is not known yet. */
	r = *ret_format == MANIFEST_FORMAT ? check_spelling(o, buf, len) : 0;
	if (r == 0)
		*ret = take_ptr(o);
	return r;
}

static int check_digest(const char *buf, size_t len, struct err *e)
{
	char text[DIGEST_TEXT];
	struct digest want, got;
	int r;

	if (len <= HEAD_LEN || memcmp(buf, head_open, HEAD_OPEN) != 0 ||
	    memcmp(buf + HEAD_LEN - 2, head_close, 2) != 0)
		return corrupt(e, "it does not begin with its digest");
	memcpy(text, buf + HEAD_OPEN, DIGEST_TEXT - 1);
	text[DIGEST_TEXT - 1] = 0;
	r = digest_bytes(buf + HEAD_LEN, len - HEAD_LEN, &got);
	if (r < 0)
		return err_set(e, -r, "snapshot_io", "cannot hash manifest.json");
	if (digest_parse(text, &want) < 0 || !digest_equal(&want, &got))
		return corrupt(e, "its digest does not match");
	return 0;
}

int manifest_parse(const char *buf, size_t len, struct manifest *ret, struct err *e)
{
	AUTO(json_freep) json_t *o = NULL;
	struct manifest m = {0};
	uint64_t format;
	const char *bad;
	int r;

	if (len > MANIFEST_BYTES_MAX)
		return corrupt(e, "it is too long");
	r = check_digest(buf, len, e);
	if (r < 0)
		return r;
	r = load(buf, len, &o, &format);
	if (r == -EBADMSG) /* the digest was right, so it may be memory that was short */
		r = load(buf, len, &o, &format);
	if (r == -ENOMEM)
		return err_set(e, ENOMEM, "no_memory", "no memory to read manifest.json");
	if (r < 0)
		return corrupt(e, "it is not JSON as we write it");
	if (format != MANIFEST_FORMAT)
		return err_set(e, ENOTSUP, "snapshot_foreign",
		               "the snapshot has format %" PRIu64
		               " and this build reads format %d; "
		               "use the version that wrote it, or take the snapshot again",
		               format, MANIFEST_FORMAT);
	r = get_all(o, &m, &bad);
	if (r < 0) {
		char what[64];

		manifest_fini(&m);
		if (r == -ENOMEM)
			return err_set(e, ENOMEM, "no_memory", "no memory to read manifest.json");
		snprintf(what, sizeof(what), "field '%s'", bad);
		return corrupt(e, what);
	}
	*ret = m;
	return 0;
}

/* The put_* return 0 or -ENOMEM; jansson takes every value, also when it fails. */
static int put(json_t *o, const char *key, json_t *value)
{
	return json_object_set_new(o, key, value) < 0 ? -ENOMEM : 0;
}

static int put_text(json_t *o, const char *key, const char *text)
{
	return put(o, key, text[0] ? json_string(text) : json_null());
}

static int put_digest(json_t *o, const char *key, const struct digest *d)
{
	char text[DIGEST_TEXT];

	digest_text(d, text);
	return put(o, key, json_string(text));
}

static int put_u64(json_t *o, const char *key, uint64_t v)
{
	return put(o, key, json_integer((json_int_t)v));
}

static int put_layers(json_t *o, const char *key, const struct manifest_layers *layers)
{
	json_t *list = json_array();

	if (put(o, key, list) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < layers->n; i++) {
		json_t *entry = json_object();

		if (json_array_append_new(list, entry) < 0 ||
		    put_digest(entry, "digest", &layers->at[i].digest) < 0 ||
		    put_u64(entry, "pages", layers->at[i].pages) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int put_flags(json_t *o, const char *key, const struct manifest_flags *flags)
{
	json_t *list = json_array();

	if (put(o, key, list) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < flags->n; i++)
		if (json_array_append_new(list, json_string(flags->at[i])) < 0)
			return -ENOMEM;
	return 0;
}

static int put_disk(json_t *list, const struct manifest_disk *d)
{
	json_t *o = json_object(), *image;

	if (json_array_append_new(list, o) < 0 || put_text(o, "name", d->name) < 0 ||
	    put_u64(o, "size", d->size) < 0 || put(o, "read_only", json_boolean(d->read_only)) < 0)
		return -ENOMEM;
	if (!d->is_image)
		return put_layers(o, "layers", &d->layers);
	image = json_object();
	if (put(o, "image", image) < 0 || put_digest(image, "digest", &d->image) < 0)
		return -ENOMEM;
	return put_text(image, "path", d->image_path);
}

static int put_disks(json_t *o, const char *key, const struct manifest *m)
{
	json_t *list = json_array();

	if (put(o, key, list) < 0)
		return -ENOMEM;
	for (size_t i = 0; i < m->ndisks; i++)
		if (put_disk(list, &m->disks[i]) < 0)
			return -ENOMEM;
	return 0;
}

static int put_state(json_t *o, const char *key, const struct manifest *m)
{
	json_t *state = json_object();

	if (put(o, key, state) < 0 || put_digest(state, "digest", &m->state) < 0)
		return -ENOMEM;
	return put_u64(state, "size", m->state_size);
}

static int put_all(json_t *o, const struct manifest *m)
{
	if (put_u64(o, "format", MANIFEST_FORMAT) < 0 || put_text(o, "engine", m->engine) < 0 ||
	    put_text(o, "kernel", m->kernel) < 0 || put_flags(o, "cpu_flags", &m->cpu_flags) < 0 ||
	    put_u64(o, "memory_size", m->memory_size) < 0 ||
	    put_u64(o, "page_size", MAP_PAGE) < 0 || put_layers(o, "memory", &m->memory) < 0 ||
	    put_disks(o, "disks", m) < 0 || put_state(o, "state", m) < 0 ||
	    put_text(o, "template", m->template) < 0 || put_text(o, "parent", m->parent) < 0)
		return -ENOMEM;
	return put_u64(o, "created_at_ms", m->created_at_ms);
}

int manifest_print(const struct manifest *m, char **ret, size_t *ret_len)
{
	AUTO(json_freep) json_t *o = NULL;
	autofree char *buf = NULL, *body = NULL;
	char hex[DIGEST_TEXT];
	struct digest d;
	size_t len;
	int r;

	if (invalid_field(m))
		return -EINVAL;
	o = json_object();
	if (!o || put_all(o, m) < 0)
		return -ENOMEM;
	r = dump(o, &body, &len);
	if (r < 0)
		return r;
	body[len - 1] = '\n'; /* in place of the NUL; its '{' stands in our head already */
	if (HEAD_LEN + len - 1 > MANIFEST_BYTES_MAX)
		return -EFBIG;
	r = digest_bytes(body + 1, len - 1, &d);
	if (r < 0)
		return r;
	digest_text(&d, hex);
	buf = malloc(HEAD_LEN + len);
	if (!buf)
		return -ENOMEM;
	memcpy(buf, head_open, HEAD_OPEN);
	memcpy(buf + HEAD_OPEN, hex, DIGEST_TEXT - 1);
	memcpy(buf + HEAD_LEN - 2, head_close, 2);
	memcpy(buf + HEAD_LEN, body + 1, len - 1);
	buf[HEAD_LEN + len - 1] = 0;
	*ret = take_ptr(buf);
	*ret_len = HEAD_LEN + len - 1;
	return 0;
}

int manifest_fits(const struct manifest *m, const struct manifest_host *host, struct err *e)
{
	while (strcmp(m->engine, host->engine) != 0 && host->also)
		host = host->also;
	if (strcmp(m->engine, host->engine) != 0)
		return err_set(e, ENOTSUP, "snapshot_foreign",
		               "the snapshot was made by engine '%s' and this is '%s'; restore it "
		               "on a host with that engine",
		               m->engine, host->engine);
	if (strcmp(m->kernel, host->kernel) != 0)
		return err_set(
		    e, ENOTSUP, "snapshot_foreign",
		    "the snapshot needs guest kernel %.60s and this build has %.60s; use the "
		    "version that wrote it, or take the snapshot again",
		    m->kernel, host->kernel);
	for (size_t i = 0; i < m->cpu_flags.n; i++) {
		bool have = false;

		for (size_t k = 0; !have && k < host->cpu_flags.n; k++)
			have = strcmp(m->cpu_flags.at[i], host->cpu_flags.at[k]) == 0;
		if (!have)
			return err_set(e, ENOTSUP, "snapshot_foreign",
			               "the snapshot needs cpu flag '%s', which this host has not; "
			               "restore it on a host with that flag",
			               m->cpu_flags.at[i]);
	}
	return 0;
}

int manifest_flags_parse(const char *words, struct manifest_flags *ret)
{
	AUTO(manifest_flags_fini) struct manifest_flags f = {0};

	f.at = calloc(MANIFEST_FLAGS_MAX, sizeof(*f.at));
	if (!f.at)
		return -ENOMEM;
	if (!plain(words))
		return -EINVAL;
	for (words += strspn(words, " "); *words; words += strspn(words, " ")) {
		size_t n = strcspn(words, " ");

		if (n >= MANIFEST_FLAG || f.n == MANIFEST_FLAGS_MAX)
			return -EINVAL;
		memcpy(f.at[f.n++], words, n);
		words += n;
	}
	*ret = f;
	f = (struct manifest_flags){0};
	return 0;
}
