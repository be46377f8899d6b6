/*
 * The table of what a guest may answer is the one of docs/design/guest-protocol.md: each row of
 * either is in the other. (What the host does about it: tests/unit/machine/test_answers.c.)
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "wire/answers.h"

static const char *const replies[] = {
    [WIRE_READY] = "READY",
    [WIRE_STARTED] = "STARTED",
    [WIRE_EXITED] = "EXITED",
    [WIRE_ATTACHED] = "ATTACHED",
    [WIRE_FILE] = "FILE",
    [WIRE_PATH] = "PATH",
    [WIRE_STATS_REPLY] = "STATS_REPLY",
};

enum { CELL = 200 };

static void add(char cell[CELL], const char *fmt, const char *word)
{
	size_t n = strlen(cell);

	n += (size_t)snprintf(cell + n, CELL - n, "%s", n ? "; " : "");
	snprintf(cell + n, CELL - n, fmt, word);
}

/* What the page has of a row, between its name and its notes. */
static void write_row(const struct wire_answers *a, char cells[2][CELL])
{
	cells[0][0] = cells[1][0] = 0;
	if (a->input)
		add(cells[0], "data%s", a->fed ? ", then `EOF`" : "");
	if (a->first)
		add(cells[1], "`%s`", replies[a->first]);
	if (a->chans)
		add(cells[1], "data 1%s", a->chans & 1 << WIRE_ERR ? ", 2" : "");
	if (a->gaps)
		add(cells[1], "`%s`*", "GAP");
	if (a->eof)
		add(cells[1], "`%s`", "EOF");
	if (a->last)
		add(cells[1], "`%s`", replies[a->last]);
	if (a->endless)
		add(cells[1], "%s", "never ends well");
	for (int i = 0; i < 2; i++)
		if (!*cells[i])
			add(cells[i], "%s", "–");
}

/* How many requests this line of the page names; each must be in the table, and so. */
static size_t check_line(const char *line)
{
	char requests[CELL], cells[2][CELL], want[2][CELL], *at = requests;
	size_t n = 0;

	if (sscanf(line, "| %199[^|] | %199[^|] | %199[^|] |", requests, cells[0], cells[1]) != 3)
		return 0;
	while ((at = strchr(at, '`'))) {
		char *end = strchr(++at, '`');
		const struct wire_answers *a = NULL;

		assert_non_null(end);
		*end = 0;
		for (size_t i = 0; i < wire_answers_count && !a; i++)
			if (!strcmp(wire_answers[i].name, at))
				a = &wire_answers[i];
		if (!a)
			fail_msg("%s is on the page, and not in the table", at);
		write_row(a, want);
		for (int k = 0; k < 2; k++) {
			while (*cells[k] && cells[k][strlen(cells[k]) - 1] == ' ')
				cells[k][strlen(cells[k]) - 1] = 0;
			if (strcmp(cells[k], want[k]))
				fail_msg("%s: '%s' on the page, '%s' in the table", at, cells[k],
				         want[k]);
		}
		n++;
		at = end + 1;
	}
	return n;
}

static void the_page_and_the_table_are_the_same(void **state)
{
	FILE *f = fopen(PAGE, "re");
	char line[1000];
	bool inside = false;
	size_t n = 0;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		inside |= !strncmp(line, "| request |", 11);
		if (inside && *line != '|')
			break;
		if (inside)
			n += check_line(line);
	}
	fclose(f);
	assert_int_equal(n, wire_answers_count);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_page_and_the_table_are_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
