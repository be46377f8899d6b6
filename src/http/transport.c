#include <errno.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include "base/err.h"
#include "base/loop.h"
#include "base/macro.h"
#include "http/server.h"
#include "http/server_internal.h"

static int config_failed(struct err *e, const char *what, const char *path)
{
	char why[120];

	ERR_error_string_n(ERR_peek_last_error(), why, sizeof(why));
	ERR_clear_error();
	return err_set(e, EINVAL, "bad_config", "cannot use the %s %s: %s", what, path, why);
}

int transport_config(struct http_server *s, struct err *e)
{
	const char *cert = s->conf.tls_cert, *key = s->conf.tls_key;

	if (!cert && !key)
		return 0;
	if (!cert || !key)
		return err_set(e, EINVAL, "bad_config",
		               "TLS needs a certificate and a key; give both or none");
	s->tls = SSL_CTX_new(TLS_server_method());
	if (!s->tls)
		return err_set(e, ENOMEM, "no_memory", "no memory for TLS");
	SSL_CTX_set_min_proto_version(s->tls, TLS1_2_VERSION);
	SSL_CTX_set_options(s->tls, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
	                                SSL_OP_IGNORE_UNEXPECTED_EOF);
	/* The queue moves between two tries, and idle connections should own no buffers. */
	SSL_CTX_set_mode(s->tls, SSL_MODE_ENABLE_PARTIAL_WRITE |
	                             SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
	                             SSL_MODE_RELEASE_BUFFERS);
	ERR_clear_error();
	if (SSL_CTX_use_certificate_chain_file(s->tls, cert) != 1)
		return config_failed(e, "certificate", cert);
	if (SSL_CTX_use_PrivateKey_file(s->tls, key, SSL_FILETYPE_PEM) != 1)
		return config_failed(e, "key", key);
	if (SSL_CTX_check_private_key(s->tls) != 1)
		return config_failed(e, "key (it is not the certificate's)", key);
	return 0;
}

int transport_start(struct http_conn *c)
{
	if (!c->s->tls)
		return 0;
	c->ssl = SSL_new(c->s->tls);
	if (!c->ssl || SSL_set_fd(c->ssl, c->io.fd) != 1)
		return -ENOMEM;
	SSL_set_accept_state(c->ssl);
	return 0;
}

/* What an SSL call that returned r <= 0 means; *other is set when it waits for the other way. */
static ssize_t tls_result(struct http_conn *c, int r, int same, bool *wants_other)
{
	int why = SSL_get_error(c->ssl, r);

	*wants_other = false;
	switch (why) {
	case SSL_ERROR_ZERO_RETURN:
		return 0;
	case SSL_ERROR_WANT_READ:
	case SSL_ERROR_WANT_WRITE:
		*wants_other = why != same;
		return -EAGAIN;
	}
	ERR_clear_error();
	return -ECONNRESET;
}

ssize_t transport_recv(struct http_conn *c, void *p, size_t n)
{
	ssize_t r;

	if (c->ssl) {
		bool other;
		int k;

		c->recv_wants_out = false;
		ERR_clear_error();
		k = SSL_read(c->ssl, p, (int)MIN(n, (size_t)INT32_MAX));
		if (k > 0)
			return k;
		r = tls_result(c, k, SSL_ERROR_WANT_READ, &other);
		c->recv_wants_out = other;
		return r;
	}
	do
		r = recv(c->io.fd, p, n, 0);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : r;
}

ssize_t transport_send(struct http_conn *c, const struct iovec *iov, size_t n)
{
	struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = n};
	ssize_t r, sum = 0;

	if (!c->ssl) {
		do
			r = sendmsg(c->io.fd, &m, MSG_NOSIGNAL);
		while (r < 0 && errno == EINTR);
		return r < 0 ? -errno : r;
	}
	for (size_t i = 0; i < n; i++) {
		const char *p = iov[i].iov_base;
		size_t left = iov[i].iov_len;

		while (left) {
			bool other;
			int k;

			ERR_clear_error();
			k = SSL_write(c->ssl, p, (int)MIN(left, (size_t)INT32_MAX));
			if (k <= 0) {
				r = tls_result(c, k, SSL_ERROR_WANT_WRITE, &other);
				c->send_wants_in = other;
				if (r != -EAGAIN)
					return -ECONNRESET;
				return sum ? sum : -EAGAIN;
			}
			p += k;
			left -= (size_t)k;
			sum += k;
		}
	}
	return sum;
}

void transport_fin(struct http_conn *c)
{
	if (c->ssl && SSL_is_init_finished(c->ssl)) {
		ERR_clear_error();
		SSL_shutdown(c->ssl);
		ERR_clear_error();
	}
	shutdown(c->io.fd, SHUT_WR);
}
