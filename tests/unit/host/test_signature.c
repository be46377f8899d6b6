/*
 * What a host signs is known as its own; one changed letter is not, nor is another host's.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/macro.h"
#include "db/db.h"
#include "db/settings.h"
#include "host/signature.h"

static const char text[] = "what was said";

struct home {
	char dir[32], keys[64];
	struct db *db;
	struct signature_key key;
	struct err err;
};

static void open_home(struct home *h)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/panda.db", h->dir);
	assert_int_equal(db_open(path, &h->db, &h->err), 0);
	assert_int_equal(signature_key_open(h->db, h->dir, &h->key, &h->err), 0);
}

static int setup(void **state)
{
	struct home *h = calloc(1, sizeof(*h));

	snprintf(h->dir, sizeof(h->dir), "/tmp/panda-sign-XXXXXX");
	assert_non_null(mkdtemp(h->dir));
	snprintf(h->keys, sizeof(h->keys), "%s/keys", h->dir);
	open_home(h);
	*state = h;
	return 0;
}

static int teardown(void **state)
{
	static const char *const files[] = {"panda.db", "panda.db-wal", "panda.db-shm", "keys",
	                                    SIGNATURE_FILE};
	struct home *h = *state;
	char path[64];

	db_close(h->db);
	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		snprintf(path, sizeof(path), "%s/%s", h->dir, files[i]);
		unlink(path);
	}
	assert_int_equal(rmdir(h->dir), 0);
	free(h);
	return 0;
}

static void keys_are(struct home *h, const char *said)
{
	FILE *f = fopen(h->keys, "we");

	assert_non_null(f);
	assert_true(fputs(said, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static bool knows(struct home *h, const char *public)
{
	bool yes = false;

	if (signature_known(h->keys, public, &yes, &h->err) < 0)
		fail_msg("%s", h->err.text);
	return yes;
}

static void what_it_signed_is_its_own(void **state)
{
	struct home *h = *state;
	char value[SIGNATURE_VALUE];

	assert_int_equal(signature_make(&h->key, text, sizeof(text), value), 0);
	assert_int_equal(signature_check(h->key.public, value, text, sizeof(text)), 0);
	assert_int_equal(signature_make(&h->key, "", 0, value), 0);
	assert_int_equal(signature_check(h->key.public, value, "", 0), 0);
}

static void anything_else_is_not(void **state)
{
	struct home *h = *state;
	char value[SIGNATURE_VALUE], public[SIGNATURE_KEY], said[sizeof(text)];

	assert_int_equal(signature_make(&h->key, text, sizeof(text), value), 0);
	for (size_t i = 0; i < sizeof(text); i++) {
		memcpy(said, text, sizeof(text));
		said[i] ^= 1;
		assert_int_equal(signature_check(h->key.public, value, said, sizeof(said)),
		                 -EBADMSG);
	}
	assert_int_equal(signature_check(h->key.public, value, text, sizeof(text) - 1), -EBADMSG);
	for (size_t i = 0; value[i]; i++) {
		char was = value[i];

		value[i] = was == '0' ? '1' : '0';
		assert_int_equal(signature_check(h->key.public, value, text, sizeof(text)),
		                 -EBADMSG);
		value[i] = was;
	}
	for (size_t i = 0; h->key.public[i]; i++) {
		memcpy(public, h->key.public, sizeof(public));
		public[i] = public[i] == '0' ? '1' : '0';
		assert_int_equal(signature_check(public, value, text, sizeof(text)), -EBADMSG);
	}
	assert_int_equal(signature_check("", value, text, sizeof(text)), -EBADMSG);
	assert_int_equal(signature_check(h->key.public, "", text, sizeof(text)), -EBADMSG);
}

static void a_host_keeps_its_key_and_tells_it(void **state)
{
	struct home *h = *state;
	char was[SIGNATURE_KEY], path[64], said[SIGNATURE_KEY + 1] = "";
	FILE *f;

	memcpy(was, h->key.public, sizeof(was));
	db_close(h->db);
	open_home(h);
	assert_string_equal(h->key.public, was);
	snprintf(path, sizeof(path), "%s/%s", h->dir, SIGNATURE_FILE);
	f = fopen(path, "re");
	assert_non_null(f);
	assert_non_null(fgets(said, sizeof(said), f));
	assert_int_equal(fclose(f), 0);
	assert_memory_equal(said, was, strlen(was));
}

static void a_damaged_key_is_replaced(void **state)
{
	static const char *const damaged[] = {"", "x", "00"};
	struct home *h = *state;
	char was[SIGNATURE_KEY], long_one[200];

	memset(long_one, 'a', sizeof(long_one) - 1);
	long_one[sizeof(long_one) - 1] = 0;
	for (size_t i = 0; i <= ARRAY_LEN(damaged); i++) {
		memcpy(was, h->key.public, sizeof(was));
		assert_int_equal(db_setting_set(h->db, "archive_key",
		                                i < ARRAY_LEN(damaged) ? damaged[i] : long_one,
		                                &h->err),
		                 0);
		assert_int_equal(signature_key_open(h->db, h->dir, &h->key, &h->err), 0);
		assert_string_not_equal(h->key.public, was);
	}
}

static void a_file_names_the_hosts_it_knows(void **state)
{
	static const char a[] =
	    SIGNATURE_KIND "00000000000000000000000000000000000000000000000000000000000000aa";
	static const char b[] =
	    SIGNATURE_KIND "00000000000000000000000000000000000000000000000000000000000000bb";
	struct home *h = *state;
	char said[400];
	bool yes = true;

	assert_int_equal(signature_known(NULL, a, &yes, &h->err), 0);
	assert_false(yes);
	keys_are(h, "");
	assert_false(knows(h, a));
	snprintf(said, sizeof(said), "# ours\n\n  %s  the host in the cellar\n%s # the other", a,
	         b);
	keys_are(h, said);
	assert_true(knows(h, a));
	assert_true(knows(h, b));
	assert_false(knows(h, h->key.public));
}

static void nonsense_in_the_file_is_told_with_its_line(void **state)
{
	static const char *const bad[] = {"\nhello\n", "\ned25519:00\n", "\nED25519:00\n"};
	struct home *h = *state;
	bool yes;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		keys_are(h, bad[i]);
		assert_int_equal(signature_known(h->keys, NULL, &yes, &h->err), -EINVAL);
		assert_string_equal(h->err.kind, "bad_config");
		assert_non_null(strstr(h->err.text, "keys:2:"));
	}
	unlink(h->keys);
	assert_int_equal(signature_known(h->keys, NULL, &yes, &h->err), -ENOENT);
	assert_string_equal(h->err.kind, "bad_config");
}

int main(void)
{
#define home_test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
	    home_test(what_it_signed_is_its_own),
	    home_test(anything_else_is_not),
	    home_test(a_host_keeps_its_key_and_tells_it),
	    home_test(a_damaged_key_is_replaced),
	    home_test(a_file_names_the_hosts_it_knows),
	    home_test(nonsense_in_the_file_is_told_with_its_line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
