/*
 * api/auth.c and routes/tokens.c, as clients see them: who one is, and how much one may ask
 */
#include "bed.h"

#include <stdio.h>
#include <string.h>

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
	as(bed.admin);
	good(204, NULL, "DELETE /v1/me/tokens/%s", prefix);
	snprintf(prefix, sizeof(prefix), "%.12s", second);
	/* One of the same tenant sees it, and is no admin. */
	bad(403, "forbidden", "admin", NULL, "DELETE /v1/me/tokens/%s", prefix);
	as(second);
	bad(409, "conflict", "last token", NULL, "DELETE /v1/me/tokens/%s", prefix);
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

static void the_first_token_is_made_once(void **state)
{
	char text[64] = "";
	struct err e;

	assert_int_equal(api_first_token(bed.api, text, &e), 0); /* there is an admin */
	assert_string_equal(text, "");
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
	    api_test(what_one_uses_is_counted),
	    api_test(a_tenant_has_a_limit_of_tokens),
	    api_test(who_asks_too_much_is_told_when_to_come_again),
	    api_test(a_token_may_have_a_rate_of_its_own),
	    api_test(without_tokens_everyone_is_an_admin_of_local_only_when_asked_for),
	    api_test(the_first_token_is_made_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
