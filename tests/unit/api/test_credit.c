/*
 * What is owed to a producer is paid when there is room, all of it and once.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/streams/credit.h"

struct producer {
	struct credit credit;
	size_t got[2];
	unsigned times;
	size_t again; /* so much comes while it is paid */
};

static void give(void *arg, int chan, size_t n)
{
	struct producer *p = arg;
	size_t again = p->again;

	p->got[chan] += n;
	p->times++;
	p->again = 0;
	if (again)
		credit_owe(&p->credit, chan, again, false);
}

static struct producer producer(void)
{
	return (struct producer){.credit = {.give = give}};
}

static void with_room_it_is_paid_at_once(void **state)
{
	struct producer p = producer();

	p.credit.arg = &p;
	credit_owe(&p.credit, 0, 10, true);
	credit_owe(&p.credit, 1, 20, true);
	assert_int_equal(p.got[0], 10);
	assert_int_equal(p.got[1], 20);
	assert_int_equal(p.times, 2);
}

static void without_room_it_waits_and_is_paid_once(void **state)
{
	struct producer p = producer();

	p.credit.arg = &p;
	credit_owe(&p.credit, 0, 10, false);
	credit_owe(&p.credit, 1, 5, false);
	credit_owe(&p.credit, 0, 10, false);
	assert_int_equal(p.times, 0);
	credit_pay(&p.credit);
	assert_int_equal(p.got[0], 20);
	assert_int_equal(p.got[1], 5);
	assert_int_equal(p.times, 2);
	credit_pay(&p.credit);
	assert_int_equal(p.times, 2);
}

static void what_comes_while_it_is_paid_is_owed(void **state)
{
	struct producer p = producer();

	p.credit.arg = &p;
	p.again = 7;
	credit_owe(&p.credit, 0, 10, true);
	assert_int_equal(p.got[0], 10);
	credit_pay(&p.credit);
	assert_int_equal(p.got[0], 17);
}

static void a_producer_that_has_ended_is_owed_nothing(void **state)
{
	struct job *none = NULL;
	struct exec_job *ended = NULL;
	struct credit k[3] = {{.give = credit_to_job, .arg = &none},
	                      {.give = credit_to_exec, .arg = &ended},
	                      {0}};

	for (int i = 0; i < 3; i++) {
		credit_owe(&k[i], 0, 10, true);
		assert_int_equal(k[i].owed[0], 0);
	}
}

struct table {
	struct credit credit;
	size_t room, told, given;
};

static void table_give(void *arg, int chan, size_t n)
{
	((struct table *)arg)->given += n;
}

static bool table_room(void *arg)
{
	return ((struct table *)arg)->room > 0;
}

/* A row is two equal bytes. */
static ssize_t table_row(void *arg, const uint8_t *p, size_t n)
{
	struct table *t = arg;

	if (n < 2 || p[0] != p[1])
		return -EPROTO;
	assert_int_equal(p[0], 'a' + t->told);
	t->told++;
	t->room--;
	return 2;
}

static void rows_wait_for_room_each_and_keep_their_order(void **state)
{
	struct table t = {.room = 1, .credit = {.give = table_give, .arg = &t}};
	struct credit_rows r = {.credit = &t.credit,
	                        .row = table_row,
	                        .room = table_room,
	                        .arg = &t};

	assert_int_equal(credit_rows_add(&r, (const uint8_t *)"aabbcc", 6), 0);
	assert_int_equal(t.told, 1);
	assert_int_equal(r.n_held, 4);
	assert_int_equal(t.given, 0); /* there is no room for more */
	t.room = 2;
	assert_int_equal(credit_rows_add(&r, (const uint8_t *)"dd", 2), 0);
	assert_int_equal(t.told, 1); /* not before those that wait */
	assert_int_equal(credit_rows_more(&r), 0);
	assert_int_equal(t.told, 3);
	t.room = 9;
	assert_int_equal(credit_rows_more(&r), 0);
	assert_int_equal(t.told, 4);
	assert_int_equal(r.n_held, 0);
	assert_int_equal(t.given, 8); /* all that was ever owed */
	assert_int_equal(credit_rows_add(&r, (const uint8_t *)"ee", 2), 0);
	assert_int_equal(t.given, 10);
	free(r.held);
}

static void a_row_that_makes_no_sense_is_an_error_when_its_turn_comes(void **state)
{
	struct table t = {.room = 1, .credit = {.give = table_give, .arg = &t}};
	struct credit_rows r = {.credit = &t.credit,
	                        .row = table_row,
	                        .room = table_room,
	                        .arg = &t};

	assert_int_equal(credit_rows_add(&r, (const uint8_t *)"aabc", 4), 0);
	t.room = 1;
	assert_int_equal(credit_rows_more(&r), -EPROTO);
	free(r.held);
	r = (struct credit_rows){.credit = &t.credit,
	                         .row = table_row,
	                         .room = table_room,
	                         .arg = &t};
	assert_int_equal(credit_rows_add(&r, (const uint8_t *)"x", 1), -EPROTO);
	free(r.held);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(with_room_it_is_paid_at_once),
	    cmocka_unit_test(without_room_it_waits_and_is_paid_once),
	    cmocka_unit_test(what_comes_while_it_is_paid_is_owed),
	    cmocka_unit_test(a_producer_that_has_ended_is_owed_nothing),
	    cmocka_unit_test(rows_wait_for_room_each_and_keep_their_order),
	    cmocka_unit_test(a_row_that_makes_no_sense_is_an_error_when_its_turn_comes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
