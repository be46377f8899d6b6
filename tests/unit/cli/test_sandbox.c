/*
 * panda create, ls, get, kill, fork, tree, pause, resume, hibernate, wake: what they ask for, what
 * they print, and which sandbox was meant.
 */
#include "base/macro.h"
#include "bed.h"

/* ---- create ---- */

static void create_prints_the_id_and_nothing_else(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'" BOX "','status':'running'}");
	panda("create");
	gives(0, BOX "\n", "");
	sent(0, "{'template':'base'}");
	assert_string_equal(bed_field(0, "authorization"), "Bearer k");
	assert_string_equal(bed_field(0, "content-type"), "application/json");
}

static void create_with_json_prints_all_that_the_server_said(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'" BOX "','status':'running','memory_mb':512}");
	panda("create", "--json");
	prints("{'id':'" BOX "','status':'running','memory_mb':512}");
}

static void create_says_everything_that_it_was_told(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'x'}");
	panda("create", "-t", "python", "--name", "web", "--ttl", "2h", "--idle", "90",
	      "--auto-hibernate", "15m", "--persistent", "--checkpoints", "-e", "A=1", "--env",
	      "B=x=y", "-m", "team=blue", "-v", "data:/srv", "--volume", "ro:/x:ro", "-v", "bare");
	gives(0, "x\n", "");
	sent(0, "{'template':'python','name':'web','ttl_seconds':7200,'idle_seconds':90,"
	        "'auto_hibernate_seconds':900,'persistent':true,'checkpoints':'auto',"
	        "'env':{'A':'1','B':'x=y'},'metadata':{'team':'blue'},'volumes':["
	        "{'name':'data','read_only':false,'path':'/srv'},"
	        "{'name':'ro','read_only':true,'path':'/x'},{'name':'bare','read_only':false}]}");
}

static void the_last_of_an_option_that_is_given_twice_counts(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'x'}");
	panda("create", "--name", "a", "-t", "one", "--name", "b", "--template", "two");
	sent(0, "{'template':'two','name':'b'}");
}

static void egress_is_a_word_or_a_list_of_hosts(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'x'}");
	panda("create", "--egress", "off");
	sent(0, "{'template':'base','egress':'off'}");
	answer("POST /v1/sandboxes", "{'id':'x'}");
	panda("create", "--egress", "open");
	sent(0, "{'template':'base','egress':'open'}");
	answer("POST /v1/sandboxes", "{'id':'x'}");
	panda("create", "--egress", "a.example,,*.b.example,");
	sent(0, "{'template':'base','egress_allowlist':['a.example','*.b.example']}");
}

static void create_from_a_snapshot_finds_it_by_name_first(void **state)
{
	answer("GET /v1/snapshots",
	       "{'snapshots':[{'id':'snap-1','name':'ready'},{'id':'snap-2'}]}");
	answer("POST /v1/sandboxes", "{'id':'x'}");
	panda("create", "--from", "ready");
	gives(0, "x\n", "");
	sent(1, "{'from_snapshot':'snap-1'}");
}

static void create_from_a_snapshot_that_is_not_there_creates_nothing(void **state)
{
	answer("GET /v1/snapshots", "{'snapshots':[]}");
	panda("create", "--from", "ready");
	fails(125, "panda: there is no snapshot 'ready'\n       `panda snapshot ls` shows");
}

static void a_snapshot_has_a_template_of_its_own(void **state)
{
	panda("create", "--from", "s", "-t", "base");
	fails(125, "panda create: --from and --template exclude each other");
	assert_non_null(strstr(bed.err, "Try 'panda create --help'.\n"));
}

static void times_that_are_none_are_refused_before_anything_is_asked(void **state)
{
	static const char *const bad[] = {"soon", "",     "-5",           "5x",
	                                  "5mm",  "1.5h", "99999999999d", "m"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		panda("create", "--ttl", bad[i]);
		fails(125, "panda create: --ttl wants seconds, or a number with s, m, h or d");
	}
}

