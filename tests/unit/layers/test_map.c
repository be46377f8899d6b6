#include "testlib.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "layers/bytes.h"
#include "layers/map.h"

enum { PAGES = 200 };

static void random_adds_agree_with_a_plain_array(void **state)
{
	uint64_t seed = 42;

	for (int round = 0; round < 200; round++) {
		bool model[PAGES + 1] = {0}; /* one more: nothing behind the end */
		struct map m = {0};
		uint64_t sum = 0;

		for (int k = 0; k < 30; k++) {
			uint64_t start = rnd(&seed) % PAGES;
			uint64_t n = 1 + rnd(&seed) % MIN(PAGES - start, (uint64_t)9);

			assert_int_equal(map_add(&m, start, n), 0);
			for (uint64_t i = start; i < start + n; i++)
				model[i] = true;
		}
		for (size_t i = 1; i < m.n; i++) /* sorted, and never touching */
			assert_true(m.runs[i - 1].start + m.runs[i - 1].n < m.runs[i].start);
		for (uint64_t i = 0; i <= PAGES; i++) {
			uint64_t same;

			assert_int_equal(map_has(&m, i, &same), model[i]);
			assert_true(same > 0);
			for (uint64_t k = i; k < MIN(i + same, (uint64_t)PAGES); k++)
				assert_int_equal(model[k], model[i]);
			if (i + same < PAGES)
				assert_int_not_equal(model[i + same], model[i]);
			sum += model[i];
		}
		assert_int_equal(map_pages(&m), sum);
		map_fini(&m);
	}
}

static void a_copy_is_equal_and_stands_alone(void **state)
{
	uint64_t seed = 7;
	struct map m = {0}, copy;

	for (int k = 0; k < 10; k++)
		assert_int_equal(map_add(&m, rnd(&seed) % 90, 1 + rnd(&seed) % 9), 0);
	assert_int_equal(map_copy(&m, &copy), 0);
	assert_true(map_equal(&m, &copy));
	assert_int_equal(map_add(&m, 200, 1), 0);
	assert_false(map_equal(&m, &copy));
	assert_false(map_has(&copy, 200, NULL));
	map_fini(&m);
	map_fini(&copy);
}

static void bytes_come_back_unchanged(void **state)
{
	struct map m = {0}, again;
	autofree unsigned char *one = NULL, *two = NULL;
	size_t len, len2;

	assert_int_equal(map_add(&m, 3, 4), 0);
	assert_int_equal(map_add(&m, 90, 10), 0);
	assert_int_equal(map_encode(&m, 100, &one, &len), 0);
	assert_int_equal(map_parse(one, len, 100, &again), 0);
	assert_true(map_equal(&m, &again));
	assert_int_equal(map_encode(&again, 100, &two, &len2), 0);
	assert_int_equal(len, len2);
	assert_memory_equal(one, two, len);
	map_fini(&m);
	map_fini(&again);
}

/* Builds map bytes by hand, so that they can be wrong. */
static size_t craft(unsigned char *buf, uint64_t pages, const struct map_run *runs, size_t n)
{
	memcpy(buf, "PANDAMAP", 8);
	put_le32(buf + 8, 1);
	put_le32(buf + 12, (uint32_t)n);
	put_le64(buf + 16, pages);
	for (size_t i = 0; i < n; i++) {
		put_le64(buf + 24 + 16 * i, runs[i].start);
		put_le64(buf + 32 + 16 * i, runs[i].n);
	}
	return 24 + 16 * n;
}

static void nonsense_from_a_machine_is_refused(void **state)
{
	static const struct map_run bad[][2] = {
	    {{5, 2}, {6, 1}},              /* overlap */
	    {{5, 2}, {3, 1}},              /* not sorted */
	    {{5, 2}, {5, 2}},              /* twice */
	    {{5, 0}, {9, 1}},              /* empty */
	    {{5, 2}, {100, 1}},            /* behind the end */
	    {{5, 2}, {99, 2}},             /* over the end */
	    {{5, UINT64_MAX}, {9, 1}},     /* wraps */
	    {{5, UINT64_MAX - 4}, {9, 1}}, /* wraps to 0 */
	    {{5, 1}, {UINT64_MAX, 1}},
	};
	unsigned char buf[24 + 16 * 2 + 1];
	const struct map_run good[2] = {{5, 2}, {7, 1}}; /* touching is fine */
	struct map m = {0};
	size_t len;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		len = craft(buf, 100, bad[i], 2);
		assert_int_equal(map_parse(buf, len, 100, &m), -EBADMSG);
	}
	len = craft(buf, 100, good, 2);
	for (size_t cut = 0; cut < len; cut++)
		assert_int_equal(map_parse(buf, cut, 100, &m), -EBADMSG);
	assert_int_equal(map_parse(buf, len + 1, 100, &m), -EBADMSG);
	assert_int_equal(map_parse(buf, len, 101, &m), -EBADMSG);
	assert_int_equal(map_parse(buf, len, 100, &m), 0);
	assert_int_equal(m.n, 1);
	map_fini(&m);

	for (size_t i = 0; i < 16; i++) { /* magic, version, count */
		len = craft(buf, 100, good, 2);
		buf[i] ^= 0x40;
		assert_true(map_parse(buf, len, 100, &m) < 0);
	}
	craft(buf, 100, good, 2);
	put_le32(buf + 12, UINT32_MAX);
	assert_int_equal(map_parse(buf, len, 100, &m), -EFBIG);
	craft(buf, UINT64_MAX, good, 2);
	assert_int_equal(map_parse(buf, len, UINT64_MAX, &m), -EBADMSG);
	assert_null(m.runs);
}

static void limits_hold(void **state)
{
	unsigned char *buf = NULL;
	struct map m = {0};
	size_t len;

	assert_int_equal(map_add(&m, 0, 0), -EINVAL);
	assert_int_equal(map_add(&m, MAP_PAGES_MAX, 1), -ERANGE);
	assert_int_equal(map_add(&m, MAP_PAGES_MAX - 1, 2), -ERANGE);
	assert_int_equal(map_add(&m, UINT64_MAX, UINT64_MAX), -ERANGE);
	assert_int_equal(m.n, 0);
	for (uint64_t i = 0; i < MAP_RUNS_MAX; i++)
		assert_int_equal(map_add(&m, 2 * i, 1), 0);
	assert_int_equal(map_add(&m, 2 * MAP_RUNS_MAX, 1), -EFBIG);
	assert_int_equal(m.n, MAP_RUNS_MAX);
	assert_int_equal(map_add(&m, 1, 1), 0); /* joins two: fewer runs, allowed */
	assert_int_equal(m.n, MAP_RUNS_MAX - 1);
	assert_int_equal(map_encode(&m, 10, &buf, &len), -ERANGE);
	map_fini(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(random_adds_agree_with_a_plain_array),
	    cmocka_unit_test(a_copy_is_equal_and_stands_alone),
	    cmocka_unit_test(bytes_come_back_unchanged),
	    cmocka_unit_test(nonsense_from_a_machine_is_refused),
	    cmocka_unit_test(limits_hold),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
