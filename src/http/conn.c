#include <assert.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/account.h"
#include "base/cleanup.h"
#include "base/loop.h"
#include "base/macro.h"
#include "http/parse.h"
#include "http/server.h"
#include "http/server_internal.h"

static void on_event(void *arg, uint32_t events);
static void on_timer(void *arg);

static void run_kicked(void *arg)
{
	conn_run(arg);
}

int conn_new(struct http_server *s, int fd, const char *peer, struct addr *a,
             struct http_conn **ret)
{
	struct http_conn *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	c->s = s;
	c->io = (struct loop_io){.fn = on_event, .arg = c, .fd = fd};
	c->timer = (struct loop_timer){.fn = on_timer, .arg = c};
	c->kick = (struct loop_defer){.fn = run_kicked, .arg = c};
	c->keep = true;
	c->account = s->conf.account;
	snprintf(c->peer, sizeof(c->peer), "%s", peer);
	c->deadline_ms = loop_now_ms(s->loop) + s->conf.head_ms;
	r = transport_start(c);
	if (r == 0)
		r = loop_timer_set(s->loop, &c->timer, c->deadline_ms);
	if (r == 0)
		r = loop_io_add(s->loop, &c->io, fd, EPOLLIN | EPOLLRDHUP);
	if (r < 0) {
		loop_timer_clear(s->loop, &c->timer);
		SSL_free(c->ssl);
		free(c);
		return r;
	}
	c->addr = a;
	c->next = s->conns;
	c->prev = &s->conns;
	if (c->next)
		c->next->prev = &c->next;
	s->conns = c;
	s->n++;
	server_idle(c);
	*ret = c;
	return 0;
}

void conn_kill(struct http_conn *c)
{
	struct http_server *s = c->s;
	struct http_req *r = take_ptr(c->req);

	c->dead = c->running = true; /* whatever the callbacks call, nothing starts any more */
	if (r)
		req_end(r, true);
	loop_io_del(s->loop, &c->io);
	loop_timer_clear(s->loop, &c->timer);
	loop_defer_cancel(s->loop, &c->kick);
	server_leave_turns(c);
	server_busy(c);
	if (c->reset)
		setsockopt(c->io.fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1},
		           sizeof(struct linger));
	SSL_free(c->ssl);
	close(c->io.fd);
	if (c->in_cap == CONN_BUF && !s->spare)
		s->spare = take_ptr(c->in);
	free(c->in);
	free(c->out);
	account_give(c->account, c->charged);
	*c->prev = c->next;
	if (c->next)
		c->next->prev = c->prev;
	s->n--;
	server_conn_gone(s, c->addr, c->refused);
	free(c);
}

void conn_kick(struct http_conn *c)
{
	if (!c->running)
		loop_defer(c->s->loop, &c->kick);
}

/* ---- what is held ---- */

static size_t to_charge(const struct http_conn *c, size_t more)
{
	size_t n = c->out_cap + (c->req ? c->req->collect_cap : 0) + more;

	return n > HTTP_HELD_FREE ? n - HTTP_HELD_FREE : 0;
}

struct account *conn_full(struct http_conn *c, size_t more)
{
	size_t want = to_charge(c, more);
	struct account *full =
	    want > c->charged ? account_full(c->account, want - c->charged) : NULL;

	if (!full || (full == c->s->conf.account && server_cut_largest(c->s, want)))
		return NULL;
	full->refused++;
	return full;
}

void conn_charge(struct http_conn *c)
{
	size_t now = c->dead ? 0 : to_charge(c, 0);

	if (now > c->charged)
		account_add(c->account, now - c->charged);
	else
		account_give(c->account, c->charged - now);
	c->charged = now;
}

void conn_account(struct http_conn *c, struct account *a)
{
	account_give(c->account, c->charged);
	c->account = a;
	account_add(c->account, c->charged);
}

/* ---- out ---- */

size_t conn_pending(const struct http_conn *c)
{
	return c->out_len - c->out_off;
}

size_t conn_high(const struct http_conn *c)
{
	return account_tight(c->account) ? HTTP_OUT_TIGHT : HTTP_OUT_HIGH;
}

static void die(struct http_conn *c)
{
	c->dead = true;
	conn_kick(c);
}

