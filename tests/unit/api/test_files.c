/*
 * api/routes/files.c and directories.c, as clients see them
 */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/macro.h"

static void a_file_is_written_read_and_looked_at(void **state)
{
	const char *id = sandbox_made(NULL);

	assert_int_equal(ask_bytes("a\0b\n", 4, "PUT /v1/sandboxes/%s/fs?path=/a/b/c.txt", id),
	                 200);
	body_is("{\"path\":\"/a/b/c.txt\",\"bytes\":4}");
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/a/b/c.txt", id);
	assert_int_equal(bed.len, 4);
	assert_memory_equal(bed.body, "a\0b\n", 4);
	assert_string_equal(header("Content-Type"), "application/octet-stream");
	assert_string_equal(header("Content-Length"), "4");
	assert_string_equal(header("Accept-Ranges"), "bytes");
	good(200, NULL, "GET /v1/sandboxes/%s/fs/stat?path=/a/b/c.txt", id);
	has("{'name':'c.txt','path':'/a/b/c.txt','is_dir':false,'size':4,'mode':'f','perm':'0644',"
	    "'uid':0,'gid':0}");
	assert_true(number_of("mtime") > 1700000000);
	good(200, NULL, "GET /v1/sandboxes/%s/fs/stat?path=/a/b", id);
	has("{'name':'b','is_dir':true,'mode':'d'}");
	good(200, NULL, "GET /v1/sandboxes/%s/fs/stat?path=/", id);
	has("{'name':'/','is_dir':true}");
}

static void a_head_says_the_length_and_reads_nothing(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;

	put_file(id, "/f", "twelve bytes");
	c = stream(200, NULL, "HEAD /v1/sandboxes/%s/fs?path=/f", id);
	assert_non_null(strstr(c->in, "Content-Length: 12\r\n"));
	client_leave(c);
	c = stream(404, NULL, "HEAD /v1/sandboxes/%s/fs?path=/g", id);
	assert_int_equal(client_body_len(c), 0);
	client_leave(c);
	c = stream(400, NULL, "HEAD /v1/sandboxes/%s/fs?path=/", id);
	assert_int_equal(client_body_len(c), 0);
}

static void a_part_of_a_file_is_had_by_its_range(void **state)
{
	static const struct {
		const char *range;
		int status;
		const char *content_range, *body;
	} want[] = {
	    {"bytes=0-3", 206, "bytes 0-3/10", "0123"},
	    {"bytes=4-", 206, "bytes 4-9/10", "456789"},
	    {"bytes=8-100", 206, "bytes 8-9/10", "89"},
	    {"bytes=9-9", 206, "bytes 9-9/10", "9"},
	    {"bytes=-3", 206, "bytes 7-9/10", "789"},
	    {"bytes=-100", 206, "bytes 0-9/10", "0123456789"},
	    /* What we do not understand is as if it were not there. */
	    {"bytes=0-1,4-5", 200, "", "0123456789"},
	    {"bytes=5-4", 200, "", "0123456789"},
	    {"bytes=-0", 200, "", "0123456789"},
	    {"bytes=-", 200, "", "0123456789"},
	    {"bytes=a-b", 200, "", "0123456789"},
	    {"bytes=1-2x", 200, "", "0123456789"},
	    {"lines=1-2", 200, "", "0123456789"},
	    {"bytes=99999999999999999999-", 200, "", "0123456789"},
	};
	const char *id = sandbox_made(NULL);

	put_file(id, "/f", "0123456789");
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		with("Range: %s", want[i].range);
		good(want[i].status, NULL, "GET /v1/sandboxes/%s/fs?path=/f", id);
		body_is(want[i].body);
		assert_string_equal(header("Content-Range"), want[i].content_range);
	}
	with("Range: bytes=10-");
	bad(416, "bad_range", "10 bytes", NULL, "GET /v1/sandboxes/%s/fs?path=/f", id);
	assert_string_equal(header("Content-Range"), "bytes */10");
}

