/*
 * client/stream.c - streams of events, each on a connection of its own
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/client_internal.h"
#include "client/panda.h"

struct panda_stream {
	struct reply reply;
	struct sse_reader sse;
	char buf[CLIENT_BUF];
	size_t at, len; /* what of buf has not been looked at */
};

int panda_stream_open(struct panda *p, const char *method, const char *path, json_t *body,
                      struct panda_stream **ret, struct panda_error *e)
{
	autofree char *text = NULL;
	struct request q = {.method = method,
	                    .path = path,
	                    .accept = "text/event-stream",
	                    .own_conn = true};
	struct panda_stream *s;
	int r;

	r = request_json(&q, body, &text, e);
	if (r < 0)
		return r;
	s = calloc(1, sizeof(*s));
	if (!s)
		return perr_nomem(e);
	r = reply_open(p, &q, &s->reply, e);
	if (r == 0 && s->reply.status >= 400)
		r = reply_error(&s->reply, NULL, e);
	else if (r == 0 && strcmp(s->reply.type, "text/event-stream") != 0) {
		r = perr_set(e, EPROTO, "protocol", "%s%s answered '%s', not a stream of events",
		             p->target.url, path, s->reply.type);
		reply_close(&s->reply, NULL);
	}
	if (r < 0) {
		free(s);
		return r;
	}
	*ret = s;
	return 0;
}

int panda_stream_next(struct panda_stream *s, int timeout_ms, struct panda_event *ret,
                      struct panda_error *e)
{
	uint64_t deadline = conn_deadline(timeout_ms);
	size_t used;
	ssize_t n;
	int r;

	for (;;) {
		r = sse_reader_feed(&s->sse, s->buf + s->at, s->len, &used, ret);
		if (r < 0)
			return r == -ENOMEM
			           ? perr_nomem(e)
			           : perr_set(e, EPROTO, "protocol",
			                      "the server sent an event of more than %d bytes",
			                      PANDA_EVENT_MAX);
		s->at += used;
		s->len -= used;
		if (r)
			return 1;
		n = reply_read(&s->reply, s->buf, sizeof(s->buf), deadline, e);
		if (n <= 0)
			return (int)n;
		s->at = 0;
		s->len = (size_t)n;
	}
}

int panda_stream_fd(const struct panda_stream *s)
{
	return s->reply.conn.fd;
}

void panda_stream_close(struct panda_stream *s)
{
	if (!s)
		return;
	reply_close(&s->reply, NULL);
	sse_reader_fini(&s->sse);
	free(s);
}

int panda_events(struct panda *p, const char *method, const char *path, json_t *body,
                 panda_event_fn fn, void *arg, struct panda_error *e)
{
	struct panda_stream *s;
	struct panda_event ev;
	int r = panda_stream_open(p, method, path, body, &s, e);

	if (r < 0)
		return r;
	while ((r = panda_stream_next(s, -1, &ev, e)) > 0) {
		r = fn(arg, &ev);
		if (r) {
			perr_set(e, ECANCELED, "stopped", "the caller wanted no more of it");
			break;
		}
	}
	panda_stream_close(s);
	return r;
}
