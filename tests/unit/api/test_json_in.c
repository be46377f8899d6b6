#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/json_in.h"
#include "base/macro.h"

static size_t count(const json_t *j)
{
	size_t n = 1, i;
	const char *k;
	json_t *v;

	if (json_is_array(j))
		json_array_foreach(j, i, v)
			n += count(v);
	else
		json_object_foreach((json_t *)j, k, v)
			n += count(v);
	return n;
}

static void no_value_escapes_the_count(void **state)
{
	static const char *const texts[] = {
	    "{}",
	    "[]",
	    "[[],[],[]]",
	    "[1,2,[3,{\"a\":4}],null]",
	    "{\"a\":{\"b\":[1,2]},\"c\":\"[[[,,,\"}",
	    "[\"\\\"\",1,\"\\\\\",2,\"\\\\\\\",3\"]",
	    " [ \"a\" , \"b\" ] ",
	};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		json_t *j = json_in(texts[i], strlen(texts[i]), NULL);

		assert_non_null(j);
		assert_true(json_values(texts[i], strlen(texts[i])) >= count(j));
		json_decref(j);
	}
}

static void strings_cost_nothing_whatever_is_in_them(void **state)
{
	static const char text[] = "[\"[[[[,,,,{{{{\",\"\\\",[,[,\",\"\\\\\"]";

	assert_int_equal(json_values(text, sizeof(text) - 1), 4);
	assert_int_equal(json_values("\"[,[,", 5), 1); /* without an end: not JSON anyway */
	assert_int_equal(json_values("\"[,\\", 4), 1);
	assert_int_equal(json_values("", 0), 1);
}

static void more_than_the_limit_is_not_parsed(void **state)
{
	size_t n = 0;
	char *text = malloc(3 * JSON_VALUES_MAX + 10);
	json_error_t why = {0};
	json_t *j;

	assert_non_null(text);
	text[n++] = '[';
	for (int i = 0; i < JSON_VALUES_MAX - 2; i++) {
		text[n++] = '0';
		text[n++] = ',';
	}
	memcpy(text + n, "0]", 2);
	j = json_in(text, n + 2, &why);
	assert_int_equal(json_array_size(j), JSON_VALUES_MAX - 1);
	json_decref(j);
	memcpy(text + n, "0,0]", 4);
	assert_null(json_in(text, n + 4, &why));
	assert_non_null(strstr(why.text, "131072 values"));
	assert_null(json_in(text, n + 4, NULL));
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(no_value_escapes_the_count),
	    cmocka_unit_test(strings_cost_nothing_whatever_is_in_them),
	    cmocka_unit_test(more_than_the_limit_is_not_parsed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
