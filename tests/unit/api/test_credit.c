/*
 * What is owed to a producer is paid when there is room, all of it and once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

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

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(with_room_it_is_paid_at_once),
	    cmocka_unit_test(without_room_it_waits_and_is_paid_once),
	    cmocka_unit_test(what_comes_while_it_is_paid_is_owed),
	    cmocka_unit_test(a_producer_that_has_ended_is_owed_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
