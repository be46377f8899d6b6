#include "api/streams/body.h"

static void step(struct pour *p)
{
	size_t n = p->j ? job_send(p->j, p->rest, p->left) : p->left;

	p->rest += n;
	p->left -= n;
	if (!p->left && p->c->req)
		http_body_more(p->c->req);
}

static void on_data(void *arg, struct http_req *r, const void *bytes, size_t n)
{
	struct pour *p = arg;

	p->bytes += n;
	p->rest = bytes;
	p->left = n;
	step(p);
}

/* Comes after the last piece was dealt with. */
static void on_all(void *arg, struct http_req *r)
{
	struct pour *p = arg;

	p->all = true;
	if (p->j)
		p->done(p->arg);
}

static const struct http_body_ops pour_ops = {.data = on_data, .end = on_all};

void pour_begin(struct pour *p, struct call *c, struct job *j, void (*done)(void *arg), void *arg)
{
	*p = (struct pour){.c = c, .j = j, .done = done, .arg = arg};
	http_body_stream(c->req, &pour_ops, p);
}

void pour_more(struct pour *p)
{
	if (p->left)
		step(p);
}

void pour_stop(struct pour *p)
{
	p->j = NULL;
	if (p->left)
		step(p);
}
