#include "http/ws.h"

#include <errno.h>
#include <openssl/evp.h>
#include <strings.h>
#include <wslay/wslay.h>

#include "base/cleanup.h"
#include "base/loop.h"
#include "base/macro.h"
#include "base/utf8.h"
#include "http/server.h"
#include "http/server_internal.h"

enum {
	PING_MS = 20000,
	GONE_MS = 60000,
	CLOSE_MS = 5000, /* for the peer to answer our close */
	KEY_LEN = 24,    /* 16 bytes in base64 */
};

/* A message that was in wslay's hands already when its owner said ws_pause(). */
struct late {
	struct late *next;
	bool text;
	size_t n;
	char p[];
};

struct ws {
	struct http_req *r;
	struct loop *loop;
	struct ws_ops ops;
	void *arg;
	wslay_event_context_ptr frames;
	struct loop_timer timer;
	struct loop_defer feed_later;
	uint64_t heard_ms, close_by_ms;

	const uint8_t *in; /* the piece in work */
	size_t in_len;
	bool piece;   /* http_pipe_more() is due when it is used up */
	bool feeding; /* in feed(): no recursion */
	bool control; /* the frame in work is one */
	bool paused;
	bool no_room;
	bool closing;  /* a close frame is out: nothing else goes out any more */
	bool finished; /* http_finish() was called */

	char *msg; /* of a message in pieces */
	size_t msg_len, msg_cap;
	struct late *late, **late_tail;
};

/* ---- out ---- */

static ssize_t on_send(wslay_event_context_ptr ctx, const uint8_t *p, size_t n, int flags,
                       void *arg)
{
	struct ws *w = arg;

	http_send(w->r, p, n);
	return (ssize_t)n;
}

/* What wslay wants to say: pongs and closes. */
static void flush(struct ws *w)
{
	wslay_event_send(w->frames);
	if (wslay_event_get_close_sent(w->frames) && !w->closing) {
		w->closing = true;
		w->close_by_ms = loop_now_ms(w->loop) + CLOSE_MS;
		loop_timer_set(w->loop, &w->timer, w->close_by_ms);
	}
	/* Both have said goodbye, or the peer talks nonsense and we do not listen to it
	 * any more. */
	if (w->closing && !w->finished && !wslay_event_want_read(w->frames)) {
		w->finished = true;
		http_finish(w->r);
	}
}

int ws_send(struct ws *w, bool text, const void *p, size_t n)
{
	uint8_t head[10] = {(uint8_t)(0x80 | (text ? WSLAY_TEXT_FRAME : WSLAY_BINARY_FRAME))};
	size_t k = 2;

	if (w->closing || w->r->c->dead)
		return -EPIPE;
	if (n < 126) {
		head[1] = (uint8_t)n;
	} else if (n < 65536) {
		head[1] = 126;
		head[2] = (uint8_t)(n >> 8);
		head[3] = (uint8_t)n;
		k = 4;
	} else {
		head[1] = 127;
		for (int i = 0; i < 8; i++)
			head[2 + i] = (uint8_t)((uint64_t)n >> (56 - 8 * i));
		k = 10;
	}
	http_send(w->r, head, k);
	http_send(w->r, p, n);
	if (w->r->c->dead)
		return -EPIPE;
	return 0;
}

size_t ws_room(const struct ws *w)
{
	return w->closing ? 0 : http_room(w->r);
}

void ws_close(struct ws *w, uint16_t code, const char *reason)
{
	size_t n = reason ? strlen(reason) : 0;

	if (w->closing)
		return;
	n = n ? utf8_valid(reason, MIN(n, (size_t)123)) : 0; /* not the middle of a character */
	if (wslay_event_queue_close(w->frames, code, (const uint8_t *)reason, n) != 0)
		wslay_event_queue_close(w->frames, WSLAY_CODE_INTERNAL_SERVER_ERROR, NULL, 0);
	flush(w);
	w->paused = false; /* the peer's answer is wanted, and nothing else */
	loop_defer(w->loop, &w->feed_later);
}

