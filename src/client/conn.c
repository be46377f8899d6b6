/*
 * client/conn.c - a connection to the server: TCP, perhaps with TLS, or a unix socket
 *
 * The socket never blocks; a call that waits does so in poll(), until a deadline.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/macro.h"
#include "client/client_internal.h"

uint64_t conn_deadline(int timeout_ms)
{
	if (timeout_ms < 0)
		return UINT64_MAX;
	return timeout_ms ? mono_ms() + (uint64_t)timeout_ms : 0;
}

/* 0 when the fd is ready, -EAGAIN at the deadline, -EINTR: the program wants the caller's
 * attention. */
static int wait_fd(int fd, short events, uint64_t deadline)
{
	struct pollfd p = {.fd = fd, .events = events};
	uint64_t now;
	int ms, r;

	if (!deadline)
		return -EAGAIN;
	now = mono_ms();
	if (now >= deadline)
		return -EAGAIN;
	ms = deadline == UINT64_MAX ? -1 : (int)MIN(deadline - now, (uint64_t)INT_MAX);
	r = poll(&p, 1, ms);
	if (r < 0)
		return -errno;
	return r ? 0 : -EAGAIN;
}

/* EINTR is for callers with signal handlers of their own; here it only means: look again. */
static int wait_on(int fd, short events, uint64_t deadline)
{
	int r;

	do
		r = wait_fd(fd, events, deadline);
	while (r == -EINTR);
	return r;
}

/* ---- TLS over a socket that raises no SIGPIPE ---- */

static int bio_write(BIO *b, const char *p, int n)
{
	ssize_t r = send((int)(intptr_t)BIO_get_data(b), p, (size_t)n, MSG_NOSIGNAL);

	BIO_clear_retry_flags(b);
	if (r < 0 && (errno == EAGAIN || errno == EINTR))
		BIO_set_retry_write(b);
	return (int)r;
}

static int bio_read(BIO *b, char *p, int n)
{
	ssize_t r = recv((int)(intptr_t)BIO_get_data(b), p, (size_t)n, 0);

	BIO_clear_retry_flags(b);
	if (r < 0 && (errno == EAGAIN || errno == EINTR))
		BIO_set_retry_read(b);
	else if (r == 0)
		BIO_set_flags(b, BIO_FLAGS_IN_EOF);
	return (int)r;
}

static long bio_ctrl(BIO *b, int cmd, long num, void *ptr)
{
	if (cmd == BIO_CTRL_EOF)
		return BIO_test_flags(b, BIO_FLAGS_IN_EOF) != 0;
	return cmd == BIO_CTRL_FLUSH || cmd == BIO_CTRL_DUP;
}

static BIO *bio_of(int fd)
{
	/* No index of our own: there are only 128 of them in a process, and no code looks
	 * for us. */
	BIO_METHOD *m = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "panda");
	BIO *b;

	if (!m)
		return NULL;
	BIO_meth_set_write(m, bio_write);
	BIO_meth_set_read(m, bio_read);
	BIO_meth_set_ctrl(m, bio_ctrl);
	b = BIO_new(m);
	if (!b) {
		BIO_meth_free(m);
		return NULL;
	}
	BIO_set_app_data(b, m); /* freed with the connection */
	BIO_set_data(b, (void *)(intptr_t)fd);
	BIO_set_init(b, 1);
	return b;
}

static void bio_drop(BIO *b)
{
	BIO_METHOD *m = b ? BIO_get_app_data(b) : NULL;

	BIO_free(b);
	BIO_meth_free(m);
}

static const char *tls_why(SSL *ssl)
{
	long verdict = ssl ? SSL_get_verify_result(ssl) : X509_V_OK;
	const char *why;

	if (verdict != X509_V_OK)
		return X509_verify_cert_error_string(verdict);
	why = ERR_reason_error_string(ERR_peek_last_error());
	return why ? why : "the connection broke";
}

int conn_tls_new(const char *ca_file, SSL_CTX **ret, struct panda_error *e)
{
	SSL_CTX *c = SSL_CTX_new(TLS_client_method());

	if (!c)
		return perr_nomem(e);
	SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
	SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	ERR_clear_error();
	if (ca_file ? SSL_CTX_load_verify_locations(c, ca_file, NULL) != 1
	            : SSL_CTX_set_default_verify_paths(c) != 1) {
		perr_set(e, EINVAL, "bad_config", "cannot use the certificates in %.200s: %s",
		         ca_file ? ca_file : "the system's store", tls_why(NULL));
		SSL_CTX_free(c);
		return -EINVAL;
	}
	*ret = c;
	return 0;
}