static void pairs_want_a_name_and_an_equals_sign(void **state)
{
	panda("create", "-e", "novalue");
	fails(125, "--env wants NAME=VALUE, not 'novalue'");
	panda("create", "-m", "=x");
	fails(125, "--meta wants NAME=VALUE, not '=x'");
	panda("create", "-m", "a=\xff");
	fails(125, "is not UTF-8");
	panda("create", "--name", "\xff");
	fails(125, "names must be UTF-8");
}

static void volumes_have_a_name_and_an_absolute_path(void **state)
{
	static const char *const bad[] = {"", ":/x", "data:x", "data:ro", "data:"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		panda("create", "-v", bad[i]);
		fails(125, "a volume is NAME, NAME:/PATH or NAME:/PATH:ro");
	}
}

static void a_path_of_a_volume_may_have_colons(void **state)
{
	answer("POST /v1/sandboxes", "{'id':'x'}");
	panda("create", "-v", "data:/a:b", "-v", "data:/a:b:rw");
	sent(0, "{'template':'base','volumes':[{'name':'data','read_only':false,'path':'/a:b'},"
	        "{'name':'data','read_only':false,'path':'/a:b'}]}");
}

/* ---- ls ---- */

static const char two[] =
    "{'items':[{'id':'" BOX "','status':'running','template':'base','memory_mb':512,"
    "'created_at':'2025-12-31T23:00:00Z','expires_at':'2026-01-01T01:00:00Z','name':'web'},"
    "{'id':'" BOX2 "','status':'hibernated','template':'python','memory_mb':2048,"
    "'created_at':'2025-12-01T00:00:00Z','persistent':true,'metadata':{'name':'old'}}]}";

static void ls_is_a_table_of_what_people_want_to_know(void **state)
{
	answer("GET /v1/sandboxes", two);
	panda("ls");
	gives(0,
	      "ID        STATUS      TEMPLATE  MEMORY  AGE  ENDS   NAME\n"
	      "3f2a0000  running     base      512M    60m  60m    web\n"
	      "77bc0000  hibernated  python    2048M   31d  never  old\n",
	      "");
}

static void ls_of_nothing_has_a_head_all_the_same(void **state)
{
	answer("GET /v1/sandboxes", "{'items':[]}");
	panda("ls");
	gives(0, "ID  STATUS  TEMPLATE  MEMORY  AGE  ENDS  NAME\n", "");
}

static void ls_quiet_prints_whole_ids_for_other_commands(void **state)
{
	answer("GET /v1/sandboxes", two);
	panda("ls", "-q");
	gives(0, BOX "\n" BOX2 "\n", "");
}

static void ls_with_json_prints_the_list_and_not_its_envelope(void **state)
{
	answer("GET /v1/sandboxes", "{'items':[{'id':'a'}],'next':null}");
	panda("ls", "--json");
	prints("[{'id':'a'}]");
}

static void ls_takes_a_bare_list_too(void **state)
{
	answer("GET /v1/sandboxes", "[{'id':'a'}]");
	panda("ls", "-q");
	gives(0, "a\n", "");
}

static void filters_of_ls_are_said_in_the_query(void **state)
{
	answer("GET /v1/sandboxes?status=running&template=a%20b%26c&metadata.team=blue"
	       "&metadata.k=v%3Dw",
	       "[]");
	panda("ls", "--status", "running", "-t", "a b&c", "-m", "team=blue", "-m", "k=v=w", "-q");
	fails(0, "");
}

static void ends_says_how_long_it_will_live(void **state)
{
	answer("GET /v1/sandboxes", "[{'id':'a','expires_at':'2026-01-01T00:00:59Z'},"
	                            "{'id':'b','expires_at':'2025-12-31T00:00:00Z'},"
	                            "{'id':'c','expires_at':'2026-01-03T00:00:00.5Z'},{'id':'d'}]");
	panda("ls");
	gives(0,
	      "ID  STATUS  TEMPLATE  MEMORY  AGE  ENDS  NAME\n"
	      "a                     0M      -    59s   \n"
	      "b                     0M      -    0s    \n"
	      "c                     0M      -    48h   \n"
	      "d                     0M      -    idle  \n",
	      "");
}

static void a_filter_by_metadata_has_a_value(void **state)
{
	panda("ls", "-m", "team");
	fails(125, "panda ls: --meta wants KEY=VALUE, not 'team'");
}