/* ---- in ---- */

static ssize_t on_recv(wslay_event_context_ptr ctx, uint8_t *p, size_t n, int flags, void *arg)
{
	struct ws *w = arg;

	n = MIN(n, w->in_len);
	if (!n || w->paused) {
		wslay_event_set_error(ctx, WSLAY_ERR_WOULDBLOCK);
		return -1;
	}
	memcpy(p, w->in, n);
	w->in += n;
	w->in_len -= n;
	return (ssize_t)n;
}

static void on_frame(wslay_event_context_ptr ctx,
                     const struct wslay_event_on_frame_recv_start_arg *a, void *arg)
{
	struct ws *w = arg;

	w->control = wslay_is_ctrl_frame(a->opcode);
	if (a->opcode == WSLAY_CONNECTION_CLOSE && a->payload_length == 1) {
		wslay_event_queue_close(ctx, WSLAY_CODE_PROTOCOL_ERROR, NULL, 0);
		wslay_event_shutdown_read(ctx);
	}
	if (w->control || w->closing)
		return;
	if (a->payload_length > WS_MESSAGE_MAX - w->msg_len) {
		wslay_event_queue_close(ctx, WSLAY_CODE_MESSAGE_TOO_BIG, NULL, 0);
		wslay_event_shutdown_read(ctx);
	}
}

static bool collect(struct ws *w, const void *p, size_t n)
{
	if (w->msg_cap - w->msg_len < n) {
		size_t cap = MAX(2 * w->msg_cap, w->msg_len + n);
		char *msg = realloc(w->msg, cap);

		if (!msg)
			return false;
		w->msg = msg;
		w->msg_cap = cap;
	}
	memcpy(w->msg + w->msg_len, p, n);
	w->msg_len += n;
	return true;
}

static void on_chunk(wslay_event_context_ptr ctx,
                     const struct wslay_event_on_frame_recv_chunk_arg *a, void *arg)
{
	struct ws *w = arg;

	if (!w->closing && !w->control && a->data_length && wslay_event_get_read_enabled(ctx) &&
	    !collect(w, a->data, a->data_length)) {
		wslay_event_queue_close(ctx, WSLAY_CODE_INTERNAL_SERVER_ERROR, NULL, 0);
		wslay_event_shutdown_read(ctx);
	}
}

static void on_msg(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *a,
                   void *arg)
{
	struct ws *w = arg;
	autofree char *msg = NULL;
	size_t n;
	bool text = a->opcode == WSLAY_TEXT_FRAME;
	struct late *l;

	if (wslay_is_ctrl_frame(a->opcode))
		return;
	msg = take_ptr(w->msg);
	n = w->msg_len;
	w->msg_len = w->msg_cap = 0;
	if (w->closing)
		return;
	if (!w->paused && !w->late) {
		w->ops.message(w->arg, w, text, msg ? msg : "", n);
		return;
	}
	l = malloc(sizeof(*l) + n);
	if (!l) {
		wslay_event_queue_close(ctx, WSLAY_CODE_INTERNAL_SERVER_ERROR, NULL, 0);
		return;
	}
	*l = (struct late){.text = text, .n = n};
	if (n)
		memcpy(l->p, msg, n);
	*w->late_tail = l;
	w->late_tail = &l->next;
}

static void deliver_late(struct ws *w)
{
	while (w->late && !w->paused) {
		struct late *l = w->late;

		w->late = l->next;
		if (!w->late)
			w->late_tail = &w->late;
		if (!w->closing)
			w->ops.message(w->arg, w, l->text, l->p, l->n);
		free(l);
	}
}

/* wslay gave up and would close without a reason; the peer should know it. */
static void bail(struct ws *w, uint16_t code)
{
	const uint8_t frame[] = {0x88, 2, (uint8_t)(code >> 8), (uint8_t)code};

	wslay_event_shutdown_read(w->frames);
	wslay_event_shutdown_write(w->frames);
	if (!w->closing)
		http_send(w->r, frame, sizeof(frame));
	w->closing = w->finished = true;
	w->close_by_ms = loop_now_ms(w->loop) + CLOSE_MS;
	loop_timer_set(w->loop, &w->timer, w->close_by_ms);
	http_finish(w->r);
}

