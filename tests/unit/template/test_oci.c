#include "template/oci.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* clang-format off */
#include <cmocka.h>
/* clang-format on */

#include "base/cleanup.h"
#include "base/macro.h"

static json_t *good(const char *text)
{
	json_t *doc = NULL;
	struct err e = {0};

	if (oci_parse(text, strlen(text), &doc, &e) < 0)
		fail_msg("%s: %s", text, e.text);
	return doc;
}

static void bad(const char *text, const char *says)
{
	json_t *doc = NULL;
	struct err e = {0};

	assert_true(oci_parse(text, strlen(text), &doc, &e) < 0);
	assert_null(doc);
	if (!strstr(e.text, says))
		fail_msg("'%s' does not say '%s'", e.text, says);
}

static void what_an_image_says_is_taken_over(void **state)
{
	AUTO(json_decrefp)
	json_t *doc = good(
	    "noise\n{\"layers\": 2, \"refs\": [\"docker.io/library/a:1\", \"not one\"], "
	    "\"config\": {\"Env\": [\"A=b=c\", \"E=\"], \"WorkingDir\": \"/w\", \"User\": \"u\", "
	    "\"Entrypoint\": [\"e\"], \"Cmd\": [\"c\", \"d\"], "
	    "\"Healthcheck\": {\"Test\": [\"CMD-SHELL\", \"check\"]}, \"Labels\": {\"x\": 1}}}\n");
	AUTO(json_decrefp)
	json_t *want =
	    json_pack("{s:i, s:[s], s:{s:s, s:s}, s:s, s:s, s:{s:[s], s:[s, s], s:[s, s, s]}}",
	              "layers", 2, "refs", "a:1", "env", "A", "b=c", "E", "", "workdir", "/w",
	              "user", "u", "start", "entrypoint", "e", "cmd", "c", "d", "ready", "/bin/sh",
	              "-c", "check");

	(void)state;
	assert_non_null(want);
	assert_true(json_equal(doc, want));
}

static void what_it_does_not_say_is_not_there(void **state)
{
	AUTO(json_decrefp)
	json_t *doc = good("{\"layers\": 0, \"config\": {\"User\": \"\", "
	                   "\"Cmd\": null, \"Env\": null, \"Entrypoint\": []}}");

	(void)state;
	assert_int_equal(json_object_size(doc), 1); /* layers */
}

static void nonsense_is_refused(void **state)
{
	(void)state;
	bad("", "cannot be read");
	bad("{}", "cannot be read");
	bad("{\"layers\": 1, \"config\": []}", "cannot be read");
	bad("{\"layers\": 1, \"config\": {}, \"config\": {}}", "cannot be read");
	bad("{\"layers\": 1, \"config\": {\"Env\": [\"=x\"]}}", "Env");
	bad("{\"layers\": 1, \"config\": {\"Env\": [1]}}", "Env");
	bad("{\"layers\": 1, \"config\": {\"Env\": {}}}", "Env");
	bad("{\"layers\": 1, \"config\": {\"Cmd\": \"x\"}}", "cmd");
	bad("{\"layers\": 1, \"config\": {\"Entrypoint\": [\"a\", 1]}}", "entrypoint");
	bad("{\"layers\": 1, \"config\": {\"User\": 0}}", "User");
	bad("{\"layers\": 1, \"config\": {\"Healthcheck\": {\"Test\": [\"CMD-SHELL\"]}}}",
	    "Healthcheck");
}

static void too_much_is_refused(void **state)
{
	AUTO(json_decrefp)
	json_t *said = json_pack("{s:i, s:{s:[]}}", "layers", 1, "config", "Cmd");
	json_t *cmd = json_object_get(json_object_get(said, "config"), "Cmd");
	autofree char *many = NULL, *large = NULL;

	(void)state;
	for (int i = 0; i <= OCI_WORDS_MAX; i++)
		json_array_append_new(cmd, json_string("x"));
	many = json_dumps(said, 0);
	bad(many, "cmd");
	large = malloc(OCI_TEXT_MAX + 2);
	memset(large, '[', OCI_TEXT_MAX + 1);
	large[OCI_TEXT_MAX + 1] = 0;
	bad(large, "cannot be read");
	large[OCI_TEXT_MAX / 2] = 0; /* deep, but not long */
	bad(large, "cannot be read");
}

static void names_of_images_are_one_way_only(void **state)
{
	static const struct {
		const char *written, *plain; /* NULL: none */
	} at[] = {
	    {"alpine", "alpine:latest"},
	    {"alpine:3", "alpine:3"},
	    {"docker.io/library/alpine", "alpine:latest"},
	    {"library/alpine:3", "alpine:3"},
	    {"host:5000/a/b", "host:5000/a/b:latest"},
	    {"a/b@sha256:00", "a/b@sha256:00"},
	    {"", NULL},
	    {"../x", NULL},
	    {"a b", NULL},
	    {"-x", NULL},
	};
	char ret[OCI_REF_MAX + 1], *longest = NULL;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(at); i++) {
		bool ok = oci_ref(at[i].written, ret);

		assert_int_equal(ok, at[i].plain != NULL);
		if (ok)
			assert_string_equal(ret, at[i].plain);
	}
	longest = malloc(400);
	memset(longest, 'a', 399);
	longest[399] = 0;
	assert_false(oci_ref(longest, ret));
	free(longest);
}

static void debian_is_ours_when_the_release_is(void **state)
{
	(void)state;
	assert_string_equal(oci_debian("debian"), OCI_DEBIAN_BASE);
	assert_string_equal(oci_debian("debian:12"), "bookworm");
	assert_string_equal(oci_debian("debian:12.5-slim"), "bookworm");
	assert_string_equal(oci_debian("docker.io/library/debian:bookworm-20250101-slim"),
	                    "bookworm");
	assert_string_equal(oci_debian("debian:stable-slim"), "stable");
	assert_string_equal(oci_debian("debian:11"), "bullseye");
	assert_string_equal(oci_debian("debian:13.1-slim"), "trixie");
	assert_string_equal(oci_debian("debian:trixie"), "trixie");
	assert_string_equal(oci_debian("library/debian:unstable-slim"), "sid");
	assert_string_equal(oci_debian("debian:123"), "");
	assert_string_equal(oci_debian("debian:potato"), "");
	assert_string_equal(oci_debian("debian:sidecar"), "");
	assert_null(oci_debian("debian-like:12"));
	assert_null(oci_debian("base"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_an_image_says_is_taken_over),
	    cmocka_unit_test(what_it_does_not_say_is_not_there),
	    cmocka_unit_test(nonsense_is_refused),
	    cmocka_unit_test(too_much_is_refused),
	    cmocka_unit_test(names_of_images_are_one_way_only),
	    cmocka_unit_test(debian_is_ours_when_the_release_is),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
