/*
 * client/ws.c - the client side of a WebSocket; the handshake is ours, the frames are wslay's
 */
#include <errno.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wslay/wslay.h>

#include "base/cleanup.h"
#include "client/client_internal.h"
#include "client/panda.h"

struct message {
	struct message *next;
	bool text;
	size_t len;
	char data[]; /* NUL behind it */
};

struct panda_ws {
	struct server_conn conn;
	wslay_event_context_ptr ctx;
	struct message *first, **last, *given; /* given: what the caller has in hand */
	int failed; /* negative errno of the connection, for the caller */
	bool ended;
};

static ssize_t on_recv(wslay_event_context_ptr ctx, uint8_t *buf, size_t n, int flags, void *arg)
{
	struct panda_ws *w = arg;
	ssize_t r = conn_read(&w->conn, buf, n, 0);

	if (r > 0)
		return r;
	if (r == 0)
		w->ended = true;
	else if (r != -EAGAIN)
		w->failed = (int)r;
	wslay_event_set_error(ctx,
	                      r == -EAGAIN ? WSLAY_ERR_WOULDBLOCK : WSLAY_ERR_CALLBACK_FAILURE);
	return -1;
}

static ssize_t on_send(wslay_event_context_ptr ctx, const uint8_t *buf, size_t n, int flags,
                       void *arg)
{
	struct panda_ws *w = arg;
	ssize_t r = conn_write(&w->conn, buf, n, 0);

	if (r >= 0)
		return r;
	if (r != -EAGAIN)
		w->failed = (int)r;
	wslay_event_set_error(ctx,
	                      r == -EAGAIN ? WSLAY_ERR_WOULDBLOCK : WSLAY_ERR_CALLBACK_FAILURE);
	return -1;
}

static int on_mask(wslay_event_context_ptr ctx, uint8_t *buf, size_t n, void *arg)
{
	return RAND_bytes(buf, (int)n) == 1 ? 0 : -1;
}

static void on_message(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *m,
                       void *arg)
{
	struct panda_ws *w = arg;
	struct message *new;

	if (wslay_is_ctrl_frame(m->opcode))
		return; /* pings and the closing handshake are answered by wslay */
	new = malloc(sizeof(*new) + m->msg_length + 1);
	if (!new) {
		w->failed = -ENOMEM;
		return;
	}
	new->next = NULL;
	new->text = m->opcode == WSLAY_TEXT_FRAME;
	new->len = m->msg_length;
	if (new->len)
		memcpy(new->data, m->msg, new->len);
	new->data[new->len] = 0;
	*w->last = new;
	w->last = &new->next;
}

