/*
 * api/auth.c and routes/tokens.c, as clients see them: who one is, and how much one may ask
 */
#include "bed.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/api_internal.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"

/* The text of a new token; good until the next but seven. */
static const char *token_made(const char *by, const char *json)
{
	static char texts[8][64];
	static unsigned turn;
	char *ret = texts[turn++ % 8];

	as(by);
	good(200, json, "POST /v1/me/tokens");
	snprintf(ret, sizeof(texts[0]), "%s", text_of("token"));
	return ret;
}

static void a_token_is_made_used_listed_and_revoked(void **state)
{
	const char *token = token_made(bed.mine, "{'label':'laptop'}");
	char prefix[20];

	has("{'label':'laptop','tenant':'t','scopes':['sandbox'],'quota':{'sandboxes':0}}");
	assert_int_equal(strlen(token), 36);
	snprintf(prefix, sizeof(prefix), "%s", text_of("prefix"));
	assert_int_equal(strncmp(token, prefix, 12), 0);
	as(token);
	good(200, NULL, "GET /v1/me");
	has("{'tenant':'t','user_id':'t','auth_method':'token','scopes':['sandbox'],'email':'',"
	    "'orgs':[],'current_org':null}");
	good(200, NULL, "GET /v1/me/tokens");
	assert_null(strstr(bed.body, token));
	assert_non_null(strstr(bed.body, prefix));
	good(204, NULL, "DELETE /v1/me/tokens/%s", prefix);
	as(token);
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
	bad(404, "token_not_found", prefix, NULL, "DELETE /v1/me/tokens/%s", prefix);
}

static void tokens_are_there_in_the_next_pandad(void **state)
{
	const char *token =
	    token_made(bed.admin,
	               "{'tenant':'q','name':'kept','quota':{'sandboxes':3,'memory_mb':4,"
	               "'snapshots':5,'volumes':6,'volumes_mb':7,'requests_per_s':8}}");

	bed_api_close();
	bed_api_open();
	as(token);
	good(200, NULL, "GET /v1/me");
	has("{'tenant':'q','quota':{'sandboxes':3,'memory_mb':4,'snapshots':5,'volumes':6,"
	    "'volumes_mb':7,'requests_per_s':8}}");
	as(token);
	good(200, NULL, "GET /v1/me/tokens");
	has("{'items':[{'label':'kept','tenant':'q','scopes':['sandbox']}]}");
	as(bed.admin);
	good(200, NULL, "GET /v1/me");
	has("{'scopes':['admin','sandbox']}");
}

static void what_is_asked_of_a_token_is_checked(void **state)
{
	static const char *const wrong[][2] = {
	    {"{'label':5}", "label"},
	    {"{'name':5}", "name"},
	    {"{'tenant':5}", "tenant"},
	    {"{'tenant':''}", "tenant"},
	    {"{'tenant':'a b'}", "tenant"},
	    {"{'tenant':'a/b'}", "tenant"},
	    {"{'scopes':'admin'}", "scopes"},
	    {"{'scopes':[]}", "scopes"},
	    {"{'scopes':['root']}", "scopes"},
	    {"{'scopes':['sandbox',5]}", "scopes"},
	    {"{'scopes':['sandbox:']}", "scopes"},
	    {"{'scopes':['sandbox:a','sandbox:b']}", "scopes"},
	    {"{'scopes':['admin','sandbox:a']}", "scopes"},
	    {"{'ttl_seconds':0}", "ttl_seconds"},
	    {"{'expires_at':'soon'}", "expires_at"},
	    {"{'quota':5}", "quota"},
	    {"{'quota':{'sandboxes':-1}}", "quota.sandboxes"},
	    {"{'quota':{'memory_mb':'x'}}", "quota.memory_mb"},
	    {"{'quota':{'snapshots':1.5}}", "quota.snapshots"},
	    {"{'quota':{'volumes':1000001}}", "quota.volumes"},
	    {"{'quota':{'volumes_mb':true}}", "quota.volumes_mb"},
	    {"{'quota':{'requests_per_s':1000001}}", "quota.requests_per_s"},
	};
	char body[300];

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		as(bed.admin);
		bad(400, "bad_request", wrong[i][1], wrong[i][0], "POST /v1/me/tokens");
	}
	snprintf(body, sizeof(body), "{'label':'%0129d'}", 0);
	bad(400, "bad_request", "label", body, "POST /v1/me/tokens");
}

