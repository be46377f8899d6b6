/*
 * panda volume and template: tables, requests, contexts that become forms, builds and their logs.
 */
#include <unistd.h>

#include "base/macro.h"
#include "bed.h"

/* ---- volumes ---- */

static void a_volume_has_a_size_unless_it_is_a_copy(void **state)
{
	answer("POST /v1/volumes", "{'name':'data'}");
	panda("volume", "create", "data");
	gives(0, "data\n", "");
	sent(0, "{'name':'data','size_mb':256}");
	answer("POST /v1/volumes", "{'name':'data'}");
	panda("volume", "create", "data", "-s", "1024");
	sent(0, "{'name':'data','size_mb':1024}");
	answer("POST /v1/volumes", "{'name':'data'}");
	panda("volume", "create", "data", "-s", "10G");
	sent(0, "{'name':'data','size_mb':10240}");
	answer("POST /v1/volumes", "{'name':'copy'}");
	panda("volume", "create", "copy", "--from", "data", "--json");
	prints("{'name':'copy'}");
	sent(0, "{'name':'copy','from':'data'}");
	answer("POST /v1/volumes", "{'name':'copy'}");
	panda("volume", "create", "copy", "--from", "data", "--size", "512");
	sent(0, "{'name':'copy','from':'data','size_mb':512}");
}

static void sizes_are_numbers_and_resize_wants_one(void **state)
{
	static const char *const bad[] = {"0", "1048577", "2T", "1Gi", "1 G", "-1", "", "G"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		panda("volume", "create", "x", "--size", bad[i]);
		fails(125, "panda volume create: --size wants a size like 512M or 10G, at most "
		           "1048576M, not '");
	}
	panda("volume", "resize", "x");
	fails(125, "panda volume resize: how large shall it be? Say so with --size SIZE\n");
	answer("PATCH /v1/volumes/a%20b", "{'name':'a b'}");
	panda("volume", "resize", "a b", "-s", "2");
	gives(0, "a b\n", "");
	sent(0, "{'size_mb':2}");
}

static void volumes_are_listed_with_those_who_use_them(void **state)
{
	answer("GET /v1/volumes",
	       "{'items':[{'name':'data','kind':'volume','size_mb':256,'used_bytes':1536,"
	       "'created_at':'2025-12-31T23:58:00Z','mounted_by':['" BOX "','" BOX2 "']},"
	       "{'name':'odd','mounted_by':[7]}]}");
	panda("volume", "ls");
	gives(0,
	      "NAME  KIND    SIZE  USED  AGE  SANDBOXES\n"
	      "data  volume  256M  1.5K  2m   3f2a0000,77bc0000\n"
	      "odd           0     0     -    ?\n",
	      "");
	answer("GET /v1/volumes?snapshots=1", "{'items':[]}");
	panda("volume", "ls", "--all", "--json");
	prints("[]");
	answer("GET /v1/volumes/data/snapshots", "{'items':[{'name':'data@1'}]}");
	panda("volume", "ls", "data");
	gives(0, "NAME    KIND  SIZE  USED  AGE  SANDBOXES\ndata@1        0     0     -    \n", "");
}

static void a_volume_with_many_users_is_still_one_line(void **state)
{
	char list[4096] = "{'items':[{'name':'x','mounted_by':[";

	for (int i = 0; i < 40; i++)
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s'%08d-x'",
		         i ? "," : "", i);
	snprintf(list + strlen(list), sizeof(list) - strlen(list), "]}]}");
	answer("GET /v1/volumes", list);
	panda("volume", "ls");
	gives(0, NULL, "");
	assert_non_null(strstr(bed.out, "00000000,00000001,"));
}

static void get_shows_one_volume(void **state)
{
	answer("GET /v1/volumes/data", "{'name':'data','kind':'volume','size_mb':1}");
	panda("volume", "get", "data");
	gives(0, "NAME  KIND    SIZE  USED  AGE  SANDBOXES\ndata  volume  1.0M  0     -    \n", "");
	answer("GET /v1/volumes/data", "{'name':'data'}");
	panda("volume", "get", "data", "--json");
	prints("{'name':'data'}");
	bed_refuse("GET /v1/volumes/no", 404, "volume_not_found", "no such volume");
	panda("volume", "get", "no");
	gives(125, "", "panda: no such volume\n       `panda volume ls` shows what there is\n");
}

