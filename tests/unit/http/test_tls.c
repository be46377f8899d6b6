/*
 * The server behind TLS: the same promises, with a client that hands over its records in any size.
 */
#include "bed.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"

static char dir[] = "/tmp/panda-tls-XXXXXX", cert[64], key[64], other[64];
static unsigned ends, aborts;
static uint64_t to_send;

static void write_key(const char *path, EVP_PKEY *k)
{
	autofclose FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_int_equal(PEM_write_PrivateKey(f, k, NULL, NULL, 0, NULL, NULL), 1);
}

static int make_files(void **state)
{
	EVP_PKEY *k = EVP_EC_gen("P-256"), *k2 = EVP_EC_gen("P-256");
	X509 *x = X509_new();
	FILE *f;

	assert_non_null(mkdtemp(dir));
	snprintf(cert, sizeof(cert), "%s/cert", dir);
	snprintf(key, sizeof(key), "%s/key", dir);
	snprintf(other, sizeof(other), "%s/other", dir);
	ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
	X509_gmtime_adj(X509_getm_notBefore(x), -1000);
	X509_gmtime_adj(X509_getm_notAfter(x), 100000);
	X509_set_pubkey(x, k);
	X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
	                           (const unsigned char *)"localhost", -1, -1, 0);
	X509_set_issuer_name(x, X509_get_subject_name(x));
	assert_true(X509_sign(x, k, EVP_sha256()) > 0);
	write_key(key, k);
	write_key(other, k2);
	f = fopen(cert, "w");
	assert_int_equal(PEM_write_X509(f, x), 1);
	fclose(f);
	X509_free(x);
	EVP_PKEY_free(k);
	EVP_PKEY_free(k2);
	return 0;
}

static int remove_files(void **state)
{
	unlink(cert);
	unlink(key);
	unlink(other);
	return rmdir(dir);
}

/* ---- the server ---- */

static void on_end(void *arg, struct http_req *r, bool aborted)
{
	ends++;
	aborts += aborted;
}

static void echo(void *arg, struct http_req *r, char *p, size_t n)
{
	http_reply(r, 200, NULL, p, n);
}

static void push(void *arg, struct http_req *r)
{
	static char data[HTTP_CHUNK];

	while (to_send && http_room(r)) {
		size_t n = MIN(sizeof(data), to_send);

		memset(data, (int)(to_send % 251), n);
		http_send(r, data, n);
		to_send -= n;
	}
	if (!to_send)
		http_finish(r);
}

static void handle(void *arg, struct http_req *r)
{
	assert_true(http_is_tls(r));
	http_on_end(r, on_end, NULL);
	if (strcmp(http_path(r), "/big") == 0) {
		to_send = strtoull(http_query(r), NULL, 10);
		http_on_writable(r, push, NULL);
		http_begin(r, 200, NULL, (int64_t)to_send);
		push(NULL, r);
	} else if (strcmp(http_path(r), "/later") != 0) {
		http_body_collect(r, 1 << 20, echo, NULL);
	}
}

/* ---- the client ---- */

struct client {
	SSL_CTX *ctx;
	SSL *ssl;
	int fd;
};

static void start(struct bed *b, struct client *c)
{
	ends = aborts = 0;
	bed_start(b, &(struct http_config){.handler = handle, .tls_cert = cert, .tls_key = key});
	c->fd = bed_connect(b);
	c->ctx = SSL_CTX_new(TLS_client_method());
	c->ssl = SSL_new(c->ctx);
	SSL_set_fd(c->ssl, c->fd);
	SSL_set_connect_state(c->ssl);
}

static void stop(struct bed *b, struct client *c)
{
	SSL_free(c->ssl);
	SSL_CTX_free(c->ctx);
	close(c->fd);
	bed_run(b);
	assert_int_equal(http_server_conns(b->server), 0);
	bed_stop(b);
}

static void say(struct bed *b, struct client *c, const char *p, size_t n)
{
	while (n) {
		int r = SSL_write(c->ssl, p, (int)n);

		if (r > 0) {
			p += r;
			n -= (size_t)r;
		} else {
			int e = SSL_get_error(c->ssl, r);

			assert_true(e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE);
		}
		bed_run(b);
	}
}

/* What is there now; -1 at the end. */
static int hear(struct bed *b, struct client *c, char *buf, size_t size)
{
	size_t n = 0;
	int r;

	do {
		bed_run(b);
		r = SSL_read(c->ssl, buf + n, (int)(size - 1 - n));
		n += r > 0 ? (size_t)r : 0;
		buf[n] = 0;
	} while (r > 0 && n < size - 1);
	return r > 0 || SSL_get_error(c->ssl, r) == SSL_ERROR_WANT_READ ? (int)n : -1;
}

static void requests_are_served_and_the_connection_is_kept(void **state)
{
	struct client c;
	struct bed b;
	char buf[2048];

	start(&b, &c);
	for (int i = 0; i < 3; i++) {
		static const char post[] =
		    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";

		say(&b, &c, post, sizeof(post) - 1);
		assert_true(hear(&b, &c, buf, sizeof(buf)) > 0);
		assert_non_null(strstr(buf, "HTTP/1.1 200 OK"));
		assert_non_null(strstr(buf, "\r\n\r\nhello"));
	}
	assert_int_equal(ends, 3);
	stop(&b, &c);
}

