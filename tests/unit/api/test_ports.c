/*
 * api/routes/ports.c, preview.c and tunnels.c, as clients see them: ports of a sandbox from outside
 */
#include "bed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/macro.h"

/* A service on port 80 that answers each request with this, and closes. */
static void serve(const char *answer)
{
	json_t *j =
	    json_pack("{s:{s:s, s:s, s:b}}", "80", "on", "\r\n\r\n", "say", answer, "close", 1);
	autofree char *text = json_dumps(j, 0);

	bed_rule(&bed.on, "ports", text);
	json_decref(j);
}

/* One that answers with the request as it came, up to the end that is given. */
static void serve_mirror(const char *end)
{
	json_t *j =
	    json_pack("{s:{s:s, s:s}}", "80", "greet", "HTTP/1.1 200 OK\r\n\r\n", "on", end);
	autofree char *text = json_dumps(j, 0);

	bed_rule(&bed.on, "ports", text);
	json_decref(j);
}

static bool heard(const char *line)
{
	char text[300];

	snprintf(text, sizeof(text), "\r\n%s\r\n", line);
	return strstr(bed.body, text);
}

/* ---- ports ---- */

static void ports_are_declared_listed_and_forgotten(void **state)
{
	const char *id = sandbox_made("{'metadata':{'team':'a'}}");

	good(200, NULL, "GET /v1/sandboxes/%s/ports", id);
	body_is("[]");
	good(201, "{'port':8000,'label':'web'}", "POST /v1/sandboxes/%s/ports", id);
	has("{'port':8000,'label':'web','listening':false,'source':'user',"
	    "'proxy_url':'/v1/sandboxes/%s/proxy/8000/'}",
	    id);
	good(201, "{'port':443}", "POST /v1/sandboxes/%s/ports", id);
	has("{'label':'service'}");
	good(201, "{'port':8000,'label':'new'}", "POST /v1/sandboxes/%s/ports", id);
	put_file(id, "/proc/net/tcp",
	         "  sl  local_address rem_address   st tx_queue rx_queue\n"
	         "   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000\n"
	         "   1: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000\n"
	         "   2: 0100007F:1F41 0100007F:9999 01 00000000:00000000 00:00000000\n"
	         "   3: garbage\n");
	put_file(id, "/proc/net/tcp6",
	         "head\n   0: 00000000000000000000000000000000:0050 "
	         "00000000000000000000000000000000:0000 0a 0:0\n");
	good(200, NULL, "GET /v1/sandboxes/%s/ports", id);
	has("[{'port':80,'listening':true,'source':'detected'},"
	    "{'port':443,'listening':false,'source':'user','label':'service'},"
	    "{'port':8000,'listening':true,'label':'new'}]");
	good(204, NULL, "DELETE /v1/sandboxes/%s/ports/443", id);
	bad(404, "not_found", "not declared", NULL, "DELETE /v1/sandboxes/%s/ports/443", id);
	bad(404, "not_found", "not declared", NULL, "DELETE /v1/sandboxes/%s/ports/x", id);
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	has("{'metadata':{'team':'a','port.8000':'new'}}");
	/* A look at one that sleeps shows what is declared, and lets it sleep. */
	good(200, NULL, "POST /v1/sandboxes/%s/hibernate", id);
	good(200, NULL, "GET /v1/sandboxes/%s/ports", id);
	has("[{'port':8000,'listening':false}]");
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	has("{'status':'hibernated'}");
}

static void a_declaration_is_checked(void **state)
{
	static const char *const wrong[] = {"{}",
	                                    "{'port':'80'}",
	                                    "{'port':0}",
	                                    "{'port':null}",
	                                    "{'port':65536}",
	                                    "{'port':80,'label':5}",
	                                    "{'port':22}"};
	const char *id = sandbox_made(NULL);
	char body[300];

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		ask(wrong[i], "POST /v1/sandboxes/%s/ports", id), refused(400, "bad_request", "");
	snprintf(body, sizeof(body), "{'port':80,'label':'%0129d'}", 0);
	bad(400, "bad_request", "128", body, "POST /v1/sandboxes/%s/ports", id);
	for (int i = 1; i <= 32; i++) {
		snprintf(body, sizeof(body), "{'port':%d}", 1000 + i);
		good(201, body, "POST /v1/sandboxes/%s/ports", id);
	}
	bad(429, "too_many", "32", "{'port':80}", "POST /v1/sandboxes/%s/ports", id);
	good(201, "{'port':1001,'label':'again'}", "POST /v1/sandboxes/%s/ports", id);
}

/* ---- the proxy ---- */

