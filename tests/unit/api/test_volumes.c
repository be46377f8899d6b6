/*
 * api/routes/volumes.c and templates.c, as clients see them: what outlives a sandbox
 */
#include "bed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/macro.h"

/* ---- volumes ---- */

static void a_volume_is_made_shown_grown_and_deleted(void **state)
{
	good(201, "{'name':'data','size_mb':16}", "POST /v1/volumes");
	has("{'name':'data','id':'data','kind':'volume','source':null,'size_mb':16,"
	    "'size_bytes':16777216,'mounted_by':[]}");
	good(200, NULL, "GET /v1/volumes/data");
	has("{'name':'data'}");
	good(201, "{'name':'Big.1_x-y'}", "POST /v1/volumes");
	has("{'size_mb':256}");
	good(200, NULL, "GET /v1/volumes");
	has("[{'name':'Big.1_x-y'},{'name':'data'}]");
	good(200, "{'size_mb':32}", "PATCH /v1/volumes/data");
	has("{'size_mb':32}");
	good(200, "{'size_gb':1}", "PATCH /v1/volumes/data");
	has("{'size_mb':1024}");
	bad(400, "bad_request", "", "{'size_mb':16}", "PATCH /v1/volumes/data");
	good(204, NULL, "DELETE /v1/volumes/data");
	bad(404, "volume_not_found", "data", NULL, "GET /v1/volumes/data");
	bad(404, "volume_not_found", "data", NULL, "DELETE /v1/volumes/data");
	bad(404, "volume_not_found", "data", "{'size_mb':64}", "PATCH /v1/volumes/data");
}

static void what_is_asked_of_a_volume_is_checked(void **state)
{
	static const char *const wrong[][2] = {
	    {"{}", "name"},
	    {"{'name':5}", "name"},
	    {"{'name':''}", "name"},
	    {"{'name':'a/b'}", "name"},
	    {"{'name':'..'}", ""},
	    {"{'name':'v','size_mb':0}", "size_mb"},
	    {"{'name':'v','size_mb':'16'}", "size_mb"},
	    {"{'name':'v','size_mb':1}", "size_mb"},
	    {"{'name':'v','size_gb':65}", "size_gb"},
	    {"{'name':'v','from':5}", "from"},
	};
	char body[200];

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		bad(400, "bad_request", wrong[i][1], wrong[i][0], "POST /v1/volumes");
	snprintf(body, sizeof(body), "{'name':'%065d'}", 0);
	bad(400, "bad_request", "name", body, "POST /v1/volumes");
	good(201, "{'name':'v','size_mb':16}", "POST /v1/volumes");
	bad(409, "exists", "v", "{'name':'v','size_mb':16}", "POST /v1/volumes");
	bad(400, "bad_request", "size_mb", "{}", "PATCH /v1/volumes/v");
	bad(400, "bad_request", "size_mb", "{'size_mb':'x'}", "PATCH /v1/volumes/v");
	bad(404, "volume_not_found", "w", "{'name':'c','from':'w'}", "POST /v1/volumes");
	good(200, NULL, "GET /v1/volumes");
	has("[{'name':'v'}]");
}

static void volumes_of_others_are_not_there(void **state)
{
	good(201, "{'name':'mine','size_mb':16}", "POST /v1/volumes");
	as(bed.other);
	bad(404, "volume_not_found", "", NULL, "GET /v1/volumes/mine");
	as(bed.other);
	bad(404, "volume_not_found", "", NULL, "DELETE /v1/volumes/mine");
	as(bed.other);
	good(200, NULL, "GET /v1/volumes");
	body_is("[]");
	as(bed.other);
	good(201, "{'name':'mine','size_mb':16}", "POST /v1/volumes");
}

