/*
 * cli/show.h: tables, words, which id was meant, the fork tree, the way out of a terminal.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "cli/execio.h"
#include "cli/show.h"

enum {
	NOW = 1000000,
};

static json_t *list_of(const char *text)
{
	json_error_t why;
	json_t *j = json_loads(text, 0, &why);

	if (!j)
		fail_msg("%s", why.text);
	return j;
}

/* ---- the tree ---- */

static void draw(const char *list, bool utf8, const char *want)
{
	json_t *j = list_of(list);
	autofree char *text = tree_draw(j, utf8, NOW);

	json_decref(j);
	assert_string_equal(text, want);
}

/* Newest first, as the server lists them. */
static const char family[] = "[{\"id\":\"grandkid\",\"parent_id\":\"kid-1\",\"status\":\"running\","
			     "\"template\":\"t\",\"created_at\":\"5\"},"
			     " {\"id\":\"stranger\",\"parent_id\":\"long-gone\",\"status\":"
			     "\"failed\",\"template\":\"t\",\"created_at\":\"4\"},"
			     " {\"id\":\"kid-2\",\"parent_id\":\"root\",\"status\":\"paused\","
			     "\"template\":\"t\",\"created_at\":\"3\"},"
			     " {\"id\":\"kid-1\",\"parent_id\":\"root\",\"status\":\"running\","
			     "\"template\":\"t\",\"created_at\":\"2\"},"
			     " {\"id\":\"root\",\"parent_id\":null,\"status\":\"running\","
			     "\"template\":\"t\",\"created_at\":\"1\",\"name\":\"n\"}]";

static void children_stand_below_their_parent_oldest_first(void **state)
{
	draw(family, true,
	     "root  running  t  -  n\n"
	     "├─ kid-1  running  t  -\n"
	     "│  └─ grandkid  running  t  -\n"
	     "└─ kid-2  paused  t  -\n"
	     "stranger  failed  t  -\n");
}

static void without_utf8_the_tree_is_ascii(void **state)
{
	draw(family, false,
	     "root  running  t  -  n\n"
	     "|- kid-1  running  t  -\n"
	     "|  `- grandkid  running  t  -\n"
	     "`- kid-2  paused  t  -\n"
	     "stranger  failed  t  -\n");
}

static void an_empty_list_is_an_empty_tree(void **state)
{
	draw("[]", true, "");
}

static void circles_end_and_everything_is_shown_once(void **state)
{
	draw("[{\"id\":\"a\",\"parent_id\":\"b\",\"status\":\"s\",\"template\":\"t\",\"created_"
	     "at\":\"1\"},"
	     " {\"id\":\"b\",\"parent_id\":\"a\",\"status\":\"s\",\"template\":\"t\",\"created_"
	     "at\":\"2\"},"
	     " {\"id\":\"c\",\"parent_id\":\"c\",\"status\":\"s\",\"template\":\"t\",\"created_"
	     "at\":\"3\"}]",
	     false, "c  s  t  -\na  s  t  -\n`- b  s  t  -\n");
}

static void a_long_chain_does_not_overrun(void **state)
{
	json_t *list = json_array();
	autofree char *text = NULL;
	size_t lines = 0;

	for (int i = 0; i < 500; i++) {
		char id[16], parent[16];

		snprintf(id, sizeof(id), "id-%04d", i);
		snprintf(parent, sizeof(parent), "id-%04d", i - 1);
		json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:s}", "id", id,
		                                      "parent_id", parent, "status", "s",
		                                      "template", "t", "created_at", id));
	}
	text = tree_draw(list, true, NOW);
	assert_non_null(text);
	for (const char *s = text; *s; s++)
		lines += *s == '\n';
	assert_int_equal(lines, 500);
	json_decref(list);
}

static void names_from_guests_draw_no_escapes(void **state)
{
	draw("[{\"id\":\"a\",\"status\":\"s\",\"template\":\"t\",\"created_at\":\"1\","
	     "\"metadata\":{\"name\":\"\\u001b[2Jx\\u009by\\nü\"}}]",
	     true, "a  s  t  -  ?[2Jx??y?ü\n");
}

/* ---- ids ---- */

