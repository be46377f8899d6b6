/*
 * panda cp: in and out, files and directories, odd names, and guests that name their files so that
 * they would land somewhere else.
 */
#include "base/cleanup.h"
#include "base/macro.h"
#include "bed.h"

#include <sys/stat.h>
#include <unistd.h>

#define FS         "/v1/sandboxes/" BOX "/fs"
#define STAT(p)    "GET " FS "/stat?path=" p "&follow=1"
#define READ(p)    "GET " FS "?path=" p
#define LIST_OF(p) "GET " FS "/dir?path=" p

static void missing(const char *request)
{
	bed_refuse(request, 404, "file_not_found", "no such file");
}

static void link_to(const char *target, const char *path)
{
	char text[256];

	snprintf(text, sizeof(text), "%s/%s", bed.dir, path);
	assert_int_equal(symlink(target, text), 0);
}

static const char *link_at(const char *path)
{
	static char target[256];
	char text[256];
	ssize_t n;

	snprintf(text, sizeof(text), "%s/%s", bed.dir, path);
	n = readlink(text, target, sizeof(target) - 1);
	target[n > 0 ? n : 0] = 0;
	return target;
}

/* ---- in ---- */

static void a_file_goes_in_with_its_permissions(void **state)
{
	bed_file("notes.txt", "hello", 0, 0640);
	missing(STAT("%2Froot%2Fn"));
	answer("PUT " FS "?path=%2Froot%2Fn&mode=0640", "{'bytes':5}");
	panda("cp", "notes.txt", BOX ":/root/n");
	gives(0, "", "");
	assert_string_equal(bed.asked[1].body, "hello");
	assert_string_equal(bed_field(1, "content-length"), "5");
}

static void an_empty_file_is_a_file_too(void **state)
{
	bed_file("empty", "", 0, 0644);
	missing(STAT("%2Fe"));
	answer("PUT " FS "?path=%2Fe&mode=0644", "{'bytes':0}");
	panda("cp", "empty", BOX ":/e", "--json");
	prints("{'files':1,'failed':0}");
	assert_string_equal(bed_field(1, "content-length"), "0");
}

static void a_large_file_arrives_whole(void **state)
{
	size_t n = 1 << 20;
	autofree char *data = malloc(n);

	for (size_t i = 0; i < n; i++)
		data[i] = (char)(i * 7 + i / 4093);
	bed_file("big", data, n, 0644);
	missing(STAT("%2Fbig"));
	answer("PUT " FS "?path=%2Fbig&mode=0644", "{}");
	panda("cp", "big", BOX ":/big");
	gives(0, "", "");
	assert_int_equal(bed.asked[1].len, n);
	assert_memory_equal(bed.asked[1].body, data, n);
}

static void into_a_directory_a_file_keeps_its_name(void **state)
{
	bed_file("a/notes.txt", "x", 0, 0644);
	answer(STAT("%2Ftmp"), "{'is_dir':true}");
	answer("PUT " FS "?path=%2Ftmp%2Fnotes.txt&mode=0644", "{}");
	panda("cp", "a/notes.txt", BOX ":/tmp");
	gives(0, "", "");
	missing(STAT("%2Fnew%2F"));
	answer("PUT " FS "?path=%2Fnew%2Fnotes.txt&mode=0644", "{}");
	panda("cp", "a/notes.txt", BOX ":/new/");
	gives(0, "", "");
}

static void odd_names_stay_as_they_are(void **state)
{
	static const struct {
		const char *name, *sent;
	} odd[] = {
	    {"a b", "a%20b"},
	    {"a&b=c?d#e", "a%26b%3Dc%3Fd%23e"},
	    {"100%", "100%25"},
	    {"line\nend", "line%0Aend"},
	    {"\xc3\xbc", "%C3%BC"},
	    {"\xff", "%FF"},
	    {"'quoted'", "%27quoted%27"},
	};

	for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
		char request[256], path[64];

		bed_file(odd[i].name, "x", 0, 0644);
		snprintf(request, sizeof(request), "PUT " FS "?path=%%2Ftmp%%2F%s&mode=0644",
		         odd[i].sent);
		snprintf(path, sizeof(path), "./%s", odd[i].name);
		answer(STAT("%2Ftmp"), "{'is_dir':true}");
		answer(request, "{}");
		panda("cp", path, BOX ":/tmp");
		gives(0, "", "");
	}
}