static void only_an_admin_gives_more_than_one_has(void **state)
{
	static const char *const more[] = {"{'scopes':['admin']}", "{'tenant':'other'}",
	                                   "{'quota':{'sandboxes':5}}", "{'quota':{}}"};
	const char *small = token_made(bed.admin, "{'tenant':'q','quota':{'sandboxes':2}}"), *child;

	for (size_t i = 0; i < ARRAY_LEN(more); i++)
		bad(403, "forbidden", "scope admin", more[i], "POST /v1/me/tokens");
	/* What one may do, one shares: with the same limits. */
	child = token_made(small, "{'scopes':['sandbox'],'tenant':'q','quota':null}");
	has("{'tenant':'q','quota':{'sandboxes':2}}");
	as(child);
	good(200, NULL, "GET /v1/me");
	has("{'quota':{'sandboxes':2}}");
	token_made(bed.admin, "{'tenant':'q','scopes':['admin','sandbox']}");
	has("{'scopes':['admin','sandbox']}");
}

static void tokens_of_others_are_not_there_but_for_an_admin(void **state)
{
	char prefix[20];

	good(200, NULL, "GET /v1/me/tokens");
	has("{'items':[{'tenant':'t'}]}");
	as(bed.admin);
	good(200, NULL, "GET /v1/me/tokens");
	assert_int_equal(json_array_size(json_object_get(bed.json, "items")), 3);
	snprintf(prefix, sizeof(prefix), "%.12s", bed.other);
	bad(404, "token_not_found", "", NULL, "DELETE /v1/me/tokens/%s", prefix);
	as(bed.admin);
	good(204, NULL, "DELETE /v1/me/tokens/%s", prefix);
	as(bed.other);
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
}

static void the_last_admin_stays(void **state)
{
	const char *second;
	char prefix[20];

	snprintf(prefix, sizeof(prefix), "%.12s", bed.admin);
	as(bed.admin);
	bad(409, "conflict", "last token", NULL, "DELETE /v1/me/tokens/%s", prefix);
	second = token_made(bed.admin, "{'tenant':'t','scopes':['admin']}");
	/* One that expires is no way back in. */
	token_made(bed.admin, "{'scopes':['admin'],'ttl_seconds':60}");
	as(bed.admin);
	bad(409, "conflict", "cascade=0", NULL, "DELETE /v1/me/tokens/%s", prefix);
	as(bed.admin);
	good(204, NULL, "DELETE /v1/me/tokens/%s?cascade=0", prefix);
	snprintf(prefix, sizeof(prefix), "%.12s", second);
	/* One of the same tenant sees it, and is no admin. */
	bad(403, "forbidden", "admin", NULL, "DELETE /v1/me/tokens/%s", prefix);
	as(second);
	bad(409, "conflict", "last token", NULL, "DELETE /v1/me/tokens/%s", prefix);
}

/* ---- scopes ---- */

static const char *with_id(const char *fmt, const char *id)
{
	static char body[8][300];
	static unsigned turn;
	char *ret = body[turn++ % 8];

	snprintf(ret, sizeof(body[0]), fmt, id);
	return ret;
}

