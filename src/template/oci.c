#include "template/oci.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/macro.h"

static int bad(struct err *e, const char *why)
{
	return err_set(e, EINVAL, "build_failed", "the image makes no sense: %s", why);
}

/* Copies a string that is not too long and has no NUL; empty ones count as not said. */
static int take_text(const json_t *from, const char *key, json_t *to, const char *as, struct err *e)
{
	const json_t *v = json_object_get(from, key);

	if (!v || json_is_null(v))
		return 0;
	if (!json_is_string(v) || json_string_length(v) > OCI_VALUE_MAX ||
	    strlen(json_string_value(v)) != json_string_length(v))
		return bad(e, key);
	if (!json_string_length(v))
		return 0;
	return json_object_set_new(to, as, json_string(json_string_value(v))) < 0 ? err_nomem(e)
	                                                                          : 0;
}

/* A command: a list of strings. skip: how many in front do not belong to it. */
static int take_words(const json_t *list, const char *key, size_t skip, json_t *to, struct err *e)
{
	AUTO(json_decrefp) json_t *words = json_array();
	const json_t *v;
	size_t i;

	if (!list || json_is_null(list))
		return 0;
	if (!json_is_array(list) || json_array_size(list) > OCI_WORDS_MAX)
		return bad(e, key);
	json_array_foreach(list, i, v) {
		if (!json_is_string(v) || json_string_length(v) > OCI_VALUE_MAX ||
		    strlen(json_string_value(v)) != json_string_length(v))
			return bad(e, key);
		if (i >= skip &&
		    json_array_append_new(words, json_string(json_string_value(v))) < 0)
			return err_nomem(e);
	}
	if (json_array_size(words) && json_object_set(to, key, words) < 0)
		return err_nomem(e);
	return 0;
}

static int take_env(const json_t *list, json_t *to, struct err *e)
{
	AUTO(json_decrefp) json_t *env = json_object();
	const json_t *v;
	size_t i;

	if (!list || json_is_null(list))
		return 0;
	if (!json_is_array(list) || json_array_size(list) > OCI_ENV_MAX)
		return bad(e, "Env");
	json_array_foreach(list, i, v) {
		const char *kv = json_string_value(v), *eq = kv ? strchr(kv, '=') : NULL;
		char name[256];

		if (!eq || eq == kv || (size_t)(eq - kv) >= sizeof(name) ||
		    json_string_length(v) > OCI_VALUE_MAX || strlen(kv) != json_string_length(v))
			return bad(e, "Env");
		snprintf(name, sizeof(name), "%.*s", (int)(eq - kv), kv);
		if (json_object_set_new(env, name, json_string(eq + 1)) < 0)
			return bad(e, "Env");
	}
	return json_object_set(to, "env", env) < 0 ? err_nomem(e) : 0;
}

/* HEALTHCHECK: ["CMD", argv...], ["CMD-SHELL", script], ["NONE"]. */
static int take_check(const json_t *check, json_t *start, struct err *e)
{
	const json_t *test = json_object_get(check, "Test");
	const char *how = json_string_value(json_array_get(test, 0));
	AUTO(json_decrefp) json_t *words = NULL;

	if (how && !strcmp(how, "CMD"))
		return take_words(test, "ready", 1, start, e);
	if (!how || strcmp(how, "CMD-SHELL") != 0)
		return 0;
	words = json_pack("[s, s, O]", "/bin/sh", "-c", json_array_get(test, 1));
	return words ? take_words(words, "ready", 0, start, e) : bad(e, "Healthcheck");
}

static int take_refs(const json_t *list, json_t *to, struct err *e)
{
	AUTO(json_decrefp) json_t *refs = json_array();
	char ref[OCI_REF_MAX + 1];
	const json_t *v;
	size_t i;

	json_array_foreach(list, i, v)
		if (json_is_string(v) && i < OCI_REFS_MAX && oci_ref(json_string_value(v), ref))
			json_array_append_new(refs, json_string(ref));
	if (json_array_size(refs) && json_object_set(to, "refs", refs) < 0)
		return err_nomem(e);
	return 0;
}

