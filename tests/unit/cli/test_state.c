/*
 * panda checkpoints, rewind, diff, merge, race, promote, snapshot: going back, comparing, trying
 * several ways, and keeping what there was.
 */
#include "base/macro.h"
#include "bed.h"

#define OF_BOX "/v1/sandboxes/" BOX

/* ---- checkpoints, rewind ---- */

static void checkpoints_are_listed_by_how_many_steps_back_they_are(void **state)
{
	answer("GET " OF_BOX "/checkpoints",
	       "{'checkpoints':[{'id':'c2','created_at':'2025-12-31T23:59:00Z','size_bytes':2048,"
	       "'name':'good'},{'id':'c1','created_at':'2025-12-31T22:00:00Z'}],"
	       "'dropped_when':'the disk was full'}");
	panda("checkpoints", BOX);
	gives(0,
	      "STEPS  ID  AGE  SIZE  NAME\n"
	      "1      c2  60s  2.0K  good\n"
	      "2      c1  2h   0     \n",
	      "panda: earlier ones were dropped when the disk was full\n");
	answer("GET " OF_BOX "/checkpoints", "{'checkpoints':[]}");
	panda("checkpoints", "--json", BOX);
	prints("{'checkpoints':[]}");
}

static void a_checkpoint_is_taken_by_its_name(void **state)
{
	answer("POST " OF_BOX "/checkpoints", "{'id':'c3','name':'good'}");
	panda("checkpoints", BOX, "--name", "good");
	gives(0, "c3\n", "");
	sent(0, "{'name':'good'}");
	panda("checkpoints");
	fails(125, "panda checkpoints: it needs ID\n");
}

static void rewind_goes_back_by_steps_or_to_a_name(void **state)
{
	static const struct {
		const char *word, *body;
	} ways[] = {
	    {NULL, "{'steps':1}"},     {"3", "{'steps':3}"},      {"999", "{'steps':999}"},
	    {"1000", "{'to':'1000'}"}, {"good", "{'to':'good'}"}, {"", "{'to':''}"},
	    {"3f2a", "{'to':'3f2a'}"},
	};

	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		answer("POST " OF_BOX "/rewind", "{'checkpoint':'c1'}");
		panda("rewind", BOX, ways[i].word);
		gives(0, "", "");
		sent(0, ways[i].body);
	}
	answer("POST " OF_BOX "/rewind", "{'checkpoint':'c1'}");
	panda("rewind", "--json", BOX);
	prints("{'checkpoint':'c1'}");
}

static void a_rewind_that_is_refused_is_told(void **state)
{
	bed_refuse("POST " OF_BOX "/rewind", 404, "checkpoint_not_found", "there is no x");
	panda("rewind", BOX, "x");
	gives(125, "", "panda: there is no x\n");
	panda("rewind", BOX, "1", "2");
	fails(125, "panda rewind: unexpected argument '2'");
}

static void words_that_are_not_utf8_never_become_another_request(void **state)
{
	panda("rewind", BOX, "\xff");
	fails(125, "is not UTF-8");
	panda("checkpoints", BOX, "--name", "\xff");
	fails(125, "is not UTF-8");
	panda("race", BOX, "a", "\xff");
	fails(125, "is not UTF-8");
	panda("race", "--accept", "\xff", BOX, "a");
	fails(125, "is not UTF-8");
	panda("volume", "snapshot", "data", "\xff");
	fails(125, "is not UTF-8");
}

/* ---- diff, merge ---- */

static void diff_has_a_sign_for_what_happened_to_each_file(void **state)
{
	answer("GET " OF_BOX "/diff?unified=0",
	       "{'added':[{'path':'/a'},{'path':'/d','type':'directory'}],'changed':[{'path':"
	       "'/etc/x\\u001b[2J'}],'removed':[{'path':'/r'}],'truncated':true}");
	panda("diff", BOX);
	gives(0, "- /r\n~ /etc/x?[2J\n+ /a\n+ /d/\n", "panda: there are more than are shown\n");
}

static void diff_with_lines_shows_them_below_their_file(void **state)
{
	answer("GET /v1/sandboxes", LIST);
	answer("GET " OF_BOX "/diff?to=" BOX2 "&unified=1",
	       "{'changed':[{'path':'/x','unified':'@@ -1 +1 @@\\n-a\\n+b\\n'}]}");
	panda("diff", "-u", BOX, "db");
	gives(0, "~ /x\n@@ -1 +1 @@\n-a\n+b\n", "");
	answer("GET " OF_BOX "/diff?unified=0", "{'added':[]}");
	panda("diff", "--json", BOX);
	prints("{'added':[]}");
}

