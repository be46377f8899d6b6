/*
 * host/op.c: operations on a sandbox take turns, and the log tells who asked for each.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "host/host_internal.h"
#include "host/op.h"
#include "layers/map.h"

enum { OPS = 4 };

static struct host host;
static struct sandbox box;
static struct op ops[OPS];
static const struct op *begun[OPS];
static size_t nbegun;
static unsigned cancelled;

static void note_begin(struct op *op)
{
	assert_true(nbegun < OPS);
	begun[nbegun++] = op;
}

static void note_cancel(struct op *op)
{
	cancelled++;
}

static int setup(void **state)
{
	host = (struct host){.request = NULL};
	box = (struct sandbox){.host = &host, .id = "4f0c", .state = SANDBOX_RUNNING};
	for (size_t i = 0; i < OPS; i++)
		ops[i] = (struct op){.begin = note_begin, .cancel = note_cancel};
	nbegun = 0;
	cancelled = 0;
	return 0;
}

static void they_begin_in_the_order_they_were_asked_for(void **state)
{
	op_queue(&box, "fork", &ops[0]);
	op_queue(&box, "pause", &ops[1]);
	op_queue(&box, "resume", &ops[2]);
	assert_int_equal(nbegun, 1);
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(nbegun, i + 1);
		assert_ptr_equal(begun[i], &ops[i]);
		op_end(&ops[i]);
	}
	assert_null(box.ops);
}

static void the_first_in_line_waits_only_for_the_one_at_work(void **state)
{
	op_queue(&box, "fork", &ops[0]);
	op_queue(&box, "pause", &ops[1]);
	op_queue_first(&box, "kill", &ops[2]);
	assert_int_equal(cancelled, 1);
	op_end(&ops[0]);
	assert_ptr_equal(begun[1], &ops[2]);
	op_end(&ops[2]);
	assert_ptr_equal(begun[2], &ops[1]);
	op_end(&ops[1]);

	op_queue_first(&box, "kill", &ops[3]);
	assert_ptr_equal(begun[3], &ops[3]);
	assert_int_equal(cancelled, 1);
}

/* Without the numbers of milliseconds, which are the clock's. */
static char *read_log(int fd, char text[2048])
{
	ssize_t n = pread(fd, text, 2047, 0);

	assert_true(n > 0);
	text[n] = 0;
	for (char *p = text; (p = strstr(p, "_ms=")); p++)
		for (char *q = p + 4; *q >= '0' && *q <= '9';)
			memmove(q, q + 1, strlen(q));
	return text;
}

static void a_request_is_followed_to_what_it_began(void **state)
{
	autoclose int file = memfd_create("log", MFD_CLOEXEC);
	autoclose int was = fcntl(2, F_DUPFD_CLOEXEC, 3);
	struct log_filter debug = {.level = LOG_DEBUG}, info = {.level = LOG_INFO};
	char text[2048];

	assert_int_equal(dup2(file, 2), 2);
	log_filter_set(&debug);
	host.request = "r1";
	op_queue(&box, "pause", &ops[0]);
	host.request = NULL;
	op_queue(&box, "resume", &ops[1]);
	op_end(&ops[0]);
	op_end(&ops[1]);
	log_filter_set(&info);
	dup2(was, 2);
	assert_string_equal(
	    read_log(file, text),
	    "debug host: operation begins op=pause sandbox=4f0c request=r1 waited_ms=\n"
	    "debug host: operation ended op=pause sandbox=4f0c request=r1 state=running took_ms=\n"
	    "debug host: operation begins op=resume sandbox=4f0c request=- waited_ms=\n"
	    "debug host: operation ended op=resume sandbox=4f0c request=- state=running "
	    "took_ms=\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(they_begin_in_the_order_they_were_asked_for, setup,
	                                    NULL),
	    cmocka_unit_test_setup_teardown(the_first_in_line_waits_only_for_the_one_at_work, setup,
	                                    NULL),
	    cmocka_unit_test_setup_teardown(a_request_is_followed_to_what_it_began, setup, NULL),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