static void a_range_of_nothing_is_the_whole_nothing(void **state)
{
	const char *id = sandbox_made(NULL);

	put_file(id, "/empty", "");
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/empty", id);
	body_is("");
	with("Range: bytes=0-5");
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/empty", id);
	with("Range: bytes=-5");
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/empty", id);
	body_is("");
	with("Range: bytes=-5");
	bad(404, "file_not_found", "/gone", NULL, "GET /v1/sandboxes/%s/fs?path=/gone", id);
}

static void paths_that_are_none_are_refused(void **state)
{
	static const char *const where[] = {"GET", "PUT", "DELETE"};
	const char *id = sandbox_made(NULL);
	autofree char *deep = malloc(5000);

	memset(deep, 'a', 4500);
	deep[0] = '/';
	deep[4500] = 0;
	for (size_t i = 0; i < ARRAY_LEN(where); i++) {
		bad(400, "bad_path", "required", NULL, "%s /v1/sandboxes/%s/fs", where[i], id);
		bad(400, "bad_path", "required", NULL, "%s /v1/sandboxes/%s/fs?path=", where[i],
		    id);
		bad(400, "bad_path", "relative", NULL, "%s /v1/sandboxes/%s/fs?path=a/b", where[i],
		    id);
		bad(400, "bad_path", "4095", NULL, "%s /v1/sandboxes/%s/fs?path=%s", where[i], id,
		    deep);
	}
	bad(400, "bad_path", "relative", NULL, "GET /v1/sandboxes/%s/fs/stat?path=a", id);
	bad(400, "bad_path", "relative", NULL, "GET /v1/sandboxes/%s/fs/dir?path=a", id);
	bad(400, "bad_path", "required", NULL, "GET /v1/sandboxes/%s/fs/watch", id);
	bad(400, "bad_path", "required", "{}", "POST /v1/sandboxes/%s/fs/mkdir", id);
	bad(400, "bad_path", "path", "{'path':'x'}", "POST /v1/sandboxes/%s/fs/mkdir", id);
	bad(400, "bad_request", "path", "{'path':5}", "POST /v1/sandboxes/%s/fs/mkdir", id);
	bad(400, "bad_path", "from", "{'to':'/x'}", "POST /v1/sandboxes/%s/fs/rename", id);
	bad(400, "bad_path", "to", "{'from':'/x','to':'y'}", "POST /v1/sandboxes/%s/fs/rename", id);
	bad(400, "bad_path", "path", "{'mode':'0644'}", "POST /v1/sandboxes/%s/fs/chmod", id);
	bad(400, "bad_path", "path", "{'target':'/x'}", "POST /v1/sandboxes/%s/fs/symlink", id);
	bad(400, "bad_path", "root", NULL, "DELETE /v1/sandboxes/%s/fs?path=/", id);
	bad(400, "bad_path", "root", NULL, "DELETE /v1/sandboxes/%s/fs?path=/.././/", id);
}

static void files_that_are_not_there_are_404_and_directories_are_no_files(void **state)
{
	const char *id = sandbox_made(NULL);

	put_file(id, "/d/f", "x");
	bad(404, "file_not_found", "/nope", NULL, "GET /v1/sandboxes/%s/fs?path=/nope", id);
	bad(404, "file_not_found", "/nope", NULL, "GET /v1/sandboxes/%s/fs/stat?path=/nope", id);
	bad(404, "file_not_found", "/nope", NULL, "GET /v1/sandboxes/%s/fs/dir?path=/nope", id);
	bad(404, "file_not_found", "/nope", NULL, "GET /v1/sandboxes/%s/fs/watch?path=/nope", id);
	bad(404, "file_not_found", "/nope", NULL, "DELETE /v1/sandboxes/%s/fs?path=/nope", id);
	bad(404, "file_not_found", "", "{'from':'/nope','to':'/x'}",
	    "POST /v1/sandboxes/%s/fs/rename", id);
	bad(404, "file_not_found", "/nope", "{'path':'/nope','mode':'0644'}",
	    "POST /v1/sandboxes/%s/fs/chmod", id);
	bad(400, "is_a_directory", "/d", NULL, "GET /v1/sandboxes/%s/fs?path=/d", id);
	bad(400, "not_a_directory", "/d/f", NULL, "GET /v1/sandboxes/%s/fs/dir?path=/d/f", id);
}