static void a_service_answers_through_the_proxy(void **state)
{
	const char *id = sandbox_made(NULL);

	serve("HTTP/1.1 201 Made\r\nContent-Length: 5\r\nContent-Type: text/x\r\nX-Own: yes\r\n"
	      "Connection: close, X-Hop\r\nX-Hop: hidden\r\nKeep-Alive: 5\r\n"
	      "Clear-Site-Data: \"*\"\r\nDate: never\r\n\r\nhello and more");
	good(201, NULL, "GET /v1/sandboxes/%s/proxy/80/", id);
	body_is("hello");
	assert_string_equal(header("Content-Type"), "text/x");
	assert_string_equal(header("X-Own"), "yes");
	assert_string_equal(header("X-Hop"), "");
	assert_string_equal(header("Keep-Alive"), "");
	assert_string_equal(header("Clear-Site-Data"), "");
	assert_string_not_equal(header("Date"), "never");
	/* Its headers are its own: ours for browsers are not added. */
	assert_string_equal(header("Access-Control-Allow-Origin"), "");
}

/* A web server in front of pandad would send a file of its own, or stop collecting. */
static void a_service_gives_no_orders_to_a_web_server_in_front(void **state)
{
	static const char *const orders[] = {"X-Accel-Redirect",     "X-Accel-Expires",
	                                     "X-Sendfile",           "X-Sendfile2",
	                                     "X-Lighttpd-Send-File", "X-LiteSpeed-Location",
	                                     "x-reproxy-url"};
	const char *id = sandbox_made(NULL);
	char text[500];
	int n = snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\nX-Own: yes\r\n");

	for (size_t i = 0; i < ARRAY_LEN(orders); i++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, "%s: /etc/shadow\r\n", orders[i]);
	snprintf(text + n, sizeof(text) - (size_t)n,
	         "Content-Type: text/event-stream\r\nContent-Length: 2\r\n\r\nok");
	serve(text);
	good(200, NULL, "GET /v1/sandboxes/%s/proxy/80/", id);
	assert_string_equal(header("X-Own"), "yes");
	for (size_t i = 0; i < ARRAY_LEN(orders); i++)
		assert_string_equal(header(orders[i]), "");
	/* What streams is not to be collected: that is said for it. */
	assert_string_equal(header("X-Accel-Buffering"), "no");
}

/* Below our paths all sandboxes, and the API, would be one origin to a browser. */
static void a_page_below_our_paths_is_of_no_origin(void **state)
{
	const char *id = sandbox_made(NULL);
	char path[200];

	serve("HTTP/1.1 200 OK\r\nSet-Cookie: s=1; Path=/app; Domain=localhost; Secure\r\n"
	      "Referrer-Policy: unsafe-url\r\nContent-Length: 2\r\n\r\nok");
	good(200, NULL, "GET /v1/sandboxes/%s/proxy/80/", id);
	assert_string_equal(header("Content-Security-Policy"),
	                    "sandbox allow-scripts allow-forms allow-popups allow-downloads");
	assert_string_equal(header("Referrer-Policy"), "same-origin");
	snprintf(path, sizeof(path), "s=1; Secure; Path=/v1/sandboxes/%s/proxy/80/app", id);
	assert_string_equal(header("Set-Cookie"), path);
}