static void a_colon_behind_a_slash_is_no_sandbox(void **state)
{
	bed_file("a:b", "x", 0, 0644);
	missing(STAT("%2Ff"));
	answer("PUT " FS "?path=%2Ff&mode=0644", "{}");
	panda("cp", "./a:b", BOX ":/f");
	gives(0, "", "");
}

static void stdin_goes_in_without_a_known_length(void **state)
{
	bed.in = "piped";
	missing(STAT("%2Ff"));
	answer("PUT " FS "?path=%2Ff", "{}");
	panda("cp", "-", BOX ":/f");
	gives(0, "", "");
	assert_string_equal(bed.asked[1].body, "piped");
	assert_string_equal(bed_field(1, "transfer-encoding"), "chunked");
	answer(STAT("%2Ftmp"), "{'is_dir':true}");
	panda("cp", "-", BOX ":/tmp");
	fails(125, "panda cp: /tmp is a directory: name the file\n");
}

static void a_directory_goes_in_with_all_that_is_in_it(void **state)
{
	bed_file("d/one", "1", 0, 0600);
	bed_mkdir("d/sub");
	link_to("one", "d/sub/link");
	missing(STAT("%2Fd"));
	answer("POST " FS "/mkdir", "{}");
	reply(.request = "POST " FS "/mkdir", .any_time = true, .json = "{}");
	reply(.request = "POST " FS "/symlink", .any_time = true, .json = "{}");
	reply(.request = "PUT " FS "?path=%2Fd%2Fone&mode=0600", .any_time = true, .json = "{}");
	panda("cp", "-r", "d", BOX ":/d");
	gives(0, "", "");
	sent(1, "{'path':'/d','mode':'0755','parents':true}");
	for (size_t i = 2; i < bed.nasked; i++)
		if (strstr(bed.asked[i].line, "symlink"))
			sent(i, "{'target':'one','path':'/d/sub/link'}");
		else if (strstr(bed.asked[i].line, "mkdir"))
			sent(i, "{'path':'/d/sub','mode':'0755','parents':true}");
}

static void a_directory_wants_to_be_asked_for(void **state)
{
	bed_mkdir("d");
	missing(STAT("%2Fd"));
	panda("cp", "d", BOX ":/d");
	fails(125, "panda: d is a directory: panda cp -r copies it\n");
	answer(STAT("%2Fd"), "{'is_dir':true}");
	panda("cp", BOX ":/d", "here");
	fails(125, "panda: /d is a directory: panda cp -r copies it\n");
}

static void a_link_that_is_named_is_what_it_points_to(void **state)
{
	bed_file("real", "data", 0, 0600);
	link_to("real", "link");
	missing(STAT("%2Ff"));
	answer("PUT " FS "?path=%2Ff&mode=0600", "{}");
	panda("cp", "link", BOX ":/f");
	gives(0, "", "");
	assert_string_equal(bed.asked[1].body, "data");
}