/* What the server must answer to our key: base64(sha1(key and a fixed text)). RFC 6455, 4.2.2. */
static bool accept_fits(const char *key, const char *answer)
{
	unsigned char sha[EVP_MAX_MD_SIZE], want[64];
	unsigned n = 0;
	char text[96];
	int len = snprintf(text, sizeof(text), "%s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key);

	if (!EVP_Digest(text, (size_t)len, sha, &n, EVP_sha1(), NULL))
		return false;
	EVP_EncodeBlock(want, sha, (int)n);
	return answer && !strcmp(answer, (char *)want);
}

int panda_ws_open(struct panda *p, const char *path, struct panda_ws **ret, struct panda_error *e)
{
	static const struct wslay_event_callbacks callbacks = {.recv_callback = on_recv,
	                                                       .send_callback = on_send,
	                                                       .genmask_callback = on_mask,
	                                                       .on_msg_recv_callback = on_message};
	unsigned char nonce[16];
	char key[32], extra[160];
	struct request q = {.method = "GET", .path = path, .extra = extra, .own_conn = true};
	struct panda_ws *w = NULL;
	struct reply rp;
	int r;

	if (RAND_bytes(nonce, sizeof(nonce)) != 1)
		return perr_set(e, EIO, "tls", "there is no randomness on this host");
	EVP_EncodeBlock((unsigned char *)key, nonce, sizeof(nonce));
	snprintf(extra, sizeof(extra),
	         "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
	         "Sec-WebSocket-Key: %s\r\n",
	         key);
	r = reply_open(p, &q, &rp, e);
	if (r < 0)
		return r;
	if (rp.status >= 400)
		return reply_error(&rp, NULL, e);
	if (rp.status != 101 || !accept_fits(key, rp.ws_accept)) {
		r = perr_set(e, EPROTO, "protocol", "%s%s answered %d, not a WebSocket",
		             p->target.url, path, rp.status);
		goto bad;
	}
	w = calloc(1, sizeof(*w));
	if (!w || wslay_event_context_client_init(&w->ctx, &callbacks, w) != 0) {
		r = perr_nomem(e);
		goto bad;
	}
	wslay_event_config_set_max_recv_msg_length(w->ctx, PANDA_MESSAGE_MAX);
	w->last = &w->first;
	r = reply_upgraded(&rp, &w->conn, e);
	if (r < 0)
		goto bad;
	*ret = w;
	return 0;
bad:
	reply_close(&rp, NULL);
	if (w && w->ctx)
		wslay_event_context_free(w->ctx);
	free(w);
	return r;
}

static int broke(const struct panda_ws *w, struct panda_error *e)
{
	if (w->failed == -ENOMEM)
		return perr_nomem(e);
	return perr_set(e, w->failed ? -w->failed : EPIPE, "connect",
	                "the connection to the server broke%s%s", w->failed ? ": " : "",
	                w->failed ? strerror(-w->failed) : "");
}

int panda_ws_send(struct panda_ws *w, bool text, const void *data, size_t n, struct panda_error *e)
{
	struct wslay_event_msg m = {.opcode = text ? WSLAY_TEXT_FRAME : WSLAY_BINARY_FRAME,
	                            .msg = data,
	                            .msg_length = n};
	int r;

	if (w->failed || w->ended || !wslay_event_get_write_enabled(w->ctx))
		return broke(w, e);
	r = wslay_event_queue_msg(w->ctx, &m);
	if (r == WSLAY_ERR_NO_MORE_MSG)
		return perr_set(e, EPIPE, "connect", "the terminal has been closed");
	if (r != 0)
		return perr_nomem(e);
	return wslay_event_send(w->ctx) == 0 ? 0 : broke(w, e);
}

size_t panda_ws_queued(const struct panda_ws *w)
{
	/* Control frames count as well: a pong must get out, too. */
	return wslay_event_get_queued_msg_length(w->ctx) + wslay_event_want_write(w->ctx);
}

int panda_ws_recv(struct panda_ws *w, int timeout_ms, struct panda_message *ret,
                  struct panda_error *e)
{
	uint64_t deadline = conn_deadline(timeout_ms);
	int events, r;

	free(take_ptr(w->given));
	for (;;) {
		if (w->first) {
			w->given = w->first;
			w->first = w->first->next;
			if (!w->first)
				w->last = &w->first;
			*ret = (struct panda_message){.text = w->given->text,
			                              .data = w->given->data,
			                              .len = w->given->len};
			return 1;
		}
		/* A server that goes away without the closing handshake has ended it all the
		 * same. */
		if (w->ended || wslay_event_get_close_received(w->ctx))
			return 0;
		if (w->failed)
			return w->failed == -ECONNRESET ? 0 : broke(w, e);
		if (!wslay_event_get_read_enabled(w->ctx))
			return perr_set(e, EPROTO, "protocol",
			                "the server sent bad WebSocket frames");
		r = wslay_event_recv(w->ctx);
		if (r == 0 || r == WSLAY_ERR_CALLBACK_FAILURE)
			r = wslay_event_send(w->ctx);
		if (r != 0 && r != WSLAY_ERR_CALLBACK_FAILURE)
			return r == WSLAY_ERR_NOMEM ? perr_nomem(e)
			                            : perr_set(e, EPROTO, "protocol",
			                                       "bad WebSocket frames (%d)", r);
		if (w->first || w->ended || w->failed || wslay_event_get_close_received(w->ctx))
			continue;
		events = CONN_IN | (wslay_event_want_write(w->ctx) ? CONN_OUT : 0);
		r = conn_wait(&w->conn, events, deadline);
		if (r < 0)
			return r;
	}
}

int panda_ws_fd(const struct panda_ws *w)
{
	return w->conn.fd;
}

void panda_ws_close(struct panda_ws *w)
{
	struct message *m;

	if (!w)
		return;
	if (!w->failed && !w->ended &&
	    wslay_event_queue_close(w->ctx, WSLAY_CODE_NORMAL_CLOSURE, NULL, 0) == 0)
		(void)wslay_event_send(w->ctx); /* as far as the socket takes it */
	while ((m = w->first)) {
		w->first = m->next;
		free(m);
	}
	free(w->given);
	wslay_event_context_free(w->ctx);
	conn_close(&w->conn);
	free(w);
}