static void a_snapshot_of_a_volume_may_have_a_name(void **state)
{
	answer("POST /v1/volumes/data/snapshots", "{'name':'data@1'}");
	panda("volume", "snapshot", "data");
	gives(0, "data@1\n", "");
	sent(0, "{}");
	answer("POST /v1/volumes/data/snapshots", "{'name':'v1'}");
	panda("volume", "snapshot", "data", "v1");
	gives(0, "v1\n", "");
	sent(0, "{'name':'v1'}");
}

static void a_volume_is_attached_and_detached(void **state)
{
	answer("POST /v1/sandboxes/" BOX "/volumes", "[]");
	panda("volume", "attach", BOX, "data:/srv:ro");
	gives(0, "", "");
	sent(0, "{'name':'data','read_only':true,'path':'/srv'}");
	answer("POST /v1/sandboxes/" BOX "/volumes", "[{'name':'data'}]");
	panda("volume", "attach", "--json", BOX, "data");
	prints("[{'name':'data'}]");
	answer("DELETE /v1/sandboxes/" BOX "/volumes/data", "{}");
	panda("volume", "detach", BOX, "data");
	gives(0, "", "");
	answer("DELETE /v1/sandboxes/" BOX "/volumes/data?force=1", "{}");
	panda("volume", "detach", "-f", BOX, "data");
	gives(0, "", "");
	panda("volume", "attach", BOX, "data:srv");
	fails(125, "panda volume attach: a volume is NAME");
	panda("volume", "attach", BOX);
	fails(125, "panda volume attach: it needs ID NAME[:PATH[:ro]]\n");
}

static void volumes_are_removed_each_for_itself(void **state)
{
	bed_refuse("DELETE /v1/volumes/a", 409, "volume_in_use", "it is mounted");
	reply(.request = "DELETE /v1/volumes/b", .status = 204);
	panda("volume", "rm", "a", "b");
	gives(125, "", "panda: it is mounted\n");
}

/* ---- templates ---- */

static void templates_are_a_table(void **state)
{
	answer(
	    "GET /v1/templates",
	    "{'items':[{'name':'base','cpu':1,'memory_mb':512,'size_bytes':1048576,'runner':'sh',"
	    "'baked':true,'description':'Debian'},{'name':'mine','label':'a label'}]}");
	panda("template", "ls");
	gives(0,
	      "NAME  CPU  MEMORY  DISK  RUNNER  BAKED  WHAT\n"
	      "base  1    512M    1.0M  sh      yes    Debian\n"
	      "mine  0    0M      0             no     a label\n",
	      "");
	answer("GET /v1/templates", "{'items':[{'name':'base'}]}");
	panda("template", "ls", "--json");
	prints("[{'name':'base'}]");
	answer("GET /v1/templates/a%2Fb", "{'name':'a/b'}");
	panda("template", "get", "a/b");
	prints("{'name':'a/b'}");
	reply(.request = "DELETE /v1/templates/mine", .status = 204);
	panda("template", "rm", "mine");
	gives(0, "", "");
}

static void a_sandbox_becomes_a_template(void **state)
{
	answer("POST /v1/sandboxes/" BOX "/save-as-template", "{'name':'mine'}");
	panda("template", "save", BOX, "mine", "--replace");
	gives(0, "mine\n", "");
	sent(0, "{'name':'mine','replace':true}");
	panda("template", "save", BOX, "\xff");
	fails(125, "the name is not UTF-8");
	panda("template", "save", BOX);
	fails(125, "panda template save: it needs SANDBOX NAME\n");
}

static void builds_are_listed_with_their_errors(void **state)
{
	answer("GET /v1/templates/builds",
	       "{'items':[{'id':'b1','name':'mine','status':'failed','started_at':"
	       "'2025-12-31T23:59:59Z','error':'line 3:\\nno such file'},{'id':'b2'}]}");
	panda("template", "builds");
	gives(0,
	      "BUILD  TEMPLATE  STATUS  AGE  ERROR\n"
	      "b1     mine      failed  1s   line 3:?no such file\n"
	      "b2                       -    \n",
	      "");
}