/* Of each route: who gets past the table. What it says then is the handler's. */
static void the_table_says_what_a_token_may(void **state)
{
	const struct rights read = {.level = LEVEL_READ}, exec = {.level = LEVEL_EXEC},
			    all = {.level = LEVEL_SANDBOX}, admin = {.level = LEVEL_ADMIN};
	struct rights one_read = read, one = all;
	unsigned n[4] = {0};

	snprintf(one.only, sizeof(one.only), "x");
	snprintf(one_read.only, sizeof(one_read.only), "x");
	for (size_t i = 0; i < nroutes; i++) {
		const struct route *r = &routes[i];

		n[0] += rights_reach(&read, r);
		n[1] += rights_reach(&exec, r);
		n[2] += rights_reach(&all, r);
		n[3] += rights_reach(&one, r);
		assert_true(rights_reach(&admin, r));
		/* Each has those below it. */
		assert_false(rights_reach(&read, r) && !rights_reach(&exec, r));
		assert_false(rights_reach(&exec, r) && !rights_reach(&all, r));
		assert_false(rights_reach(&one_read, r) && !rights_reach(&one, r));
		assert_false(rights_reach(&one, r) && !rights_reach(&all, r));
		/* What changes something is not for those who look, but for revoking oneself. */
		if (rights_reach(&read, r) && r->scope != SCOPE_NONE && strcmp(r->method, "GET") &&
		    strcmp(r->method, "HEAD"))
			assert_string_equal(r->path, "/v1/me/tokens/{prefix}");
		/* What is not about one sandbox is not for a token of one. */
		if (rights_reach(&one, r) && !r->sandbox && r->scope != SCOPE_NONE)
			assert_true(r->bound);
	}
	assert_true(n[0] > 30 && n[0] < n[1] && n[1] < n[3] && n[3] < n[2]);
}

static void a_token_that_looks_changes_nothing(void **state)
{
	const char *id = sandbox_made(NULL), *read = token_made(bed.mine, "{'scopes':['read']}");

	has("{'scopes':['read'],'expires_at':null}");
	as(read);
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	as(read);
	bad(403, "forbidden", "scope exec; yours has 'read'", "{'cmd':'x'}",
	    "POST /v1/sandboxes/%s/exec", id);
	as(read);
	bad(403, "forbidden", "scope sandbox", NULL, "DELETE /v1/sandboxes/%s", id);
	as(read);
	bad(403, "forbidden", "scope sandbox", "{}", "POST /v1/sandboxes");
	as(read);
	bad(403, "forbidden", "scope sandbox", "{}", "POST /v1/me/tokens");
	as(read);
	bad(403, "forbidden", "scope sandbox", NULL, "DELETE /v1/me/tokens/%.12s", bed.mine);
	/* But it may end itself. */
	as(read);
	good(204, NULL, "DELETE /v1/me/tokens/%.12s", read);
	as(read);
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
}

static void a_token_that_runs_things_keeps_no_house(void **state)
{
	const char *id = sandbox_made(NULL), *exec = token_made(bed.mine, "{'scopes':['exec']}");

	as(exec);
	good(200, "{'argv':['true']}", "POST /v1/sandboxes/%s/exec", id);
	as(exec);
	good(200, NULL, "GET /v1/sandboxes");
	as(exec);
	bad(403, "forbidden", "scope sandbox", "{}", "POST /v1/sandboxes/%s/fork", id);
	as(exec);
	bad(403, "forbidden", "scope sandbox", "{'egress':'open'}", "PATCH /v1/sandboxes/%s/egress",
	    id);
	as(exec);
	bad(403, "forbidden", "scope sandbox", "{'jsonrpc':'2.0','id':1,'method':'ping'}",
	    "POST /mcp");
	as(exec);
	good(200, "{'jsonrpc':'2.0','id':1,'method':'ping'}", "POST /v1/sandboxes/%s/mcp", id);
}

