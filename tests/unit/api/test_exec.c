/*
 * Commands (api/streams/exec.h): what a request may say, and what its caller hears of the end.
 */
#include <errno.h>
#include <string.h>

#include "api/streams/exec.h"
#include "bed.h"
#include "template/template.h"

static int parse(const char *body, struct exec_spec *ret, struct err *e)
{
	static json_t *kept; /* specs borrow from it */

	json_decref(kept);
	kept = json_loads(body, JSON_ALLOW_NUL, NULL);
	assert_non_null(kept);
	return exec_spec_parse(kept, ret, e);
}

static void a_body_becomes_a_command(void **state)
{
	struct exec_spec s;
	struct err e;

	assert_int_equal(parse("{\"cmd\": \"ls\", \"cwd\": \"/tmp\", \"user\": \"nobody\", "
	                       "\"stdin\": \"a\\u0000b\", \"timeout_seconds\": 0.0015, "
	                       "\"max_output_bytes\": 10, \"env\": {\"A\": \"\"}}",
	                       &s, &e),
	                 0);
	assert_string_equal(s.cmd, "ls");
	assert_string_equal(s.cwd, "/tmp");
	assert_string_equal(s.user, "nobody");
	assert_int_equal(s.in_len, 3);
	assert_int_equal(s.timeout_ms, 2); /* never shorter than asked */
	assert_int_equal(s.output_max, 10);
	assert_int_equal(json_object_size(s.env), 1);
	assert_int_equal(parse("{\"argv\": [\"ls\"], \"timeout_seconds\": null}", &s, &e), 0);
	assert_null(s.cmd);
	assert_int_equal(s.timeout_ms, EXEC_TIMEOUT_MS);
	assert_int_equal(s.output_max, EXEC_OUTPUT);
}

static void what_makes_no_sense_is_named(void **state)
{
	static const char *const bad[][2] = {
	    {"{}", "cmd required"},
	    {"{\"cmd\": \"\"}", "cmd required"},
	    {"{\"cmd\": 1}", "cmd must be a string"},
	    {"{\"cmd\": \"a\", \"argv\": [\"a\"]}", "not both"},
	    {"{\"argv\": []}", "argv must be a list"},
	    {"{\"argv\": [\"a\", 1]}", "argv[1]"},
	    {"{\"cmd\": \"a\", \"cwd\": \"tmp\"}", "cwd"},
	    {"{\"cmd\": \"a\", \"env\": {\"A=B\": \"\"}}", "'A=B'"},
	    {"{\"cmd\": \"a\", \"timeout_seconds\": -1}", "timeout_seconds"},
	    {"{\"cmd\": \"a\", \"max_output_bytes\": 0}", "max_output_bytes"},
	};
	struct exec_spec s;
	struct err e;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(parse(bad[i][0], &s, &e), -EINVAL);
		assert_string_equal(e.kind, "bad_request");
		if (!strstr(e.text, bad[i][1]))
			fail_msg("%s: %s", bad[i][0], e.text);
	}
}

/* ---- commands ---- */

struct heard {
	struct bed *b;
	bool ended;
	char out[200], err[200];
	struct exec_exit exit;
	struct err e;
};

static void heard_data(void *arg, bool err, const void *p, size_t n)
{
	struct heard *h = arg;

	strncat(err ? h->err : h->out, p, n);
}

static void heard_end(void *arg, const struct err *e, const struct exec_exit *x)
{
	struct heard *h = arg;

	h->ended = true;
	if (e)
		h->e = *e;
	else
		h->exit = *x;
	bed_wake(h->b);
}

static struct heard run_command(struct bed *b, struct sandbox *sb, const char *body)
{
	static const struct exec_ops ops = {.data = heard_data, .end = heard_end};
	struct heard h = {.b = b};
	struct exec_spec s;

	assert_int_equal(parse(body, &s, &b->err), 0);
	assert_non_null(exec_begin(b->host, sb, &s, &ops, &h, &b->err));
	bed_until(b, h.ended);
	return h;
}

static void a_command_has_an_exit(void **state)
{
	struct bed *b = *state;
	struct heard h = run_command(b, bed_create_plain(b), "{\"cmd\": \"echo hello\"}");

	assert_int_equal(h.e.code, 0);
	assert_int_equal(h.exit.exit_code, 0);
	assert_string_equal(h.out, "hello\n");
	bed_empty(b);
}

static void a_program_that_is_not_there_is_told_as_a_shell_tells_it(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct heard h = run_command(b, sb, "{\"argv\": [\"no-such-program\"]}");

	assert_int_equal(h.e.code, 0);
	assert_int_equal(h.exit.exit_code, 127);
	assert_non_null(strstr(h.err, "cannot start the program"));
	h = run_command(b, sb, "{\"argv\": [\"true\"], \"cwd\": \"/nope\"}");
	assert_string_equal(h.e.kind, "bad_request");
	assert_non_null(strstr(h.e.text, "cannot enter directory"));
	bed_empty(b);
}

static void a_command_starts_at_the_root_when_the_directory_of_its_template_is_gone(void **state)
{
	struct bed *b = *state;
	struct sandbox *sb = bed_create_plain(b);
	struct template *t = template_find(b->host->depot.templates, "t", "base", NULL);
	struct heard h;

	json_object_set_new(t->doc, "workdir", json_string("/gone"));
	h = run_command(b, sb, "{\"cmd\": \"pwd\"}");
	assert_int_equal(h.e.code, 0);
	assert_int_equal(h.exit.exit_code, 0);
	assert_string_equal(h.out, "/\n");
	h = run_command(b, sb, "{\"cmd\": \"pwd\", \"cwd\": \"/gone\"}"); /* the caller's own */
	assert_string_equal(h.e.kind, "bad_request");
	bed_empty(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_body_becomes_a_command),
	    cmocka_unit_test(what_makes_no_sense_is_named),
	    bed_test(a_command_has_an_exit),
	    bed_test(a_program_that_is_not_there_is_told_as_a_shell_tells_it),
	    bed_test(a_command_starts_at_the_root_when_the_directory_of_its_template_is_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
