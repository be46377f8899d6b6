/*
 * Which server and which key: what was said, the environment, the file; and what a URL means.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/macro.h"
#include "client/client_internal.h"

static const char *fake[6][2];

static const char *env(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(fake); i++)
		if (fake[i][0] && !strcmp(fake[i][0], name))
			return fake[i][1];
	return NULL;
}

static void set_env(int i, const char *name, const char *value)
{
	fake[i][0] = name;
	fake[i][1] = value;
}

static char home[64];

static int setup(void **state)
{
	char dir[128];

	memset(fake, 0, sizeof(fake));
	snprintf(home, sizeof(home), "/tmp/panda-cfg-XXXXXX");
	assert_non_null(mkdtemp(home));
	snprintf(dir, sizeof(dir), "%s/.config", home);
	assert_int_equal(mkdir(dir, 0700), 0);
	snprintf(dir, sizeof(dir), "%s/.config/pandastack", home);
	assert_int_equal(mkdir(dir, 0700), 0);
	set_env(0, "HOME", home);
	return 0;
}

static int teardown(void **state)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/.config/pandastack/config.json", home);
	unlink(path);
	snprintf(path, sizeof(path), "%s/.config/pandastack", home);
	rmdir(path);
	snprintf(path, sizeof(path), "%s/.config", home);
	rmdir(path);
	return rmdir(home);
}

static void write_config(const char *text)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/.config/pandastack/config.json", home);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void expect(const struct panda_config *c, const char *url, const char *key)
{
	struct settings s = {0};
	struct panda_error e;

	assert_int_equal(settings_load(c, env, &s, &e), 0);
	assert_string_equal(s.url, url);
	if (key)
		assert_string_equal(s.key, key);
	else
		assert_null(s.key);
	settings_fini(&s);
}

static void nothing_set_means_this_host_without_a_key(void **state)
{
	expect(NULL, "http://127.0.0.1:8080", NULL);
}

static void the_key_comes_from_api_key_then_token_then_file(void **state)
{
	write_config("{\"token\": \"from-file\", \"apiUrl\": \"http://file:1\"}");
	expect(NULL, "http://file:1", "from-file");
	set_env(1, "PANDASTACK_TOKEN", "from-token");
	expect(NULL, "http://file:1", "from-token");
	set_env(2, "PANDASTACK_API_KEY", "from-key");
	expect(NULL, "http://file:1", "from-key");
	set_env(3, "PANDASTACK_API", "http://env:2");
	expect(NULL, "http://env:2", "from-key");
	expect(&(struct panda_config){.url = "http://said:3", .key = "said"}, "http://said:3",
	       "said");
	expect(&(struct panda_config){.key = ""}, "http://env:2", NULL);
}

static void a_key_in_a_file_is_for_the_host_named_beside_it(void **state)
{
	static const struct {
		const char *asked;
		bool goes;
	} try[] = {
	    {"https://mine.example/v1", true},
	    {"http://MINE.example:81", true},
	    {"https://other.example", false},
	    {"http://127.0.0.1:8080", false},
	    {"https://mine.example.other", false},
	    {"unix:/run/pandad/api", false},
	    {"no url", false},
	};

	write_config("{\"token\": \"k\", \"apiUrl\": \"https://mine.example\"}");
	for (size_t i = 0; i < ARRAY_LEN(try); i++) {
		set_env(1, "PANDASTACK_API", try[i].asked);
		expect(NULL, try[i].asked, try[i].goes ? "k" : NULL);
	}
	write_config("{\"token\": \"k\", \"apiUrl\": \"http://127.0.0.1:8080\"}");
	set_env(1, "PANDASTACK_API", "unix:/run/pandad/api");
	expect(NULL, "unix:/run/pandad/api", "k");
	set_env(1, "PANDASTACK_API", "http://localhost:9090");
	expect(NULL, "http://localhost:9090", "k");
	/* A key from the environment was meant for the server that was named. */
	set_env(1, "PANDASTACK_API", "https://other.example");
	set_env(2, "PANDASTACK_API_KEY", "said");
	expect(NULL, "https://other.example", "said");
}

static void an_empty_variable_is_not_set(void **state)
{
	write_config("{\"api_key\": \"last\", \"token\": \"\"}");
	set_env(1, "PANDASTACK_API_KEY", "");
	set_env(2, "PANDASTACK_API", "");
	expect(NULL, "http://127.0.0.1:8080", "last");
}

