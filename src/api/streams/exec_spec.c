/*
 * api/streams/exec_spec.c - what the body of a request says about a command
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "api/streams/exec.h"
#include "base/err.h"
#include "base/macro.h"

enum {
	ARGS_MAX = 4096,
	TIMEOUT_MAX_S = 365 * 24 * 3600,
};

static int want_text(const json_t *body, const char *key, const char **ret, struct err *e)
{
	const json_t *v = json_object_get(body, key);

	if (!v || json_is_null(v))
		return 0;
	if (!json_is_string(v))
		return err_set(e, EINVAL, "bad_request", "%s must be a string", key);
	*ret = json_string_value(v);
	return 0;
}

static int want_lists(const json_t *body, struct exec_spec *s, struct err *e)
{
	const json_t *v, *argv = json_object_get(body, "argv"), *env = json_object_get(body, "env");
	const char *key;
	size_t i;

	if (argv && !json_is_null(argv)) {
		if (!json_is_array(argv) || !json_array_size(argv) ||
		    json_array_size(argv) > ARGS_MAX)
			return err_set(e, EINVAL, "bad_request",
			               "argv must be a list of 1 to %d strings", ARGS_MAX);
		json_array_foreach(argv, i, v)
			if (!json_is_string(v))
				return err_set(e, EINVAL, "bad_request",
				               "argv[%zu] must be a string", i);
		s->argv = argv;
	}
	if (env && !json_is_null(env)) {
		if (!json_is_object(env) || json_object_size(env) > ARGS_MAX)
			return err_set(e, EINVAL, "bad_request",
			               "env must be an object of up to %d strings", ARGS_MAX);
		json_object_foreach((json_t *)env, key, v)
			if (!*key || strchr(key, '=') || !json_is_string(v))
				return err_set(e, EINVAL, "bad_request",
				               "env: '%.60s' must be a name without '=', "
				               "and its value a string",
				               key);
		s->env = env;
	}
	return 0;
}

int exec_output_parse(const json_t *body, size_t *ret, struct err *e)
{
	const json_t *max = json_object_get(body, "max_output_bytes");

	if (max && !json_is_null(max) && (!json_is_integer(max) || json_integer_value(max) < 1))
		return err_set(e, EINVAL, "bad_request",
		               "max_output_bytes must be a number from 1 on");
	*ret = json_is_integer(max)
	           ? (size_t)MIN(json_integer_value(max), (json_int_t)EXEC_OUTPUT_MAX)
	           : EXEC_OUTPUT;
	return 0;
}

int exec_spec_parse(const json_t *body, struct exec_spec *ret, struct err *e)
{
	const json_t *t = json_object_get(body, "timeout_seconds");
	struct exec_spec s = {.timeout_ms = EXEC_TIMEOUT_MS};
	int r;

	if ((r = want_text(body, "cmd", &s.cmd, e)) < 0 ||
	    (r = want_text(body, "cwd", &s.cwd, e)) < 0 ||
	    (r = want_text(body, "user", &s.user, e)) < 0 ||
	    (r = want_text(body, "stdin", &s.in, e)) < 0 || (r = want_lists(body, &s, e)) < 0)
		return r;
	s.in_len = json_string_length(json_object_get(body, "stdin"));
	if (!s.argv && (!s.cmd || !*s.cmd))
		return err_set(e, EINVAL, "bad_request",
		               "cmd required: a shell command, or argv, a list of words");
	if (s.argv && s.cmd)
		return err_set(e, EINVAL, "bad_request", "give cmd or argv, not both");
	if (s.cwd && *s.cwd != '/')
		return err_set(e, EINVAL, "bad_request", "cwd must be an absolute path");
	if (t && !json_is_null(t)) {
		double seconds = json_number_value(t);

		if (!json_is_number(t) || !(seconds >= 0) || seconds > TIMEOUT_MAX_S)
			return err_set(e, EINVAL, "bad_request",
			               "timeout_seconds must be a number from 0 (none) to %d",
			               TIMEOUT_MAX_S);
		s.timeout_ms = (uint64_t)ceil(seconds * 1000);
	}
	if ((r = exec_output_parse(body, &s.output_max, e)) < 0)
		return r;
	*ret = s;
	return 0;
}