/* ---- template build ---- */

#define LOG    "GET /v1/templates/builds/b1/logs?follow=1"
#define STATUS "GET /v1/templates/builds/b1"
#define BUILD  "POST /v1/templates/build"
#define DONE   "data: {'line':'step 1'}\n\ndata: {'line':'step 2'}\n\nevent: done\ndata: {}\n\n"

static void script_of_a_build(const char *status)
{
	answer(BUILD, "{'id':'b1'}");
	reply(.request = LOG, .events = DONE);
	answer(STATUS, status);
}

/* The part of a form with that name, as far as it is text; "" when there is none. */
static const char *part(const char *name)
{
	static char text[1024];
	char head[128];
	const char *at, *end;

	snprintf(head, sizeof(head), "name=\"%s\"", name);
	at = strstr(bed.asked[0].body, head);
	at = at ? strstr(at, "\r\n\r\n") : NULL;
	end = at ? strstr(at, "\r\n--panda-") : NULL;
	if (!end)
		return "";
	snprintf(text, sizeof(text), "%.*s", (int)(end - at - 4), at + 4);
	return text;
}

static bool has_part(const char *name)
{
	char head[128];

	snprintf(head, sizeof(head), "name=\"%s\"", name);
	return strstr(bed.asked[0].body, head);
}

static void a_build_sends_the_dockerfile_and_shows_the_log(void **state)
{
	bed_file("Dockerfile", "FROM base\n", 0, 0600);
	script_of_a_build("{'id':'b1','status':'done'}");
	panda("template", "build", "mine");
	gives(0, "step 1\nstep 2\n", "panda: build b1\n");
	assert_string_equal(part("name"), "mine");
	assert_string_equal(part("dockerfile"), "FROM base\n");
	assert_false(has_part("replace"));
	assert_false(has_part("build_args"));
	assert_memory_equal(bed_field(0, "content-type"), "multipart/form-data; boundary=", 30);
}

static void the_form_ends_with_its_boundary_and_its_length_is_right(void **state)
{
	char last[80];

	bed_file("Dockerfile", "FROM base\n", 0, 0600);
	script_of_a_build("{'status':'done'}");
	panda("template", "build", "mine", "--replace", "--arg", "A=1", "--arg", "B=x y");
	assert_string_equal(part("replace"), "true");
	assert_string_equal(part("build_args"), "{\"A\":\"1\",\"B\":\"x y\"}");
	snprintf(last, sizeof(last), "\r\n--%s--\r\n",
	         strstr(bed_field(0, "content-type"), "boundary=") + 9);
	assert_true(bed.asked[0].len > strlen(last));
	assert_string_equal(bed.asked[0].body + bed.asked[0].len - strlen(last), last);
	assert_int_equal(atoi(bed_field(0, "content-length")), bed.asked[0].len);
}

static void a_directory_becomes_parts_named_by_their_paths(void **state)
{
	bed_file("app/Dockerfile", "FROM base\nCOPY . /app\n", 0, 0600);
	bed_file("app/main.py", "print()\n", 0, 0600);
	bed_file("app/lib/deep/x.txt", "deep", 0, 0600);
	bed_file("app/empty", "", 0, 0600);
	bed_file("app/.git/config", "secret", 0, 0600);
	bed_file("app/sp ace;\xc3\xbc", "odd", 0, 0600);
	for (int i = 0; i < 3; i++) {
		static const char *const ways[] = {"app", "app/", "./app"};

		script_of_a_build("{'status':'done'}");
		panda("template", "build", "mine", ways[i]);
		gives(0, NULL, "panda: build b1\n");
		assert_string_equal(part("dockerfile"), "FROM base\nCOPY . /app\n");
		assert_string_equal(part("main.py"), "print()\n");
		assert_string_equal(part("lib/deep/x.txt"), "deep");
		assert_string_equal(part("empty"), "");
		assert_true(has_part("empty"));
		assert_string_equal(part("sp ace;\xc3\xbc"), "odd");
		assert_false(has_part(".git/config"));
	}
}