static void on_a_terminal_the_lines_of_a_diff_are_harmless(void **state)
{
	bed.tty = true;
	answer("GET " OF_BOX "/diff?unified=1",
	       "{'changed':[{'path':'/x','unified':'\\u001b]0;t\\u0007\\n'}]}");
	panda("diff", "-u", BOX);
	assert_null(strchr(bed.out, '\033'));
	assert_non_null(strstr(bed.out, "?]0;t?"));
}

static void merge_brings_what_the_child_did(void **state)
{
	answer("POST " OF_BOX "/merge",
	       "{'applied':true,'added':['/a'],'changed':['/c'],'removed':['/r'],'conflicts':[]}");
	panda("merge", BOX, BOX2);
	gives(0, "- /r\n~ /c\n+ /a\n", "");
	sent(0, "{'child':'" BOX2 "','conflicts':'stop','dry_run':false}");
}

static void a_conflict_is_marked_and_is_one(void **state)
{
	answer("POST " OF_BOX "/merge", "{'applied':false,'added':['/a'],'conflicts':['/b']}");
	panda("merge", BOX, BOX2);
	gives(1, "+ /a\n! /b\n",
	      "panda: both have written what is marked '!', so nothing was done: --theirs takes "
	      "the child's\n");
	answer("POST " OF_BOX "/merge", "{'applied':false}");
	panda("merge", "--json", BOX, BOX2);
	gives(1, "{\n  \"applied\": false\n}\n", "");
}

static void merge_can_take_theirs_and_only_say_what_it_would_do(void **state)
{
	answer("POST " OF_BOX "/merge", "{'applied':false,'changed':['/c']}");
	panda("merge", "--theirs", "--dry-run", BOX, BOX2);
	gives(0, "~ /c\n", "");
	sent(0, "{'child':'" BOX2 "','conflicts':'theirs','dry_run':true}");
	panda("merge", BOX);
	fails(125, "panda merge: it needs ID CHILD\n");
}

/* ---- race, promote ---- */

static void race_prints_the_winner_and_tells_how_all_did(void **state)
{
	answer("POST " OF_BOX "/race",
	       "{'outcomes':[{'state':'failed'},{'state':'won'}],'winner':{'id':'w1'},"
	       "'result':{'stdout':'ok\\n'}}");
	panda("race", BOX, "make test", "true");
	gives(0, "w1\n", "failed make test\nwon    true\nok\n");
	sent(0, "{'commands':['make test','true'],'accept':'exit_code == 0',"
	        "'timeout_seconds':60}");
}

static void a_race_that_nobody_won_is_one(void **state)
{
	answer("POST " OF_BOX "/race", "{'outcomes':[{'state':'failed'}],'winner':null}");
	panda("race", "--accept", "stdout contains x", "--timeout", "2m", BOX, "a");
	gives(1, "", "failed a\n");
	sent(0, "{'commands':['a'],'accept':'stdout contains x','timeout_seconds':120}");
	answer("POST " OF_BOX "/race", "{'winner':null}");
	panda("race", "--json", BOX, "a");
	gives(1, "{\n  \"winner\": null\n}\n", "");
}

static void a_race_may_last_a_month(void **state)
{
	answer("POST " OF_BOX "/race", "{'winner':{'id':'w'}}");
	panda("race", "--timeout", "30d", BOX, "a");
	gives(0, "w\n", "");
	sent(0, "{'commands':['a'],'accept':'exit_code == 0','timeout_seconds':2592000}");
}

static void what_the_winner_wrote_is_harmless_on_a_terminal(void **state)
{
	bed.tty = true;
	answer("POST " OF_BOX "/race",
	       "{'winner':{'id':'w'},'result':{'stdout':'\\u001b[2Jdone\\n'}}");
	panda("race", BOX, "a");
	assert_int_equal(bed.code, 0);
	assert_non_null(strstr(bed.out, "?[2Jdone"));
	assert_null(strchr(bed.out, '\033'));
}

static void a_race_has_one_to_sixteen_commands(void **state)
{
	panda("race", BOX);
	fails(125, "panda race: it needs ID COMMAND...\n");
	panda("race", BOX, "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13",
	      "14", "15", "16", "17");
	fails(125, "panda race: unexpected argument '17'");
}