static void a_write_replaces_appends_and_sets_the_mode(void **state)
{
	const char *id = sandbox_made(NULL);

	assert_int_equal(ask_bytes("one", 3, "PUT /v1/sandboxes/%s/fs?path=/f&mode=0600", id), 200);
	assert_int_equal(ask_bytes("two", 3, "PUT /v1/sandboxes/%s/fs?path=/f", id), 200);
	assert_int_equal(ask_bytes("+three", 6, "PUT /v1/sandboxes/%s/fs?path=/f&append=1", id),
	                 200);
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/f", id);
	body_is("two+three");
	good(200, NULL, "GET /v1/sandboxes/%s/fs/stat?path=/f", id);
	has("{'perm':'0600','size':9}");
	good(200, "", "PUT /v1/sandboxes/%s/fs?path=/f", id);
	has("{'bytes':0}");
	bad(400, "bad_request", "octal", "x", "PUT /v1/sandboxes/%s/fs?path=/f&mode=888", id);
	bad(400, "bad_request", "octal", "x", "PUT /v1/sandboxes/%s/fs?path=/f&mode=0", id);
	bad(400, "bad_request", "octal", "x", "PUT /v1/sandboxes/%s/fs?path=/f&mode=17777", id);
	bad(400, "bad_request", "octal", "x", "PUT /v1/sandboxes/%s/fs?path=/f&mode=rw", id);
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/f", id);
	body_is("");
}

static void a_large_file_goes_in_and_out_whole(void **state)
{
	const size_t n = 3 << 20;
	const char *id = sandbox_made(NULL);
	autofree char *big = malloc(n);

	for (size_t i = 0; i < n; i++)
		big[i] = (char)(i * 7 + (i >> 8));
	assert_int_equal(ask_bytes(big, n, "PUT /v1/sandboxes/%s/fs?path=/dev/shm/big", id), 200);
	has("{'bytes':%d}", (int)n);
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/dev/shm/big", id);
	assert_int_equal(bed.len, n);
	assert_memory_equal(bed.body, big, n);
	with("Range: bytes=-70000");
	good(206, NULL, "GET /v1/sandboxes/%s/fs?path=/dev/shm/big", id);
	assert_int_equal(bed.len, 70000);
	assert_memory_equal(bed.body, big + n - 70000, 70000);
}

static void a_file_in_chunks_is_one_file(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;

	with("Transfer-Encoding: chunked");
	c = begin(NULL, "PUT /v1/sandboxes/%s/fs?path=/f", id);
	client_send(c, "3\r\nabc\r\n", 8);
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	client_send(c, "2\r\nde\r\n0\r\n\r\n", 12);
	client_answer(c);
	has("{'bytes':5}");
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/f", id);
	body_is("abcde");
}

static void a_write_that_was_not_all_leaves_the_old_file(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;

	put_file(id, "/f", "old");
	with("Content-Length: 100");
	c = begin(NULL, "PUT /v1/sandboxes/%s/fs?path=/f", id);
	client_send(c, "new", 3);
	good(200, NULL, "GET /v1/sandboxes/%s/fs/stat?path=/f", id);
	client_leave(c);
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/f", id);
	body_is("old");
	with("Transfer-Encoding: chunked");
	c = begin(NULL, "PUT /v1/sandboxes/%s/fs?path=/f", id);
	client_send(c, "3\r\nnew\r\nzz\r\n", 12);
	client_answer(c);
	status_is(400);
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/f", id);
	body_is("old");
}

