#include "api/streams/body.h"

#include "api/api.h"
#include "api/streams/job.h"
#include "http/server.h"

static void body_feed_step(struct body_feed *p)
{
	size_t n = p->j ? job_send(p->j, p->rest, p->left) : p->left;

	p->rest += n;
	p->left -= n;
	if (!p->left && p->c->req)
		http_body_more(p->c->req);
}

static void on_data(void *arg, struct http_req *r, const void *bytes, size_t n)
{
	struct body_feed *p = arg;

	p->bytes += n;
	p->rest = bytes;
	p->left = n;
	body_feed_step(p);
}

/* Comes after the last piece was dealt with. */
static void on_all(void *arg, struct http_req *r)
{
	struct body_feed *p = arg;

	p->all = true;
	if (p->j)
		p->done(p->arg);
}

static const struct http_body_ops feed_ops = {.data = on_data, .end = on_all};

void body_feed_begin(struct body_feed *p, struct call *c, struct job *j, void (*done)(void *arg),
                     void *arg)
{
	*p = (struct body_feed){.c = c, .j = j, .done = done, .arg = arg};
	http_body_stream(c->req, &feed_ops, p);
}

void body_feed_more(struct body_feed *p)
{
	if (p->left)
		body_feed_step(p);
}

void body_feed_stop(struct body_feed *p)
{
	p->j = NULL;
	if (p->left)
		body_feed_step(p);
}