static void promote_prints_whom_it_killed(void **state)
{
	answer("POST " OF_BOX "/promote", "{'deleted':['a','b']}");
	panda("promote", "--kill-others", BOX);
	gives(0, "a\nb\n", "");
	sent(0, "{'cleanup_siblings':true}");
	answer("POST " OF_BOX "/promote", "{'deleted':[]}");
	panda("promote", "--json", BOX);
	prints("{'deleted':[]}");
	sent(0, "{'cleanup_siblings':false}");
}

static void promote_says_whom_it_could_not_kill_and_why(void **state)
{
	answer("POST " OF_BOX "/promote",
	       "{'deleted':['a'],'failures':{'b':'it is being forked'}}");
	panda("promote", "--kill-others", BOX);
	gives(1, "a\n", "panda: cannot kill b: it is being forked\n");
}

/* ---- snapshots ---- */

#define SNAPS                                                                                  \
	"{'snapshots':[{'id':'aa11','name':'ready','template':'base','size_bytes':3221225472," \
	"'created_at':'2025-12-30T00:00:00Z','sandbox_id':'" BOX "'},{'id':'ab22'}]}"

static void a_snapshot_is_made_with_or_without_a_name(void **state)
{
	answer("POST " OF_BOX "/snapshots", "{'id':'aa11'}");
	panda("snapshot", "create", BOX, "--name", "ready");
	gives(0, "aa11\n", "");
	sent(0, "{'name':'ready'}");
	answer("POST " OF_BOX "/snapshots", "{'id':'aa11'}");
	panda("snapshot", "create", "--json", BOX);
	prints("{'id':'aa11'}");
	sent(0, "{}");
	panda("snapshot", "create", BOX, "--name", "\xff");
	fails(125, "the snapshot's name is not UTF-8");
}

static void snapshots_are_a_table_or_those_of_one_sandbox(void **state)
{
	answer("GET /v1/snapshots", SNAPS);
	panda("snapshot", "ls");
	gives(0,
	      "ID    TEMPLATE  SIZE  AGE  SANDBOX   NAME\n"
	      "aa11  base      3.0G  2d   3f2a0000  ready\n"
	      "ab22            0     -              \n",
	      "");
	answer("GET /v1/sandboxes", LIST);
	answer("GET /v1/snapshots?sandbox_id=" BOX, "{'snapshots':[{'id':'aa11'}]}");
	panda("snapshot", "ls", "--sandbox", "web", "--json");
	prints("[{'id':'aa11'}]");
}

static void a_snapshot_is_found_by_name_or_beginning(void **state)
{
	answer("GET /v1/snapshots", SNAPS);
	answer("GET /v1/snapshots/aa11", "{'id':'aa11','size_bytes':1}");
	panda("snapshot", "get", "ready");
	gives(0, "id                 aa11\nsize_bytes         1\n", "");
	answer("GET /v1/snapshots", SNAPS);
	answer("GET /v1/snapshots/ab22", "{'id':'ab22'}");
	panda("snapshot", "get", "ab", "--json");
	prints("{'id':'ab22'}");
	answer("GET /v1/snapshots", SNAPS);
	panda("snapshot", "get", "a");
	fails(125, "panda: 'a' fits more than one snapshot: give more of its id\n");
}

static void rm_goes_on_behind_a_snapshot_that_cannot_be_removed(void **state)
{
	answer("GET /v1/snapshots", SNAPS);
	bed_refuse("DELETE /v1/snapshots/aa11", 409, "in_use", "it is in use");
	answer("GET /v1/snapshots", SNAPS);
	answer("GET /v1/snapshots", SNAPS);
	reply(.request = "DELETE /v1/snapshots/ab22", .status = 204);
	panda("snapshot", "rm", "ready", "nope", "ab22");
	gives(125, "",
	      "panda: it is in use\npanda: there is no snapshot 'nope'\n"
	      "       `panda snapshot ls` shows what there is\n");
}

static void the_tree_shows_what_came_from_what(void **state)
{
	answer("GET /v1/snapshots",
	       "{'snapshots':[{'id':'s1','name':'first','sandbox_id':'gone0000x'},"
	       "{'id':'s2','name':'sec\\u001bond','sandbox_id':'b1'},{'id':'s3'}]}");
	answer("GET /v1/sandboxes", "{'items':[{'id':'b1','status':'running','from_snapshot':'s1'},"
	                            "{'id':'b2','status':'paused','from_snapshot':'s2'},"
	                            "{'id':'b3','status':'running'}]}");
	panda("snapshot", "tree");
	gives(0,
	      "of gone0000\n"
	      "  s1 first\n"
	      "    sandbox b1 running\n"
	      "      s2 sec?ond\n"
	      "        sandbox b2 paused\n"
	      "of none\n"
	      "  s3 \n",
	      "");
}