static void ls_of_something_is_a_misunderstanding(void **state)
{
	panda("ls", "web");
	fails(125, "panda ls: unexpected argument 'web'\nTry 'panda ls --help'.\n");
}

static void names_cannot_move_the_cursor(void **state)
{
	answer("GET /v1/sandboxes", "[{'id':'a','status':'s\\u001b[2J','template':'t','name':"
	                            "'\\u001b]0;title\\u0007\\nb'}]");
	panda("ls");
	assert_null(strchr(bed.out, '\033'));
	assert_null(strchr(bed.out, '\a'));
	assert_non_null(strstr(bed.out, "s?[2J"));
	assert_non_null(strstr(bed.out, "?]0;title??b\n"));
}

/* ---- which one was meant ---- */

static void a_whole_id_is_taken_without_asking(void **state)
{
	answer("GET /v1/sandboxes/" BOX, "{'id':'" BOX "'}");
	panda("get", BOX, "--json");
	prints("{'id':'" BOX "'}");
}

static void the_beginning_of_an_id_and_a_name_are_enough(void **state)
{
	answer("GET /v1/sandboxes", LIST);
	answer("GET /v1/sandboxes/" BOX, "{}");
	panda("get", "3f2a");
	gives(0, "", "");
	answer("GET /v1/sandboxes", LIST);
	answer("GET /v1/sandboxes/" BOX2, "{}");
	panda("get", "db");
	gives(0, "", "");
}

static void what_fits_two_is_refused(void **state)
{
	answer("GET /v1/sandboxes", "[{'id':'aa11'},{'id':'aa22'}]");
	panda("get", "aa");
	fails(125, "panda: 'aa' fits more than one sandbox: give more of its id\n");
}

static void what_fits_none_says_where_to_look(void **state)
{
	answer("GET /v1/sandboxes", LIST);
	panda("get", "nope\033[2J");
	fails(125,
	      "panda: there is no sandbox 'nope?[2J'\n       `panda ls` shows what there is\n");
	answer("GET /v1/sandboxes", LIST);
	panda("get", "");
	fails(125, "there is no sandbox ''");
}

static void what_looks_almost_like_an_id_is_looked_up(void **state)
{
	answer("GET /v1/sandboxes", LIST);
	panda("get", BOX "0");
	fails(125, "there is no sandbox '" BOX "0'");
	answer("GET /v1/sandboxes", LIST);
	panda("get", "3f2a0000-0000-4000-8000-00000000000g");
	fails(125, "there is no sandbox");
	answer("GET /v1/sandboxes", LIST);
	panda("get", "3f2a0000x0000-4000-8000-000000000001");
	fails(125, "there is no sandbox");
}

static void an_error_of_the_list_is_told_once(void **state)
{
	bed_refuse("GET /v1/sandboxes", 500, "internal", "the disk is gone");
	panda("get", "web");
	gives(125, "", "panda: the disk is gone\n");
}

/* ---- get ---- */

static void get_prints_one_field_on_a_line(void **state)
{
	answer("GET /v1/sandboxes/" BOX,
	       "{'id':'" BOX "','name':'','parent_id':null,'memory_mb':512,'metadata':{'a':'b'},"
	       "'note':'x\\ny\\u001b','ok':true,'list':[1,2]}");
	panda("get", BOX);
	gives(0,
	      "id                 " BOX "\n"
	      "memory_mb          512\n"
	      "metadata           {\"a\":\"b\"}\n"
	      "note               x?y?\n"
	      "ok                 true\n"
	      "list               [1,2]\n",
	      "");
}

static void get_of_a_sandbox_that_ended_says_where_to_look(void **state)
{
	bed_refuse("GET /v1/sandboxes/" BOX, 404, "sandbox_not_found", "there is no such sandbox");
	panda("get", BOX);
	gives(125, "", "panda: there is no such sandbox\n       `panda ls` shows what there is\n");
}

static void get_wants_one(void **state)
{
	panda("get");
	fails(125, "panda get: it needs ID\n");
	panda("get", "a", "b");
	fails(125, "panda get: unexpected argument 'b'\n");
}

/* ---- kill ---- */