static void a_sandbox_has_volumes_from_its_beginning_or_later(void **state)
{
	const char *id, *second;

	good(201, "{'name':'a','size_mb':16}", "POST /v1/volumes");
	good(201, "{'name':'b','size_mb':16}", "POST /v1/volumes");
	id = sandbox_made("{'volumes':[{'name':'a','path':'/data'}]}");
	has("{'volumes':[{'name':'a','path':'/data','read_only':false,'copy':false}]}");
	good(200, NULL, "GET /v1/volumes/a");
	has("{'mounted_by':['%s']}", id);
	put_file(id, "/data/f", "kept");
	good(201, "{'id':'b','readonly':true}", "POST /v1/sandboxes/%s/volumes", id);
	has("[{'name':'a'},{'name':'b','path':'/mnt/b','read_only':true}]");
	good(200, NULL, "GET /v1/sandboxes/%s/volumes", id);
	has("[{'name':'a'},{'name':'b'}]");
	bad(409, "volume_busy", "a", NULL, "DELETE /v1/volumes/a");
	bad(409, "volume_busy", "a", "{'volumes':['a']}", "POST /v1/sandboxes");
	good(204, NULL, "DELETE /v1/sandboxes/%s/volumes/a", id);
	bad(404, "volume_not_found", "a", NULL, "DELETE /v1/sandboxes/%s/volumes/a", id);
	second = sandbox_made("{'volumes':['a']}");
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/mnt/a/f", second);
	body_is("kept");
}

static void a_volume_in_use_is_let_go_by_force_only(void **state)
{
	const char *id;

	good(201, "{'name':'a','size_mb':16}", "POST /v1/volumes");
	id = sandbox_made("{'volumes':[{'name':'a','path':'/data'}]}");
	good(201, "{'cmd':'sleep','cwd':'/data'}", "POST /v1/sandboxes/%s/execs", id);
	bad(409, "volume_busy", "", NULL, "DELETE /v1/sandboxes/%s/volumes/a", id);
	good(204, NULL, "DELETE /v1/sandboxes/%s/volumes/a?force=1", id);
	good(200, NULL, "GET /v1/sandboxes/%s/volumes", id);
	body_is("[]");
}

static void what_is_asked_of_an_attachment_is_checked(void **state)
{
	static const char *const wrong[] = {"{}",
	                                    "{'name':5}",
	                                    "{'name':''}",
	                                    "{'name':'a','path':'x'}",
	                                    "{'name':'a','path':'/'}",
	                                    "{'name':'a','path':'/x/..'}",
	                                    "{'name':'a','read_only':1}"};
	const char *id = sandbox_made(NULL);

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		bad(400, "bad_request", "volumes", wrong[i], "POST /v1/sandboxes/%s/volumes", id);
	bad(404, "volume_not_found", "a", "{'name':'a'}", "POST /v1/sandboxes/%s/volumes", id);
	good(201, "{'name':'a','size_mb':16}", "POST /v1/volumes");
	bed_rule(&bed.on, "refuse", "{\"mount\":{\"err\":5,\"text\":\"no\"}}");
	assert_true(ask("{'name':'a'}", "POST /v1/sandboxes/%s/volumes", id) >= 400);
	assert_true(strlen(text_of("error")) > 5);
	bed_rule(&bed.on, "refuse", NULL);
	good(200, NULL, "GET /v1/sandboxes/%s/volumes", id);
	body_is("[]");
	good(201, "{'name':'a'}", "POST /v1/sandboxes/%s/volumes", id);
}

static void a_snapshot_of_a_volume_is_a_volume_nobody_writes(void **state)
{
	const char *id, *reader;

	good(201, "{'name':'a','size_mb':16}", "POST /v1/volumes");
	id = sandbox_made("{'volumes':['a']}");
	put_file(id, "/mnt/a/f", "then");
	good(201, "{'name':'s'}", "POST /v1/volumes/a/snapshots");
	has("{'name':'s','kind':'snapshot','source':'a','size_mb':16}");
	put_file(id, "/mnt/a/f", "now");
	good(201, "{}", "POST /v1/volumes/a/snapshots");
	assert_int_equal(strncmp(text_of("name"), "a-20", 4), 0);
	good(200, NULL, "GET /v1/volumes/a/snapshots");
	assert_int_equal(json_array_size(bed.json), 2);
	good(200, NULL, "GET /v1/volumes");
	has("[{'name':'a'}]");
	good(200, NULL, "GET /v1/volumes?snapshots=1");
	assert_int_equal(json_array_size(bed.json), 3);
	reader = sandbox_made("{'volumes':[{'name':'s','read_only':true}]}");
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/mnt/s/f", reader);
	body_is("then");
	good(201, "{'name':'copy','from':'s'}", "POST /v1/volumes");
	has("{'kind':'volume','source':'s'}");
	bad(404, "volume_not_found", "none", NULL, "GET /v1/volumes/none/snapshots");
	bad(404, "volume_not_found", "none", "{}", "POST /v1/volumes/none/snapshots");
	bad(400, "bad_request", "name", "{'name':'a b'}", "POST /v1/volumes/a/snapshots");
	bad(409, "exists", "s", "{'name':'s'}", "POST /v1/volumes/a/snapshots");
}