static void a_token_of_one_sandbox_sees_no_other(void **state)
{
	const char *id = sandbox_made(NULL), *other = sandbox_made(NULL), *one, *child;

	one = token_made(bed.mine, with_id("{'scopes':['sandbox:%s']}", id));
	has("{'scopes':['sandbox:%s']}", id);
	as(one);
	good(200, NULL, "GET /v1/sandboxes");
	assert_int_equal(json_array_size(bed.json), 1);
	has("[{'id':'%s'}]", id);
	as(one);
	bad(404, "sandbox_not_found", other, NULL, "GET /v1/sandboxes/%s", other);
	as(one);
	bad(404, "sandbox_not_found", other, "{'cmd':'x'}", "POST /v1/sandboxes/%s/exec", other);
	as(one);
	good(200, "{'argv':['true']}", "POST /v1/sandboxes/%s/exec", id);
	as(one);
	bad(403, "forbidden", "does not name others", NULL, "GET /v1/sandboxes/%s/diff?to=%s", id,
	    other);
	as(one);
	bad(403, "forbidden", "of all sandboxes", "{}", "POST /v1/sandboxes");
	as(one);
	bad(403, "forbidden", "of all sandboxes", "{}", "POST /v1/sandboxes/%s/fork", id);
	as(one);
	bad(403, "forbidden", "of all sandboxes", NULL, "GET /v1/events");
	as(one);
	good(200, NULL, "GET /v1/sandboxes/%s/events", id);
	as(one);
	good(200, NULL, "GET /v1/me");
	has("{'scopes':['sandbox:%s'],'usage':{'sandboxes':1}}", id);
	/* Of its tenant's tokens it sees itself and those it made; none of them is wider. */
	as(one);
	good(200, NULL, "GET /v1/me/tokens");
	assert_int_equal(json_array_size(json_object_get(bed.json, "items")), 1);
	child = token_made(one, with_id("{'scopes':['read','sandbox:%s']}", id));
	has("{'scopes':['read','sandbox:%s'],'made_by':'%.12s'}", id, one);
	token_made(one, "{}");
	has("{'scopes':['sandbox:%s']}", id);
	as(one);
	bad(403, "forbidden", "may do more", "{'scopes':['sandbox']}", "POST /v1/me/tokens");
	as(one);
	bad(403, "forbidden", "may do more", with_id("{'scopes':['read','sandbox:%s']}", other),
	    "POST /v1/me/tokens");
	as(one);
	bad(404, "token_not_found", "", NULL, "DELETE /v1/me/tokens/%.12s", bed.mine);
	as(child);
	bad(403, "forbidden", "scope exec", "{'cmd':'x'}", "POST /v1/sandboxes/%s/exec", id);
	/* On record, too; and it ends what it is for. */
	bed_api_close();
	bed_api_open();
	as(child);
	bad(404, "sandbox_not_found", "", NULL, "GET /v1/sandboxes/%s", other);
	as(one);
	good(204, NULL, "DELETE /v1/sandboxes/%s", id);
	bad(404, "sandbox_not_found", id, with_id("{'scopes':['sandbox:%s']}", id),
	    "POST /v1/me/tokens");
	bad(404, "sandbox_not_found", "x", "{'scopes':['sandbox:x']}", "POST /v1/me/tokens");
}

static void a_token_ends_when_its_time_is_over(void **state)
{
	const char *token = token_made(bed.mine, "{'ttl_seconds':60}"), *child;

	assert_non_null(strstr(text_of("expires_at"), "T"));
	child = token_made(token, "{}");
	bad(400, "bad_request", "expires_at", "{'expires_at':'2001-01-01T00:00:00Z'}",
	    "POST /v1/me/tokens");
	bad(400, "bad_request", "expires_at",
	    "{'expires_at':'2999-01-01T00:00:00Z','ttl_seconds':5}", "POST /v1/me/tokens");
	good(200, "{'expires_at':'2999-01-01T00:00:00Z'}", "POST /v1/me/tokens");
	has("{'expires_at':'2999-01-01T00:00:00.000Z'}");
	as(token);
	bad(403, "forbidden", "for longer", "{'ttl_seconds':3600}", "POST /v1/me/tokens");
	bed_later(61000);
	as(token);
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
	has("{'detail':'this token has expired: ask its maker for a new one'}");
	as(child);
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
	bed_api_close();
	bed_api_open();
	as(token);
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
}

static void a_token_takes_those_it_made_with_it(void **state)
{
	const char *a = token_made(bed.mine, "{}"), *b = token_made(a, "{}"),
		   *c = token_made(b, "{}"), *kept = token_made(a, "{}");

	good(204, NULL, "DELETE /v1/me/tokens/%.12s", b);
	as(c);
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
	as(kept);
	good(200, NULL, "GET /v1/me");
	good(204, NULL, "DELETE /v1/me/tokens/%.12s?cascade=0", a);
	as(a);
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
	bed_api_close();
	bed_api_open();
	as(c);
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
	as(kept);
	good(200, NULL, "GET /v1/me/tokens");
	as(kept);
	good(200, NULL, "GET /v1/me");
}