static void dockerignore_says_what_stays_here(void **state)
{
	bed_file("app/Dockerfile", "FROM base\n", 0, 0600);
	bed_file("app/.dockerignore", "# a comment\n*.log\nnode_modules\n!keep.log\n", 0, 0600);
	bed_file("app/a.log", "x", 0, 0600);
	bed_file("app/keep.log", "kept", 0, 0600);
	bed_file("app/node_modules/big.js", "x", 0, 0600);
	bed_file("app/main.js", "m", 0, 0600);
	script_of_a_build("{'status':'done'}");
	panda("template", "build", "mine", "app");
	gives(0, NULL, "panda: build b1\n");
	assert_false(has_part("a.log"));
	assert_false(has_part("node_modules/big.js"));
	assert_string_equal(part("keep.log"), "kept");
	assert_string_equal(part("main.js"), "m");
}

static void another_dockerfile_can_be_named(void **state)
{
	bed_file("other", "FROM other\n", 0, 0600);
	bed_file("app/x", "x", 0, 0600);
	script_of_a_build("{'status':'done'}");
	panda("template", "build", "mine", "app", "-f", "other");
	gives(0, NULL, "panda: build b1\n");
	assert_string_equal(part("dockerfile"), "FROM other\n");
	assert_string_equal(part("x"), "x");
}

static void links_are_left_out_and_said(void **state)
{
	char to[128];

	bed_file("app/Dockerfile", "FROM base\n", 0, 0600);
	snprintf(to, sizeof(to), "%s/app/link", bed.dir);
	assert_int_equal(symlink("Dockerfile", to), 0);
	script_of_a_build("{'status':'done'}");
	panda("template", "build", "mine", "app");
	gives(0, NULL, "panda: left out, not a plain file: app/link\npanda: build b1\n");
	assert_false(has_part("link"));
}

static void names_that_would_break_the_form_are_refused(void **state)
{
	bed_file("app/Dockerfile", "FROM base\n", 0, 0600);
	bed_file("app/a\"b", "x", 0, 0600);
	panda("template", "build", "mine", "app");
	fails(125, "panda: 'app/a\"b' cannot be sent: rename it\n");
}

static void a_context_that_is_not_there_sends_nothing(void **state)
{
	panda("template", "build", "mine");
	fails(125, "panda: cannot open ./Dockerfile: No such file or directory\n");
	bed_file("Dockerfile", "FROM base\n", 0, 0600);
	panda("template", "build", "mine", "nowhere", "-f", "Dockerfile");
	fails(125, "panda: cannot read nowhere: No such file or directory\n");
	panda("template", "build", "mine", "--arg", "novalue");
	fails(125, "panda template build: --arg wants NAME=VALUE");
	panda("template", "build");
	fails(125, "panda template build: it needs NAME [DIRECTORY]\n");
}

static void a_context_that_is_too_large_names_the_remedy(void **state)
{
	char path[128];

	bed_file("app/Dockerfile", "FROM base\n", 0, 0600);
	bed_file("app/zz-big", "", 0, 0600);
	snprintf(path, sizeof(path), "%s/app/zz-big", bed.dir);
	assert_int_equal(truncate(path, (50 << 20) + 1), 0);
	panda("template", "build", "mine", "app");
	fails(125, "app has more than 50 MB of files: name what the build does not need in "
	           ".dockerignore\n");
}

static void a_build_that_failed_says_why(void **state)
{
	bed_file("Dockerfile", "FROM base\n", 0, 0600);
	script_of_a_build("{'status':'failed','error':'line 2: exit code 1'}");
	panda("template", "build", "mine");
	gives(125, "step 1\nstep 2\n", "panda: build b1\npanda: line 2: exit code 1\n");
}

static void a_build_whose_log_ends_too_early_is_not_called_done(void **state)
{
	bed_file("Dockerfile", "FROM base\n", 0, 0600);
	answer(BUILD, "{'id':'b1'}");
	reply(.request = LOG, .events = "data: {'line':'step 1'}\n\n");
	answer(STATUS, "{'id':'b1','status':'running'}");
	panda("template", "build", "mine");
	gives(
	    125, "step 1\n",
	    "panda: build b1\npanda: the log ended before the build did: `panda template logs b1` "
	    "goes on\n");
}