/* As much of the piece as is wanted; then the next one. */
static void feed(struct ws *w)
{
	if (w->feeding)
		return;
	w->feeding = true;
	deliver_late(w);
	if (!w->paused) {
		int e = wslay_event_want_read(w->frames) ? wslay_event_recv(w->frames) : 0;

		if (e)
			bail(w, e == WSLAY_ERR_NOMEM ? WSLAY_CODE_INTERNAL_SERVER_ERROR
			                             : WSLAY_CODE_PROTOCOL_ERROR);
		flush(w);
	}
	if (w->finished)
		w->in_len = 0; /* read on, so that the peer's end is seen, but not looked at */
	/* Pings cost us pongs: a client that does not read gets no more of them. */
	w->no_room = !http_room(w->r) && !w->finished;
	if (w->piece && !w->in_len && (!w->paused || w->finished) && !w->no_room) {
		w->piece = false;
		http_pipe_more(w->r);
	}
	w->feeding = false;
}

static void on_data(void *arg, struct http_req *r, const void *p, size_t n)
{
	struct ws *w = arg;

	w->heard_ms = loop_now_ms(w->loop);
	w->in = p;
	w->in_len = n;
	w->piece = true;
	feed(w);
}

/* The peer's side ended. */
static void on_eof(void *arg, struct http_req *r)
{
	struct ws *w = arg;

	w->closing = w->finished = true;
	http_finish(r);
}

static void on_writable(void *arg, struct http_req *r)
{
	struct ws *w = arg;

	if (w->ops.writable && !w->closing)
		w->ops.writable(w->arg, w);
	feed(w);
}

void ws_pause(struct ws *w)
{
	w->paused = true;
}

void ws_resume(struct ws *w)
{
	if (!w->paused)
		return;
	w->paused = false;
	w->heard_ms = loop_now_ms(w->loop); /* we did not listen */
	loop_defer(w->loop, &w->feed_later);
}

/* ---- life ---- */

static void on_timer(void *arg)
{
	struct ws *w = arg;
	uint64_t now = loop_now_ms(w->loop);
	bool listening = !w->paused && !w->piece;

	if (w->closing ? now >= w->close_by_ms : listening && now >= w->heard_ms + GONE_MS) {
		http_cut(w->r);
		return;
	}
	if (!w->closing) {
		wslay_event_queue_msg(w->frames, &(struct wslay_event_msg){.opcode = WSLAY_PING});
		flush(w);
	}
	loop_timer_set(w->loop, &w->timer, w->closing ? w->close_by_ms : now + PING_MS);
}

static void ws_free(struct ws *w)
{
	loop_timer_clear(w->loop, &w->timer);
	loop_defer_cancel(w->loop, &w->feed_later);
	if (w->frames)
		wslay_event_context_free(w->frames);
	while (w->late) {
		struct late *l = w->late;

		w->late = l->next;
		free(l);
	}
	free(w->msg);
	free(w);
}

static void on_end(void *arg, struct http_req *r, bool aborted)
{
	struct ws *w = arg;

	w->closing = w->finished = w->feeding = true;
	w->ops.closed(w->arg, w);
	ws_free(w);
}

static void feed_again(void *arg)
{
	feed(arg);
}

static int refuse(struct http_req *r, int status, const char *text)
{
	char body[200];
	int n = snprintf(body, sizeof(body), "{\"error\":\"%s\",\"code\":\"%s\"}\n", text,
	                 status == 426 ? "upgrade_required" : "bad_request");

	if (status == 426) {
		http_add_header(r, "Upgrade", "websocket");
		http_add_header(r, "Connection", "Upgrade");
		http_add_header(r, "Sec-WebSocket-Version", "13");
	}
	http_reply(r, status, "application/json", body, (size_t)n);
	return -EPROTO;
}