static void a_token_is_rotated_and_stays_who_it_is(void **state)
{
	const char *a = token_made(bed.mine, "{'label':'laptop','scopes':['read']}");
	const char *maker = token_made(bed.mine, "{}"), *child = token_made(maker, "{}");
	char old[64], new[64];

	as(a);
	bad(403, "forbidden", "scope sandbox", NULL, "POST /v1/me/tokens/%.12s/rotate", a);
	good(200, NULL, "POST /v1/me/tokens/%.12s/rotate", bed.mine);
	snprintf(old, sizeof(old), "%s", bed.mine);
	snprintf(bed.mine, sizeof(bed.mine), "%s", text_of("token"));
	as(old);
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
	good(200, NULL, "POST /v1/me/tokens/%.12s/rotate", maker);
	snprintf(new, sizeof(new), "%s", text_of("token"));
	has("{'made_by':'%.12s'}", bed.mine);
	/* The secret of one that it did not make is none of its business. */
	as(child);
	bad(403, "forbidden", "those it made", NULL, "POST /v1/me/tokens/%.12s/rotate", bed.mine);
	as(bed.other);
	bad(404, "token_not_found", "", NULL, "POST /v1/me/tokens/%.12s/rotate", bed.mine);
	bed_api_close();
	bed_api_open();
	as(maker);
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
	as(child);
	good(200, NULL, "GET /v1/me");
	good(204, NULL, "DELETE /v1/me/tokens/%.12s", new);
	as(child);
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
	as(a);
	good(200, NULL, "GET /v1/me");
}

static void what_one_uses_is_counted(void **state)
{
	const char *a = sandbox_made(NULL), *b = sandbox_made(NULL);

	good(201, "{'name':'v','size_mb':16}", "POST /v1/volumes");
	good(201, "{}", "POST /v1/sandboxes/%s/snapshots", a);
	good(200, NULL, "POST /v1/sandboxes/%s/hibernate", b);
	good(200, NULL, "GET /v1/me");
	has("{'usage':{'sandboxes':2,'memory_mb':16,'snapshots':1,'volumes':1,'volumes_mb':16}}");
	as(bed.other);
	good(200, NULL, "GET /v1/me");
	has("{'usage':{'sandboxes':0,'memory_mb':0,'snapshots':0,'volumes':0,'volumes_mb':0}}");
}

static void a_tenant_has_a_limit_of_tokens(void **state)
{
	for (int i = 0; i < 255; i++)
		good(200, "{}", "POST /v1/me/tokens");
	bad(429, "quota_exceeded", "256", "{}", "POST /v1/me/tokens");
	as(bed.other);
	good(200, "{}", "POST /v1/me/tokens");
}

/* ---- so many requests a second ---- */

static void who_asks_too_much_is_told_when_to_come_again(void **state)
{
	bed_api_close();
	bed.config.rate_per_s = 2;
	bed.config.rate_burst = 5;
	bed_api_open();
	bed_later(10000);
	for (int i = 0; i < 5; i++)
		good(200, NULL, "GET /v1/me");
	bad(429, "rate_limited", "2 requests per second", NULL, "GET /v1/me");
	assert_string_equal(header("Retry-After"), "1");
	/* Others, and what needs no token, are not meant. */
	as(bed.other);
	good(200, NULL, "GET /v1/me");
	good(200, NULL, "GET /healthz");
	bed_later(1000);
	good(200, NULL, "GET /v1/me");
	good(200, NULL, "GET /v1/me");
	bad(429, "rate_limited", "", NULL, "GET /v1/me");
}

static void a_token_may_have_a_rate_of_its_own(void **state)
{
	const char *token = token_made(bed.admin, "{'tenant':'q','quota':{'requests_per_s':3}}");

	for (int i = 0; i < 6; i++) {
		as(token);
		good(200, NULL, "GET /v1/me");
	}
	as(token);
	bad(429, "rate_limited", "3 requests", NULL, "GET /v1/me");
	good(200, NULL, "GET /v1/me");
	bed_later(1000);
	as(token);
	good(200, NULL, "GET /v1/me");
}