static void kill_prints_whom_it_ended(void **state)
{
	answer("GET /v1/sandboxes", LIST);
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	reply(.request = "DELETE /v1/sandboxes/" BOX2, .status = 204);
	panda("kill", "web", BOX2);
	gives(0, BOX "\n" BOX2 "\n", "");
}

static void a_failure_does_not_keep_kill_from_the_others(void **state)
{
	answer("GET /v1/sandboxes", LIST);
	bed_refuse("DELETE /v1/sandboxes/" BOX, 409, "busy", "it is being forked");
	reply(.request = "DELETE /v1/sandboxes/" BOX2, .status = 204);
	panda("kill", "nobody", BOX, BOX2);
	gives(125, BOX2 "\n",
	      "panda: there is no sandbox 'nobody'\n       `panda ls` shows what there is\n"
	      "panda: it is being forked\n");
}

static void kill_with_json_lists_those_that_are_gone(void **state)
{
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	bed_refuse("DELETE /v1/sandboxes/" BOX2, 404, "sandbox_not_found", "no such sandbox");
	panda("kill", "--json", BOX, BOX2);
	gives(125, "[\n  \"" BOX "\"\n]\n",
	      "{\"error\":\"no such sandbox\",\"code\":\"sandbox_not_found\",\"status\":404,"
	      "\"request_id\":\"req_1\"}\n");
}

static void kill_all_asks_first_and_a_pipe_cannot_answer(void **state)
{
	answer("GET /v1/sandboxes", LIST);
	panda("kill", "--all");
	fails(125, "panda kill: stdin is no terminal to ask on: --all wants --yes here\n");
}

static void kill_all_yes_ends_all_and_misses_none_that_ended_first(void **state)
{
	answer("GET /v1/sandboxes", LIST);
	bed_refuse("DELETE /v1/sandboxes/" BOX, 404, "sandbox_not_found", "gone");
	reply(.request = "DELETE /v1/sandboxes/" BOX2, .status = 204);
	panda("kill", "--all", "--yes");
	gives(0, BOX "\n" BOX2 "\n", "");
}

static void kill_all_of_nothing_is_done(void **state)
{
	answer("GET /v1/sandboxes", "{'items':[]}");
	panda("kill", "--all");
	gives(0, "", "");
	answer("GET /v1/sandboxes", "{'items':[]}");
	panda("kill", "--all", "--json");
	prints("[]");
}

static void on_a_terminal_kill_all_takes_y_for_yes(void **state)
{
	bed.tty = true;
	answer("GET /v1/sandboxes", LIST);
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	reply(.request = "DELETE /v1/sandboxes/" BOX2, .status = 204);
	then(.act = TYPE, .text = "y\n", .when = "Kill 2 sandboxes? [y/N] ");
	panda("kill", "--all");
	assert_int_equal(bed.code, 0);
	assert_non_null(strstr(bed.out, BOX2));
}

static void on_a_terminal_everything_else_is_no(void **state)
{
	bed.tty = true;
	answer("GET /v1/sandboxes", "[{'id':'" BOX "'}]");
	then(.act = TYPE, .text = "\n", .when = "Kill 1 sandbox? [y/N] ");
	panda("kill", "--all");
	assert_int_equal(bed.code, 125);
	assert_non_null(strstr(bed.out, "panda: nothing was done"));
}

static void kill_wants_ids_or_all_and_not_both(void **state)
{
	panda("kill");
	fails(125, "panda kill: it needs ID... | --all\n");
	panda("kill", "--all", "web");
	fails(125, "panda kill: unexpected argument 'web'\n");
}

/* ---- pause, resume, hibernate, wake ---- */

static void the_four_are_the_same_with_another_word(void **state)
{
	static const char *const words[] = {"pause", "resume", "hibernate", "wake"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		char first[128], second[128];

		snprintf(first, sizeof(first), "POST /v1/sandboxes/" BOX "/%s", words[i]);
		snprintf(second, sizeof(second), "POST /v1/sandboxes/" BOX2 "/%s", words[i]);
		answer(first, "{}");
		answer(second, "{}");
		panda(words[i], BOX, BOX2);
		gives(0, BOX "\n" BOX2 "\n", "");
		sent(0, NULL);
		bed_refuse(first, 409, "busy", "not now");
		answer(second, "{}");
		panda(words[i], BOX, "--json", BOX2);
		gives(125, "[\n  \"" BOX2 "\"\n]\n", NULL);
		assert_non_null(strstr(bed.err, "\"code\":\"busy\""));
		panda(words[i]);
		fails(125, ": it needs ID...\n");
	}
}