static int tls_start(const struct target *t, SSL_CTX *ctx, struct server_conn *c, uint64_t deadline,
                     struct panda_error *e)
{
	struct in6_addr a;
	BIO *b = bio_of(c->fd);
	bool named;
	int r, want;

	c->ssl = SSL_new(ctx);
	if (!c->ssl || !b) {
		bio_drop(b);
		return perr_nomem(e);
	}
	SSL_set_bio(c->ssl, b, b);
	named = inet_pton(AF_INET, t->host, &a) != 1 && inet_pton(AF_INET6, t->host, &a) != 1;
	if (named ? !SSL_set1_host(c->ssl, t->host) || !SSL_set_tlsext_host_name(c->ssl, t->host)
	          : !X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(c->ssl), t->host))
		return perr_nomem(e);
	for (;;) {
		ERR_clear_error();
		r = SSL_connect(c->ssl);
		if (r == 1)
			return 0;
		want = SSL_get_error(c->ssl, r);
		if (want != SSL_ERROR_WANT_READ && want != SSL_ERROR_WANT_WRITE)
			return perr_set(e, EPROTO, "tls",
			                "no TLS with %s: %s; a certificate of your own is trusted "
			                "with --ca-file",
			                t->url, tls_why(c->ssl));
		r = wait_on(c->fd, want == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN, deadline);
		if (r < 0)
			return perr_set(e, ETIMEDOUT, "timeout",
			                "%s did not finish the TLS handshake", t->url);
	}
}

/* ---- connecting ---- */

static int connect_to(const struct sockaddr *to, socklen_t nto, uint64_t deadline, int *ret)
{
	autoclose int fd = -1;
	socklen_t n = sizeof(int);
	int r, soft = 0;

	fd = socket(to->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, to, nto) < 0) {
		if (errno != EINPROGRESS)
			return -errno;
		r = wait_on(fd, POLLOUT, deadline);
		if (r < 0)
			return -ETIMEDOUT;
		if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &soft, &n) < 0)
			return -errno;
		if (soft)
			return -soft;
	}
	*ret = take_fd(&fd);
	return 0;
}

static int connect_unix(const struct target *t, uint64_t deadline, int *ret, struct panda_error *e)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int r;

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", t->host);
	r = connect_to((struct sockaddr *)&to, sizeof(to), deadline, ret);
	return r < 0 ? perr_set(e, -r, "connect", "cannot connect to %s: %s", t->url, strerror(-r))
	             : 0;
}

static int connect_tcp(const struct target *t, uint64_t deadline, int *ret, struct panda_error *e)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
	int r, fd = -1, on = 1;
	char port[8];

	snprintf(port, sizeof(port), "%d", t->port);
	r = getaddrinfo(t->host, port, &hints, &list);
	if (r != 0)
		return perr_set(e, EHOSTUNREACH, "connect", "cannot find the host '%.100s': %s",
		                t->host, gai_strerror(r));
	r = -EHOSTUNREACH;
	for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
		r = connect_to(a->ai_addr, a->ai_addrlen, deadline, &fd);
	freeaddrinfo(list);
	if (fd < 0)
		return perr_set(e, -r, "connect", "cannot connect to %s: %s", t->url, strerror(-r));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	/* A stream may be silent for hours; a host that vanished must be noticed all the same. */
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &(int){30}, sizeof(int));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &(int){10}, sizeof(int));
	*ret = fd;
	return 0;
}

int conn_open(const struct target *t, SSL_CTX *tls, struct server_conn *ret, struct panda_error *e)
{
	uint64_t deadline = conn_deadline(CLIENT_CONNECT_MS);
	struct server_conn c = {.fd = -1};
	int r;

	r = t->unix_socket ? connect_unix(t, deadline, &c.fd, e)
	                   : connect_tcp(t, deadline, &c.fd, e);
	if (r < 0)
		return r;
	if (tls) {
		r = tls_start(t, tls, &c, deadline, e);
		if (r < 0) {
			conn_close(&c);
			return r;
		}
	}
	*ret = c;
	return 0;
}

