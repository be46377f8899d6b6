#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "db/db.h"
#include "host/event.h"

struct bed {
	struct db *db;
	struct events es;
};

static int open_bed(void **state)
{
	struct bed *b = calloc(1, sizeof(*b));
	struct err e;

	*state = b;
	return b && db_open(":memory:", &b->db, &e) == 0 ? events_open(&b->es, b->db, &e) : -1;
}

static int close_bed(void **state)
{
	struct bed *b = *state;

	db_close(b->db);
	free(b);
	return 0;
}

struct seen {
	unsigned n, life;
	int64_t first;
};

static void look(void *arg, const struct event *ev)
{
	struct seen *s = arg;

	if (!s->n++)
		s->first = ev->seq;
	s->life += strcmp(ev->type, "sandbox.created") == 0;
}

static struct seen tail(struct bed *b, const char *sandbox)
{
	struct seen s = {0};
	struct err e;

	assert_int_equal(events_tail(&b->es, NULL, sandbox, 1000000, look, &s, &e), 0);
	return s;
}

static void what_a_guest_makes_happen_pushes_out_nothing_else(void **state)
{
	struct bed *b = *state;

	event_emit(&b->es, "t", "quiet", "sandbox.created", NULL);
	for (int i = 0; i < EVENTS_KEPT + 1000; i++)
		event_emit(&b->es, "t", "loud", "net.refused", NULL);
	assert_int_equal(tail(b, "quiet").life, 1);
	assert_int_equal(tail(b, "loud").n, EVENTS_KEPT + 1000);
}

static void the_record_has_an_end(void **state)
{
	struct bed *b = *state;

	for (int i = 0; i < EVENTS_KEPT + 1000; i++)
		event_emit(&b->es, "t", "s", "sandbox.created", NULL);
	assert_in_range(tail(b, "s").n, EVENTS_KEPT, EVENTS_KEPT + 500);
}

static void one_kind_of_one_sandbox_can_be_made_shorter(void **state)
{
	struct bed *b = *state;

	for (int i = 0; i < 30; i++) {
		event_emit(&b->es, "t", "a", "net.refused", NULL);
		event_emit(&b->es, "t", "a", "sandbox.created", NULL);
		event_emit(&b->es, "t", "b", "net.refused", NULL);
	}
	events_trim(&b->es, "a", "net.refused", 10);
	assert_int_equal(tail(b, "a").n, 40);
	assert_int_equal(tail(b, "a").life, 30);
	assert_int_equal(tail(b, "b").n, 30);
	events_trim(&b->es, "b", "net.refused", 50);
	assert_int_equal(tail(b, "b").n, 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(what_a_guest_makes_happen_pushes_out_nothing_else,
	                                    open_bed, close_bed),
	    cmocka_unit_test_setup_teardown(the_record_has_an_end, open_bed, close_bed),
	    cmocka_unit_test_setup_teardown(one_kind_of_one_sandbox_can_be_made_shorter, open_bed,
	                                    close_bed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
