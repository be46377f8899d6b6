/*
 * cmocka.h: what is wrong fails, what is right does not. Asks with abort(), not with its own
 * asserts.
 */
#include <cmocka.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static void good(void **state)
{
	assert_true(1 < 2);
	assert_false(1 > 2);
	assert_null(NULL);
	assert_non_null(state);
	assert_int_equal(-1, -1);
	assert_int_not_equal(-1, 0xffffffffu);
	assert_ptr_equal(state, state);
	assert_ptr_not_equal(state, NULL);
	assert_in_range(6, 6, 7);
	assert_in_range(7, 6, 7);
	assert_string_equal("a", "a");
	assert_string_not_equal("a", "b");
	assert_memory_equal("ab", "ac", 1);
	assert_memory_not_equal("ab", "ac", 2);
}

static void bad(void **state)
{
	switch (**(int **)state) {
	case 0:
		assert_true(1 > 2);
		break;
	case 1:
		assert_false(1 < 2);
		break;
	case 2:
		assert_null(state);
		break;
	case 3:
		assert_non_null(NULL);
		break;
	case 4:
		assert_int_equal(-1, 1);
		break;
	case 5:
		assert_int_equal(-1, 0xffffffffu);
		break;
	case 6:
		assert_int_not_equal(7, 7);
		break;
	case 7:
		assert_ptr_equal(state, NULL);
		break;
	case 8:
		assert_ptr_not_equal(state, state);
		break;
	case 9:
		assert_in_range(5, 6, 7);
		break;
	case 10:
		assert_in_range(8, 6, 7);
		break;
	case 11:
		assert_string_equal("a\n", "a");
		break;
	case 12:
		assert_string_equal(NULL, "a");
		break;
	case 13:
		assert_string_not_equal("a", "a");
		break;
	case 14:
		assert_memory_equal("ab", "ac", 2);
		break;
	case 15:
		assert_memory_not_equal("ab", "ac", 1);
		break;
	case 16:
		fail_msg("%d", 16);
		break;
	default:
		break;
	}
}

enum { BAD = 17 };

static int broken(void **state)
{
	return -1;
}

static bool torn_down;

static int tear_down(void **state)
{
	torn_down = true;
	return 0;
}

static void skipping(void **state)
{
	skip();
}

static void in_a_child(void **state)
{
	int status = 0;

	if (fork() == 0)
		fail_msg("the child ends, it does not run the next test");
	wait(&status);
	assert_int_equal(WEXITSTATUS(status), 1);
}

static void want(int claim)
{
	if (!claim)
		abort();
}

int main(void)
{
	const struct CMUnitTest first[] = {cmocka_unit_test(good), cmocka_unit_test(in_a_child),
	                                   cmocka_unit_test(skipping)};
	const struct CMUnitTest fixtures[] = {
	    cmocka_unit_test_setup_teardown(good, broken, NULL),
	    cmocka_unit_test_setup_teardown(good, NULL, broken),
	};

	dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), 2); /* what follows fails, and says so */
	unsetenv("UNIT_TEST");
	want(cmocka_run_group_tests(first, NULL, NULL) == 0);
	for (int i = 0; i <= BAD; i++) {
		const struct CMUnitTest one[] = {{"bad", bad, NULL, tear_down, &i}};

		torn_down = false;
		want(cmocka_run_group_tests(one, NULL, NULL) == (i < BAD));
		want(torn_down);
	}
	want(cmocka_run_group_tests(fixtures, NULL, NULL) == 2);
	want(cmocka_run_group_tests(first, broken, NULL) == 1);
	want(cmocka_run_group_tests(first, NULL, broken) == 1);
	setenv("UNIT_TEST", "skip", 1);
	want(cmocka_run_group_tests(fixtures, NULL, NULL) == 0);
	return 0;
}
