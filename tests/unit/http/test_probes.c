/*
 * Malformed requests: each is refused with its status, no handler is called for a bad head, and the
 * connection ends. And their well-formed neighbours, which are served.
 */
#include "bed.h"
#include "http/parse.h"
#include "http/server.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK     "Host: a\r\n\r\n"
#define CHUNKS "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"

struct probe {
	const char *name, *bytes;
	size_t n; /* when there is a NUL inside */
	int status;
};

#define RAW(s) s, sizeof(s) - 1

static const struct probe bad_heads[] = {
    {"no Host", RAW("GET / HTTP/1.1\r\n\r\n"), 400},
    {"two Hosts", RAW("GET / HTTP/1.1\r\nHost: a\r\n" OK), 400},
    {"two Hosts in 1.0", RAW("GET / HTTP/1.0\r\nHost: a\r\n" OK), 400},
    {"Host with a space", RAW("GET / HTTP/1.1\r\nHost: a b\r\n\r\n"), 400},
    {"Host with a path", RAW("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"), 400},
    {"Host list", RAW("GET / HTTP/1.1\r\nHost: a,b\r\n\r\n"), 400},
    {"Host with a user", RAW("GET / HTTP/1.1\r\nHost: u@a\r\n\r\n"), 400},
    {"TE and CL",
     RAW("POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n" OK "0\r\n\r\n"),
     400},
    {"CL and TE",
     RAW("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n" OK "0\r\n\r\n"),
     400},
    {"two CLs", RAW("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n" OK "abc"), 400},
    {"the same CL twice",
     RAW("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n" OK "abc"), 400},
    {"CL list", RAW("POST / HTTP/1.1\r\nContent-Length: 3, 3\r\n" OK "abc"), 400},
    {"CL plus", RAW("POST / HTTP/1.1\r\nContent-Length: +3\r\n" OK "abc"), 400},
    {"CL negative", RAW("POST / HTTP/1.1\r\nContent-Length: -3\r\n" OK "abc"), 400},
    {"CL hexadecimal", RAW("POST / HTTP/1.1\r\nContent-Length: 0x3\r\n" OK "abc"), 400},
    {"CL with a space", RAW("POST / HTTP/1.1\r\nContent-Length: 3 3\r\n" OK "abc"), 400},
    {"CL with a tab", RAW("POST / HTTP/1.1\r\nContent-Length: 3\t\r\n" OK "abc"), 400},
    {"TE with a tab", RAW("POST / HTTP/1.1\r\nTransfer-Encoding:\tchunked\r\n" OK), 400},
    {"CL empty", RAW("POST / HTTP/1.1\r\nContent-Length:\r\n" OK), 400},
    {"CL past 2^64", RAW("POST / HTTP/1.1\r\nContent-Length: 18446744073709551619\r\n" OK "abc"),
     400},
    {"TE xchunked", RAW("POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n" OK), 501},
    {"TE gzip, chunked", RAW("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n" OK), 501},
    {"TE chunked twice", RAW("POST / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n" OK), 501},
    {"TE identity", RAW("POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\n" OK), 501},
    {"TE with a parameter", RAW("POST / HTTP/1.1\r\nTransfer-Encoding: chunked;q=1\r\n" OK), 501},
    {"TE empty", RAW("POST / HTTP/1.1\r\nTransfer-Encoding:\r\n" OK), 501},
    {"two TEs",
     RAW("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n" OK),
     400},
    {"TE in 1.0", RAW("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n" OK), 400},
    {"space before the colon", RAW("POST / HTTP/1.1\r\nContent-Length : 3\r\n" OK "abc"), 400},
    {"folded line", RAW("GET / HTTP/1.1\r\nX: a\r\n b\r\n" OK), 400},
    {"first header indented", RAW("GET / HTTP/1.1\r\n X: a\r\n" OK), 400},
    {"NUL in a value", RAW("GET / HTTP/1.1\r\nX: a\0b\r\n" OK), 400},
    {"NUL in a name", RAW("GET / HTTP/1.1\r\nX\0: a\r\n" OK), 400},
    {"NUL in the path", RAW("GET /\0 HTTP/1.1\r\n" OK), 400},
    {"bare CR in a value", RAW("GET / HTTP/1.1\r\nX: a\rTransfer-Encoding: chunked\r\n" OK), 400},
    {"bare CR behind a value", RAW("GET / HTTP/1.1\r\nX: a\r\r\n" OK), 400},
    {"bare CR in the first line", RAW("GET / HTTP/1.1\rX: a\r\n" OK), 400},
    {"CR and junk as the end", RAW("GET / HTTP/1.1\r\nHost: a\r\n\rX\r\n\r\n"), 400},
    {"bare LF in the first line", RAW("GET / HTTP/1.1\nHost: a\n\n"), 400},
    {"bare LF behind a header", RAW("GET / HTTP/1.1\r\nX: a\n" OK), 400},
    {"bare LF as the end", RAW("GET / HTTP/1.1\r\nHost: a\r\n\n"), 400},
    {"control character", RAW("GET / HTTP/1.1\r\nX: a\1b\r\n" OK), 400},
    {"DEL", RAW("GET / HTTP/1.1\r\nX: a\x7f\r\n" OK), 400},
    {"no colon", RAW("GET / HTTP/1.1\r\nX\r\n" OK), 400},
    {"no name", RAW("GET / HTTP/1.1\r\n: x\r\n" OK), 400},
    {"space in a name", RAW("GET / HTTP/1.1\r\nX Y: x\r\n" OK), 400},
    {"name in Latin 1", RAW("GET / HTTP/1.1\r\nX\xe4: x\r\n" OK), 400},
    {"HTTP/0.9", RAW("GET /\r\n\r\n"), 400},
    {"HTTP/0.9 with a version", RAW("GET / HTTP/0.9\r\n" OK), 505},
    {"HTTP/2.0", RAW("GET / HTTP/2.0\r\n" OK), 505},
    {"HTTP/1.2", RAW("GET / HTTP/1.2\r\n" OK), 505},
    {"HTTP/9.9", RAW("GET / HTTP/9.9\r\n" OK), 505},
    {"HTTP/1.10", RAW("GET / HTTP/1.10\r\n" OK), 400},
    {"HTTP/01.1", RAW("GET / HTTP/01.1\r\n" OK), 400},
    {"http/1.1", RAW("GET / http/1.1\r\n" OK), 400},
    {"the preface of HTTP/2", RAW("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505},
    {"a TLS hello", RAW("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), 400},
    {"two spaces", RAW("GET  / HTTP/1.1\r\n" OK), 400},
    {"two spaces before the version", RAW("GET /  HTTP/1.1\r\n" OK), 400},
    {"space behind the version", RAW("GET / HTTP/1.1 \r\n" OK), 400},
    {"tabs", RAW("GET\t/\tHTTP/1.1\r\n" OK), 400},
    {"space in front", RAW(" GET / HTTP/1.1\r\n" OK), 400},
    {"empty line in front", RAW("\r\nGET / HTTP/1.1\r\n" OK), 400},
    {"no method", RAW(" / HTTP/1.1\r\n" OK), 400},
    {"method with a separator", RAW("GE(T / HTTP/1.1\r\n" OK), 400},
    {"endless method", RAW("GETGETGETGETGETGETGETGETGETGETGETGET / HTTP/1.1\r\n" OK), 400},
    {"fragment", RAW("GET /#x HTTP/1.1\r\n" OK), 400},
    {"%00 in the path", RAW("GET /json%00x HTTP/1.1\r\n" OK), 400},
    {"half an escape", RAW("GET /a%2 HTTP/1.1\r\n" OK), 400},
    {"bad escape", RAW("GET /a%zz HTTP/1.1\r\n" OK), 400},
    {"bytes in the path", RAW("GET /\xc3\xa4 HTTP/1.1\r\n" OK), 400},
    {"asterisk", RAW("OPTIONS * HTTP/1.1\r\n" OK), 400},
    {"authority", RAW("CONNECT a:443 HTTP/1.1\r\n" OK), 400},
    {"relative path", RAW("GET x/y HTTP/1.1\r\n" OK), 400},
    {"URL of another host", RAW("GET http://b/ HTTP/1.1\r\n" OK), 400},
    {"URL of a longer host", RAW("GET http://ab/ HTTP/1.1\r\n" OK), 400},
    {"URL without a host", RAW("GET http:/// HTTP/1.1\r\nHost:\r\n\r\n"), 400},
    {"other scheme", RAW("GET ftp://a/ HTTP/1.1\r\n" OK), 400},
    {"unknown expectation", RAW("POST / HTTP/1.1\r\nExpect: a-cake\r\nContent-Length: 3\r\n" OK),
     417},
};

static const struct probe bad_bodies[] = {
    {"chunk size negative", RAW(CHUNKS "-3\r\nabc\r\n0\r\n\r\n"), 400},
    {"chunk size 0x", RAW(CHUNKS "0x3\r\nabc\r\n0\r\n\r\n"), 400},
    {"chunk size plus", RAW(CHUNKS "+3\r\nabc\r\n0\r\n\r\n"), 400},
    {"chunk size with a space", RAW(CHUNKS "3 \r\nabc\r\n0\r\n\r\n"), 400},
    {"chunk size indented", RAW(CHUNKS " 3\r\nabc\r\n0\r\n\r\n"), 400},
    {"chunk size empty", RAW(CHUNKS "\r\nabc\r\n0\r\n\r\n"), 400},
    {"chunk size empty, and the end", RAW(CHUNKS "\r\n\r\n"), 400},
    {"chunk size past 2^64", RAW(CHUNKS "10000000000000003\r\nabc\r\n0\r\n\r\n"), 400},
    {"chunk extension", RAW(CHUNKS "3;x=y\r\nabc\r\n0\r\n\r\n"), 400},
    {"chunk size with a bare LF", RAW(CHUNKS "3\nabc\r\n0\r\n\r\n"), 400},
    {"chunk size with a bare CR", RAW(CHUNKS "3\rXabc\r\n0\r\n\r\n"), 400},
    {"chunk without CR LF", RAW(CHUNKS "3\r\nabcX\n0\r\n\r\n"), 400},
    {"chunk with a bare LF behind", RAW(CHUNKS "3\r\nabc\n0\r\n\r\n"), 400},
    {"last chunk with a bare LF", RAW(CHUNKS "3\r\nabc\r\n0\r\n\n"), 400},
    {"trailer with a bare CR", RAW(CHUNKS "0\r\nX: a\rb\r\n\r\n"), 400},
    {"a trailer", RAW(CHUNKS "0\r\nTransfer-Encoding: x\r\n\r\n"), 400},
    {"trailer folded", RAW(CHUNKS "0\r\nX: a\r\n b\r\n\r\n"), 400},
    {"trailer with a NUL", RAW(CHUNKS "0\r\nX: \0\r\n\r\n"), 400},
};

static const struct probe good[] = {
    {"plain", RAW("GET / HTTP/1.1\r\n" OK), 200},
    {"no space behind the colon", RAW("GET / HTTP/1.1\r\nHost:a\r\n\r\n"), 200},
    {"spaces around a value", RAW("GET / HTTP/1.1\r\nHost: \t a \t\r\n\r\n"), 200},
    {"empty value", RAW("GET / HTTP/1.1\r\nX:\r\n" OK), 200},
    {"Latin 1 in a value", RAW("GET / HTTP/1.1\r\nX: \xe4\r\n" OK), 200},
    {"1.0 without Host", RAW("GET / HTTP/1.0\r\n\r\n"), 200},
    {"URL of this host", RAW("GET http://a/x?y HTTP/1.1\r\n" OK), 200},
    {"port and IPv6", RAW("GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n"), 200},
    {"CL 0", RAW("POST / HTTP/1.1\r\nContent-Length: 0\r\n" OK), 200},
    {"CL with zeros", RAW("POST / HTTP/1.1\r\nContent-Length: 003\r\n" OK "abc"), 200},
    {"Chunked", RAW("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n" OK "3\r\nabc\r\n0\r\n\r\n"),
     200},
    {"chunk sizes", RAW(CHUNKS "00A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n"), 200},
    {"unusual method", RAW("M-SEARCH / HTTP/1.1\r\n" OK), 200},
    {"query with all signs", RAW("GET /?a=%&b=|{}\"<>[]^` HTTP/1.1\r\n" OK), 200},
};

static unsigned handled;

static void collected(void *arg, struct http_req *r, char *p, size_t n)
{
	http_reply(r, 200, "text/plain", p, n);
}

static void handle(void *arg, struct http_req *r)
{
	handled++;
	http_body_collect(r, 1000, collected, NULL);
}

static const struct http_config conf = {.handler = handle};

static void check(const struct probe *p, bool head, bool dripped)
{
	struct bed b;
	int fd, status;

	bed_start(&b, &conf);
	fd = bed_connect(&b);
	handled = 0;
	for (size_t i = 0; dripped && i < p->n; i++)
		bed_send(&b, fd, p->bytes + i, 1);
	if (!dripped)
		bed_send(&b, fd, p->bytes, p->n);
	status = bed_status(&b, fd);
	if (status != p->status)
		fail_msg("%s%s: %d, not %d", p->name, dripped ? " (byte by byte)" : "", status,
		         p->status);
	if (p->status != 200 && !bed_closed(&b, fd))
		fail_msg("%s: the connection stays open", p->name);
	if (p->status != 200 && head && handled)
		fail_msg("%s: a handler was called", p->name);
	close(fd);
	bed_run(&b);
	assert_int_equal(http_server_conns(b.server), 0);
	bed_stop(&b);
}

static void bad_heads_are_refused(void **state)
{
	for (size_t i = 0; i < sizeof(bad_heads) / sizeof(bad_heads[0]); i++) {
		check(&bad_heads[i], true, false);
		check(&bad_heads[i], true, true);
	}
}

static void bad_bodies_are_refused(void **state)
{
	for (size_t i = 0; i < sizeof(bad_bodies) / sizeof(bad_bodies[0]); i++) {
		check(&bad_bodies[i], false, false);
		check(&bad_bodies[i], false, true);
	}
}

static void good_ones_are_served(void **state)
{
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		check(&good[i], false, false);
		check(&good[i], false, true);
	}
}

/* A head that grows for ever, in its path, in one header, in many: it ends at 32 KiB or 100. */
static void endless_heads_are_refused(void **state)
{
	static const char *const fronts[] = {"GET /", "GET / HTTP/1.1\r\nHost: a\r\nX: ",
	                                     "GET / HTTP/1.1\r\nHost: a\r\n"};
	static const char *const backs[] = {"aaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaa", "X: y\r\n"};

	for (int i = 0; i < 3; i++) {
		struct bed b;
		char buf[64 * 1024];
		size_t n = strlen(fronts[i]);
		int fd;

		bed_start(&b, &conf);
		fd = bed_connect(&b);
		memcpy(buf, fronts[i], n);
		while (n < sizeof(buf) - 64) {
			memcpy(buf + n, backs[i], strlen(backs[i]));
			n += strlen(backs[i]);
		}
		bed_send(&b, fd, buf, n);
		assert_int_equal(bed_status(&b, fd), 431);
		assert_true(bed_closed(&b, fd));
		close(fd);
		bed_stop(&b);
	}
}

static void a_hundred_headers_are_taken_and_one_more_is_not(void **state)
{
	for (int extra = 0; extra < 2; extra++) {
		struct bed b;
		char buf[4096];
		int n = snprintf(buf, sizeof(buf), "GET / HTTP/1.1\r\nHost: a\r\n"), fd;

		for (int i = 1; i < HTTP_HEADERS_MAX + extra; i++)
			n += snprintf(buf + n, sizeof(buf) - (size_t)n, "X%d: y\r\n", i);
		snprintf(buf + n, sizeof(buf) - (size_t)n, "\r\n");
		bed_start(&b, &conf);
		fd = bed_connect(&b);
		bed_text(&b, fd, buf);
		assert_int_equal(bed_status(&b, fd), extra ? 431 : 200);
		close(fd);
		bed_stop(&b);
	}
}

/* What follows a refused request in the same packet is not a request. */
static void nothing_is_smuggled_behind_a_bad_request(void **state)
{
	struct bed b;
	char buf[4096];
	int fd;

	bed_start(&b, &conf);
	fd = bed_connect(&b);
	handled = 0;
	bed_text(
	    &b, fd,
	    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
	    "0\r\n\r\nGET /secret HTTP/1.1\r\nHost: a\r\n\r\n");
	assert_int_equal(bed_read(&b, fd, buf, sizeof(buf)), -1);
	assert_null(strstr(buf + 9, "HTTP/1.1"));
	assert_non_null(strstr(buf, "\"code\":\"bad_request\""));
	assert_int_equal(handled, 0);
	close(fd);
	bed_stop(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(bad_heads_are_refused),
	    cmocka_unit_test(bad_bodies_are_refused),
	    cmocka_unit_test(good_ones_are_served),
	    cmocka_unit_test(endless_heads_are_refused),
	    cmocka_unit_test(a_hundred_headers_are_taken_and_one_more_is_not),
	    cmocka_unit_test(nothing_is_smuggled_behind_a_bad_request),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