/* ---- fork, tree ---- */

static void fork_prints_the_ids_of_the_children(void **state)
{
	answer("POST /v1/sandboxes/" BOX "/fork", "{'sandboxes':[{'id':'a'},{'id':'b'}]}");
	panda("fork", "-n", "2", BOX);
	gives(0, "a\nb\n", "");
	sent(0, "{'count':2}");
	answer("POST /v1/sandboxes/" BOX "/fork", "{'sandboxes':[{'id':'a'}]}");
	panda("fork", BOX, "--json");
	prints("[{'id':'a'}]");
	sent(0, "{'count':1}");
}

static void a_fork_has_one_to_sixteen_children(void **state)
{
	static const char *const bad[] = {"0", "17", "x", "", "2x", "-1", "99999999999999999999"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		panda("fork", "-n", bad[i], BOX);
		fails(125, "panda fork: --count wants a number from 1 to 16, not '");
	}
}

static void a_server_that_tells_no_children_is_not_believed(void **state)
{
	answer("POST /v1/sandboxes/" BOX "/fork", "{}");
	panda("fork", BOX);
	fails(125, "panda: the server told no children of the fork\n");
}

static void tree_draws_children_below_their_parent(void **state)
{
	answer("GET /v1/sandboxes",
	       "[{'id':'b','parent_id':'a','status':'paused','template':'t','created_at':"
	       "'2025-12-31T23:59:00Z'},{'id':'a','status':'running','template':'t','name':'n',"
	       "'created_at':'2025-12-31T00:00:00Z'}]");
	panda("tree");
	gives(0, "a  running  t  24h  n\n`- b  paused  t  60s\n", "");
}

static void tree_with_json_says_who_came_from_whom(void **state)
{
	answer("GET /v1/sandboxes", "[{'id':'b','parent_id':'a','status':'paused','name':'x'},"
	                            "{'id':'a','template':'t'},{'broken':1}]");
	panda("tree", "--json");
	prints("[{'id':'b','parent_id':'a','status':'paused'},{'id':'a','template':'t'}]");
}

/* ---- set, egress ---- */

#define LIFE "{'ttl_seconds':60,'persistent':true,'checkpoints':'off'}"

static void set_changes_what_is_named(void **state)
{
	answer("PATCH /v1/sandboxes/" BOX "/lifecycle", LIFE);
	panda("set", BOX, "--ttl", "1m", "--persistent", "yes", "--json");
	prints(LIFE);
	sent(0, "{'ttl_seconds':60,'persistent':true}");
	answer("PATCH /v1/sandboxes/" BOX "/lifecycle", LIFE);
	panda("set", BOX, "--checkpoints", "off", "--ttl", "0");
	assert_int_equal(bed.code, 0);
	sent(0, "{'ttl_seconds':0,'checkpoints':'off'}");
}

static void set_without_a_change_or_with_nonsense_is_refused(void **state)
{
	panda("set", BOX);
	fails(125, "panda set: say what to change: --ttl, --persistent or --checkpoints\n");
	panda("set", BOX, "--persistent", "maybe");
	fails(125, "panda set: --persistent is yes or no, not 'maybe'\n");
	panda("set", "--ttl", "5");
	fails(125, "panda set: it needs [OPTION]... ID\n");
}

#define EGRESS                                                                                \
	"{'mode':'list','egress_allowlist':['a.example','b:80'],'up_bytes':1,'down_bytes':2," \
	"'refused':3,'names_refused':4}"

static void egress_is_shown(void **state)
{
	answer("GET /v1/sandboxes/" BOX "/egress", EGRESS);
	panda("egress", BOX);
	gives(0,
	      "mode  list\n      a.example\n      b:80\nsent 1 bytes, received 2 bytes\n"
	      "refused 3 packets and 4 names\n",
	      "");
	answer("GET /v1/sandboxes/" BOX "/egress", EGRESS);
	panda("egress", BOX, "--json");
	prints(EGRESS);
}