static void a_write_that_the_guest_refuses_says_why(void **state)
{
	const char *id = sandbox_made(NULL);
	static char big[1 << 20];

	bed_rule(&bed.on, "refuse", "{\"write\":{\"err\":28,\"text\":\"full\"}}");
	ask("x", "PUT /v1/sandboxes/%s/fs?path=/f", id);
	refused(507, "disk_full", "cannot write '/f'");
	/* Also when there is more that nobody reads. */
	ask_bytes(big, sizeof(big), "PUT /v1/sandboxes/%s/fs?path=/f", id);
	refused(507, "disk_full", "cannot write '/f'");
	bed_rule(&bed.on, "refuse", "{\"write\":{\"err\":13,\"text\":\"not yours\"}}");
	bad(403, "forbidden", "cannot write '/f'", "x", "PUT /v1/sandboxes/%s/fs?path=/f", id);
}

static void a_reader_that_goes_away_and_a_slow_one_cost_nothing(void **state)
{
	const size_t n = 3 << 20;
	const char *id = sandbox_made(NULL);
	autofree char *big = calloc(1, n);
	struct client *slow, *gone;

	assert_int_equal(ask_bytes(big, n, "PUT /v1/sandboxes/%s/fs?path=/dev/shm/big", id), 200);
	slow = stream(200, NULL, "GET /v1/sandboxes/%s/fs?path=/dev/shm/big", id);
	client_deaf(slow, true);
	gone = stream(200, NULL, "GET /v1/sandboxes/%s/fs?path=/dev/shm/big", id);
	client_leave(gone);
	for (int i = 0; i < 20; i++)
		good(200, NULL, "GET /v1/sandboxes/%s/fs/stat?path=/dev/shm/big", id);
	assert_false(slow->over);
	client_deaf(slow, false);
	client_answer(slow);
	assert_int_equal(bed.len, n);
}

static void a_reader_of_a_guest_that_dies_sees_that_it_is_not_all(void **state)
{
	const size_t n = 3 << 20;
	const char *id = sandbox_made(NULL);
	autofree char *big = calloc(1, n);
	struct client *c;

	assert_int_equal(ask_bytes(big, n, "PUT /v1/sandboxes/%s/fs?path=/dev/shm/big", id), 200);
	c = stream(200, NULL, "GET /v1/sandboxes/%s/fs?path=/dev/shm/big", id);
	client_deaf(c, true);
	bed_crash_machine(&bed.on, sandbox_of(id));
	client_deaf(c, false);
	client_end(c);
	assert_true(client_body_len(c) < n);
	assert_false(c->over);
}

static void directories_are_made_and_listed_by_name(void **state)
{
	const char *id = sandbox_made(NULL);

	good(201, "{'path':'/d/e','mode':'0700'}", "POST /v1/sandboxes/%s/fs/mkdir", id);
	body_is("{\"path\":\"/d/e\"}");
	good(201, "{'path':'/d/e'}", "POST /v1/sandboxes/%s/fs/mkdir", id);
	bad(409, "exists", "/d/e", "{'path':'/d/e','parents':false}",
	    "POST /v1/sandboxes/%s/fs/mkdir", id);
	bad(404, "file_not_found", "/x/y", "{'path':'/x/y','parents':false}",
	    "POST /v1/sandboxes/%s/fs/mkdir", id);
	bad(400, "bad_request", "parents", "{'path':'/x','parents':1}",
	    "POST /v1/sandboxes/%s/fs/mkdir", id);
	bad(400, "bad_request", "octal", "{'path':'/x','mode':'9'}",
	    "POST /v1/sandboxes/%s/fs/mkdir", id);
	bad(400, "bad_request", "mode", "{'path':'/x','mode':493}",
	    "POST /v1/sandboxes/%s/fs/mkdir", id);
	put_file(id, "/d/z", "zz");
	put_file(id, "/d/a b", "");
	put_file(id, "/d/\xc3\xa4", "");
	good(200, NULL, "GET /v1/sandboxes/%s/fs/dir?path=/d", id);
	has("{'path':'/d','entries':[{'name':'a b','path':'/d/a b','size':0},"
	    "{'name':'e','is_dir':true,'perm':'0700'},{'name':'z','size':2},"
	    "{'name':'\xc3\xa4','path':'/d/\xc3\xa4'}]}");
	good(200, NULL, "GET /v1/sandboxes/%s/fs/dir?path=/d//", id);
	has("{'entries':[{'path':'/d/a b'},{},{'path':'/d/z'},{}]}");
	good(200, NULL, "GET /v1/sandboxes/%s/fs/dir?path=/d/e", id);
	has("{'path':'/d/e','entries':[]}");
	/* Without a path: the root. */
	good(200, NULL, "GET /v1/sandboxes/%s/fs/dir", id);
	has("{'path':'/'}");
}