static void a_tree_that_bites_its_tail_ends(void **state)
{
	answer("GET /v1/snapshots",
	       "[{'id':'s1','sandbox_id':'b0'},{'id':'s2','sandbox_id':'b1'}]");
	answer("GET /v1/sandboxes",
	       "[{'id':'b1','from_snapshot':'s2'},{'id':'b2','from_snapshot':'s1'}]");
	panda("snapshot", "tree");
	gives(0, NULL, "");
	assert_non_null(strstr(bed.out, "s1"));
}

static void export_writes_a_new_file(void **state)
{
	static const char data[] = "tar\0of\xff";
	const char *file;
	size_t n;

	answer("GET /v1/snapshots", SNAPS);
	reply(.request = "GET /v1/snapshots/aa11/export", .bytes = data, .len = sizeof(data));
	panda("snapshot", "export", "ready", "out.tar");
	gives(0, "", "");
	file = bed_content("out.tar", &n);
	assert_int_equal(n, sizeof(data));
	assert_memory_equal(file, data, n);
	assert_null(bed_content("out.tar.part", NULL));
	answer("GET /v1/snapshots", SNAPS);
	panda("snapshot", "export", "ready", "out.tar");
	fails(125, "panda: out.tar is there already: --force replaces it\n");
}

static void export_replaces_a_file_only_by_a_whole_one(void **state)
{
	bed_file("out.tar", "old", 0, 0600);
	bed_file("out.tar.part", "of one that was interrupted", 0, 0600);
	answer("GET /v1/snapshots", SNAPS);
	reply(.request = "GET /v1/snapshots/aa11/export", .bytes = "half", .cut = true);
	panda("snapshot", "export", "--force", "ready", "out.tar");
	fails(125, "in the middle of a reply");
	assert_string_equal(bed_content("out.tar", NULL), "old");
	answer("GET /v1/snapshots", SNAPS);
	reply(.request = "GET /v1/snapshots/aa11/export", .bytes = "new");
	panda("snapshot", "export", "-f", "ready", "out.tar");
	gives(0, "", "");
	assert_string_equal(bed_content("out.tar", NULL), "new");
	assert_null(bed_content("out.tar.part", NULL));
}

static void what_is_gone_for_ever_is_asked_about_on_a_terminal(void **state)
{
	bed.tty = true;
	then(.act = TYPE, .text = "n\r", .when = "[y/N]");
	panda("snapshot", "rm", "ready");
	assert_int_equal(bed.code, 125);
	assert_non_null(strstr(bed.out, "Remove 1 snapshot? [y/N] "));
	assert_non_null(strstr(bed.out, "panda: nothing was done"));
}

static void what_was_answered_or_said_before_is_done(void **state)
{
	bed.tty = true;
	answer("GET /v1/snapshots", SNAPS);
	reply(.request = "DELETE /v1/snapshots/aa11", .status = 204);
	then(.act = TYPE, .text = "y\r", .when = "[y/N]");
	panda("snapshot", "rm", "ready");
	assert_int_equal(bed.code, 0);
	reply(.request = "DELETE /v1/volumes/a", .status = 204);
	panda("volume", "rm", "--yes", "a");
	assert_int_equal(bed.code, 0);
	assert_null(strstr(bed.out, "Remove"));
}

static void export_to_stdout_is_for_pipes(void **state)
{
	answer("GET /v1/snapshots", SNAPS);
	reply(.request = "GET /v1/snapshots/aa11/export", .bytes = "data");
	panda("snapshot", "export", "ready");
	gives(0, "data", "");
	bed.full = true;
	answer("GET /v1/snapshots", SNAPS);
	reply(.request = "GET /v1/snapshots/aa11/export", .bytes = "data");
	panda("snapshot", "export", "ready", "-");
	fails(125, "panda: cannot write -\n");
	bed.tty = true;
	answer("GET /v1/snapshots", SNAPS);
	panda("snapshot", "export", "ready");
	assert_int_equal(bed.code, 125);
	assert_non_null(strstr(bed.out, "a snapshot is no text: name a FILE"));
}