static bool queue(struct http_conn *c, const void *p, size_t n)
{
	if (c->out_cap - c->out_len < n && c->out_off) {
		memmove(c->out, c->out + c->out_off, conn_pending(c));
		c->out_len -= c->out_off;
		c->out_off = 0;
	}
	if (c->out_cap - c->out_len < n) {
		size_t more = c->out_cap ? MIN(c->out_cap, (size_t)HTTP_OUT_TIGHT) : 1000;
		size_t cap = MAX(c->out_cap + more, c->out_len + n);
		char *out = conn_full(c, cap - c->out_cap) ? NULL : realloc(c->out, cap);

		if (!out)
			return false;
		c->out = out;
		c->out_cap = cap;
		conn_charge(c);
	}
	memcpy(c->out + c->out_len, p, n);
	c->out_len += n;
	return true;
}

/* Writes the queue and the n pieces behind it; how much of them is left stays in iov. */
static void write_out(struct http_conn *c, struct iovec *iov, size_t n)
{
	struct iovec all[4];
	size_t pending = conn_pending(c), k = 0, done;
	ssize_t r;

	assert(n < ARRAY_LEN(all));
	if (pending)
		all[k++] = (struct iovec){.iov_base = c->out + c->out_off, .iov_len = pending};
	for (size_t i = 0; i < n; i++)
		all[k++] = iov[i];
	r = transport_send(c, all, k);
	if (r == -EAGAIN) {
		if (!c->blocked)
			c->progress_ms = loop_now_ms(c->s->loop); /* from now on we wait */
		c->blocked = true;
		return;
	}
	if (r < 0) {
		die(c);
		return;
	}
	done = (size_t)r;
	c->burst += done;
	c->progress_ms = loop_now_ms(c->s->loop);
	c->out_off += MIN(done, pending);
	done -= MIN(done, pending);
	for (size_t i = 0; i < n; i++) {
		size_t part = MIN(done, iov[i].iov_len);

		iov[i].iov_base = (char *)iov[i].iov_base + part;
		iov[i].iov_len -= part;
		done -= part;
	}
	if (c->out_off == c->out_len) {
		c->out_off = c->out_len = 0;
		if (c->charged) {
			free(take_ptr(c->out));
			c->out_cap = 0;
			conn_charge(c);
		}
	}
}

void conn_send(struct http_conn *c, const struct iovec *iov, size_t n)
{
	struct iovec rest[3];
	size_t sum = 0;

	assert(n <= ARRAY_LEN(rest));
	if (c->dead)
		return;
	for (size_t i = 0; i < n; i++) {
		rest[i] = iov[i];
		sum += iov[i].iov_len;
	}
	if (sum >= CONN_DIRECT_MIN && !c->blocked && c->burst < CONN_BURST)
		write_out(c, rest, n);
	for (size_t i = 0; i < n && !c->dead; i++)
		if (rest[i].iov_len && !queue(c, rest[i].iov_base, rest[i].iov_len))
			die(c);
	conn_kick(c);
}

void conn_text(struct http_conn *c, const char *text)
{
	if (!c->dead && !queue(c, text, strlen(text)))
		die(c);
}

/* There is no request to answer: our words, and then the handler hears no more. */
void conn_refuse(struct http_conn *c, int status, const char *code, const char *text)
{
	char body[HTTP_REFUSAL_MAX], lines[HTTP_REFUSAL_MAX], head[300];

	server_refusal(c->s, NULL, code, text, body, lines);
	snprintf(head, sizeof(head),
	         "HTTP/1.1 %d %s\r\nDate: %s\r\nContent-Type: application/json\r\n"
	         "Content-Length: %zu\r\nConnection: close\r\n",
	         status, http_reason(status), server_date(c->s), strlen(body));
	conn_text(c, head);
	conn_text(c, lines);
	conn_text(c, "\r\n");
	conn_text(c, body);
	c->state = CONN_FLUSH;
	c->keep = false;
}

/* ---- in ---- */

/* More bytes behind those that are there. False: nothing more for now, or the end. */
static bool fill(struct http_conn *c)
{
	size_t have = c->in_len - c->in_off;
	ssize_t r;

	if (c->in_cap != CONN_BUF) {
		char *big = c->s->spare ? take_ptr(c->s->spare) : malloc(CONN_BUF);

		if (!big) {
			c->dead = true;
			return false;
		}
		if (have)
			memcpy(big, c->in + c->in_off, have);
		free(c->in);
		c->in = big;
		c->in_cap = CONN_BUF;
	} else if (c->in_off && have) {
		memmove(c->in, c->in + c->in_off, have);
	}
	c->in_off = 0;
	c->in_len = have;
	assert(have < CONN_BUF);
	r = transport_recv(c, c->in + have, CONN_BUF - have);
	if (r == -EAGAIN) {
		c->readable = false;
		return false;
	}
	if (r <= 0) {
		if (r == 0 && c->req && c->req->pipe)
			c->body.done = c->hup = true;
		else
			c->dead = true;
		return !c->dead;
	}
	/* A short read has emptied the socket, and epoll tells when there is more. TLS may hold
	 * some back that epoll knows nothing of; and after a hang-up only reading tells. */
	if ((size_t)r < CONN_BUF - have && !c->ssl && !c->hup)
		c->readable = false;
	c->in_len += (size_t)r;
	c->burst += (size_t)r;
	if (c->fin_sent) /* our half has ended, theirs is busy */
		c->deadline_ms = loop_now_ms(c->s->loop) + c->s->conf.stall_ms;
	return true;
}

