/*
 * cmocka.c - runs the tests of one program, one after the other, and says what failed
 * A failed assert jumps out of its test to test_run(). Everything is written to stderr at once,
 * because a test may fork, and what stdio keeps back is then printed twice.
 */
#include "cmocka.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	SHOWN_MAX = 2000, /* of one string: a failure stays on a screen */
};

enum outcome {
	PASSED,
	FAILED,
	SKIPPED,
};

static jmp_buf out;
static _Thread_local bool may_jump; /* only the thread that runs the tests is in test_run() */
static pid_t runner;
static const char *current = "(before the first test)";

/* --- what asserts call --------------------------------------------------------------------------
 */

static _Noreturn void leave(enum outcome how)
{
	if (getpid() != runner)
		_exit(1);
	if (!may_jump)
		abort();
	longjmp(out, how);
}

/* As seen from the top of the tree; Meson compiles from a directory below it. */
static const char *from_top(const char *file)
{
	while (!strncmp(file, "../", 3))
		file += 3;
	return file;
}

_Noreturn void _cmocka_fail(const char *file, int line, const char *fmt, ...)
{
	char text[4 * SHOWN_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fprintf(stderr, "FAILED %s\n  %s:%d: %s\n", current, from_top(file), line, text);
	leave(FAILED);
}

_Noreturn void _cmocka_skip(void)
{
	leave(SKIPPED);
}

void _cmocka_int(const char *file, int line, const char *what, uintmax_t a, uintmax_t b, bool same)
{
	if ((a == b) == same)
		return;
	if (same)
		_cmocka_fail(file, line, "%s is %jd (0x%jx), not %jd (0x%jx)", what, (intmax_t)a, a,
		             (intmax_t)b, b);
	_cmocka_fail(file, line, "%s is %jd (0x%jx), and should not be", what, (intmax_t)a, a);
}

/* In quotes and on one line, as C would write it. */
static void quote(const char *s, char ret[SHOWN_MAX])
{
	size_t n = 0;

	if (!s) {
		snprintf(ret, SHOWN_MAX, "NULL");
		return;
	}
	ret[n++] = '"';
	for (; *s && n < SHOWN_MAX - 16; s++)
		if (*s == '\n')
			n += (size_t)snprintf(ret + n, SHOWN_MAX - n, "\\n");
		else if ((unsigned char)*s < 0x20 || *s == 0x7f)
			n += (size_t)snprintf(ret + n, SHOWN_MAX - n, "\\%03o", (unsigned)*s);
		else
			ret[n++] = *s;
	snprintf(ret + n, SHOWN_MAX - n, *s ? "\"..." : "\"");
}

void _cmocka_string(const char *file, int line, const char *what, const char *a, const char *b,
                    bool same)
{
	char left[SHOWN_MAX], right[SHOWN_MAX];
	size_t at = 0;

	if (a && b && !strcmp(a, b) == same)
		return;
	quote(a, left);
	quote(b, right);
	while (a && b && a[at] && a[at] == b[at])
		at++;
	if (same)
		_cmocka_fail(file, line, "%s, at byte %zu\n     is %s\n    not %s", what, at, left,
		             right);
	_cmocka_fail(file, line, "%s\n    is, and should not be, %s", what, left);
}

void _cmocka_memory(const char *file, int line, const char *what, const void *a, const void *b,
                    size_t n, bool same)
{
	const unsigned char *p = a, *q = b;
	size_t at = 0;

	if (!memcmp(a, b, n) == same)
		return;
	while (same && p[at] == q[at])
		at++;
	if (same)
		_cmocka_fail(file, line, "%s differs from byte %zu of %zu on: 0x%02x, not 0x%02x",
		             what, at, n, p[at], q[at]);
	_cmocka_fail(file, line, "%s is what it should not be, %zu bytes", what, n);
}

void print_message(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
}

void print_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
}

/* --- the run ------------------------------------------------------------------------------------
 */

/* Names the test that crashed; the signal then ends the program, and Meson reports which one it
 * was. */
static void crashed(int sig)
{
	static const char said[] = "CRASHED ";
	ssize_t ignored = write(2, said, sizeof(said) - 1);

	ignored = write(2, current, strlen(current));
	ignored = write(2, "\n", 1);
	(void)ignored;
	raise(sig); /* SA_RESETHAND: the default is back */
}

/* A sanitizer's handlers stay. */
static void watch_crashes(void)
{
	static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
	struct sigaction act = {.sa_handler = crashed, .sa_flags = SA_RESETHAND}, was;

	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (sigaction(signals[i], NULL, &was) == 0 && was.sa_handler == SIG_DFL)
			sigaction(signals[i], &act, NULL);
}

/* One of a test's three functions; fixtures return what is not 0 when they fail. */
static enum outcome call(const char *part, void (*test)(void **), int (*fixture)(void **),
                         void **state)
{
	volatile enum outcome how = PASSED;
	int jumped = setjmp(out);

	if (jumped) {
		how = (enum outcome)jumped;
	} else if (test) {
		test(state);
	} else if (fixture && fixture(state) != 0) {
		fprintf(stderr, "FAILED %s\n  its %s returned an error\n", current, part);
		how = FAILED;
	}
	return how;
}

static enum outcome test_run(const struct CMUnitTest *t, void *group)
{
	void *state = t->initial_state ? t->initial_state : group;
	enum outcome how, after;

	current = t->name;
	how = call("setup", NULL, t->setup_func, &state);
	if (how != PASSED)
		return how;
	how = call("test", t->test_func, NULL, &state);
	after = call("teardown", NULL, t->teardown_func, &state);
	return after == PASSED ? how : FAILED;
}

int _cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t n,
                            int (*setup)(void **state), int (*teardown)(void **state))
{
	static const char *const words[] = {"passed", "FAILED", "skipped"};
	const char *wanted = getenv("UNIT_TEST"), *verbose = getenv("UNIT_VERBOSE");
	size_t count[3] = {0};
	void *group = NULL;

	runner = getpid();
	may_jump = true;
	setvbuf(stderr, NULL, _IONBF, 0);
	watch_crashes();
	current = name;
	if (call("setup", NULL, setup, &group) != PASSED)
		return 1;
	for (size_t i = 0; i < n; i++) {
		enum outcome how;

		if (wanted && !strstr(tests[i].name, wanted))
			continue;
		how = test_run(&tests[i], group);
		count[how]++;
		if (verbose || how == SKIPPED)
			fprintf(stderr, "%s %s\n", words[how], tests[i].name);
	}
	current = name;
	count[FAILED] += call("teardown", NULL, teardown, &group) != PASSED;
	fprintf(stderr, "%zu passed, %zu failed, %zu skipped\n", count[PASSED], count[FAILED],
	        count[SKIPPED]);
	return (int)count[FAILED];
}