int oci_parse(const char *text, size_t n, json_t **ret, struct err *e)
{
	AUTO(json_decrefp) json_t *said = NULL;
	AUTO(json_decrefp) json_t *doc = json_object();
	AUTO(json_decrefp) json_t *start = json_object();
	const json_t *config, *check, *layers;
	const char *line;
	int r;

	if (!doc || !start)
		return err_nomem(e);
	while (n && isspace((unsigned char)text[n - 1]))
		n--;
	line = n ? memrchr(text, '\n', n) : NULL;
	line = line ? line + 1 : text;
	if (n <= OCI_TEXT_MAX)
		said = json_loadb(line, n - (size_t)(line - text), JSON_REJECT_DUPLICATES, NULL);
	config = json_object_get(said, "config");
	layers = json_object_get(said, "layers");
	if (!json_is_object(config) || !json_is_integer(layers))
		return bad(e, "its configuration cannot be read");
	json_object_set(doc, "layers", (json_t *)layers);
	check = json_object_get(config, "Healthcheck");
	r = take_refs(json_object_get(said, "refs"), doc, e);
	if (r == 0)
		r = take_env(json_object_get(config, "Env"), doc, e);
	if (r == 0)
		r = take_text(config, "WorkingDir", doc, "workdir", e);
	if (r == 0)
		r = take_text(config, "User", doc, "user", e);
	if (r == 0)
		r = take_words(json_object_get(config, "Shell"), "shell", 0, doc, e);
	if (r == 0)
		r = take_words(json_object_get(config, "Entrypoint"), "entrypoint", 0, start, e);
	if (r == 0)
		r = take_words(json_object_get(config, "Cmd"), "cmd", 0, start, e);
	if (r == 0)
		r = take_check(check, start, e);
	if (r == 0 && json_object_size(start) && json_object_set(doc, "start", start) < 0)
		r = err_nomem(e);
	if (r < 0)
		return r;
	*ret = take_ptr(doc);
	return 0;
}

bool oci_ref(const char *written, char ret[OCI_REF_MAX + 1])
{
	static const char *const usual[] = {"docker.io/", "index.docker.io/", "library/"};
	const char *p = written, *slash;
	size_t n;

	for (size_t i = 0; i < ARRAY_LEN(usual); i++)
		if (!strncmp(p, usual[i], strlen(usual[i])))
			p += strlen(usual[i]);
	n = strlen(p);
	if (n == 0 || n + sizeof(":latest") > OCI_REF_MAX || !isalnum((unsigned char)*p))
		return false;
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)p[i]) && !strchr("._-/:@", p[i]))
			return false;
	slash = strrchr(p, '/');
	snprintf(ret, OCI_REF_MAX + 1, "%s%s", p,
	         strpbrk(slash ? slash : p, ":@") ? "" : ":latest");
	return true;
}

const char *oci_debian(const char *written)
{
	static const struct {
		const char *tag, *suite;
	} known[] = {{"latest", OCI_DEBIAN_BASE},
	             {"11", "bullseye"},
	             {"12", "bookworm"},
	             {"13", "trixie"},
	             {"14", "forky"},
	             {"bullseye", "bullseye"},
	             {"bookworm", "bookworm"},
	             {"trixie", "trixie"},
	             {"forky", "forky"},
	             {"sid", "sid"},
	             {"unstable", "sid"},
	             {"testing", "testing"},
	             {"stable", "stable"},
	             {"oldstable", "oldstable"}};
	char ref[OCI_REF_MAX + 1];
	const char *tag;

	if (!oci_ref(written, ref) || strncmp(ref, "debian:", 7) != 0)
		return NULL;
	tag = ref + 7;
	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		size_t n = strlen(known[i].tag);

		/* "12", "12.5", "12-slim", "bookworm-20240101-slim" */
		if (!strncmp(tag, known[i].tag, n) && (!tag[n] || tag[n] == '.' || tag[n] == '-'))
			return known[i].suite;
	}
	return "";
}