static void expect_match(const char *text, enum match want, const char *id)
{
	json_t *j = list_of("[{\"id\":\"aabb\"},{\"id\":\"aacc\",\"name\":\"web\"},{\"id\":\"dd\"},"
	                    "{\"id\":\"ddee\",\"metadata\":{\"name\":\"db\"}},{\"noid\":1},"
	                    "{\"id\":\"ff\",\"name\":\"dd\"},{\"id\":\"x1\",\"name\":\"twin\"},"
	                    "{\"id\":\"x2\",\"name\":\"twin\"}]");
	const json_t *found = NULL;

	assert_int_equal(match_prefix(j, "id", text, &found), want);
	if (id)
		assert_string_equal(json_string_value(json_object_get(found, "id")), id);
	else
		assert_null(found);
	json_decref(j);
}

static void a_unique_beginning_is_enough(void **state)
{
	expect_match("aab", MATCH_ONE, "aabb");
	expect_match("dde", MATCH_ONE, "ddee");
}

static void an_ambiguous_one_is_not(void **state)
{
	expect_match("aa", MATCH_MANY, NULL);
	expect_match("", MATCH_NONE, NULL);
	expect_match("zz", MATCH_NONE, NULL);
}

static void a_whole_id_wins_over_names_and_beginnings(void **state)
{
	expect_match("dd", MATCH_ONE, "dd");
}

static void names_are_known_in_full_only(void **state)
{
	expect_match("web", MATCH_ONE, "aacc");
	expect_match("db", MATCH_ONE, "ddee");
	expect_match("we", MATCH_NONE, NULL);
	expect_match("twin", MATCH_MANY, NULL);
}

static void a_name_is_the_parents_while_it_is_there(void **state)
{
	json_t *j = list_of("[{\"id\":\"c\",\"parent_id\":\"b\",\"name\":\"n\"},"
	                    "{\"id\":\"b\",\"parent_id\":\"a\",\"name\":\"n\"},"
	                    "{\"id\":\"a\",\"name\":\"n\"}]");
	const json_t *found = NULL;

	assert_int_equal(match_prefix(j, "id", "n", &found), MATCH_ONE);
	assert_ptr_equal(found, json_array_get(j, 2));
	json_array_remove(j, 2);
	assert_int_equal(match_prefix(j, "id", "n", &found), MATCH_ONE);
	assert_ptr_equal(found, json_array_get(j, 1));
	json_decref(j);
}

static void ids_are_shown_as_long_as_they_must_be(void **state)
{
	json_t *j = list_of("[{\"id\":\"0123456789\"},{\"id\":\"ffffffffff\"}]");

	assert_int_equal(show_short(j), 8);
	json_decref(j);
	j = list_of("[{\"id\":\"0123456789a\"},{\"id\":\"ff\"},{\"id\":\"0123456789b\"},{\"id\":"
	            "\"ff\"},{}]");
	assert_int_equal(show_short(j), 11);
	json_decref(j);
	j = list_of("[]");
	assert_int_equal(show_short(j), 8);
	json_decref(j);
}

/* ---- words ---- */

static void ages_and_sizes_are_short(void **state)
{
	static const struct {
		const char *time, *want;
	} ages[] = {{"1970-01-12T13:46:40Z", "0s"},
	            {"1970-01-12T13:45:40.5Z", "60s"},
	            {"1970-01-12T13:06:40Z", "40m"},
	            {"1970-01-12T09:46:40Z", "4h"},
	            {"1970-01-02T13:46:40Z", "10d"},
	            {"1970-01-13T13:46:40Z", "0s"},
	            {"", "-"},
	            {"yesterday", "-"},
	            {"1970-01-12", "-"}};
	static const struct {
		long long bytes;
		const char *want;
	} sizes[] = {{0, "0"},          {1023, "1023"},      {1024, "1.0K"},   {1536, "1.5K"},
	             {10 << 20, "10M"}, {5ll << 40, "5.0T"}, {1048575, "1.0M"}};
	char buf[32];

	for (size_t i = 0; i < ARRAY_LEN(ages); i++) {
		show_age(ages[i].time, NOW, buf, sizeof(buf));
		assert_string_equal(buf, ages[i].want);
	}
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		show_size(sizes[i].bytes, buf, sizeof(buf));
		assert_string_equal(buf, sizes[i].want);
	}
}