static void bodies_pass_in_each_of_their_forms(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;

	serve("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n"
	      "\r\n");
	good(200, NULL, "GET /v1/sandboxes/%s/proxy/80/", id);
	body_is("abcde");
	serve("HTTP/1.1 200 OK\r\n\r\nup to the end");
	good(200, NULL, "GET /v1/sandboxes/%s/proxy/80/", id);
	body_is("up to the end");
	serve("HTTP/1.1 204 No\r\nX-A: b\r\n\r\n");
	good(204, NULL, "DELETE /v1/sandboxes/%s/proxy/80/x", id);
	assert_string_equal(header("X-A"), "b");
	serve("HTTP/1.1 304 Same\r\nETag: \"1\"\r\n\r\n");
	good(304, NULL, "GET /v1/sandboxes/%s/proxy/80/x", id);
	serve("HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n"
	      "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	good(200, NULL, "GET /v1/sandboxes/%s/proxy/80/", id);
	body_is("ok");
	serve("HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n");
	c = stream(200, NULL, "HEAD /v1/sandboxes/%s/proxy/80/", id);
	assert_non_null(strstr(c->in, "Content-Length: 1234\r\n"));
}

static void the_service_hears_the_request_without_our_secrets(void **state)
{
	const char *id = sandbox_made(NULL);

	serve_mirror("\r\n\r\n");
	with("X-Mine: a");
	with("X-Fcs-Sandbox: x");
	with("Cookie: c=d");
	with("X-Forwarded-For: 6.6.6.6");
	with("X-Forwarded-Prefix: /evil");
	with("Forwarded: for=6.6.6.6");
	with("X-Real-IP: 6.6.6.6");
	with("X-Accel-Redirect: /etc");
	with("Referer: http://panda/v1/sandboxes/x/proxy/80/?access_token=pds_0");
	with("Connection: X-Local, close");
	with("X-Local: b");
	with("Host: front.example");
	good(200, NULL,
	     "PROPFIND "
	     "/v1/sandboxes/%s/proxy/80/a%%20b/c?x=1&access_token=pds_0&y=2&access_tokens=3",
	     id);
	assert_int_equal(strncmp(bed.body, "PROPFIND /a", 11), 0);
	assert_non_null(strstr(bed.body, "b/c?x=1&y=2&access_tokens=3 HTTP/1.1\r\n"));
	assert_true(heard("X-Mine: a"));
	assert_true(heard("Cookie: c=d"));
	assert_true(heard("Connection: close"));
	assert_true(heard("Host: front.example"));
	assert_true(heard("X-Forwarded-Host: front.example"));
	assert_true(heard("X-Forwarded-For: unix"));
	assert_true(heard("X-Forwarded-Proto: http"));
	assert_null(strstr(bed.body, "X-Local"));
	assert_null(strstr(bed.body, "6.6.6.6"));
	assert_null(strstr(bed.body, "evil"));
	assert_null(strstr(bed.body, "X-Accel"));
	assert_null(strstr(bed.body, "X-Fcs"));
	assert_null(strstr(bed.body, id));
	assert_null(strstr(bed.body, "Referer"));
	assert_null(strstr(bed.body, "pds_"));
	assert_null(strcasestr(bed.body, "Authorization"));
}

static void bodies_of_requests_reach_the_service(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;
	static char big[600000];

	serve_mirror("end");
	good(200, "the body end", "POST /v1/sandboxes/%s/proxy/80/p", id);
	assert_true(heard("Content-Length: 12"));
	assert_non_null(strstr(bed.body, "\r\n\r\nthe body end"));
	with("Transfer-Encoding: chunked");
	c = begin(NULL, "POST /v1/sandboxes/%s/proxy/80/p", id);
	client_send(c, "4\r\nsome\r\n", 9);
	client_wait(c, 10);
	client_send(c, "3\r\nend\r\n0\r\n\r\n", 13);
	client_answer(c);
	assert_true(heard("Transfer-Encoding: chunked"));
	assert_non_null(strstr(bed.body, "\r\n\r\n4\r\nsome\r\n3\r\nend\r\n"));
	memset(big, 'b', sizeof(big));
	memcpy(big + sizeof(big) - 3, "end", 3);
	assert_int_equal(ask_bytes(big, sizeof(big), "PUT /v1/sandboxes/%s/proxy/80/p", id), 200);
	assert_true(bed.len > sizeof(big));
	serve_mirror("\r\n\r\n");
	good(200, NULL, "POST /v1/sandboxes/%s/proxy/80/p", id);
	assert_true(heard("Content-Length: 0"));
}

static void services_that_do_not_answer_well_are_502(void **state)
{
	static const char *const wrong[] = {"SSH-2.0-OpenSSH\r\n\r\n",
	                                    "\r\n\r\n",
	                                    "HTTP/1.1 99 Low\r\n\r\n",
	                                    "HTTP/9.9 200 OK\r\n\r\n",
	                                    "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
	                                    ""};
	const char *id = sandbox_made(NULL);

	bad(502, "upstream", "port 81 of the sandbox: nothing listens", NULL,
	    "GET /v1/sandboxes/%s/proxy/81/", id);
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		serve(wrong[i]);
		bad(502, "upstream", "port 80 of the sandbox", NULL,
		    "GET /v1/sandboxes/%s/proxy/80/", id);
	}
	bad(400, "bad_request", "65535", NULL, "GET /v1/sandboxes/%s/proxy/0/", id);
	bad(400, "bad_request", "65535", NULL, "GET /v1/sandboxes/%s/proxy/65536/", id);
	bad(400, "bad_request", "65535", NULL, "GET /v1/sandboxes/%s/proxy/http/", id);
	bed_rule(&bed.on, "mood", "{\"*\":\"hangup\"}");
	ask(NULL, "GET /v1/sandboxes/%s/proxy/80/", id);
	refused(502, text_of("code"), "");
}