/* The next run of the body in what is there. False when the sender talks nonsense. */
static bool decode(struct http_conn *c, const char **p, size_t *n)
{
	struct body *b = &c->body;
	size_t have = c->in_len - c->in_off;
	ssize_t ate;

	switch (b->kind) {
	case HTTP_BODY_CHUNKED:
		ate = http_chunked_eat(&b->chunked, c->in + c->in_off, have, p, n);
		if (ate < 0)
			return false;
		c->in_off += (size_t)ate;
		b->done = b->chunked.done;
		break;
	case HTTP_BODY_LENGTH:
		*p = c->in + c->in_off;
		*n = (size_t)MIN(b->left, (uint64_t)have);
		c->in_off += *n;
		b->left -= *n;
		b->done = b->left == 0;
		break;
	default:
		*p = c->in + c->in_off;
		*n = have;
		c->in_off += have;
	}
	c->rate_bytes += *n;
	return true;
}

static bool start_request(struct http_conn *c, size_t n)
{
	struct http_head h;
	const char *why;
	char *text = c->in + c->in_off;
	int status = http_parse_request(text, n, &h, &why);

	if (status) {
		conn_refuse(c, status, status == 431 ? "head_too_large" : "bad_request", why);
		return true;
	}
	c->req = req_new(c, &h, text, n);
	if (!c->req) {
		c->dead = true;
		return false;
	}
	c->in_off += n;
	c->scanned = 0;
	c->body = (struct body){.kind = h.body,
	                        .left = h.length,
	                        .done = h.body == HTTP_BODY_NONE,
	                        .chunked.no_trailers = true};
	c->rate_waited_ms = c->rate_bytes = 0;
	c->rate_on = false;
	c->keep = h.keep_alive;
	c->state = CONN_REQUEST;
	c->served = true;
	server_busy(c);
	c->s->conf.handler(c->s->conf.arg, c->req);
	return true;
}

static bool step_head(struct http_conn *c)
{
	size_t have = c->in_len - c->in_off;
	ssize_t n = 0;

	if (have)
		n = http_head_end(c->in + c->in_off, MIN(have, (size_t)HTTP_HEAD_MAX), &c->scanned);
	if (n > 0 && (c->served || c->turn_prev)) {
		server_wait_turn(c);
		return false;
	}
	if (n > 0)
		return start_request(c, (size_t)n);
	if (n < 0) {
		conn_refuse(c, 400, "bad_request", "a line of the head does not end in CR LF");
		return true;
	}
	if (have >= HTTP_HEAD_MAX) {
		conn_refuse(c, 431, "head_too_large", "the head of a request may have 32 KiB");
		return true;
	}
	if (!c->readable || !fill(c))
		return false;
	if (!have) /* the first byte of this head; it is not much use to send it early */
		c->deadline_ms = MIN(c->deadline_ms, loop_now_ms(c->s->loop) + c->s->conf.head_ms);
	return true;
}

static bool step_body(struct http_conn *c)
{
	struct http_req *r = c->req;
	const char *p;
	size_t n;

	if (c->in_off == c->in_len && !c->body.done) {
		if (r->expect && r->reply == REPLY_NONE) {
			r->expect = false;
			conn_text(c, "HTTP/1.1 100 Continue\r\n\r\n");
			return true;
		}
		if (!c->readable || !fill(c))
			return false;
	}
	if (c->in_off < c->in_len && !c->body.done) {
		r->expect = false;
		if (!decode(c, &p, &n))
			req_fail(r, 400, "bad_request", "the body is not chunked as it should be");
		else if (n)
			req_body_piece(r, p, n);
		return true;
	}
	if (c->body.done)
		req_body_end(r);
	return true;
}

static void linger(struct http_conn *c)
{
	c->state = CONN_LINGER;
	c->dropped = 0;
	c->deadline_ms = loop_now_ms(c->s->loop) + CONN_LINGER_MS;
	c->in_off = c->in_len;
	transport_fin(c);
}