static void with_json_the_log_is_on_stderr_and_the_build_on_stdout(void **state)
{
	bed_file("Dockerfile", "FROM base\n", 0, 0600);
	script_of_a_build("{'id':'b1','status':'done'}");
	panda("template", "build", "mine", "--json");
	prints("{'id':'b1','status':'done'}");
	assert_string_equal(bed.err, "panda: build b1\nstep 1\nstep 2\n");
}

static void a_detached_build_is_a_number(void **state)
{
	bed_file("Dockerfile", "FROM base\n", 0, 0600);
	answer(BUILD, "{'id':'b1'}");
	panda("template", "build", "-d", "mine");
	gives(0, "b1\n", "");
	answer(BUILD, "{'id':'b1','status':'queued'}");
	panda("template", "build", "-d", "mine", "--json");
	prints("{'id':'b1','status':'queued'}");
	bed_refuse(BUILD, 409, "template_exists", "there is one of that name");
	panda("template", "build", "mine");
	fails(125, "panda: there is one of that name\n");
}

static void logs_of_a_build_are_read_to_their_end(void **state)
{
	reply(.request = LOG, .events = DONE);
	panda("template", "logs", "b1");
	gives(0, "step 1\nstep 2\n", "");
	bed_refuse(LOG, 404, "build_not_found", "there is no build b1");
	panda("template", "logs", "b1");
	fails(125, "panda: there is no build b1\n");
}

/* ---- template import ---- */

static void import_sends_an_archive_as_it_is(void **state)
{
	bed_file("image.tar", "tar\r\n--not the end\r\n\0more", 25, 0600);
	script_of_a_build("{'status':'done'}");
	panda("template", "import", "image.tar", "--name", "theirs", "--image", "web:1",
	      "--replace");
	gives(0, NULL, "panda: build b1\n");
	assert_string_equal(part("name"), "theirs");
	assert_string_equal(part("image_ref"), "web:1");
	assert_string_equal(part("replace"), "true");
	assert_true(has_part("rootfs"));
	assert_non_null(memmem(bed.asked[0].body, bed.asked[0].len,
	                       "tar\r\n--not the end\r\n\0more\r\n--", 29));
}

static void import_wants_a_name_and_a_file(void **state)
{
	panda("template", "import", "image.tar");
	fails(125, "panda template import: say what the template is to be called: --name NAME\n");
	panda("template", "import", "image.tar", "--name", "x");
	fails(125, "panda: cannot open image.tar: No such file or directory\n");
	bed_mkdir("layout");
	panda("template", "import", "layout", "--name", "x");
	fails(125, "panda: layout is no archive: say 'docker save IMAGE -o FILE'");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(a_volume_has_a_size_unless_it_is_a_copy),
	    bed_test(sizes_are_numbers_and_resize_wants_one),
	    bed_test(volumes_are_listed_with_those_who_use_them),
	    bed_test(a_volume_with_many_users_is_still_one_line),
	    bed_test(get_shows_one_volume),
	    bed_test(a_snapshot_of_a_volume_may_have_a_name),
	    bed_test(a_volume_is_attached_and_detached),
	    bed_test(volumes_are_removed_each_for_itself),
	    bed_test(templates_are_a_table),
	    bed_test(a_sandbox_becomes_a_template),
	    bed_test(builds_are_listed_with_their_errors),
	    bed_test(a_build_sends_the_dockerfile_and_shows_the_log),
	    bed_test(the_form_ends_with_its_boundary_and_its_length_is_right),
	    bed_test(a_directory_becomes_parts_named_by_their_paths),
	    bed_test(dockerignore_says_what_stays_here),
	    bed_test(another_dockerfile_can_be_named),
	    bed_test(links_are_left_out_and_said),
	    bed_test(names_that_would_break_the_form_are_refused),
	    bed_test(a_context_that_is_not_there_sends_nothing),
	    bed_test(a_context_that_is_too_large_names_the_remedy),
	    bed_test(a_build_that_failed_says_why),
	    bed_test(a_build_whose_log_ends_too_early_is_not_called_done),
	    bed_test(with_json_the_log_is_on_stderr_and_the_build_on_stdout),
	    bed_test(a_detached_build_is_a_number),
	    bed_test(logs_of_a_build_are_read_to_their_end),
	    bed_test(import_sends_an_archive_as_it_is),
	    bed_test(import_wants_a_name_and_a_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
