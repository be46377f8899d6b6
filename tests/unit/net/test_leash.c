#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/macro.h"
#include "net/leash.h"
#include "net/net.h"

static struct net_policy *policy;

static int make_policy(void **state)
{
	static const char *const entries[] = {"a.example", "*.b.example", "ssh.example:22",
	                                      "db.example:5432"};

	return net_policy_new(NET_LIST, entries, ARRAY_LEN(entries), &policy, NULL);
}

static int drop_policy(void **state)
{
	net_policy_unref(policy);
	return 0;
}

/* What a guest says, byte by byte or at once, and what of it gets out. */
struct run {
	struct leash leash;
	uint8_t held[LEASH_BYTES_MAX];
	size_t n;
	char out[100000];
	size_t n_out;
	char names[200]; /* those that were told */
	bool refused;
};

static struct run *run_new(uint16_t port)
{
	struct run *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	leash_init(&r->leash, port);
	return r;
}

static void say(struct run *r, const void *bytes, size_t n, size_t piece)
{
	const uint8_t *p = bytes;

	while (n && !r->refused) {
		size_t part = MIN(piece, n);
		ssize_t eaten = -1;

		part = MIN(part, sizeof(r->held) - r->n);
		assert_true(part > 0);
		memcpy(r->held + r->n, p, part);
		r->n += part;
		p += part;
		n -= part;
		while (r->n && eaten) {
			bool told;

			eaten = leash_judge(&r->leash, policy, r->held, &r->n, &told);
			if (eaten < 0) {
				assert_int_equal(eaten, -EPERM);
				r->refused = true;
				return;
			}
			if (told) {
				size_t at = strlen(r->names);

				snprintf(r->names + at, sizeof(r->names) - at, "%s ",
				         r->leash.name);
			}
			assert_true(r->n_out + (size_t)eaten < sizeof(r->out));
			memcpy(r->out + r->n_out, r->held, (size_t)eaten);
			r->n_out += (size_t)eaten;
			r->n -= (size_t)eaten;
			memmove(r->held, r->held + eaten, r->n);
		}
	}
}

/* Nothing of it gets out, however it is cut; why is the word, name what it was about. */
static void assert_refused(uint16_t port, const char *text, const char *why, const char *name)
{
	static const size_t pieces[] = {1, 7, 100000};

	for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
		struct run *r = run_new(port);

		say(r, text, strlen(text), pieces[i]);
		if (!r->refused || r->n_out)
			fail_msg("went out: %s", text);
		assert_string_equal(r->leash.why, why);
		assert_string_equal(r->leash.refused, name);
		free(r);
	}
}

static void assert_goes(uint16_t port, const char *text, const char *out, const char *names)
{
	static const size_t pieces[] = {1, 7, 100000};

	for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
		struct run *r = run_new(port);

		say(r, text, strlen(text), pieces[i]);
		if (r->refused)
			fail_msg("refused (%s): %s", r->leash.why, text);
		r->out[r->n_out] = '\0';
		assert_string_equal(r->out, out);
		assert_string_equal(r->names, names);
		free(r);
	}
}

#define GET(host)  "GET / HTTP/1.1\r\nHost: " host "\r\n\r\n"
#define SAME(text) text, text

static void requests_to_a_host_of_the_list_go(void **state)
{
	assert_goes(80, SAME(GET("a.example")), "a.example ");
	assert_goes(80, SAME(GET("A.Example")), "a.example ");
	assert_goes(80, SAME(GET("a.example:80")), "a.example ");
	assert_goes(80, SAME(GET("a.example.")), "a.example ");
	assert_goes(80, SAME(GET("x.y.b.example")), "x.y.b.example ");
	assert_goes(80, SAME("GET / HTTP/1.0\r\nHost: a.example\r\n\r\n"), "a.example ");
	assert_goes(80, SAME("GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n"),
	            "a.example ");
}

static void each_request_of_a_connection_is_judged(void **state)
{
	assert_goes(80, SAME(GET("a.example") GET("a.example") GET("x.b.example")),
	            "a.example x.b.example ");
	assert_goes(80,
	            SAME("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nGET /" GET(
			"a.example")),
	            "a.example ");
	assert_goes(80,
	            SAME("POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
	                 "5\r\nGET /\r\n0\r\n\r\n" GET("x.b.example")),
	            "a.example x.b.example ");
}