static void next_request(struct http_conn *c)
{
	if (!c->keep || c->s->draining) {
		/* Closing over unread bytes makes a reset, which may overtake the reply. */
		if (c->in_off < c->in_len || c->readable) {
			linger(c);
			return;
		}
		if (c->ssl)
			transport_fin(c);
		c->dead = true;
		return;
	}
	c->state = CONN_HEAD;
	c->scanned = 0;
	c->deadline_ms = loop_now_ms(c->s->loop) + c->s->conf.idle_ms;
}

/* The reply is out. */
static void finish_request(struct http_conn *c)
{
	struct http_req *r = take_ptr(c->req);
	bool pipe = r->pipe;

	req_end(r, r->failed);
	free(take_ptr(c->out));
	c->out_cap = 0;
	conn_charge(c);
	conn_account(c, c->s->conf.account);
	if (pipe) {
		if (!c->fin_sent) /* TLS without a goodbye would look like a cut */
			transport_fin(c);
		c->dead = true;
	} else if (c->body.done) {
		next_request(c);
	} else if (!c->keep) {
		linger(c);
	} else {
		c->state = CONN_DRAIN;
		c->dropped = 0;
		c->deadline_ms = loop_now_ms(c->s->loop) + CONN_DRAIN_MS;
	}
}

static bool step_request(struct http_conn *c)
{
	struct http_req *r = c->req;

	if (r->no_room && conn_pending(c) <= conn_high(c) / 2 && r->reply == REPLY_BEGUN) {
		req_writable(r);
		return true;
	}
	if (r->reply == REPLY_FINISHED && !conn_pending(c)) {
		if (!r->pipe || (c->body.done && !r->want) || (c->hup && !r->want && !r->piece)) {
			finish_request(c);
			return true;
		}
		/* Our side has ended; the peer has some time to end its own. */
		if (!c->fin_sent) {
			c->fin_sent = true;
			c->deadline_ms = loop_now_ms(c->s->loop) + c->s->conf.stall_ms;
			transport_fin(c);
		}
	}
	if (!r->want || r->piece || (r->reply == REPLY_FINISHED && !r->pipe))
		return false;
	return step_body(c);
}

static bool step_drain(struct http_conn *c)
{
	const char *p;
	size_t n = 0;

	if (c->in_off == c->in_len && (!c->readable || !fill(c)))
		return false;
	if (!decode(c, &p, &n) || (c->dropped += n) > CONN_DRAIN_MAX)
		linger(c);
	else if (c->body.done)
		next_request(c);
	return true;
}

static bool step_linger(struct http_conn *c)
{
	c->dropped += c->in_len;
	c->in_off = c->in_len = 0;
	if (c->dropped > CONN_LINGER_MAX)
		c->dead = true;
	return !c->dead && c->readable && fill(c);
}

/* One thing that can be done now; false when there is none. */
static bool step(struct http_conn *c)
{
	if (conn_pending(c) && !c->blocked) {
		write_out(c, NULL, 0);
		return true;
	}
	switch (c->state) {
	case CONN_HEAD:
		return step_head(c);
	case CONN_REQUEST:
		return step_request(c);
	case CONN_DRAIN:
		return step_drain(c);
	case CONN_FLUSH:
		if (conn_pending(c))
			return false;
		linger(c);
		return true;
	case CONN_LINGER:
		return step_linger(c);
	}
	return false;
}

/* ---- waiting ---- */

static void settle_idle(struct http_conn *c)
{
	if (c->state == CONN_HEAD && c->in_off == c->in_len)
		server_idle(c);
	else
		server_busy(c);
}

static bool wants_in(const struct http_conn *c)
{
	switch (c->state) {
	case CONN_HEAD:
		return !c->turn_prev;
	case CONN_FLUSH:
		return false;
	case CONN_REQUEST:
		return c->req->want && !c->req->piece && !c->body.done;
	default:
		return true;
	}
}

static void settle_buffer(struct http_conn *c)
{
	size_t have = c->in_len - c->in_off;
	char *small = NULL;

	if (!c->in || (c->req && c->req->piece))
		return; /* the handler still looks at it */
	if (have && c->in_cap != CONN_BUF)
		return;
	if (have) {
		small = malloc(have);
		if (!small)
			return;
		memcpy(small, c->in + c->in_off, have);
	}
	if (c->in_cap == CONN_BUF && !c->s->spare)
		c->s->spare = take_ptr(c->in);
	free(c->in);
	c->in = small;
	c->in_off = 0;
	c->in_len = c->in_cap = have;
}