static void columns_are_as_wide_as_their_words(void **state)
{
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);
	struct table t;

	table_init(&t, "A LONG C");
	table_add(&t, "%s", "über");
	table_add(&t, "%d", 1);
	table_add(&t, "\033[31m");
	assert_true(table_print(&t, f));
	fclose(f);
	assert_string_equal(text, "A     LONG  C\nüber  1     ?[31m\n");
	table_fini(&t);
	free(text);
}

static void text_is_cut_between_characters(void **state)
{
	char buf[4];

	show_clean("aüü", buf, sizeof(buf));
	assert_string_equal(buf, "aü");
	show_clean("\xc3", buf, sizeof(buf)); /* half a character at the very end */
	assert_string_equal(buf, "?");
}

/* However it is cut: byte by byte, in twos, at once. */
static void a_guests_text_is_harmless_in_any_pieces(void **state)
{
	static const char wrote[] = "\033]0;x\007a\tb\r\n\xc2\x9b"
				    "2J \x9b \xc3\xbc \xe2\x82\xac \xf0\x9f"
				    "\x90\xbc \xe2\x82\n\x7f\xff.\0.";
	static const char shown[] =
	    "?]0;x?a\tb \n??2J ? \xc3\xbc \xe2\x82\xac \xf0\x9f\x90\xbc ?\n??.?.";

	for (size_t piece = 1; piece < sizeof(wrote); piece++) {
		struct show_text s = {0};
		char *text = NULL;
		size_t n;
		FILE *f = open_memstream(&text, &n);

		for (size_t at = 0; at < sizeof(wrote) - 1; at += piece)
			show_text(&s, wrote + at, MIN(piece, sizeof(wrote) - 1 - at), f);
		fclose(f);
		assert_string_equal(text, shown);
		free(text);
	}
}

static void words_are_quoted_for_a_shell(void **state)
{
	autofree char *s = execio_quote(5, (char *[]){"echo", "it's", "", "a b", "--x=/y,z"});

	assert_string_equal(s, "echo 'it'\\''s' '' 'a b' --x=/y,z");
}

/* ---- the way out ---- */

static void type(const char *keys, const char *want, bool away)
{
	/* However the keys are cut: all at once, and one by one. */
	for (size_t piece = 1; piece <= strlen(keys);
	     piece += strlen(keys) - 1 ? strlen(keys) - 1 : 1) {
		struct escape s = {0};
		char out[64], all[64] = "";
		bool left = false;

		for (size_t i = 0; i < strlen(keys) && !left; i += piece) {
			size_t n;

			left = escape_feed(&s, keys + i, MIN(piece, strlen(keys) - i), out, &n);
			strncat(all, out, n);
		}
		assert_string_equal(all, want);
		assert_int_equal(left, away);
	}
}

static void tilde_dot_leaves_only_at_the_start_of_a_line(void **state)
{
	type("~.", "", true);
	type("ls\r~.x", "ls\r", true);
	type("a~.b", "a~.b", false);
	type("~~.", "~.", false);
	type("~x\n~~\r", "~x\n~\r", false);
	type("cd ~\r~/bin", "cd ~\r~/bin", false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(children_stand_below_their_parent_oldest_first),
	    cmocka_unit_test(without_utf8_the_tree_is_ascii),
	    cmocka_unit_test(an_empty_list_is_an_empty_tree),
	    cmocka_unit_test(circles_end_and_everything_is_shown_once),
	    cmocka_unit_test(a_long_chain_does_not_overrun),
	    cmocka_unit_test(names_from_guests_draw_no_escapes),
	    cmocka_unit_test(a_unique_beginning_is_enough),
	    cmocka_unit_test(an_ambiguous_one_is_not),
	    cmocka_unit_test(a_whole_id_wins_over_names_and_beginnings),
	    cmocka_unit_test(names_are_known_in_full_only),
	    cmocka_unit_test(a_name_is_the_parents_while_it_is_there),
	    cmocka_unit_test(ids_are_shown_as_long_as_they_must_be),
	    cmocka_unit_test(ages_and_sizes_are_short),
	    cmocka_unit_test(columns_are_as_wide_as_their_words),
	    cmocka_unit_test(text_is_cut_between_characters),
	    cmocka_unit_test(a_guests_text_is_harmless_in_any_pieces),
	    cmocka_unit_test(words_are_quoted_for_a_shell),
	    cmocka_unit_test(tilde_dot_leaves_only_at_the_start_of_a_line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