static void half_an_export_is_none(void **state)
{
	answer("GET /v1/snapshots", SNAPS);
	reply(.request = "GET /v1/snapshots/aa11/export", .bytes = "half", .cut = true);
	panda("snapshot", "export", "ready", "out.tar");
	fails(125, "in the middle of a reply");
	assert_null(bed_content("out.tar", NULL));
}

static void an_export_that_the_server_fails_is_not_blamed_on_our_disk(void **state)
{
	answer("GET /v1/snapshots", SNAPS);
	bed_refuse("GET /v1/snapshots/aa11/export", 500, "internal", "a layer is damaged");
	panda("snapshot", "export", "ready", "out.tar");
	fails(125, "panda: a layer is damaged\n");
	assert_null(bed_content("out.tar", NULL));
}

static void import_sends_a_file_or_stdin(void **state)
{
	bed_file("in.tar", "data", 0, 0600);
	answer("POST /v1/snapshots/import", "{'id':'new1'}");
	panda("snapshot", "import", "in.tar");
	gives(0, "new1\n", "");
	assert_string_equal(bed.asked[0].body, "data");
	assert_string_equal(bed_field(0, "transfer-encoding"), "chunked");
	bed.in = "from a pipe";
	answer("POST /v1/snapshots/import", "{'id':'new2'}");
	panda("snapshot", "import", "-", "--json");
	prints("{'id':'new2'}");
	assert_string_equal(bed.asked[0].body, "from a pipe");
}

static void an_import_that_is_refused_is_told(void **state)
{
	panda("snapshot", "import", "missing.tar");
	fails(125, "panda: cannot open missing.tar: No such file or directory\n");
	bed_file("in.tar", "data", 0, 0600);
	reply(.request = "POST /v1/snapshots/import", .status = 507, .early = true,
	      .json = "{'error':'no room','code':'host_full'}");
	panda("snapshot", "import", "in.tar");
	fails(125, "panda: no room\n");
	bed_mkdir("dir");
	reply(.request = "POST /v1/snapshots/import", .early = true, .json = "{}");
	panda("snapshot", "import", "dir");
	assert_int_equal(bed.code, 125);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(checkpoints_are_listed_by_how_many_steps_back_they_are),
	    bed_test(a_checkpoint_is_taken_by_its_name),
	    bed_test(rewind_goes_back_by_steps_or_to_a_name),
	    bed_test(a_rewind_that_is_refused_is_told),
	    bed_test(words_that_are_not_utf8_never_become_another_request),
	    bed_test(diff_has_a_sign_for_what_happened_to_each_file),
	    bed_test(diff_with_lines_shows_them_below_their_file),
	    bed_test(on_a_terminal_the_lines_of_a_diff_are_harmless),
	    bed_test(merge_brings_what_the_child_did),
	    bed_test(a_conflict_is_marked_and_is_one),
	    bed_test(merge_can_take_theirs_and_only_say_what_it_would_do),
	    bed_test(race_prints_the_winner_and_tells_how_all_did),
	    bed_test(a_race_that_nobody_won_is_one),
	    bed_test(a_race_may_last_a_month),
	    bed_test(what_the_winner_wrote_is_harmless_on_a_terminal),
	    bed_test(a_race_has_one_to_sixteen_commands),
	    bed_test(promote_prints_whom_it_killed),
	    bed_test(promote_says_whom_it_could_not_kill_and_why),
	    bed_test(a_snapshot_is_made_with_or_without_a_name),
	    bed_test(snapshots_are_a_table_or_those_of_one_sandbox),
	    bed_test(a_snapshot_is_found_by_name_or_beginning),
	    bed_test(rm_goes_on_behind_a_snapshot_that_cannot_be_removed),
	    bed_test(the_tree_shows_what_came_from_what),
	    bed_test(a_tree_that_bites_its_tail_ends),
	    bed_test(export_writes_a_new_file),
	    bed_test(export_replaces_a_file_only_by_a_whole_one),
	    bed_test(what_is_gone_for_ever_is_asked_about_on_a_terminal),
	    bed_test(what_was_answered_or_said_before_is_done),
	    bed_test(export_to_stdout_is_for_pipes),
	    bed_test(half_an_export_is_none),
	    bed_test(an_export_that_the_server_fails_is_not_blamed_on_our_disk),
	    bed_test(import_sends_a_file_or_stdin),
	    bed_test(an_import_that_is_refused_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