static void a_later_request_is_refused_alone(void **state)
{
	static const char *const first[] = {
	    GET("a.example"),
	    "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\n12345",
	    "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"
	    "5\r\n12345\r\n0\r\n\r\n",
	};
	static const char *const then[] = {GET("evil.example"), "junk\r\n\r\n",
	                                   "\x16\x03\x01 ...\n"};

	for (size_t i = 0; i < ARRAY_LEN(first); i++) {
		for (size_t k = 0; k < ARRAY_LEN(then); k++) {
			for (size_t piece = 1; piece < 1000; piece += 50) {
				struct run *r = run_new(80);
				char text[500];

				snprintf(text, sizeof(text), "%s%s", first[i], then[k]);
				say(r, text, strlen(text), piece);
				assert_true(r->refused);
				r->out[r->n_out] = '\0';
				assert_string_equal(r->out, first[i]);
				assert_string_equal(r->leash.name, "a.example");
				free(r);
			}
		}
	}
}

static void what_is_for_another_host_is_refused(void **state)
{
	assert_refused(80, GET("evil.example"), "host", "evil.example");
	assert_refused(80, GET("a.example.evil.example"), "host", "a.example.evil.example");
	assert_refused(80, GET("b.example"), "host", "b.example");
	assert_refused(80, GET("11.1.1.3"), "host", "");
	assert_refused(80, GET("a.example:8080"), "host", "");
	assert_refused(80, GET("ssh.example"), "host", "ssh.example");
	assert_refused(80, GET(""), "host", "");
}

