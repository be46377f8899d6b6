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

enum { KEPT = 400, ALL = 1600 };

static const struct events_config config = {.kept = ALL, .kept_per_tenant = KEPT};

struct bed {
	struct db *db;
	struct events es;
};

static int open_bed(void **state)
{
	struct bed *b = calloc(1, sizeof(*b));
	struct err e;

	*state = b;
	return b && db_open(":memory:", &b->db, &e) == 0
	           ? events_open(&b->es, NULL, b->db, &config, &e)
	           : -1;
}

static int close_bed(void **state)
{
	struct bed *b = *state;

	events_close(&b->es);
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
	for (int i = 0; i < 10 * KEPT; i++)
		assert_true(event_emit_net(&b->es, "t", "loud", "net.refused", NULL));
	assert_int_equal(tail(b, "quiet").life, 1);
	assert_in_range(tail(b, "loud").n, KEPT, 2 * KEPT);
}

static void what_one_tenant_does_pushes_out_nothing_of_another(void **state)
{
	struct bed *b = *state;

	event_emit(&b->es, "u", "quiet", "sandbox.created", NULL);
	assert_true(event_emit_net(&b->es, "u", "quiet", "net.refused", NULL));
	for (int i = 0; i < 30 * KEPT; i++) {
		assert_true(event_emit_net(&b->es, "t", "loud", "net.refused", NULL));
		event_emit(&b->es, "t", "loud", "sandbox.created", NULL);
	}
	assert_int_equal(tail(b, "quiet").n, 2);
	assert_in_range(tail(b, "loud").life, KEPT, 2 * KEPT);
}

static void the_record_of_all_has_an_end(void **state)
{
	struct bed *b = *state;
	char tenant[16];

	event_emit(&b->es, "u", "quiet", "sandbox.created", NULL);
	for (int t = 0; t < 10; t++) {
		snprintf(tenant, sizeof(tenant), "t%d", t);
		for (int i = 0; i < KEPT; i++)
			event_emit(&b->es, tenant, "loud", "sandbox.created", NULL);
	}
	assert_in_range(tail(b, NULL).n, ALL, ALL + ALL / 4);
	assert_int_equal(tail(b, "quiet").n, 1);
}

static void the_shares_are_known_to_the_next_pandad(void **state)
{
	struct bed *b = *state;
	struct err e;

	for (int i = 0; i < KEPT; i++)
		event_emit(&b->es, "t", "a", "sandbox.created", NULL);
	assert_true(event_emit_net(&b->es, "t", "a", "net.refused", NULL));
	events_close(&b->es); /* what waited is on record */
	assert_int_equal(events_open(&b->es, NULL, b->db, &config, &e), 0);
	assert_int_equal(tail(b, "a").n, KEPT + 1);
	assert_int_equal(b->es.life.n, KEPT);
	assert_int_equal(b->es.net.n, 1);
	assert_int_equal(b->es.seq, KEPT + 1);
}

static void more_than_the_rate_is_counted_and_not_recorded(void **state)
{
	struct bed *b = *state;
	unsigned loud = 0, other = 0;

	b->es.config.net_per_s_per_tenant = 10;
	b->es.config.net_per_s = 40;
	/* Twice the rate at once; time goes on meanwhile, so a little more may pass. */
	for (int i = 0; i < 10000; i++)
		loud += event_emit_net(&b->es, "t", "loud", "net.refused", NULL);
	assert_in_range(loud, 20, 1000);
	for (int i = 0; i < 20; i++)
		other += event_emit_net(&b->es, "u", "other", "net.refused", NULL);
	assert_int_equal(other, 20);
	assert_int_equal(b->es.net_dropped, 10000 - loud);
	assert_int_equal(tail(b, "loud").n, loud);
	event_emit(&b->es, "t", "loud", "sandbox.created", NULL); /* has no rate */
	assert_int_equal(tail(b, "loud").life, 1);
}

static void one_kind_of_one_sandbox_can_be_made_shorter(void **state)
{
	struct bed *b = *state;

	for (int i = 0; i < 30; i++) {
		event_emit(&b->es, "t", "a", "net.refused", NULL);
		event_emit(&b->es, "t", "a", "sandbox.created", NULL);
		event_emit(&b->es, "t", "b", "net.refused", NULL);
	}
	events_trim(&b->es, "t", "a", "net.refused", 10);
	assert_int_equal(tail(b, "a").n, 40);
	assert_int_equal(b->es.net.n, 40);
	assert_int_equal(tail(b, "a").life, 30);
	assert_int_equal(tail(b, "b").n, 30);
	events_trim(&b->es, "t", "b", "net.refused", 50);
	assert_int_equal(tail(b, "b").n, 30);
}

#define test(f) cmocka_unit_test_setup_teardown(f, open_bed, close_bed)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    test(what_a_guest_makes_happen_pushes_out_nothing_else),
	    test(what_one_tenant_does_pushes_out_nothing_of_another),
	    test(the_record_of_all_has_an_end),
	    test(the_shares_are_known_to_the_next_pandad),
	    test(more_than_the_rate_is_counted_and_not_recorded),
	    test(one_kind_of_one_sandbox_can_be_made_shorter),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