static void an_answer_that_is_cut_is_seen_to_be(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;

	serve("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
	c = begin(NULL, "GET /v1/sandboxes/%s/proxy/80/", id);
	client_end(c);
	assert_false(c->over);
	client_leave(c);
	serve("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz");
	c = begin(NULL, "GET /v1/sandboxes/%s/proxy/80/", id);
	client_end(c);
	assert_false(c->over);
}

static void a_visitor_that_goes_away_and_a_slow_one_cost_nothing(void **state)
{
	const char *id = sandbox_made(NULL);
	const size_t n = 2000000;
	autofree char *big = malloc(n);
	struct client *c;

	bed_rule(&bed.on, "ports", "{\"80\":{\"on\":\"never\",\"say\":\"x\"}}");
	c = begin(NULL, "GET /v1/sandboxes/%s/proxy/80/", id);
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	client_leave(c);
	with("Content-Length: 500");
	c = begin(NULL, "PUT /v1/sandboxes/%s/proxy/80/", id);
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	client_leave(c);
	/* One that sends all of it, and reads none of what comes back. */
	memset(big, 'b', n);
	memcpy(big + n - 3, "end", 3);
	serve_mirror("end");
	with("Content-Length: %zu", n);
	c = begin(NULL, "PUT /v1/sandboxes/%s/proxy/80/", id);
	client_deaf(c, true);
	client_send(c, big, n);
	for (int i = 0; i < 20; i++)
		good(200, NULL, "GET /v1/sandboxes/%s/execs", id);
	assert_false(c->over);
	client_deaf(c, false);
	client_answer(c);
	assert_true(bed.len > n);
	assert_memory_equal(bed.body + bed.len - n, big, n);
}

static void an_upgrade_becomes_a_tunnel(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;

	bed_rule(
	    &bed.on, "ports",
	    "{\"80\":{\"greet\":\"HTTP/1.1 101 Yes\\r\\nUpgrade: chat\\r\\nX-A: b\\r\\n\\r\\n\","
	    "\"on\":\"bye\"}}");
	with("Connection: Upgrade");
	with("Upgrade: chat");
	c = stream(101, NULL, "GET /v1/sandboxes/%s/proxy/80/talk", id);
	assert_non_null(strcasestr(c->in, "\r\nUpgrade: chat\r\n"));
	assert_non_null(strstr(c->in, "\r\nX-A: b\r\n"));
	bed_until(&bed.on, strstr(client_body(c), "\r\n\r\n"));
	assert_non_null(strstr(client_body(c), "GET /talk HTTP/1.1\r\n"));
	assert_non_null(strcasestr(client_body(c), "\r\nUpgrade: chat\r\n"));
	client_send(c, "to and fro", 10);
	bed_until(&bed.on, strstr(client_body(c), "to and fro"));
	client_send(c, "bye", 3);
	bed_until(&bed.on, strstr(client_body(c), "bye"));
	client_end(c);
	client_leave(c);
	/* A service that wants none answers as always. */
	serve("HTTP/1.1 426 No\r\nContent-Length: 2\r\n\r\nno");
	with("Connection: Upgrade");
	with("Upgrade: chat");
	good(426, NULL, "GET /v1/sandboxes/%s/proxy/80/talk", id);
	body_is("no");
}

static void an_upgrade_that_has_a_body_is_refused_when_the_service_takes_it(void **state)
{
	const char *id = sandbox_made(NULL);

	serve("HTTP/1.1 101 Yes\r\nUpgrade: chat\r\n\r\n");
	with("Connection: Upgrade");
	with("Upgrade: chat");
	bad(502, "upstream", "the upgrade failed", "body", "POST /v1/sandboxes/%s/proxy/80/", id);
}

/* ---- signed links ---- */

static const char *link_made(const char *id, const char *json)
{
	static char path[2][700];
	static unsigned turn;
	char *ret = path[turn++ % 2];

	good(200, json, "POST /v1/sandboxes/%s/preview", id);
	snprintf(ret, sizeof(path[0]), "/v1/p/%s/", text_of("token"));
	return ret;
}

static void a_signed_link_needs_no_token(void **state)
{
	const char *id = sandbox_made(NULL), *link;

	with("Host: panda.example:8443");
	good(200, "{'port':80,'ttl_seconds':60}", "POST /v1/sandboxes/%s/preview-token", id);
	has("{'sandbox_id':'%s','port':80,'paths':null}", id);
	assert_int_equal(strncmp(text_of("url"), "http://panda.example:8443/v1/p/", 31), 0);
	link = link_made(id, "{'port':80}");
	serve_mirror("\r\n\r\n");
	as("");
	good(200, NULL, "GET %sdeep/er?q=1", link);
	assert_int_equal(strncmp(bed.body, "GET /deep/er?q=1 HTTP/1.1\r\n", 27), 0);
	as("");
	good(200, NULL, "GET %s", link);
	assert_int_equal(strncmp(bed.body, "GET / HTTP/1.1\r\n", 16), 0);
}

static void a_link_is_checked_when_it_is_made(void **state)
{
	static const char *const wrong[][2] = {
	    {"{}", "port"},
	    {"{'port':'80'}", "port"},
	    {"{'port':0}", "port"},
	    {"{'port':80,'ttl_seconds':0}", "ttl_seconds"},
	    {"{'port':80,'ttl_seconds':604801}", "ttl_seconds"},
	    {"{'port':80,'paths':'/a'}", "paths"},
	    {"{'port':80,'paths':['a']}", "paths[0]"},
	    {"{'port':80,'paths':['/a','/b,c']}", "paths[1]"},
	    {"{'port':80,'paths':['/a|b']}", "paths[0]"},
	    {"{'port':80,'paths':[5]}", "paths[0]"},
	};
	const char *id = sandbox_made(NULL);

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		bad(400, "bad_request", wrong[i][1], wrong[i][0], "POST /v1/sandboxes/%s/preview",
		    id);
}

static void a_link_expires(void **state)
{
	const char *id = sandbox_made("{'persistent':true}");
	const char *link = link_made(id, "{'port':80,'ttl_seconds':10}");

	serve("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
	as("");
	good(200, NULL, "GET %s", link);
	bed_later(11000);
	as("");
	bad(401, "unauthorized", "expired", NULL, "GET %s", link);
}

static void a_link_that_was_changed_is_none(void **state)
{
	const char *id = sandbox_made(NULL), *other = sandbox_made(NULL);
	char a[700], b[700], mixed[1500];
	size_t n;

	snprintf(a, sizeof(a), "%s", link_made(id, "{'port':80}"));
	snprintf(b, sizeof(b), "%s", link_made(other, "{'port':81}"));
	n = strlen(a);
	for (size_t i = 6; i < n - 1; i += 5) {
		char was = a[i];

		a[i] = was == 'A' ? 'B' : 'A';
		as("");
		bad(401, "unauthorized", "cut or changed", NULL, "GET %s", a);
		a[i] = was;
	}
	/* The words of one with the seal of another; one that is cut; one with nothing. */
	snprintf(mixed, sizeof(mixed), "%.*s%s", (int)(strchr(a, '.') - a), a, strchr(b, '.'));
	as("");
	bad(401, "unauthorized", "cut or changed", NULL, "GET %s", mixed);
	as("");
	bad(401, "unauthorized", "cut or changed", NULL, "GET %.*s/", (int)n - 5, a);
	as("");
	bad(401, "unauthorized", "cut or changed", NULL, "GET /v1/p/./");
	/* A token of the API opens nothing here. */
	bad(401, "unauthorized", "cut or changed", NULL, "GET /v1/p/%s/", bed.mine);
}

static void a_link_leads_to_its_port_below_its_paths_only(void **state)
{
	const char *id = sandbox_made(NULL);
	const char *link = link_made(id, "{'port':80,'paths':['/api/','/docs']}");
	static const struct {
		const char *path;
		int status;
	} want[] = {{"api/v1", 200}, {"api/", 200},  {"docs", 200},         {"docs/x", 200},
	            {"", 403},       {"api", 403},   {"docsx", 403},        {"api/../x", 403},
	            {"api//x", 403}, {"other", 403}, {"api/%2e%2e/x", 403}, {"api/..%2fx", 403}};

	serve("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		as("");
		good(want[i].status, NULL, "GET %s%s", link, want[i].path);
	}
	bed_rule(&bed.on, "ports", "{\"81\":{}}");
	as("");
	bad(502, "upstream", "port 80", NULL, "GET %sapi/", link);
	good(204, NULL, "DELETE /v1/sandboxes/%s", id);
	as("");
	bad(404, "sandbox_not_found", "", NULL, "GET %sapi/", link);
}

static void links_are_good_in_the_next_pandad(void **state)
{
	const char *id = sandbox_made(NULL), *link = link_made(id, "{'port':80}");

	bed_api_close();
	bed.config.public_url = "https://panda.example/";
	bed_api_open();
	serve("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
	as("");
	good(200, NULL, "GET %s", link);
	good(200, "{'port':80}", "POST /v1/sandboxes/%s/preview", id);
	assert_int_equal(strncmp(text_of("url"), "https://panda.example/v1/p/", 27), 0);
}

/* ---- host names ---- */

static void open_suffix(const char *mode)
{
	bed_api_close();
	bed.config.preview_suffix = ".preview.example";
	bed.config.preview = mode;
	bed_api_open();
}

static const char *name_of(const char *id)
{
	static char name[64];

	good(200, NULL, "GET /v1/sandboxes/%s", id);
	snprintf(name, sizeof(name), "%s", text_of("preview_name"));
	return name;
}

/* What a visitor without anything gets, by a name and a port. */
static int visit(unsigned port, const char *name, const char *path)
{
	with("Host: %u-%s.preview.example:443", port, name);
	as("");
	return ask(NULL, "GET %s", path);
}

static void a_host_name_leads_to_a_declared_port(void **state)
{
	const char *id = sandbox_made("{'metadata':{'port.80':'web','port.81':'more'}}"), *name;

	open_suffix(NULL);
	serve_mirror("\r\n\r\n");
	name = name_of(id);
	with("Host: 80-%s.preview.example:443", name);
	with("Authorization: theirs"); /* of the service: it is its own origin */
	with("Referer: http://x.example/page");
	with("Cookie: theirs=1; panda_preview=x");
	as("");
	good(200, NULL, "GET /x?access_token=theirs&access_token=%s", bed.mine);
	assert_int_equal(strncmp(bed.body, "GET /x?access_token=theirs HTTP/1.1", 35), 0);
	assert_true(heard("Referer: http://x.example/page"));
	assert_true(heard("Authorization: theirs"));
	assert_true(heard("Cookie: theirs=1"));
	assert_null(strstr(bed.body, id)); /* what the guest does not know, its pages do not tell */
	assert_string_equal(header("Content-Security-Policy"), "");
	assert_string_equal(header("Referrer-Policy"), "same-origin");
	visit(81, name, "/");
	refused(502, "upstream", "port 81");
	visit(82, name, "/");
	refused(403, "forbidden", "panda ports ID --add 82");
	visit(80, "aaaaaaaaaaaaaaaaaaaa", "/");
	refused(404, "not_found", "no such preview");
	/* An id stands in logs and lists, so it opens nothing: whether there is one or not. */
	visit(80, id, "/");
	refused(401, "unauthorized", "preview_url");
	visit(80, "00000000-0000-4000-8000-000000000000", "/");
	refused(401, "unauthorized", "preview_url");
	/* Other names are the API. */
	with("Host: preview.example");
	as("");
	good(200, NULL, "GET /healthz");
	with("Host: 80-%s.other.example", name);
	as("");
	good(200, NULL, "GET /healthz");
}

static void ports_tell_where_visitors_find_them(void **state)
{
	const char *id = sandbox_made("{'metadata':{'port.80':'web'}}"), *name;

	open_suffix(NULL);
	name = name_of(id);
	with("Host: preview.example:8443");
	good(200, NULL, "GET /v1/sandboxes/%s/ports", id);
	has("[{'port':80,'preview_url':'http://80-%s.preview.example:8443/'}]", name);
	bed_api_close();
	bed.config.public_url = "https://panda.example/";
	bed_api_open();
	good(201, "{'port':81}", "POST /v1/sandboxes/%s/ports", id);
	has("{'preview_url':'https://81-%s.preview.example/'}", name);
	bed_api_close();
	bed.config.preview = "off";
	bed_api_open();
	good(200, NULL, "GET /v1/sandboxes/%s/ports", id);
	has("[{'port':80,'preview_url':null},{'port':81,'preview_url':null}]");
}

static void an_owner_comes_in_by_any_host_name(void **state)
{
	const char *id = sandbox_made(NULL);
	char name[64];

	open_suffix("off");
	serve_mirror("\r\n\r\n");
	snprintf(name, sizeof(name), "%s", name_of(id));
	visit(80, name, "/");
	refused(404, "not_found", "");
	with("Host: 80-%s.preview.example", id);
	good(200, NULL, "GET /");
	assert_null(strcasestr(bed.body, "Authorization"));
	with("Host: 80-%s.preview.example", name);
	good(200, NULL, "GET /");
	with("Host: 80-%s.preview.example", id);
	as(bed.other);
	bad(401, "unauthorized", "", NULL, "GET /");
	with("Host: 80-00000000-0000-4000-8000-000000000000.preview.example");
	bad(401, "unauthorized", "", NULL, "GET /");
}

static void a_link_opens_a_host_name_for_one_browser(void **state)
{
	const char *id = sandbox_made(NULL), *other = sandbox_made(NULL);
	char name[64], token[700], cookie[800];

	open_suffix(NULL);
	serve_mirror("\r\n\r\n");
	snprintf(name, sizeof(name), "%s", name_of(id));
	with("Host: preview.example");
	good(200, "{'port':80,'ttl_seconds':60}", "POST /v1/sandboxes/%s/preview", id);
	snprintf(token, sizeof(token), "%s", text_of("token"));
	has("{'host_url':'http://80-%s.preview.example/?panda_preview=%s'}", name, token);
	with("Host: 80-%s.preview.example", name);
	as("");
	good(302, NULL, "GET //evil.example/a?x=1&panda_preview=%s&y=2", token);
	assert_string_equal(header("Location"), "/evil.example/a?x=1&y=2");
	snprintf(cookie, sizeof(cookie), "%s", header("Set-Cookie"));
	assert_non_null(strstr(cookie, "; Path=/; Max-Age="));
	assert_non_null(strstr(cookie, "; HttpOnly; SameSite=Lax"));
	*strchr(cookie, ';') = 0;
	with("Host: 80-%s.preview.example", id); /* by the id, too: clients make that themselves */
	with("Cookie: a=1; %s", cookie);
	as("");
	good(200, NULL, "GET /a");
	assert_true(heard("Cookie: a=1"));
	assert_null(strstr(bed.body, token));
	/* One port of one sandbox, and as long as it is not revoked. */
	with("Host: 81-%s.preview.example", name);
	with("Cookie: %s", cookie);
	as("");
	bad(403, "forbidden", "port 81", NULL, "GET /");
	with("Host: 80-%s.preview.example", name_of(other));
	as("");
	bad(401, "unauthorized", "another host name", NULL, "GET /?panda_preview=%s", token);
	with("Host: 80-%s.preview.example", name);
	as("");
	bad(401, "unauthorized", "cut or changed", NULL, "GET /?panda_preview=%sx", token);
	good(200, NULL, "POST /v1/sandboxes/%s/preview/rotate", id);
	with("Host: 80-%s.preview.example", id);
	with("Cookie: %s", cookie);
	as("");
	bad(401, "unauthorized", "", NULL, "GET /a");
}

static void a_visitor_wakes_nothing(void **state)
{
	const char *id = sandbox_made("{'metadata':{'port.80':'web'}}"), *link;
	char name[64];

	open_suffix("open");
	serve("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	snprintf(name, sizeof(name), "%s", name_of(id));
	link = link_made(id, "{'port':80}");
	good(200, NULL, "POST /v1/sandboxes/%s/hibernate", id);
	visit(80, name, "/");
	refused(409, "sandbox_hibernated", "signed link");
	visit(80, id, "/");
	refused(409, "sandbox_hibernated", "signed link");
	good(200, NULL, "GET /v1/sandboxes/%s", id);
	has("{'status':'hibernated','preview_name':'%s'}", name);
	as("");
	good(200, NULL, "GET %s", link);
	/* As 0.1.0 did, when that is asked for: all ports, by the id. */
	assert_int_equal(visit(80, id, "/"), 200);
	visit(81, id, "/");
	refused(502, "upstream", "port 81");
	visit(80, "00000000-0000-4000-8000-000000000000", "/");
	refused(404, "not_found", "");
}

static void a_preview_is_revoked_with_its_links(void **state)
{
	const char *id = sandbox_made("{'metadata':{'port.80':'web'}}"), *link, *again;
	char name[64];

	open_suffix(NULL);
	serve("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
	snprintf(name, sizeof(name), "%s", name_of(id));
	link = link_made(id, "{'port':80}");
	good(200, NULL, "POST /v1/sandboxes/%s/preview/rotate", id);
	assert_string_not_equal(text_of("preview_name"), name);
	visit(80, name, "/");
	refused(404, "not_found", "new name");
	as("");
	bad(401, "unauthorized", "revoked", NULL, "GET %s", link);
	again = link_made(id, "{'port':80,'paths':['/a/']}");
	/* All of it stands after a restart, and through hibernation. */
	open_suffix(NULL);
	good(200, NULL, "POST /v1/sandboxes/%s/hibernate", id);
	good(200, NULL, "POST /v1/sandboxes/%s/wake", id);
	as("");
	bad(401, "unauthorized", "revoked", NULL, "GET %s", link);
	as("");
	good(200, NULL, "GET %sa/b", again);
	visit(80, name, "/");
	refused(404, "not_found", "new name");
	snprintf(name, sizeof(name), "%s", name_of(id));
	assert_int_equal(visit(80, name, "/"), 200);
	/* A child is another one. */
	good(201, "{}", "POST /v1/sandboxes/%s/fork", id);
	good(200, NULL, "GET /v1/sandboxes?parent_id=%s", id);
	assert_string_not_equal(text_of("0.preview_name"), name);
	as(bed.other);
	bad(404, "sandbox_not_found", "", NULL, "POST /v1/sandboxes/%s/preview/rotate", id);
}

static void the_config_names_a_mode(void **state)
{
	struct err e;

	bed_api_close();
	bed_open_host(&bed.on);
	bed.config.preview = "some";
	assert_true(api_new(bed.on.host, &bed.config, &bed.api, &e) < 0);
	assert_non_null(strstr(e.text, "neither off, declared nor open"));
	bed.config.preview = "off";
	bed_api_open();
}

/* ---- tunnels ---- */

static struct client *tunnel(int status, const char *id, const char *rest)
{
	with("Connection: Upgrade");
	with("Upgrade: tcp");
	return stream(status, NULL, "GET /v1/sandboxes/%s/%s", id, rest);
}

static void a_tunnel_carries_bytes_both_ways(void **state)
{
	const char *id = sandbox_made(NULL);
	static char big[400000];
	struct client *c;

	bed_rule(&bed.on, "ports", "{\"5432\":{}}");
	c = tunnel(101, id, "ports/5432/tunnel");
	client_send(c, "\0\1\2", 3);
	client_wait(c, 3);
	assert_memory_equal(client_body(c), "\0\1\2", 3);
	for (size_t i = 0; i < sizeof(big); i++)
		big[i] = (char)(i * 31);
	client_send(c, big, sizeof(big));
	client_wait(c, 3 + sizeof(big));
	assert_memory_equal(client_body(c) + 3, big, sizeof(big));
	/* Each half ends on its own: the echo says what it heard, and then ends, too. */
	client_send(c, "last", 4);
	assert_int_equal(shutdown(c->fd, SHUT_WR), 0);
	client_end(c);
	assert_memory_equal(client_body(c) + 3 + sizeof(big), "last", 4);
}

static void a_tunnel_that_cannot_be_is_an_answer(void **state)
{
	const char *id = sandbox_made(NULL);

	client_answer(tunnel(502, id, "ports/1/tunnel"));
	refused(502, "upstream", "port 1 of the sandbox: nothing listens there");
	client_answer(tunnel(400, id, "ports/x/tunnel"));
	refused(400, "bad_request", "65535");
	bad(400, "bad_request", "Upgrade: tcp", NULL, "GET /v1/sandboxes/%s/ports/80/tunnel", id);
	with("Connection: Upgrade");
	with("Upgrade: websocket");
	bad(400, "bad_request", "Upgrade: tcp", NULL, "GET /v1/sandboxes/%s/ports/80/tunnel", id);
	bed_rule(&bed.on, "refuse", "{\"connect\":{\"err\":0}}");
	client_answer(
	    tunnel(502, id, "ports/80/tunnel")); /* "all went well", and nothing was there */
	refused(502, "upstream", "");
	bed_rule(&bed.on, "refuse", NULL);
	bed_rule(&bed.on, "mood", "{\"*\":\"hangup\"}");
	client_answer(tunnel(502, id, "ports/80/tunnel"));
	refused(502, text_of("code"), "");
}

static void a_tunnel_ends_with_its_client_or_its_sandbox(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c;

	bed_rule(&bed.on, "ports", "{\"5432\":{}}");
	c = tunnel(101, id, "ports/5432/tunnel");
	client_leave(c);
	bed_until(&bed.on, http_server_conns(bed.server) == 0);
	c = tunnel(101, id, "ports/5432/tunnel");
	bed_crash_machine(&bed.on, sandbox_of(id));
	client_end(c);
}

#define KEY "ssh-ed25519%20AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"

static void an_sshd_is_started_for_a_good_key(void **state)
{
	static const char *const wrong[] = {
	    "ssh/tunnel",
	    "ssh/tunnel?key=",
	    "ssh/tunnel?key=ssh-ed25519%20AAAA",
	    "ssh/tunnel?key=command=%22sh%22%20" KEY,
	    "ssh/tunnel?key=" KEY "%20comment",
	    "ssh/tunnel?key=" KEY "===",
	    "ssh/tunnel?key=" KEY "%0aroot",
	    "ssh/tunnel?key=ssh-dss%20"
	    "AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"};
	const char *id = sandbox_made(NULL);
	struct client *c;

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		client_answer(tunnel(400, id, wrong[i]));
		refused(400, "bad_request", "public key");
	}
	bad(400, "bad_request", "Upgrade: tcp", NULL, "GET /v1/sandboxes/%s/ssh/tunnel?key=%s", id,
	    KEY);
	client_answer(tunnel(502, id, "ssh/tunnel?key=" KEY));
	refused(502, "upstream", "openssh-server");
	bed_rule(&bed.on, "exec", "{\"ssh-serve\":{\"err\":\"no host keys\\n\",\"code\":1}}");
	client_answer(tunnel(502, id, "ssh/tunnel?key=" KEY));
	refused(502, "upstream", "no host keys");
	bed_rule(&bed.on, "exec", "{\"ssh-serve\":{\"out\":\"SSH-2.0-fake\\r\\n\",\"hang\":true}}");
	c = tunnel(101, id, "ssh/tunnel?key=" KEY);
	client_wait(c, 14);
	assert_int_equal(strncmp(client_body(c), "SSH-2.0-fake\r\n", 14), 0);
	client_send(c, "SSH-2.0-us\r\n", 12);
	good(200, NULL, "GET /v1/sandboxes/%s/execs", id);
	assert_non_null(strstr(bed.body, "ssh-serve ssh-ed25519 AAAA"));
	/* Its client may have ended only its half: that is sshd's to judge. */
	good(204, "{'signal':'KILL'}", "POST /v1/sandboxes/%s/execs/%s/signal", id,
	     text_of("0.id"));
	client_end(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(ports_are_declared_listed_and_forgotten),
	    api_test(a_declaration_is_checked),
	    api_test(a_service_answers_through_the_proxy),
	    api_test(a_service_gives_no_orders_to_a_web_server_in_front),
	    api_test(a_page_below_our_paths_is_of_no_origin),
	    api_test(bodies_pass_in_each_of_their_forms),
	    api_test(the_service_hears_the_request_without_our_secrets),
	    api_test(bodies_of_requests_reach_the_service),
	    api_test(services_that_do_not_answer_well_are_502),
	    api_test(an_answer_that_is_cut_is_seen_to_be),
	    api_test(a_visitor_that_goes_away_and_a_slow_one_cost_nothing),
	    api_test(an_upgrade_becomes_a_tunnel),
	    api_test(an_upgrade_that_has_a_body_is_refused_when_the_service_takes_it),
	    api_test(a_signed_link_needs_no_token),
	    api_test(a_link_is_checked_when_it_is_made),
	    api_test(a_link_expires),
	    api_test(a_link_that_was_changed_is_none),
	    api_test(a_link_leads_to_its_port_below_its_paths_only),
	    api_test(links_are_good_in_the_next_pandad),
	    api_test(a_host_name_leads_to_a_declared_port),
	    api_test(ports_tell_where_visitors_find_them),
	    api_test(an_owner_comes_in_by_any_host_name),
	    api_test(a_link_opens_a_host_name_for_one_browser),
	    api_test(a_visitor_wakes_nothing),
	    api_test(a_preview_is_revoked_with_its_links),
	    api_test(the_config_names_a_mode),
	    api_test(a_tunnel_carries_bytes_both_ways),
	    api_test(a_tunnel_that_cannot_be_is_an_answer),
	    api_test(a_tunnel_ends_with_its_client_or_its_sandbox),
	    api_test(an_sshd_is_started_for_a_good_key),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