static void what_could_be_read_in_two_ways_is_refused(void **state)
{
	static const char *const bad[] = {
	    "GET / HTTP/1.1\r\nHost: a.example\r\nHost: evil.example\r\n\r\n",
	    "GET / HTTP/1.1\r\nHost: evil.example\r\nHost: a.example\r\n\r\n",
	    "GET / HTTP/1.1\r\n\r\n",
	    "GET / HTTP/1.0\r\n\r\n",
	    "GET /\r\n\r\n",
	    "GET http://evil.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
	    "GET http://a.example@evil.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
	    "CONNECT evil.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
	    "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
	    "CONNECT / HTTP/1.1\r\nHost: a.example\r\n\r\n",
	    "GET / HTTP/1.1\r\nHost: a.example\r\n X: folded\r\n\r\n",
	    "GET / HTTP/1.1\r\nHost : a.example\r\n\r\n",
	    "GET / HTTP/1.1\nHost: a.example\n\n",
	    "GET / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1\r\n"
	    "Transfer-Encoding: chunked\r\n\r\n",
	    "GET / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
	    "GET / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: identity, chunked\r\n\r\n",
	    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	    "SSH-2.0-OpenSSH_9.2\r\n\r\n",
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_refused(80, bad[i], "http", "");
}

static void a_head_has_an_end(void **state)
{
	struct run *r = run_new(80);
	static char big[LEASH_BYTES_MAX];

	memset(big, 'x', sizeof(big));
	say(r, "GET / HTTP/1.1\r\nHost: a.example\r\nX: ", 37, 1000);
	say(r, big, sizeof(big), 1000);
	assert_true(r->refused);
	assert_int_equal(r->n_out, 0);
	free(r);
}

#define WS_ASKS \
	"GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

static struct run *ask_websocket(const char *answer)
{
	struct run *r = run_new(80);

	say(r, WS_ASKS GET("evil.example"), strlen(WS_ASKS GET("evil.example")), 9);
	assert_int_equal(r->n_out, strlen(WS_ASKS)); /* the rest waits for the answer */
	assert_false(r->refused);
	leash_answer(&r->leash, (const uint8_t *)answer);
	say(r, "!", 1, 1);
	return r;
}

static void a_websocket_says_what_it_likes(void **state)
{
	struct run *r = ask_websocket("HTTP/1.1 101 Switching");

	assert_false(r->refused);
	assert_int_equal(r->n, 0);
	free(r);
	/* It is one only when the server says so. */
	r = ask_websocket("HTTP/1.1 200 OK");
	assert_true(r->refused);
	assert_string_equal(r->leash.refused, "evil.example");
	free(r);
}

static void other_upgrades_are_taken_out(void **state)
{
	assert_goes(80,
	            "GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: h2c\r\n"
	            "Connection: Upgrade\r\n\r\n",
	            "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\n\r\n",
	            "a.example ");
	assert_goes(
	    80,
	    "GET / HTTP/1.1\r\nupgrade: h2c\r\nHost: a.example\r\nUpgrade: websocket\r\n\r\n"
	    "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
	    "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
	    "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
	    "a.example ");
	/* Not the first request: which answer is whose is not looked at. */
	assert_goes(80, GET("a.example") WS_ASKS,
	            GET("a.example") "GET /ws HTTP/1.1\r\nHost: a.example\r\n"
	                             "Connection: Upgrade\r\n\r\n",
	            "a.example ");
}

/* A ClientHello with this name, 12 letters. */
static size_t hello(char out[200], const char *name)
{
	static const uint8_t head[] = {22, 3, 1, 0, 70, 1, 0, 0, 66, 3, 3};
	static const uint8_t mid[] = {0, 0, 2, 0x13, 1, 1, 0, 0, 25, 0, 0, 0, 21, 0, 19, 0, 0, 16};
	size_t n = 0;

	memcpy(out, head, sizeof(head));
	n += sizeof(head);
	memset(out + n, 'r', 32);
	n += 32;
	memcpy(out + n, mid, sizeof(mid));
	n += sizeof(mid);
	out[n - 10] = 25;
	assert_int_equal(strlen(name), 16);
	memcpy(out + n, name, 16);
	n += 16;
	out[4] = (char)(n - 5);
	out[8] = (char)(n - 9);
	return n;
}

static void a_port_of_its_own_looks_at_names_in_tls(void **state)
{
	static const char *const entries[] = {"good.name.exampl:8443"};
	struct net_policy *had = policy;
	char good[200], bad[200];
	size_t n = hello(good, "good.name.exampl");

	assert_int_equal(hello(bad, "evil.name.exampl"), n);
	assert_int_equal(net_policy_new(NET_LIST, entries, 1, &policy, NULL), 0);
	for (size_t piece = 1; piece < 200; piece += 20) {
		struct run *r = run_new(8443);

		say(r, good, n, piece);
		assert_false(r->refused);
		assert_int_equal(r->n_out, n);
		say(r, bad, n, piece); /* the rest is inside, or is not */
		assert_false(r->refused);
		free(r);
		r = run_new(8443);
		say(r, bad, n, piece);
		assert_true(r->refused);
		assert_int_equal(r->n_out, 0);
		assert_string_equal(r->leash.refused, "evil.name.exampl");
		free(r);
		r = run_new(443);
		say(r, good, n, piece);
		assert_true(r->refused); /* on the list for another port */
		free(r);
	}
	net_policy_unref(policy);
	policy = had;
	assert_refused(8443, "\x16\x03\x01\xff\xff\x01", "sni", "");
	assert_refused(443, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", "sni", "");
	assert_goes(22, SAME("SSH-2.0-OpenSSH_9.2\r\n"), "");
	assert_goes(5432, SAME("\x16 no TLS"), "");
}

static void a_policy_that_changes_ends_what_it_does_not_name(void **state)
{
	static const char *const entries[] = {"a.example"};
	struct net_policy *less, *open;
	struct run *r = run_new(80);

	assert_int_equal(net_policy_new(NET_LIST, entries, 1, &less, NULL), 0);
	assert_int_equal(net_policy_new(NET_OPEN, NULL, 0, &open, NULL), 0);
	say(r, GET("a.example"), strlen(GET("a.example")), 100);
	assert_true(leash_holds(&r->leash, policy));
	assert_true(leash_holds(&r->leash, less));
	/* Something is on its way from both: we do not know for which the rest is. */
	say(r, GET("x.b.example"), strlen(GET("x.b.example")), 100);
	say(r, GET("a.example"), strlen(GET("a.example")), 100);
	assert_false(leash_holds(&r->leash, less));
	assert_true(leash_holds(&r->leash, open));
	free(r);
	net_policy_unref(less);
	net_policy_unref(open);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(requests_to_a_host_of_the_list_go),
	    cmocka_unit_test(each_request_of_a_connection_is_judged),
	    cmocka_unit_test(a_later_request_is_refused_alone),
	    cmocka_unit_test(what_is_for_another_host_is_refused),
	    cmocka_unit_test(what_could_be_read_in_two_ways_is_refused),
	    cmocka_unit_test(a_head_has_an_end),
	    cmocka_unit_test(a_websocket_says_what_it_likes),
	    cmocka_unit_test(other_upgrades_are_taken_out),
	    cmocka_unit_test(a_port_of_its_own_looks_at_names_in_tls),
	    cmocka_unit_test(a_policy_that_changes_ends_what_it_does_not_name),
	};

	return cmocka_run_group_tests(tests, make_policy, drop_policy);
}
