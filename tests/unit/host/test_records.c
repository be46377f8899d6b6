/*
 * The log of the records stays short while pandad works.
 */
#include "fake/bed.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/macro.h"
#include "db/db.h"
#include "host/event.h"

static uint64_t log_size(struct bed *b)
{
	char path[120];
	struct stat st;

	snprintf(path, sizeof(path), "%s/panda.db-wal", b->data_dir);
	return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* A busy host may give the thread that cuts it no cpu for a while; but then it is cut. */
static void stays_short(struct bed *b)
{
	if (log_size(b) > DB_LOG_LARGE)
		bed_until(b, log_size(b) <= DB_LOG_LARGE);
}

/* What the log takes if pandad never shortens it: 40 KiB for each sandbox that comes and goes. */
static void many_that_come_and_go_leave_a_short_log(void **state)
{
	enum { N = 500 };
	struct bed *b = *state;
	uint64_t longest = 0;

	for (unsigned i = 0; i < N; i++) {
		struct sandbox *sb = bed_create_plain(b);

		assert_int_equal(bed_kill(b, sb), 0);
		longest = MAX(longest, log_size(b));
		stays_short(b);
	}
	assert_true(longest > 0);
	bed_until(b, log_size(b) == 0);
}

static void a_flood_of_events_leaves_a_short_log(void **state)
{
	struct bed *b = *state;

	for (unsigned i = 0; i < 200; i++) {
		for (unsigned k = 0; k < 200; k++)
			event_emit(&b->host->events, "t", "s", "exec.oom_killed", NULL);
		bed_turn(b, bed_deadline(), "", __FILE__, __LINE__);
		stays_short(b);
	}
	bed_until(b, log_size(b) == 0 && b->host->stats.records_log_bytes == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(many_that_come_and_go_leave_a_short_log),
	    bed_test(a_flood_of_events_leaves_a_short_log),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