/* Several requests in one record: epoll tells of the record, not of what TLS holds back. */
static void pipelined_requests_in_one_record_are_all_served(void **state)
{
	char text[20000], buf[65536], *p = buf;
	struct client c;
	struct bed b;
	int n = 0, count = 0;

	start(&b, &c);
	while (n < 15000)
		n += snprintf(text + n, sizeof(text) - (size_t)n,
		              "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
	say(&b, &c, text, (size_t)n);
	assert_true(hear(&b, &c, buf, sizeof(buf)) > 0);
	for (; (p = strstr(p, "200 OK")); p++)
		count++;
	assert_int_equal(count, n / 27);
	stop(&b, &c);
}

static void long_bodies_go_both_ways(void **state)
{
	enum { N = 900000 };
	static char body[N], got[N + 1000];
	struct client c;
	struct bed b;
	char head[100];
	size_t n = 0;

	start(&b, &c);
	for (size_t i = 0; i < N; i++)
		body[i] = (char)(i * 7 / 3);
	snprintf(head, sizeof(head), "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", N);
	say(&b, &c, head, strlen(head));
	for (size_t at = 0; at < N;) { /* in odd pieces */
		size_t k = MIN((size_t)N - at, at % 30011 + 1);

		say(&b, &c, body + at, k);
		at += k;
	}
	while (n < N) {
		int r = hear(&b, &c, got + n, sizeof(got) - n);

		assert_true(r > 0);
		n += (size_t)r;
	}
	assert_memory_equal(strstr(got, "\r\n\r\n") + 4, body, N);
	stop(&b, &c);
}

static void a_reader_that_does_not_read_is_waited_for_and_then_cut(void **state)
{
	static char got[1 << 20];
	static const char get[] = "GET /big?20000000 HTTP/1.1\r\nHost: a\r\n\r\n";
	struct client c;
	struct bed b;
	uint64_t sum = 0;
	int r;

	start(&b, &c);
	say(&b, &c, get, sizeof(get) - 1);
	assert_true(to_send > 18000000);
	while ((r = hear(&b, &c, got, sizeof(got))) > 0)
		sum += (unsigned)r;
	assert_true(sum > 20000000 && sum < 20000300);
	assert_int_equal(ends, 1);
	assert_int_equal(aborts, 0);
	say(&b, &c, get, sizeof(get) - 1);
	bed_pass(&b, 31000);
	assert_int_equal(aborts, 1);
	stop(&b, &c);
}

static void a_client_that_says_goodbye_or_just_goes_is_noticed(void **state)
{
	static const char get[] = "GET /later HTTP/1.1\r\nHost: a\r\n\r\n";

	for (int polite = 0; polite < 2; polite++) {
		struct client c;
		struct bed b;

		start(&b, &c);
		say(&b, &c, get, sizeof(get) - 1);
		bed_run(&b);
		assert_int_equal(ends, 0);
		if (polite)
			SSL_shutdown(c.ssl);
		shutdown(c.fd, SHUT_WR);
		bed_run(&b);
		assert_int_equal(aborts, 1);
		stop(&b, &c);
	}
}

static void plain_text_and_silence_are_closed(void **state)
{
	struct client c;
	struct bed b;

	start(&b, &c);
	bed_text(&b, c.fd, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
	bed_run(&b);
	assert_int_equal(http_server_conns(b.server), 0);
	stop(&b, &c);

	start(&b, &c);
	SSL_do_handshake(c.ssl); /* half of it */
	bed_pass(&b, 11000);
	assert_int_equal(http_server_conns(b.server), 0);
	stop(&b, &c);
}

static void unusable_files_are_told_by_name(void **state)
{
	const struct {
		const char *cert, *key, *named;
	} all[] = {
	    {cert, NULL, "both"}, {NULL, key, "both"}, {"/nonexistent", key, "/nonexistent"},
	    {cert, cert, cert},   {key, key, key},     {cert, other, other},
	};
	struct loop *l;

	assert_int_equal(loop_new(&l), 0);
	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		struct http_config c = {.handler = handle,
		                        .tls_cert = all[i].cert,
		                        .tls_key = all[i].key};
		struct http_server *s = NULL;
		struct err e = {0};

		assert_int_equal(http_server_new(l, &c, &s, &e), -EINVAL);
		assert_null(s);
		assert_string_equal(e.kind, "bad_config");
		assert_non_null(strstr(e.text, all[i].named));
	}
	loop_free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(requests_are_served_and_the_connection_is_kept),
	    cmocka_unit_test(pipelined_requests_in_one_record_are_all_served),
	    cmocka_unit_test(long_bodies_go_both_ways),
	    cmocka_unit_test(a_reader_that_does_not_read_is_waited_for_and_then_cut),
	    cmocka_unit_test(a_client_that_says_goodbye_or_just_goes_is_noticed),
	    cmocka_unit_test(plain_text_and_silence_are_closed),
	    cmocka_unit_test(unusable_files_are_told_by_name),
	};

	return cmocka_run_group_tests(tests, make_files, remove_files);
}
