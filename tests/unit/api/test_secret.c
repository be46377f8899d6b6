/*
 * The secret that signs links to previews: made once, kept on record, never a known one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/api_internal.h"
#include "base/loop.h"
#include "base/macro.h"
#include "db/db.h"
#include "db/settings.h"

/* As much of a host as the start of an API needs. */
static int open_host(void **state)
{
	struct host *h = calloc(1, sizeof(*h));
	struct err e;

	*state = h;
	return h && loop_new(&h->loop) == 0 ? db_open(":memory:", &h->db, &e) : -1;
}

static int close_host(void **state)
{
	struct host *h = *state;

	db_close(h->db);
	loop_free(h->loop);
	free(h);
	return 0;
}

/* What an API that starts on this host signs with. */
static void start(struct host *h, unsigned char ret[API_SECRET])
{
	const struct api_config config = {0};
	struct api *a = NULL;
	struct err e;

	assert_int_equal(api_new(h, &config, &a, &e), 0);
	memcpy(ret, api_secret(a), API_SECRET);
	api_free(a);
}

static void a_secret_is_made_once_and_kept(void **state)
{
	static const unsigned char zeros[API_SECRET];
	unsigned char first[API_SECRET], next[API_SECRET];

	start(*state, first);
	assert_memory_not_equal(first, zeros, API_SECRET);
	start(*state, next);
	assert_memory_equal(first, next, API_SECRET);
}

static void a_damaged_secret_is_replaced_and_the_new_one_is_kept(void **state)
{
	static const char *const damaged[] = {
	    "00",
	    "0000000000000000000000000000000000000000000000000000000000000000f",
	    "000000000000000000000000000000000000000000000000000000000000000g",
	    "000000000000000000000000000000000000000000000000000000000000000A",
	};
	static const unsigned char zeros[API_SECRET];
	unsigned char first[API_SECRET], next[API_SECRET];
	struct host *h = *state;
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(damaged); i++) {
		assert_int_equal(db_setting_set(h->db, "preview_secret", damaged[i], &e), 0);
		start(h, first);
		assert_memory_not_equal(first, zeros, API_SECRET - 1);
		start(h, next);
		assert_memory_equal(first, next, API_SECRET);
	}
}

static void a_secret_on_record_is_the_one_that_signs(void **state)
{
	unsigned char got[API_SECRET];
	char hex[2 * API_SECRET + 1];
	struct host *h = *state;
	struct err e;

	for (size_t i = 0; i < API_SECRET; i++)
		snprintf(hex + 2 * i, 3, "%02zx", 0xe0 + i);
	assert_int_equal(db_setting_set(h->db, "preview_secret", hex, &e), 0);
	start(h, got);
	for (size_t i = 0; i < API_SECRET; i++)
		assert_int_equal(got[i], 0xe0 + i);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(a_secret_is_made_once_and_kept, open_host, close_host),
	    cmocka_unit_test_setup_teardown(a_damaged_secret_is_replaced_and_the_new_one_is_kept,
	                                    open_host, close_host),
	    cmocka_unit_test_setup_teardown(a_secret_on_record_is_the_one_that_signs, open_host,
	                                    close_host),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
