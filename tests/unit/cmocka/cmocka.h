/*
 * cmocka.h - the part of cmocka's interface that our tests use, without the package
 * A unit test builds with a compiler alone (docs/guide/debugging.md). What stands here means what
 * cmocka documents, so a test moves between the two without a change. What differs:
 *
 * - A run prints what failed, with the values, and one line of counts; UNIT_VERBOSE=1 names all.
 * - UNIT_TEST=TEXT runs only the functions whose names contain TEXT.
 * - An assert that fails in a child process or in a second thread ends that process.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct CMUnitTest {
	const char *name;
	void (*test_func)(void **state);
	int (*setup_func)(void **state);
	int (*teardown_func)(void **state);
	void *initial_state; /* NULL: what the group's setup left */
};

#define cmocka_unit_test(f)             \
	{                               \
#f, f, NULL, NULL, NULL \
	}
#define cmocka_unit_test_setup_teardown(f, setup, teardown) \
	{                                                   \
#f, f, setup, teardown, NULL                \
	}
#define cmocka_unit_test_prestate(f, state) \
	{                                   \
#f, f, NULL, NULL, state    \
	}

#define cmocka_run_group_tests(tests, setup, teardown) \
	_cmocka_run_group_tests(#tests, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)
/* Returns how many failed. A setup and a teardown return 0 on success. */
int _cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t n,
                            int (*setup)(void **state), int (*teardown)(void **state));

/* --- for the asserts ----------------------------------------------------------------------------
 */

/* Prints the place and the sentence, and leaves the test. */
_Noreturn void _cmocka_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void _cmocka_skip(void);
void _cmocka_int(const char *file, int line, const char *what, uintmax_t a, uintmax_t b, bool same);
void _cmocka_string(const char *file, int line, const char *what, const char *a, const char *b,
                    bool same);
void _cmocka_memory(const char *file, int line, const char *what, const void *a, const void *b,
                    size_t n, bool same);
void print_message(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void print_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define _cmocka_claim(c, what) ((c) ? (void)0 : _cmocka_fail(__FILE__, __LINE__, "%s", what))
#define _cmocka_address(p)     ((uintmax_t)(uintptr_t)(const void *)(p))

/* --- what tests write ---------------------------------------------------------------------------
 */

#define fail_msg(...) _cmocka_fail(__FILE__, __LINE__, __VA_ARGS__)
#define skip()        _cmocka_skip()

#define assert_true(c)     _cmocka_claim((c), "not true: " #c)
#define assert_false(c)    _cmocka_claim(!(c), "not false: " #c)
#define assert_non_null(p) _cmocka_claim((p) != NULL, "NULL: " #p)
#define assert_null(p)     _cmocka_claim((p) == NULL, "not NULL: " #p)

#define assert_int_equal(a, b) \
	_cmocka_int(__FILE__, __LINE__, #a, (uintmax_t)(a), (uintmax_t)(b), true)
#define assert_int_not_equal(a, b) \
	_cmocka_int(__FILE__, __LINE__, #a, (uintmax_t)(a), (uintmax_t)(b), false)
#define assert_ptr_equal(a, b) \
	_cmocka_int(__FILE__, __LINE__, #a, _cmocka_address(a), _cmocka_address(b), true)
#define assert_ptr_not_equal(a, b) \
	_cmocka_int(__FILE__, __LINE__, #a, _cmocka_address(a), _cmocka_address(b), false)
#define assert_in_range(v, min, max)                                                             \
	do {                                                                                     \
		uintmax_t _v = (uintmax_t)(v), _min = (uintmax_t)(min), _max = (uintmax_t)(max); \
                                                                                                 \
		if (_v < _min || _v > _max)                                                      \
			_cmocka_fail(__FILE__, __LINE__, "%s: %ju is not in %ju .. %ju", #v, _v, \
			             _min, _max);                                                \
	} while (0)

#define assert_string_equal(a, b)        _cmocka_string(__FILE__, __LINE__, #a, a, b, true)
#define assert_string_not_equal(a, b)    _cmocka_string(__FILE__, __LINE__, #a, a, b, false)
#define assert_memory_equal(a, b, n)     _cmocka_memory(__FILE__, __LINE__, #a, a, b, n, true)
#define assert_memory_not_equal(a, b, n) _cmocka_memory(__FILE__, __LINE__, #a, a, b, n, false)