static bool key_is_good(const char *key)
{
	unsigned char raw[KEY_LEN];

	return key && strlen(key) == KEY_LEN && key[KEY_LEN - 3] != '=' &&
	       key[KEY_LEN - 2] == '=' && key[KEY_LEN - 1] == '=' &&
	       EVP_DecodeBlock(raw, (const unsigned char *)key, KEY_LEN) == 18;
}

/* The proof that we know what a WebSocket is: 28 characters. */
static int accept_key(const char *key, char ret[32])
{
	static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
	unsigned char md[EVP_MAX_MD_SIZE];
	char both[KEY_LEN + sizeof(guid)];
	unsigned n;

	memcpy(both, key, KEY_LEN);
	memcpy(both + KEY_LEN, guid, sizeof(guid));
	if (!EVP_Digest(both, sizeof(both) - 1, md, &n, EVP_sha1(), NULL))
		return -ENOMEM;
	EVP_EncodeBlock((unsigned char *)ret, md, (int)n);
	return 0;
}

static int ws_new(struct http_req *r, const struct ws_ops *ops, void *arg, struct ws **ret)
{
	static const struct wslay_event_callbacks callbacks = {
	    .recv_callback = on_recv,
	    .send_callback = on_send,
	    .on_frame_recv_start_callback = on_frame,
	    .on_frame_recv_chunk_callback = on_chunk,
	    .on_msg_recv_callback = on_msg,
	};
	struct ws *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	w->r = r;
	w->loop = r->c->s->loop;
	w->ops = *ops;
	w->arg = arg;
	w->late_tail = &w->late;
	w->heard_ms = loop_now_ms(w->loop);
	w->timer = (struct loop_timer){.fn = on_timer, .arg = w};
	w->feed_later = (struct loop_defer){.fn = feed_again, .arg = w};
	if (wslay_event_context_server_init(&w->frames, &callbacks, w) != 0 ||
	    loop_timer_set(w->loop, &w->timer, w->heard_ms + PING_MS) < 0) {
		ws_free(w);
		return -ENOMEM;
	}
	wslay_event_config_set_no_buffering(w->frames, 1);
	wslay_event_config_set_max_recv_msg_length(w->frames, WS_MESSAGE_MAX);
	*ret = w;
	return 0;
}

int ws_accept(struct http_req *r, const char *subprotocol, const struct ws_ops *ops, void *arg,
              struct ws **ret)
{
	static const struct http_body_ops pipe_ops = {.data = on_data, .end = on_eof};
	const char *key = http_header(r, "sec-websocket-key");
	const char *version = http_header(r, "sec-websocket-version");
	char headers[256], proof[32];
	struct ws *w;
	int n, e;

	if (strcmp(http_method(r), "GET") != 0 || !http_wants_upgrade(r, "websocket"))
		return refuse(r, 426, "this is a WebSocket; ask for an upgrade to it");
	if (!version || strcmp(version, "13") != 0)
		return refuse(r, 426, "the only WebSocket version known here is 13");
	if (!key_is_good(key) || http_body_length(r) != 0)
		return refuse(r, 400, "this is not a WebSocket handshake");
	e = accept_key(key, proof);
	if (e == 0)
		e = ws_new(r, ops, arg, &w);
	if (e < 0) {
		http_reply(r, 503, "application/json",
		           "{\"error\":\"no memory\",\"code\":\"no_memory\"}\n", 41);
		return e;
	}
	n = snprintf(headers, sizeof(headers), "Sec-WebSocket-Accept: %s\r\n%s%s%s", proof,
	             subprotocol ? "Sec-WebSocket-Protocol: " : "", subprotocol ? subprotocol : "",
	             subprotocol ? "\r\n" : "");
	e = n >= (int)sizeof(headers) ? -EINVAL : http_upgrade(r, headers, &pipe_ops, w);
	if (e < 0) {
		ws_free(w);
		refuse(r, 400, "this is not a WebSocket handshake");
		return e;
	}
	http_on_end(r, on_end, w);
	http_on_writable(r, on_writable, w);
	*ret = w;
	return 0;
}