static int settle_events(struct http_conn *c)
{
	bool in = wants_in(c);
	uint32_t ev = c->hup ? 0 : EPOLLRDHUP;

	/* Not wanted, but nothing has come either: leave it, most often it is wanted again
	 * before. */
	if ((in && !c->hup) || (!in && !c->saw_in && (c->io.events & EPOLLIN)))
		ev |= EPOLLIN;
	if (c->send_wants_in)
		ev |= EPOLLIN;
	if ((c->blocked && !c->send_wants_in) || (in && c->recv_wants_out))
		ev |= EPOLLOUT;
	c->saw_in = false;
	if (c->hup && !(ev & ~(uint32_t)EPOLLIN)) {
		/* Hang-ups cannot be masked: the kernel would tell us again and again. */
		loop_io_del(c->s->loop, &c->io);
		return 0;
	}
	if (!c->io.added)
		return loop_io_add(c->s->loop, &c->io, c->io.fd, ev);
	return loop_io_set(c->s->loop, &c->io, ev);
}

static uint64_t deadline(const struct http_conn *c)
{
	uint64_t at = UINT64_MAX;

	if (c->state == CONN_REQUEST) {
		if (c->rate_on)
			at = c->rate_since_ms + RATE_WINDOW_MS - c->rate_waited_ms;
		if (c->fin_sent)
			at = MIN(at, c->deadline_ms);
	} else if (c->state != CONN_FLUSH && !c->turn_prev) {
		at = c->deadline_ms;
	}
	if (c->blocked)
		at = MIN(at, c->progress_ms + c->s->conf.stall_ms);
	return at;
}

static int settle_deadline(struct http_conn *c)
{
	uint64_t now = loop_now_ms(c->s->loop), at;
	bool waiting = c->state == CONN_REQUEST && !c->req->pipe && wants_in(c);

	if (waiting && !c->rate_on) {
		c->rate_since_ms = now;
	} else if (!waiting && c->rate_on) {
		c->rate_waited_ms += now - c->rate_since_ms;
		if (c->rate_waited_ms >= RATE_WINDOW_MS)
			c->rate_waited_ms = c->rate_bytes = 0;
	}
	c->rate_on = waiting;
	at = deadline(c);
	/* Later ones are seen when the timer fires: most requests never touch the heap. */
	if (at == UINT64_MAX || (c->timer.slot && c->timer.at_ms <= at))
		return 0;
	return loop_timer_set(c->s->loop, &c->timer, at);
}

void conn_run(struct http_conn *c)
{
	if (c->running)
		return;
	c->running = true;
	c->served = false;
	c->burst = 0;
	while (!c->dead && step(c)) {
		if (c->burst < CONN_BURST)
			continue;
		loop_defer(c->s->loop, &c->kick);
		break;
	}
	c->running = false;
	if (!c->dead) {
		settle_idle(c);
		settle_buffer(c);
		if (settle_events(c) < 0 || settle_deadline(c) < 0)
			c->dead = true;
	}
	if (c->dead)
		conn_kill(c);
}

static void on_event(void *arg, uint32_t events)
{
	struct http_conn *c = arg;

	if (events & EPOLLIN) {
		c->readable = true;
		c->saw_in = !wants_in(c);
		if (c->send_wants_in)
			c->blocked = c->send_wants_in = false;
	}
	if (events & EPOLLOUT) {
		c->blocked = false;
		if (c->recv_wants_out)
			c->readable = true;
	}
	if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
		if (c->req && c->req->pipe) {
			/* What was sent before the end is still to be read. */
			c->hup = c->readable = true;
			if (events & (EPOLLHUP | EPOLLERR))
				c->blocked = false; /* writing will tell */
		} else {
			/* All our clients keep their side open until they have their answer. */
			c->dead = true;
		}
	}
	conn_run(c);
}

static void on_timer(void *arg)
{
	struct http_conn *c = arg;
	uint64_t now = loop_now_ms(c->s->loop);

	if (deadline(c) <= now) {
		if (c->blocked && c->progress_ms + c->s->conf.stall_ms <= now) {
			c->dead = c->reset = true;
		} else if (c->state == CONN_HEAD && c->in_off < c->in_len) {
			conn_refuse(c, 408, "timeout", "the head of the request took too long");
		} else if (c->state == CONN_REQUEST && !c->fin_sent) {
			if (c->rate_bytes <
			    (uint64_t)c->s->conf.body_min_rate * RATE_WINDOW_MS / 1000)
				req_fail(c->req, 408, "timeout",
				         "the body of the request came too slowly");
			c->rate_waited_ms = c->rate_bytes = 0;
			c->rate_since_ms = now;
		} else {
			c->dead = true;
		}
	}
	conn_run(c);
}