static void a_quota_of_volumes_stops_a_volume(void **state)
{
	char token[64];

	as(bed.admin);
	good(200, "{'tenant':'q','quota':{'volumes':2,'volumes_mb':40}}", "POST /v1/me/tokens");
	snprintf(token, sizeof(token), "%s", text_of("token"));
	as(token);
	good(201, "{'name':'a','size_mb':32}", "POST /v1/volumes");
	as(token);
	bad(429, "quota_exceeded", "", "{'name':'b','size_mb':16}", "POST /v1/volumes");
	as(token);
	bad(429, "quota_exceeded", "", "{'size_mb':64}", "PATCH /v1/volumes/a");
}

/* ---- templates ---- */

static void templates_are_listed_and_shown(void **state)
{
	sandbox_made(NULL);
	good(200, NULL, "GET /v1/templates");
	has("[{'name':'base','is_global':true,'runner':'shell','aliases':[],'cpu':1,'memory_mb':16,"
	    "'disk_gb':1,'rootfs_path':'','baked':true}]");
	good(200, NULL, "GET /v1/templates/base");
	has("{'name':'base','size_bytes':8192}");
	bad(404, "template_not_found", "none", NULL, "GET /v1/templates/none");
	bad(404, "template_not_found", "none", NULL, "DELETE /v1/templates/none");
	bad(403, "forbidden", "base", NULL, "DELETE /v1/templates/base");
}

static void a_sandbox_becomes_a_template(void **state)
{
	const char *id = sandbox_made(NULL), *again;

	put_file(id, "/dev/shm/note", "as it was");
	good(201, "{'name':'mine'}", "POST /v1/sandboxes/%s/save-as-template", id);
	has("{'name':'mine','is_global':false,'workspace':'t','base':'base'}");
	bad(409, "exists", "mine", "{'name':'mine'}", "POST /v1/sandboxes/%s/save-as-template", id);
	good(201, "{'name':'mine','replace':true}", "POST /v1/sandboxes/%s/save-as-template", id);
	good(200, NULL, "GET /v1/templates");
	has("[{'name':'base'},{'name':'mine'}]");
	again = sandbox_made("{'template':'mine'}");
	good(200, NULL, "GET /v1/sandboxes/%s/fs?path=/dev/shm/note", again);
	body_is("as it was");
	as(bed.other);
	good(200, NULL, "GET /v1/templates");
	has("[{'name':'base'}]");
	as(bed.other);
	bad(404, "template_not_found", "mine", NULL, "DELETE /v1/templates/mine");
	good(204, NULL, "DELETE /v1/templates/mine");
	bad(404, "template_not_found", "mine", NULL, "GET /v1/templates/mine");
}

static void what_is_asked_of_a_saved_template_is_checked(void **state)
{
	static const char *const wrong[] = {"{}", "{'name':5}", "{'name':'a b'}", "{'name':'../x'}",
	                                    "{'name':'a','replace':'yes'}"};
	const char *id = sandbox_made(NULL);

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		bad(400, "bad_request", "", wrong[i], "POST /v1/sandboxes/%s/save-as-template", id);
	fake_fail(bed.on.fake, FAKE_CALL_SNAPSHOT, 1, ENOSPC);
	assert_true(ask("{'name':'a'}", "POST /v1/sandboxes/%s/save-as-template", id) >= 500);
	good(200, NULL, "GET /v1/templates");
	has("[{'name':'base'}]");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(a_volume_is_made_shown_grown_and_deleted),
	    api_test(what_is_asked_of_a_volume_is_checked),
	    api_test(volumes_of_others_are_not_there),
	    api_test(a_sandbox_has_volumes_from_its_beginning_or_later),
	    api_test(a_volume_in_use_is_let_go_by_force_only),
	    api_test(what_is_asked_of_an_attachment_is_checked),
	    api_test(a_snapshot_of_a_volume_is_a_volume_nobody_writes),
	    api_test(a_quota_of_volumes_stops_a_volume),
	    api_test(templates_are_listed_and_shown),
	    api_test(a_sandbox_becomes_a_template),
	    api_test(what_is_asked_of_a_saved_template_is_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
