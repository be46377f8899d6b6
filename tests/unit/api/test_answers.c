/*
 * Agents that answer what they may not, as clients see it: whatever comes, and however often, the
 * request ends with a short answer, and the sandbox goes on serving.
 */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "base/macro.h"
#include "bed.h"

enum {
	SHORT = 4096,      /* bytes of an answer that has no data in it */
	ROOM = 8 << 20,    /* what a slow client's answer may take, of all its rows */
	LONG = 256 * 1024, /* and of one with 1,000 events */
};

/* A request of a client, the one that becomes of it, and the reply that this must get first. */
static const struct {
	const char *body, *line, *request, *first;
} asks[] = {
    {"{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", "exec", "started"},
    {"{'cmd':'true'}", "POST /v1/sandboxes/%s/exec/stream", "exec", "started"},
    {"{'cmd':'true'}", "POST /v1/sandboxes/%s/execs", "exec", "started"},
    {NULL, "GET /v1/sandboxes/%s/execs", "list", NULL},
    {NULL, "GET /v1/sandboxes/%s/execs/1/output?follow=1", "attach", "attached"},
    {"x", "POST /v1/sandboxes/%s/execs/1/stdin", "attach", "attached"},
    {"{'code':'1+1'}", "POST /v1/sandboxes/%s/repl", "attach", "attached"},
    {NULL, "GET /v1/sandboxes/%s/fs/watch?path=/", "watch", "ready"},
    {NULL, "GET /v1/sandboxes/%s/fs/dir?path=/", "dir", NULL},
    {NULL, "GET /v1/sandboxes/%s/fs/stat?path=/", "stat", "file"},
    {NULL, "GET /v1/sandboxes/%s/fs?path=/x", "read", "file"},
    {"x", "PUT /v1/sandboxes/%s/fs?path=/x", "write", NULL},
    {NULL, "GET /v1/sandboxes/%s/proxy/80/", "connect", "ready"},
};

static const char *const floods[] = {"data",     "eof", "ready",  "started",
                                     "attached", "gap", "exited", "file"};

/* Of all events of this sandbox. */
static size_t events_named(const char *id, const char *name)
{
	const json_t *v;
	size_t i, n = 0;

	good(200, NULL, "GET /v1/sandboxes/%s/events", id);
	json_array_foreach(json_object_get(bed.json, "events"), i, v)
		n += !strcmp(json_string_value(json_object_get(v, "type")), name);
	return n;
}

/* That reply a thousand times, after the one that comes first, and then END 0. */
static void flooded(const char *id, size_t ask_no, const char *reply, bool opened)
{
	const char *first = asks[ask_no].first;
	char rule[256], opening[64] = "";
	struct client *c;
	size_t len;

	if (opened)
		snprintf(opening, sizeof(opening), "[\"%s\", 1], ", first);
	snprintf(rule, sizeof(rule), "{\"%s\": [%s[\"%s\", 1000], [\"end\", 1]]}",
	         asks[ask_no].request, opening, reply);
	bed_rule(&bed.on, "answers", rule);
	c = begin(asks[ask_no].body, asks[ask_no].line, id);
	bed_until(&bed.on, c->over || c->closed); /* cut: it was promised more than came */
	len = c->head ? client_body_len(c) : 0;
	client_leave(c);
	if (len >= (strcmp(reply, "data") ? SHORT : LONG))
		fail_msg("%s, flooded with %s: %zu bytes", asks[ask_no].line, reply, len);
}

static void a_flood_of_replies_is_a_short_answer(void **state)
{
	const char *id = sandbox_made(NULL);
	size_t oom = 0;

	good(200, "{'code':'1+1'}", "POST /v1/sandboxes/%s/repl", id);
	for (size_t i = 0; i < ARRAY_LEN(asks); i++) {
		for (size_t k = 0; k < ARRAY_LEN(floods); k++) {
			for (int opened = 0; opened <= (asks[i].first != NULL); opened++)
				flooded(id, i, floods[k], opened);
			oom += !strcmp(asks[i].request, "exec") && !strcmp(floods[k], "exited");
		}
		bed_rule(&bed.on, "answers", NULL);
		good(200, "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", id);
	}
	/* A thousand ends of a command are one on record, and none of one that is detached. */
	assert_int_equal(oom, 3);
	assert_int_equal(events_named(id, "exec.oom_killed"), 2);
}