static void without_tokens_everyone_is_an_admin_of_local_only_when_asked_for(void **state)
{
	bed_api_close();
	bed.config.stub_auth = true;
	bed_api_open();
	as("");
	with("Host: localhost");
	good(200, NULL, "GET /v1/me");
	has("{'tenant':'local','auth_method':'stub','scopes':['admin','sandbox']}");
	as("");
	with("Host: 127.0.0.1:8080");
	with("Origin: http://127.0.0.1:8080");
	good(200, "{'tenant':'x'}", "POST /v1/me/tokens");
	/* A page that a user visits is not the user: neither by its own name that leads here, nor
	 * by ours, nor the page of a guest. */
	as("");
	with("Host: rebound.example:8080");
	bad(403, "forbidden", "no name of this server", NULL, "GET /v1/me");
	as("");
	with("Host: localhost:8080");
	with("Origin: https://evil.example");
	bad(403, "forbidden", "allowed_origins", "{'tenant':'y'}", "POST /v1/me/tokens");
	as("");
	with("Host: localhost:8080");
	with("Origin: null");
	bad(403, "forbidden", "allowed_origins", "{'tenant':'y'}", "POST /v1/me/tokens");
	as("");
	with("Host: localhost:8080");
	with("Origin: http://8000-x.localhost:8080");
	bad(403, "forbidden", "allowed_origins", "{'tenant':'y'}", "POST /v1/me/tokens");
	/* With a token it is asked for by a program that was given it. */
	with("Origin: https://evil.example");
	good(200, NULL, "GET /v1/me");
	/* But a token that is none is none. */
	as("pds_00000000000000000000000000000000");
	bad(401, "unauthorized", "", NULL, "GET /v1/me");
}

static void the_first_token_is_made_once_and_left_in_a_file_of_its_owner(void **state)
{
	autofree char *text = NULL;
	struct token *t = NULL;
	char path[64];
	struct stat st;
	struct err e;
	size_t n;

	snprintf(path, sizeof(path), "admin.key.%d", getpid());
	assert_int_equal(api_first_token(bed.api, path, &e), 0); /* there is an admin */
	assert_int_equal(access(path, F_OK), -1);
	while ((t = token_next(bed.api, NULL)))
		assert_int_equal(token_remove(bed.api, t, true, &e), 0);
	assert_int_equal(api_first_token(bed.api, path, &e), 1);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0600);
	assert_int_equal(io_read_file(AT_FDCWD, path, 100, &text, &n), 0);
	unlink(path);
	assert_int_equal(text[n - 1], '\n');
	text[n - 1] = '\0';
	as(text);
	good(200, NULL, "GET /v1/me");
}

static void a_first_token_that_cannot_be_kept_is_not_made(void **state)
{
	struct token *t;
	struct err e;

	while ((t = token_next(bed.api, NULL)))
		assert_int_equal(token_remove(bed.api, t, true, &e), 0);
	assert_true(api_first_token(bed.api, "no/such/directory/admin.key", &e) < 0);
	assert_non_null(strstr(e.text, "no/such/directory/admin.key"));
	assert_null(strstr(e.text, "pds_"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(a_token_is_made_used_listed_and_revoked),
	    api_test(tokens_are_there_in_the_next_pandad),
	    api_test(what_is_asked_of_a_token_is_checked),
	    api_test(only_an_admin_gives_more_than_one_has),
	    api_test(tokens_of_others_are_not_there_but_for_an_admin),
	    api_test(the_last_admin_stays),
	    api_test(the_table_says_what_a_token_may),
	    api_test(a_token_that_looks_changes_nothing),
	    api_test(a_token_that_runs_things_keeps_no_house),
	    api_test(a_token_of_one_sandbox_sees_no_other),
	    api_test(a_token_ends_when_its_time_is_over),
	    api_test(a_token_takes_those_it_made_with_it),
	    api_test(a_token_is_rotated_and_stays_who_it_is),
	    api_test(what_one_uses_is_counted),
	    api_test(a_tenant_has_a_limit_of_tokens),
	    api_test(who_asks_too_much_is_told_when_to_come_again),
	    api_test(a_token_may_have_a_rate_of_its_own),
	    api_test(without_tokens_everyone_is_an_admin_of_local_only_when_asked_for),
	    api_test(the_first_token_is_made_once_and_left_in_a_file_of_its_owner),
	    api_test(a_first_token_that_cannot_be_kept_is_not_made),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