static void egress_is_changed(void **state)
{
	static const struct {
		const char *word, *body;
	} words[] = {{"off", "{'egress':'off'}"},
	             {"open", "{'egress':'open'}"},
	             {"a.example,*.b.example", "{'egress_allowlist':['a.example','*.b.example']}"},
	             {"10.0.0.0/8", "{'egress_allowlist':['10.0.0.0/8']}"}};

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		answer("PATCH /v1/sandboxes/" BOX "/egress", EGRESS);
		panda("egress", BOX, words[i].word);
		assert_int_equal(bed.code, 0);
		sent(0, words[i].body);
	}
	answer("PATCH /v1/sandboxes/" BOX "/egress", EGRESS);
	panda("egress", BOX, "a", "b,c");
	sent(0, "{'egress_allowlist':['a','b','c']}");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(create_prints_the_id_and_nothing_else),
	    bed_test(create_with_json_prints_all_that_the_server_said),
	    bed_test(create_says_everything_that_it_was_told),
	    bed_test(the_last_of_an_option_that_is_given_twice_counts),
	    bed_test(egress_is_a_word_or_a_list_of_hosts),
	    bed_test(create_from_a_snapshot_finds_it_by_name_first),
	    bed_test(create_from_a_snapshot_that_is_not_there_creates_nothing),
	    bed_test(a_snapshot_has_a_template_of_its_own),
	    bed_test(times_that_are_none_are_refused_before_anything_is_asked),
	    bed_test(pairs_want_a_name_and_an_equals_sign),
	    bed_test(volumes_have_a_name_and_an_absolute_path),
	    bed_test(a_path_of_a_volume_may_have_colons),
	    bed_test(ls_is_a_table_of_what_people_want_to_know),
	    bed_test(ls_of_nothing_has_a_head_all_the_same),
	    bed_test(ls_quiet_prints_whole_ids_for_other_commands),
	    bed_test(ls_with_json_prints_the_list_and_not_its_envelope),
	    bed_test(ls_takes_a_bare_list_too),
	    bed_test(filters_of_ls_are_said_in_the_query),
	    bed_test(ends_says_how_long_it_will_live),
	    bed_test(a_filter_by_metadata_has_a_value),
	    bed_test(ls_of_something_is_a_misunderstanding),
	    bed_test(set_changes_what_is_named),
	    bed_test(set_without_a_change_or_with_nonsense_is_refused),
	    bed_test(egress_is_shown),
	    bed_test(egress_is_changed),
	    bed_test(names_cannot_move_the_cursor),
	    bed_test(a_whole_id_is_taken_without_asking),
	    bed_test(the_beginning_of_an_id_and_a_name_are_enough),
	    bed_test(what_fits_two_is_refused),
	    bed_test(what_fits_none_says_where_to_look),
	    bed_test(what_looks_almost_like_an_id_is_looked_up),
	    bed_test(an_error_of_the_list_is_told_once),
	    bed_test(get_prints_one_field_on_a_line),
	    bed_test(get_of_a_sandbox_that_ended_says_where_to_look),
	    bed_test(get_wants_one),
	    bed_test(kill_prints_whom_it_ended),
	    bed_test(a_failure_does_not_keep_kill_from_the_others),
	    bed_test(kill_with_json_lists_those_that_are_gone),
	    bed_test(kill_all_asks_first_and_a_pipe_cannot_answer),
	    bed_test(kill_all_yes_ends_all_and_misses_none_that_ended_first),
	    bed_test(kill_all_of_nothing_is_done),
	    bed_test(on_a_terminal_kill_all_takes_y_for_yes),
	    bed_test(on_a_terminal_everything_else_is_no),
	    bed_test(kill_wants_ids_or_all_and_not_both),
	    bed_test(the_four_are_the_same_with_another_word),
	    bed_test(fork_prints_the_ids_of_the_children),
	    bed_test(a_fork_has_one_to_sixteen_children),
	    bed_test(a_server_that_tells_no_children_is_not_believed),
	    bed_test(tree_draws_children_below_their_parent),
	    bed_test(tree_with_json_says_who_came_from_whom),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