static void what_is_neither_file_nor_directory_is_left_out(void **state)
{
	char path[128];

	bed_mkdir("d");
	snprintf(path, sizeof(path), "%s/d/fifo", bed.dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	missing(STAT("%2Fd"));
	answer("POST " FS "/mkdir", "{}");
	panda("cp", "-r", "d", BOX ":/d");
	gives(0, "", "panda: fifo is neither file nor directory: left out\n");
}

static void a_file_that_is_refused_does_not_keep_the_others_here(void **state)
{
	bed_file("d/one", "1", 0, 0644);
	bed_file("d/two", "2", 0, 0644);
	missing(STAT("%2Fd"));
	answer("POST " FS "/mkdir", "{}");
	reply(.request = "PUT " FS "?path=%2Fd%2Fone&mode=0644", .any_time = true, .status = 507,
	      .json = "{'error':'the disk is full'}");
	reply(.request = "PUT " FS "?path=%2Fd%2Ftwo&mode=0644", .any_time = true, .json = "{}");
	panda("cp", "-r", "--json", "d", BOX ":/d");
	assert_int_equal(bed.code, 125);
	assert_string_equal(bed.out, "{\n  \"files\": 1,\n  \"failed\": 1\n}\n");
}

static void a_server_that_answers_before_the_end_is_heard(void **state)
{
	autofree char *data = calloc(1, 2 << 20);

	bed_file("big", data, 2 << 20, 0644);
	missing(STAT("%2Fbig"));
	reply(.request = "PUT " FS "?path=%2Fbig&mode=0644", .status = 507, .early = true,
	      .json = "{'error':'the disk is full'}");
	panda("cp", "big", BOX ":/big");
	fails(125, "panda: the disk is full\n");
}

static void names_that_are_not_utf8_cannot_be_made_directories(void **state)
{
	bed_mkdir("d\xff");
	missing(STAT("%2Fd%FF"));
	panda("cp", "-r", "d\xff", BOX ":/d\xff");
	fails(125, "panda: that name is not UTF-8\n");
}

static void what_is_not_there_is_named(void **state)
{
	missing(STAT("%2Ff"));
	panda("cp", "nothing", BOX ":/f");
	fails(125, "panda: cannot read nothing: No such file or directory\n");
}

/* ---- out ---- */

static void a_file_comes_out_with_its_permissions(void **state)
{
	static const char data[] = "bytes\0\xff";
	size_t n;
	const char *file;

	answer(STAT("%2Fetc%2Fx"), "{'is_dir':false,'perm':'4751'}");
	reply(.request = READ("%2Fetc%2Fx"), .bytes = data, .len = sizeof(data));
	panda("cp", BOX ":/etc/x", "y");
	gives(0, "", "");
	file = bed_content("y", &n);
	assert_int_equal(n, sizeof(data));
	assert_memory_equal(file, data, n);
	assert_int_equal(bed_mode("y"), 0751); /* never setuid */
	assert_int_equal(bed_entries("."), 1);
}

static void an_empty_file_comes_out_empty(void **state)
{
	size_t n = 7;

	answer(STAT("%2Fe"), "{'perm':'0644'}");
	reply(.request = READ("%2Fe"), .bytes = "");
	panda("cp", BOX ":/e", ".");
	gives(0, "", "");
	assert_non_null(bed_content("e", &n));
	assert_int_equal(n, 0);
}

static void out_into_a_directory_it_keeps_its_name(void **state)
{
	bed_mkdir("dir");
	answer(STAT("%2Fetc%2Fhosts"), "{}");
	reply(.request = READ("%2Fetc%2Fhosts"), .bytes = "h");
	panda("cp", BOX ":/etc/hosts", "dir/");
	gives(0, "", "");
	assert_string_equal(bed_content("dir/hosts", NULL), "h");
}

static void a_file_that_was_there_is_replaced_in_one_step(void **state)
{
	bed_file("x", "old", 0, 0444);
	answer(STAT("%2Fx"), "{'perm':'0600'}");
	reply(.request = READ("%2Fx"), .bytes = "new");
	panda("cp", BOX ":/x", "x");
	gives(0, "", "");
	assert_string_equal(bed_content("x", NULL), "new");
}

static void half_a_file_is_none_and_the_old_one_stays(void **state)
{
	bed_file("x", "old", 0, 0644);
	answer(STAT("%2Fx"), "{}");
	reply(.request = READ("%2Fx"), .bytes = "ne", .cut = true);
	panda("cp", BOX ":/x", "x");
	fails(125, "in the middle of a reply");
	assert_string_equal(bed_content("x", NULL), "old");
	assert_int_equal(bed_entries("."), 1);
}

static void a_dash_is_stdout(void **state)
{
	reply(.request = READ("%2Fx"), .bytes = "data");
	panda("cp", BOX ":/x", "-");
	gives(0, "data", "");
	reply(.request = READ("%2Fx"), .bytes = "data");
	panda("cp", "--json", BOX ":/x", "-");
	gives(0, "data", ""); /* and nothing behind it that the file does not have */
	bed.full = true;
	reply(.request = READ("%2Fx"), .bytes = "data");
	panda("cp", BOX ":/x", "-");
	fails(125, "panda: cannot write standard output: No space left on device\n");
}

static void a_device_that_was_named_is_written_to(void **state)
{
	answer(STAT("%2Fx"), "{}");
	reply(.request = READ("%2Fx"), .bytes = "data");
	panda("cp", BOX ":/x", "/dev/stdout");
	gives(0, "data", "");
}

static void a_directory_that_is_not_there_is_named(void **state)
{
	answer(STAT("%2Fx"), "{}");
	panda("cp", BOX ":/x", "no/where/x");
	fails(125, "panda: cannot write into no/where/: No such file or directory\n");
	missing(STAT("%2Fx"));
	panda("cp", BOX ":/x", "x");
	fails(125, "panda: no such file\n");
	assert_int_equal(bed_entries("."), 0);
}

static void a_directory_comes_out_with_all_that_is_in_it(void **state)
{
	answer(STAT("%2Fd"), "{'is_dir':true,'perm':'0500'}");
	answer(LIST_OF("%2Fd"),
	       "{'entries':[{'name':'f','mode':'f','perm':'0640'},{'name':'s','mode':'d',"
	       "'is_dir':true,'perm':'0700'},{'name':'l','mode':'l','target':'f'},"
	       "{'name':'dev','mode':'c'}]}");
	reply(.request = READ("%2Fd%2Ff"), .bytes = "one");
	answer(LIST_OF("%2Fd%2Fs"), "{'entries':[{'name':'g','mode':'f'}]}");
	reply(.request = READ("%2Fd%2Fs%2Fg"), .bytes = "two");
	panda("cp", "-r", BOX ":/d", "here");
	gives(0, "", "");
	assert_string_equal(bed_content("here/f", NULL), "one");
	assert_int_equal(bed_mode("here/f"), 0640);
	assert_string_equal(bed_content("here/s/g", NULL), "two");
	assert_string_equal(link_at("here/l"), "f");
	assert_int_equal(bed_entries("here"), 3);
	assert_int_equal(bed_mode("here"), 0500);
}

static void a_directory_comes_out_below_one_that_is_there(void **state)
{
	bed_mkdir("here");
	answer(STAT("%2Fa%2Fd%2F"), "{'is_dir':true}");
	answer(LIST_OF("%2Fa%2Fd%2F"), "{'entries':[]}");
	panda("cp", "-r", BOX ":/a/d/", "here");
	gives(0, "", "");
	assert_int_equal(bed_entries("here/d"), 0);
	answer(STAT("%2F"), "{'is_dir':true}");
	answer(LIST_OF("%2F"), "{'entries':[]}");
	panda("cp", "-r", BOX ":/", "here");
	gives(0, "", "");
	assert_int_equal(bed_entries("here/root"), 0);
}

static void names_of_guests_do_not_lead_out_of_the_directory(void **state)
{
	answer(STAT("%2Fd"), "{'is_dir':true}");
	answer(LIST_OF("%2Fd"),
	       "{'entries':[{'name':'../out','mode':'f'},{'name':'..','mode':'d','is_dir':true},"
	       "{'name':'.','mode':'d','is_dir':true},{'name':'','mode':'f'},"
	       "{'name':'/etc/x','mode':'f'},{'mode':'f'}]}");
	panda("cp", "-r", BOX ":/d", "here");
	assert_int_equal(bed.code, 125);
	assert_non_null(strstr(bed.err, "cannot take a file with the name ../out: Invalid"));
	assert_int_equal(bed_entries("here"), 0);
	assert_int_equal(bed_entries("."), 1);
}

static void a_link_of_a_guest_is_not_followed(void **state)
{
	bed_mkdir("outside");
	answer(STAT("%2Fd"), "{'is_dir':true}");
	answer(
	    LIST_OF("%2Fd"),
	    "{'entries':[{'name':'l','mode':'l','target':'../outside'},"
	    "{'name':'l','mode':'d','is_dir':true},{'name':'m','mode':'l','target':'../outside/x'},"
	    "{'name':'m','mode':'f'}]}");
	answer(LIST_OF("%2Fd%2Fl"), "{'entries':[{'name':'x','mode':'f'}]}");
	reply(.request = READ("%2Fd%2Fm"), .bytes = "data");
	panda("cp", "-r", BOX ":/d", "here");
	assert_int_equal(bed.code, 125);
	assert_int_equal(bed_entries("outside"), 0);
	assert_string_equal(bed_content("here/m", NULL), "data"); /* in place of the link */
}

static void a_link_that_changed_inside_changes_here(void **state)
{
	bed_mkdir("here");
	link_to("old", "here/l");
	bed_file("here/was-a-file", "x", 0, 0644);
	answer(STAT("%2Fd%2F."), "{'is_dir':true}");
	answer(LIST_OF("%2Fd%2F."), "{'entries':[{'name':'l','mode':'l','target':'new'},"
	                            "{'name':'was-a-file','mode':'l','target':'new'}]}");
	panda("cp", "-r", BOX ":/d/.", "here");
	gives(0, "", "");
	assert_string_equal(link_at("here/l"), "new");
	assert_string_equal(link_at("here/was-a-file"), "new");
	assert_int_equal(bed_entries("here"), 2);
}

static void a_link_does_not_replace_a_directory(void **state)
{
	bed_mkdir("here/l");
	answer(STAT("%2Fd%2F."), "{'is_dir':true}");
	answer(LIST_OF("%2Fd%2F."), "{'entries':[{'name':'l','mode':'l','target':'new'}]}");
	panda("cp", "-r", BOX ":/d/.", "here");
	fails(125, "panda: cannot write l: Is a directory\n");
	assert_int_equal(bed_entries("here"), 1);
}

static void an_error_deep_inside_is_told(void **state)
{
	answer(STAT("%2Fd"), "{'is_dir':true}");
	answer(LIST_OF("%2Fd"), "{'entries':[{'name':'d','is_dir':true}]}");
	answer(LIST_OF("%2Fd%2Fd"), "{'entries':[{'name':'d','is_dir':true}]}");
	missing(LIST_OF("%2Fd%2Fd%2Fd"));
	panda("cp", "-r", BOX ":/d", "here");
	fails(125, "panda: no such file\n");
}

static void a_file_that_cannot_come_out_does_not_keep_the_others_inside(void **state)
{
	answer(STAT("%2Fd"), "{'is_dir':true}");
	answer(LIST_OF("%2Fd"), "{'entries':[{'name':'a','mode':'f'},{'name':'b','mode':'f'}]}");
	bed_refuse(READ("%2Fd%2Fa"), 403, "forbidden", "not yours");
	reply(.request = READ("%2Fd%2Fb"), .bytes = "b");
	panda("cp", "-r", BOX ":/d", "here");
	fails(125, "panda: not yours\n");
	assert_string_equal(bed_content("here/b", NULL), "b");
	assert_int_equal(bed_entries("here"), 1);
}

/* ---- which way ---- */

static void exactly_one_side_is_in_a_sandbox(void **state)
{
	panda("cp", "a", "b");
	fails(125, "panda cp: one of both must be in a sandbox: ID:/path\n");
	panda("cp", "x:/a", "y:/b");
	fails(125, "panda cp: one of both must be a file of this host\n");
	panda("cp", ":/a", "b");
	fails(125, "one of both must be in a sandbox");
	panda("cp", "a");
	fails(125, "panda cp: it needs [OPTION]... FROM TO\n");
}

static void paths_in_a_sandbox_are_absolute(void **state)
{
	panda("cp", "web:a", "b");
	fails(125, "panda cp: paths in a sandbox begin with '/': web:/a\n");
	panda("cp", "a", "web:");
	fails(125, "paths in a sandbox begin with '/'");
}

static void the_sandbox_may_have_a_name(void **state)
{
	answer("GET /v1/sandboxes", LIST);
	reply(.request = READ("%2Fx"), .bytes = "x");
	panda("cp", "web:/x", "-");
	gives(0, "x", "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(a_file_goes_in_with_its_permissions),
	    bed_test(an_empty_file_is_a_file_too),
	    bed_test(a_large_file_arrives_whole),
	    bed_test(into_a_directory_a_file_keeps_its_name),
	    bed_test(odd_names_stay_as_they_are),
	    bed_test(a_colon_behind_a_slash_is_no_sandbox),
	    bed_test(stdin_goes_in_without_a_known_length),
	    bed_test(a_directory_goes_in_with_all_that_is_in_it),
	    bed_test(a_directory_wants_to_be_asked_for),
	    bed_test(a_link_that_is_named_is_what_it_points_to),
	    bed_test(what_is_neither_file_nor_directory_is_left_out),
	    bed_test(a_file_that_is_refused_does_not_keep_the_others_here),
	    bed_test(a_server_that_answers_before_the_end_is_heard),
	    bed_test(names_that_are_not_utf8_cannot_be_made_directories),
	    bed_test(what_is_not_there_is_named),
	    bed_test(a_file_comes_out_with_its_permissions),
	    bed_test(an_empty_file_comes_out_empty),
	    bed_test(out_into_a_directory_it_keeps_its_name),
	    bed_test(a_file_that_was_there_is_replaced_in_one_step),
	    bed_test(half_a_file_is_none_and_the_old_one_stays),
	    bed_test(a_dash_is_stdout),
	    bed_test(a_device_that_was_named_is_written_to),
	    bed_test(a_directory_that_is_not_there_is_named),
	    bed_test(a_directory_comes_out_with_all_that_is_in_it),
	    bed_test(a_directory_comes_out_below_one_that_is_there),
	    bed_test(names_of_guests_do_not_lead_out_of_the_directory),
	    bed_test(a_link_of_a_guest_is_not_followed),
	    bed_test(a_link_that_changed_inside_changes_here),
	    bed_test(a_link_does_not_replace_a_directory),
	    bed_test(an_error_deep_inside_is_told),
	    bed_test(a_file_that_cannot_come_out_does_not_keep_the_others_inside),
	    bed_test(exactly_one_side_is_in_a_sandbox),
	    bed_test(paths_in_a_sandbox_are_absolute),
	    bed_test(the_sandbox_may_have_a_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