static void the_file_has_three_names_for_the_key(void **state)
{
	write_config("{\"apiKey\": \"b\", \"api_key\": \"c\"}");
	expect(NULL, "http://127.0.0.1:8080", "b");
	write_config("{\"token\": \"a\", \"apiKey\": \"b\"}");
	expect(NULL, "http://127.0.0.1:8080", "a");
}

static void a_broken_file_is_told_with_its_name_and_line(void **state)
{
	struct settings s;
	struct panda_error e;

	write_config("{\n\"token\": oops}");
	assert_int_equal(settings_load(NULL, env, &s, &e), -EINVAL);
	assert_string_equal(e.code, "bad_config");
	assert_non_null(strstr(e.text, "config.json"));
	assert_non_null(strstr(e.text, "line 2"));
	/* Who says everything needs no file. */
	expect(&(struct panda_config){.url = "http://x", .key = "k"}, "http://x", "k");
}

static void a_key_with_a_line_end_is_refused(void **state)
{
	struct settings s;
	struct panda_error e;

	set_env(1, "PANDASTACK_API_KEY", "abc\r\nX-Evil: 1");
	assert_int_equal(settings_load(NULL, env, &s, &e), -EINVAL);
	assert_non_null(strstr(e.text, "PANDASTACK_API_KEY"));
}

static void urls_are_taken_apart(void **state)
{
	static const struct {
		const char *url, *host, *prefix, *authority, *shown;
		int port;
		bool tls;
	} good[] = {
	    {"http://h", "h", "", "h", "http://h", 80, false},
	    {"http://h:80/", "h", "", "h", "http://h", 80, false},
	    {"HTTP://h:8080/v1", "h", "", "h:8080", "http://h:8080", 8080, false},
	    {"https://api.example//v1//", "api.example", "", "api.example", "https://api.example",
	     443, true},
	    {"https://h:80/pre/v1/", "h", "/pre", "h:80", "https://h:80/pre", 80, true},
	    {"http://[::1]:9/x", "::1", "/x", "[::1]:9", "http://[::1]:9/x", 9, false},
	    {"http://[::1]", "::1", "", "[::1]", "http://[::1]", 80, false},
	    {"unix:/run/p.sock", "/run/p.sock", "", "localhost", "unix:/run/p.sock", 0, false},
	};

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		struct panda_error e;
		struct target t;

		assert_int_equal(target_parse(good[i].url, &t, &e), 0);
		assert_string_equal(t.host, good[i].host);
		assert_string_equal(t.prefix, good[i].prefix);
		assert_string_equal(t.authority, good[i].authority);
		assert_string_equal(t.url, good[i].shown);
		assert_int_equal(t.port, good[i].port);
		assert_int_equal(t.tls, good[i].tls);
		target_fini(&t);
	}
}

static void bad_urls_are_refused_with_a_reason(void **state)
{
	static const char *const bad[] = {
	    "",
	    "h:80",
	    "ftp://h",
	    "http://",
	    "http://:80",
	    "http://h:0",
	    "http://h:65536",
	    "http://h:8x",
	    "http://h:",
	    "http://[::1",
	    "http://[::1]x",
	    "http://u:p@h",
	    "http://h/?a=b",
	    "http://h#f",
	    "http://h h",
	    "http://h/\r\nX: y",
	    "http://h?x",
	    "unix:",
	    "unix:p.sock",
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct panda_error e = {0};
		struct target t = {0};

		assert_int_equal(target_parse(bad[i], &t, &e), -EINVAL);
		assert_string_equal(e.code, "bad_config");
		assert_null(t.host);
	}
}

static void a_path_escapes_what_is_put_in(void **state)
{
	char *p = panda_path("/v1/%s/fs?path=%s&n=%d&x=100%%", "a/b?c", "/tmp/a b&c=é", 7);

	assert_string_equal(p, "/v1/a%2Fb%3Fc/fs?path=%2Ftmp%2Fa%20b%26c%3D%C3%A9&n=7&x=100%");
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(nothing_set_means_this_host_without_a_key, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(the_key_comes_from_api_key_then_token_then_file, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_key_in_a_file_is_for_the_host_named_beside_it, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(an_empty_variable_is_not_set, setup, teardown),
	    cmocka_unit_test_setup_teardown(the_file_has_three_names_for_the_key, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_broken_file_is_told_with_its_name_and_line, setup,
	                                    teardown),
	    cmocka_unit_test_setup_teardown(a_key_with_a_line_end_is_refused, setup, teardown),
	    cmocka_unit_test(urls_are_taken_apart),
	    cmocka_unit_test(bad_urls_are_refused_with_a_reason),
	    cmocka_unit_test(a_path_escapes_what_is_put_in),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