static void a_huge_directory_is_passed_on_as_it_comes(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *gone;

	good(201, "{'path':'/many'}", "POST /v1/sandboxes/%s/fs/mkdir", id);
	bed_rule(&bed.on, "dir", "{\"/many\":5000}");
	good(200, NULL, "GET /v1/sandboxes/%s/fs/dir?path=/many", id);
	assert_int_equal(json_array_size(json_object_get(bed.json, "entries")), 5000);
	assert_string_equal(header("Content-Length"), "");
	gone = begin(NULL, "GET /v1/sandboxes/%s/fs/dir?path=/many", id);
	client_wait(gone, 1);
	client_leave(gone);
}

static void files_are_renamed_linked_and_their_mode_changed(void **state)
{
	const char *id = sandbox_made(NULL);

	put_file(id, "/a", "aa");
	put_file(id, "/b", "bb");
	bad(409, "exists", "/b", "{'from':'/a','to':'/b','replace':false}",
	    "POST /v1/sandboxes/%s/fs/rename", id);
	good(200, "{'from':'/a','to':'/b'}", "POST /v1/sandboxes/%s/fs/rename", id);
	body_is("{\"path\":\"/b\"}");
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/b", id);
	body_is("aa");
	good(200, "{'path':'/b','mode':'4755'}", "POST /v1/sandboxes/%s/fs/chmod", id);
	good(200, NULL, "GET /v1/sandboxes/%s/fs/stat?path=/b", id);
	has("{'perm':'4755'}");
	bad(400, "bad_request", "mode required", "{'path':'/b'}", "POST /v1/sandboxes/%s/fs/chmod",
	    id);
	good(201, "{'path':'/l','target':'/b'}", "POST /v1/sandboxes/%s/fs/symlink", id);
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/l", id);
	body_is("aa");
	good(200, NULL, "GET /v1/sandboxes/%s/fs/stat?path=/l", id);
	has("{'mode':'f','size':2}");
	good(200, NULL, "GET /v1/sandboxes/%s/fs/stat?path=/l&follow=0", id);
	has("{'mode':'l','target':'/b'}");
	bad(400, "bad_request", "target required", "{'path':'/l'}",
	    "POST /v1/sandboxes/%s/fs/symlink", id);
	bad(400, "bad_request", "target", "{'path':'/l','target':''}",
	    "POST /v1/sandboxes/%s/fs/symlink", id);
}

static void a_tree_is_deleted_as_a_whole(void **state)
{
	const char *id = sandbox_made(NULL);

	put_file(id, "/d/e/f", "x");
	put_file(id, "/dd", "x");
	good(204, NULL, "DELETE /v1/sandboxes/%s/fs?path=/d", id);
	bad(404, "file_not_found", "", NULL, "GET /v1/sandboxes/%s/fs/stat?path=/d/e/f", id);
	good(200, NULL, "GET /v1/sandboxes/%s/fs/stat?path=/dd", id);
}

/* ---- watching ---- */

