#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/dict.h"

static void what_was_put_is_found_until_it_is_taken_out(void **state)
{
	enum { N = 5000 };
	static char keys[N][16];
	struct dict *d;

	assert_int_equal(dict_new(&d), 0);
	for (int i = 0; i < N; i++) {
		snprintf(keys[i], sizeof(keys[i]), "key-%d", i);
		assert_int_equal(dict_put(d, keys[i], &keys[i]), 0);
	}
	assert_int_equal(dict_count(d), N);
	for (int i = 0; i < N; i++)
		assert_ptr_equal(dict_get(d, keys[i]), &keys[i]);
	for (int i = 0; i < N; i += 2)
		dict_del(d, keys[i]);
	assert_int_equal(dict_count(d), N / 2);
	for (int i = 0; i < N; i++)
		assert_ptr_equal(dict_get(d, keys[i]), i % 2 ? &keys[i] : NULL);
	dict_free(d);
}

static void a_key_is_there_once(void **state)
{
	struct dict *d;
	int a, b;

	assert_int_equal(dict_new(&d), 0);
	assert_int_equal(dict_put(d, "k", &a), 0);
	assert_int_equal(dict_put(d, "k", &b), -EEXIST);
	assert_ptr_equal(dict_get(d, "k"), &a);
	dict_del(d, "nobody");
	assert_int_equal(dict_count(d), 1);
	dict_free(d);
	dict_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_was_put_is_found_until_it_is_taken_out),
	    cmocka_unit_test(a_key_is_there_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