void conn_close(struct server_conn *c)
{
	BIO_METHOD *m = NULL;

	if (c->ssl) {
		m = SSL_get_rbio(c->ssl) ? BIO_get_app_data(SSL_get_rbio(c->ssl)) : NULL;
		SSL_free(c->ssl);
		BIO_meth_free(m);
	}
	if (c->fd >= 0)
		close(c->fd);
	free(c->rest);
	*c = (struct server_conn){.fd = -1};
}

/* What SSL_get_error() says, as the errno a plain socket would have given. */
static ssize_t tls_result(struct server_conn *c, int r)
{
	switch (SSL_get_error(c->ssl, r)) {
	case SSL_ERROR_WANT_READ:
		c->wants_write = false;
		return -EAGAIN;
	case SSL_ERROR_WANT_WRITE:
		c->wants_write = true;
		return -EAGAIN;
	case SSL_ERROR_ZERO_RETURN:
		return 0;
	case SSL_ERROR_SYSCALL:
		return errno ? -errno : -ECONNRESET;
	}
	/* An end without close_notify comes here: not a proper end, an attacker may have cut it. */
	return -ECONNRESET;
}

ssize_t conn_read(struct server_conn *c, void *buf, size_t n, uint64_t deadline)
{
	ssize_t r;

	if (c->rest_at < c->rest_len) {
		n = MIN(n, c->rest_len - c->rest_at);
		memcpy(buf, c->rest + c->rest_at, n);
		c->rest_at += n;
		return (ssize_t)n;
	}
	for (;;) {
		if (c->ssl) {
			ERR_clear_error();
			errno = 0;
			r = SSL_read(c->ssl, buf, (int)MIN(n, (size_t)INT_MAX));
			if (r <= 0)
				r = tls_result(c, (int)r);
		} else {
			r = recv(c->fd, buf, n, 0);
			if (r < 0)
				r = errno == EINTR ? -EAGAIN : -errno;
		}
		if (r != -EAGAIN)
			return r;
		r = wait_on(c->fd, c->ssl && c->wants_write ? POLLOUT : POLLIN, deadline);
		if (r < 0)
			return r;
	}
}

ssize_t conn_write(struct server_conn *c, const void *buf, size_t n, uint64_t deadline)
{
	ssize_t r;

	for (;;) {
		c->wants_write = true;
		if (c->ssl) {
			ERR_clear_error();
			errno = 0;
			r = SSL_write(c->ssl, buf, (int)MIN(n, (size_t)INT_MAX));
			if (r <= 0)
				r = tls_result(c, (int)r);
			if (r == 0)
				r = -EPIPE;
		} else {
			r = send(c->fd, buf, n, MSG_NOSIGNAL);
			if (r < 0)
				r = errno == EINTR ? -EAGAIN : -errno;
		}
		if (r != -EAGAIN)
			return r;
		r = wait_on(c->fd, c->wants_write ? POLLOUT : POLLIN, deadline);
		if (r < 0)
			return r;
	}
}

int conn_write_full(struct server_conn *c, const void *buf, size_t n, uint64_t deadline)
{
	const char *p = buf;
	ssize_t r;

	while (n) {
		r = conn_write(c, p, n, deadline);
		if (r < 0)
			return (int)r;
		p += r;
		n -= (size_t)r;
	}
	return 0;
}

int conn_end(struct server_conn *c)
{
	int r;

	if (!c->ssl)
		return shutdown(c->fd, SHUT_WR) < 0 ? -errno : 0;
	ERR_clear_error();
	errno = 0;
	r = SSL_shutdown(c->ssl); /* 0: said, not answered yet */
	return r < 0 ? (int)tls_result(c, r) : 0;
}

int conn_wait(struct server_conn *c, int events, uint64_t deadline)
{
	if (events & CONN_IN && (c->rest_at < c->rest_len || (c->ssl && SSL_pending(c->ssl))))
		return 0;
	return wait_on(c->fd,
	               (short)((events & CONN_IN ? POLLIN : 0) | (events & CONN_OUT ? POLLOUT : 0)),
	               deadline);
}

bool conn_idle(struct server_conn *c)
{
	struct pollfd p = {.fd = c->fd, .events = POLLIN};

	return c->fd >= 0 && poll(&p, 1, 0) == 0;
}

int conn_errno(struct panda_error *e, int r, const char *what, const char *url)
{
	if (r == -EAGAIN)
		return perr_set(e, ETIMEDOUT, "timeout", "%s took too long %s", url, what);
	return perr_set(e, -r, "connect", "the connection to %s broke %s: %s", url, what,
	                strerror(-r));
}