static void changes_below_a_path_are_told(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;

	good(201, "{'path':'/w/deep'}", "POST /v1/sandboxes/%s/fs/mkdir", id);
	c = stream(200, NULL, "GET /v1/sandboxes/%s/fs/watch?path=/w", id);
	event(c, "ready");
	assert_int_equal(ask_bytes("x", 1, "PUT /v1/sandboxes/%s/fs?path=/w/f", id), 200);
	json_has(event(c, "change"), "{'type':'written','path':'/w/f','is_dir':false,'cookie':0}");
	good(201, "{'path':'/w/d'}", "POST /v1/sandboxes/%s/fs/mkdir", id);
	json_has(event(c, "change"), "{'type':'created','path':'/w/d','is_dir':true}");
	good(200, "{'from':'/w/f','to':'/w/g'}", "POST /v1/sandboxes/%s/fs/rename", id);
	json_has(event(c, "change"), "{'type':'moved_from','path':'/w/f'}");
	json_has(event(c, "change"), "{'type':'moved_to','path':'/w/g'}");
	good(200, "{'path':'/w/g','mode':'0600'}", "POST /v1/sandboxes/%s/fs/chmod", id);
	json_has(event(c, "change"), "{'type':'attrib','path':'/w/g'}");
	/* Deeper ones only for who wants the whole tree. */
	put_file(id, "/w/deep/er", "x");
	good(204, NULL, "DELETE /v1/sandboxes/%s/fs?path=/w/g", id);
	json_has(event(c, "change"), "{'type':'deleted','path':'/w/g'}");
	client_leave(c);
	c = stream(200, NULL, "GET /v1/sandboxes/%s/fs/watch?path=/w/&recursive=1", id);
	event(c, "ready");
	client_leave(c);
	c = stream(200, NULL, "GET /v1/sandboxes/%s/fs/watch?path=/w&recursive=1", id);
	event(c, "ready");
	put_file(id, "/w/deep/er", "y");
	json_has(event(c, "change"), "{'type':'written','path':'/w/deep/er'}");
}

static void a_watch_keeps_nobody_from_ending(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = stream(200, NULL, "GET /v1/sandboxes/%s/fs/watch?path=/", id);

	event(c, "ready");
	assert_non_null(bed.api ? bed.server : NULL);
	api_drain(bed.api);
	assert_string_equal(event_any(c), "");
	assert_true(c->over);
}

static void a_watch_ends_with_its_sandbox(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = stream(200, NULL, "GET /v1/sandboxes/%s/fs/watch?path=/", id);

	event(c, "ready");
	good(204, NULL, "DELETE /v1/sandboxes/%s", id);
	event(c, "error");
	assert_string_equal(event_any(c), "");
}

static void a_long_path_in_an_error_stays_text(void **state)
{
	const char *id = sandbox_made(NULL);
	char sent[740];

	for (size_t shift = 0; shift < 3; shift++) { /* so that one of them is cut in a character */
		memcpy(sent, "/aa", 4);
		for (size_t i = 0; i < 80; i++)
			memcpy(sent + 1 + shift + 9 * i, "%e2%82%ac", 10);
		bad(404, "file_not_found", "\xe2\x82\xac", NULL, "GET /v1/sandboxes/%s/fs?path=%s",
		    id, sent);
		bad(404, "file_not_found", "\xe2\x82\xac", NULL,
		    "GET /v1/sandboxes/%s/fs/watch?path=%s", id, sent);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(a_file_is_written_read_and_looked_at),
	    api_test(a_head_says_the_length_and_reads_nothing),
	    api_test(a_part_of_a_file_is_had_by_its_range),
	    api_test(a_range_of_nothing_is_the_whole_nothing),
	    api_test(paths_that_are_none_are_refused),
	    api_test(files_that_are_not_there_are_404_and_directories_are_no_files),
	    api_test(a_write_replaces_appends_and_sets_the_mode),
	    api_test(a_large_file_goes_in_and_out_whole),
	    api_test(a_file_in_chunks_is_one_file),
	    api_test(a_write_that_was_not_all_leaves_the_old_file),
	    api_test(a_write_that_the_guest_refuses_says_why),
	    api_test(a_reader_that_goes_away_and_a_slow_one_cost_nothing),
	    api_test(a_reader_of_a_guest_that_dies_sees_that_it_is_not_all),
	    api_test(directories_are_made_and_listed_by_name),
	    api_test(a_huge_directory_is_passed_on_as_it_comes),
	    api_test(files_are_renamed_linked_and_their_mode_changed),
	    api_test(a_tree_is_deleted_as_a_whole),
	    api_test(changes_below_a_path_are_told),
	    api_test(a_watch_keeps_nobody_from_ending),
	    api_test(a_watch_ends_with_its_sandbox),
	    api_test(a_long_path_in_an_error_stays_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
