#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/phrase.h"
#include "daemon/config.h"

static int read_text(struct config *c, const char *text, struct err *e)
{
	char path[] = "/tmp/panda-config-XXXXXX";
	int fd = mkstemp(path), r;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
	r = config_read(c, path, e);
	unlink(path);
	return r;
}

static void a_file_changes_what_it_names(void **state)
{
	struct config c;
	struct err e;

	assert_int_equal(config_default(&c), 0);
	assert_int_equal(read_text(&c,
	                           "# comment\n\n listen = 127.0.0.1:1 # why\nlisten=unix:/x\n"
	                           "threads = 3\nstub_auth = yes\ndata_dir = /a b\n",
	                           &e),
	                 0);
	assert_int_equal(c.nlisten, 2);
	assert_string_equal(c.listen[1], "unix:/x");
	assert_int_equal(c.host.threads, 3);
	assert_true(c.api.stub_auth);
	assert_string_equal(c.host.data_dir, "/a b");
	assert_int_equal(c.host.idle_s, 900);
	config_fini(&c);
}

static void a_room_reads_a_number_in_its_own_unit(void **state)
{
	struct config c;
	struct err e;

	assert_int_equal(config_default(&c), 0);
	assert_int_equal(c.host.memory_reserve, (uint64_t)1 << 30);
	assert_int_equal(read_text(&c, "disk_reserve_mb = 1000000000\nnet_up_kbit = 7\n", &e), 0);
	assert_int_equal(c.host.disk_reserve, (uint64_t)1000000000 << 20);
	assert_int_equal(c.host.net.up_kbit, 7);
	/* Neither of them runs over into its neighbour. */
	assert_int_equal(c.host.memory_reserve, (uint64_t)1 << 30);
	assert_int_equal(c.host.net.down_kbit, 0);
	assert_int_equal(c.host.net.conns_max, 512);
	config_fini(&c);
}

static void nonsense_is_refused_with_its_line(void **state)
{
	static const char *const bad[] = {"threads = many\n", "threads = 0\n",   "nokey = 1\n",
	                                  "threads\n",        "stub_auth = 1\n", "log = loud\n"};
	struct err e;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct config c;
		char text[64];

		snprintf(text, sizeof(text), "\n%s", bad[i]);
		assert_int_equal(config_default(&c), 0);
		assert_true(read_text(&c, text, &e) < 0);
		assert_non_null(strstr(e.text, ":2"));
		config_fini(&c);
	}
}

static void what_is_printed_can_be_read(void **state)
{
	struct config c, d;
	char *text = NULL, *again = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);
	struct err e;

	assert_int_equal(config_default(&c), 0);
	assert_int_equal(config_set(&c, "threads", "5", &e), 0);
	assert_int_equal(config_set(&c, "snapshots_total_mb", "77", &e), 0);
	assert_int_equal(config_set(&c, "network", "no", &e), 0);
	config_print(&c, f);
	fclose(f);
	assert_int_equal(config_default(&d), 0);
	assert_int_equal(read_text(&d, text, &e), 0);
	assert_int_equal(d.host.threads, 5);
	assert_string_equal(d.host.run_dir, c.host.run_dir);
	assert_int_equal(d.nlisten, 1);
	f = open_memstream(&again, &n);
	config_print(&d, f);
	fclose(f);
	assert_string_equal(again, text);
	free(again);
	free(text);
	config_fini(&c);
	config_fini(&d);
}

static void what_a_sandbox_may_reach_is_a_word(void **state)
{
	struct config c;
	struct err e;

	assert_int_equal(config_default(&c), 0);
	assert_string_equal(c.host.net.egress_max, "open");
	assert_null(c.host.net.egress_closed);
	assert_true(read_text(&c, "egress_max = lists\n", &e) < 0);
	assert_int_equal(read_text(&c, "egress_max = list\negress_closed = 11.9.0.0/16 11.1.1.2\n",
	                           &e),
	                 0);
	assert_string_equal(c.host.net.egress_max, "list");
	assert_string_equal(c.host.net.egress_closed, "11.9.0.0/16 11.1.1.2");
	config_fini(&c);
}

static void every_text_stands_alone(void **state)
{
	struct config c;
	char *text = NULL, *next;
	size_t n, texts = 0;
	FILE *f = open_memstream(&text, &n);

	assert_int_equal(config_default(&c), 0);
	config_print(&c, f);
	fclose(f);
	for (char *line = text; *line; line = next) {
		const char *why;

		next = strchr(line, '\n');
		assert_non_null(next);
		*next++ = 0;
		if (strncmp(line, "# ", 2) != 0)
			continue;
		texts++;
		why = phrase_fault(line + 2);
		if (why)
			fail_msg("'%s' %s", line + 2, why);
	}
	assert_true(texts > 30);
	free(text);
	config_fini(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_file_changes_what_it_names),
	    cmocka_unit_test(a_room_reads_a_number_in_its_own_unit),
	    cmocka_unit_test(nonsense_is_refused_with_its_line),
	    cmocka_unit_test(what_is_printed_can_be_read),
	    cmocka_unit_test(every_text_stands_alone),
	    cmocka_unit_test(what_a_sandbox_may_reach_is_a_word),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