static void a_command_that_ended_twice_is_not_known_to_have_ended(void **state)
{
	const char *id = sandbox_made(NULL);

	bed_rule(&bed.on, "answers",
	         "{\"exec\": [[\"started\", 1], [\"exited\", 2], [\"end\", 1]]}");
	bad(502, "upstream", "not known", "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", id);
	bed_rule(&bed.on, "answers", NULL);
	/* Once is only that call's end: the connection, and what else is on it, goes on. */
	good(200, "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", id);
}

static void one_lie_leaves_the_other_calls_alone(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = stream(200, NULL, "GET /v1/sandboxes/%s/fs/watch?path=/tmp", id);

	json_has(event(c, "ready"), "{}");
	bed_rule(&bed.on, "answers", "{\"stat\": [[\"file\", 2], [\"end\", 1]]}");
	bad(502, "upstream", "", NULL, "GET /v1/sandboxes/%s/fs/stat?path=/", id);
	bed_rule(&bed.on, "answers", NULL);
	good(201, "{'path':'/tmp/x'}", "POST /v1/sandboxes/%s/fs/mkdir", id);
	json_has(event(c, "change"), "{'type':'created','path':'/tmp/x'}");
	client_leave(c);
}

static size_t memory(void)
{
	struct mallinfo2 m = mallinfo2();

	return m.uordblks + m.hblkhd;
}

static void bytes_that_wait_for_room_become_one_event(void **state)
{
	const char *id = sandbox_made(NULL);
	struct client *c = client_new();
	char line[512];
	size_t events = 0, bytes = 0;
	int n, small = 4096;

	bed_rule(
	    &bed.on, "answers",
	    "{\"attach\": [[\"attached\", 1], [\"data\", 60000], [\"exited\", 1], [\"end\", 1]]}");
	client_deaf(c, true);
	assert_int_equal(setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
	n = snprintf(line, sizeof(line),
	             "GET /v1/sandboxes/%s/execs/1/output?follow=1 HTTP/1.1\r\nHost: panda\r\n"
	             "Authorization: Bearer %s\r\n\r\n",
	             id, bed.mine);
	client_send(c, line, (size_t)n);
	good(200, "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", id);
	client_deaf(c, false);
	json_has(event(c, "start"), "{'stdout_offset':0}");
	while (!strcmp(event_any(c), "stdout")) {
		assert_int_equal(json_integer_value(json_object_get(c->data, "offset")), bytes);
		bytes += json_string_length(json_object_get(c->data, "chunk"));
		events++;
	}
	assert_string_equal(c->name, "exit");
	assert_int_equal(bytes, 60000);
	assert_in_range(events, 2, 20000);
	client_leave(c);
}

/* A name of a few bytes becomes a path of thousands, in JSON. */
static void rows_want_room_each(const char *request, const char *rule, size_t rows)
{
	const char *id = sandbox_made(NULL);
	struct client *c = client_new();
	char path[4000 * 3 + 1] = "", line[sizeof(path) + 256];
	size_t before;
	int n;

	for (size_t i = 0; i < sizeof(path) - 1; i += 3)
		memcpy(path + i, "%01", 4);
	bed_rule(&bed.on, "answers", rule);
	good(200, "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", id);
	before = memory();
	client_deaf(c, true);
	n = snprintf(line, sizeof(line),
	             "GET /v1/sandboxes/%s/fs/%s?path=/%s HTTP/1.1\r\nHost: panda\r\n"
	             "Authorization: Bearer %s\r\n\r\n",
	             id, request, path, bed.mine);
	client_send(c, line, (size_t)n);
	/* What comes on the same connection to the guest comes behind all rows. */
	good(200, "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", id);
	assert_true(memory() < before + ROOM);
	client_deaf(c, false);
	client_head(c);
	client_wait(c, rows * strlen(path) * 2); /* a byte is six */
	bed_rule(&bed.on, "answers", NULL);
	good(200, "{'cmd':'true'}", "POST /v1/sandboxes/%s/exec", id);
	client_leave(c);
}

static void changes_wait_until_the_client_has_room(void **state)
{
	rows_want_room_each("watch", "{\"watch\": [[\"ready\", 1], [\"event\", 1000]]}", 1000);
}

static void a_listing_waits_until_the_client_has_room(void **state)
{
	rows_want_room_each("dir", "{\"dir\": [[\"entry\", 1500], [\"end\", 1]]}", 1500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    api_test(a_flood_of_replies_is_a_short_answer),
	    api_test(a_command_that_ended_twice_is_not_known_to_have_ended),
	    api_test(one_lie_leaves_the_other_calls_alone),
	    api_test(bytes_that_wait_for_room_become_one_event),
	    api_test(changes_wait_until_the_client_has_room),
	    api_test(a_listing_waits_until_the_client_has_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
