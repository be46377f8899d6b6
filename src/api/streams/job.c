#include "api/streams/job.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/macro.h"
#include "host/checkpoint.h"
#include "host/guest_link.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "machine/guest.h"
#include "wire/guest.h"

enum {
	PATIENCE_MS = 10000, /* when the connection stays full so long, the caller hears of it */
};

struct job {
	struct host *host;
	char id[SANDBOX_ID + 1];
	const void *msg; /* inside job_start(): the caller's; the request is not encoded yet */
	struct guest_request request;
	uint8_t *owned;            /* the bytes of the request, when they are ours */
	const struct job_ops *ops; /* NULL: abandoned */
	void *arg;
	struct guest_call *call;    /* NULL: not begun, or over */
	struct guest *guest;        /* valid while call is */
	struct loop_timer patience; /* set while the call has not begun for want of room */
	struct guest_room room;
	struct loop_defer again; /* what has to wait until no callback is on the stack */
	struct loop_defer flush; /* what was queued is written when the round is over */
	uint64_t give_up_ms;
	struct err failed; /* told by again */
	bool starting, inside, linking, busy;
	bool want_eof, want_cancel, want_write;
};

static void job_try(struct job *j);

static void job_free(struct job *j)
{
	loop_timer_clear(j->host->loop, &j->patience);
	guest_room_cancel(&j->room);
	loop_defer_cancel(j->host->loop, &j->again);
	loop_defer_cancel(j->host->loop, &j->flush);
	if (j->busy)
		host_idle(j->host, j->id);
	free(j->owned);
	free(j);
}

static void tell_end(struct job *j, const struct job_end *end)
{
	if (j->ops && j->ops->end)
		j->ops->end(j->arg, j, end);
	job_free(j);
}

/* The guest could not be asked, or the connection broke. */
static void tell_failure(struct job *j, const struct err *e)
{
	tell_end(j, &(struct job_end){.e = e, .text = ""});
}

static void fail_later(struct job *j, const struct err *e)
{
	j->failed = *e;
	loop_defer(j->host->loop, &j->again);
}

/* What could not be said because too much was waiting to be written. */
static void job_push(struct job *j)
{
	if (j->call && j->want_eof && guest_send_eof(j->call) == 0)
		j->want_eof = false;
	if (j->call && j->want_cancel && guest_cancel(j->call) == 0)
		j->want_cancel = false;
	if (j->call && (j->want_eof || j->want_cancel))
		guest_room_wait(j->guest, &j->room);
}

/* Not at once: writing may find the connection broken, and that ends the job of the caller. */
static void kick(struct job *j)
{
	if (!j->inside && j->call)
		loop_defer(j->host->loop, &j->flush);
}

static void on_flush(void *arg)
{
	struct job *j = arg;
	char id[SANDBOX_ID + 1];

	memcpy(id, j->id, sizeof(id));
	link_kick(j->host, id);
}

/* ---- what the guest says ---- */

static void on_data(void *arg, struct guest_call *c, uint8_t chan, const void *p, size_t n)
{
	struct job *j = arg;

	if (!j->ops)
		return; /* it has been called off, no credit any more */
	if (!j->ops->data) {
		guest_credit(c, chan, n);
		return;
	}
	j->inside = true;
	j->ops->data(j->arg, j, chan, p, n);
	j->inside = false;
}

static void on_eof(void *arg, struct guest_call *c, uint8_t chan)
{
	struct job *j = arg;

	if (!j->ops || !j->ops->eof)
		return;
	j->inside = true;
	j->ops->eof(j->arg, j, chan);
	j->inside = false;
}

static void on_reply(void *arg, struct guest_call *c, uint8_t type, uint8_t chan, const void *msg)
{
	struct job *j = arg;

	if (!j->ops || !j->ops->reply)
		return;
	j->inside = true;
	j->ops->reply(j->arg, j, type, chan, msg);
	j->inside = false;
}

static void on_writable(void *arg, struct guest_call *c)
{
	struct job *j = arg;

	if (!j->ops || !j->ops->writable || !j->want_write)
		return;
	j->want_write = false;
	j->inside = true;
	j->ops->writable(j->arg, j);
	j->inside = false;
}

static void on_end(void *arg, struct guest_call *c, const struct guest_end *end)
{
	struct job *j = arg;
	int err = end->err;
	struct err e = {0};

	j->call = NULL;
	j->inside = true;
	if (j->starting) { /* the very first write failed */
		err_set(&e, err ? err : ECONNRESET, "guest_gone", "the sandbox does not answer");
		fail_later(j, &e);
		return;
	}
	if (guest_dead(j->guest)) {
		err_set(&e, err ? err : ECONNRESET,
		        err == ETIMEDOUT ? "guest_silent" : "guest_gone",
		        "the sandbox went away in the middle: %s; look at its status and ask again",
		        *end->text ? end->text : "its agent does not answer");
		tell_failure(j, &e);
	} else {
		tell_end(j,
		         &(struct job_end){.guest = err, .reason = end->reason, .text = end->text});
	}
}

static const struct guest_ops call_ops = {
    .data = on_data, .eof = on_eof, .reply = on_reply, .writable = on_writable, .end = on_end};

/* ---- the start ---- */

/* Whatever else is asked for may change the guest. */
static bool only_looks(uint8_t type)
{
	return type == WIRE_LIST || type == WIRE_READ || type == WIRE_STAT || type == WIRE_DIR ||
	       type == WIRE_WATCH;
}

static int begin(struct job *j, struct guest *g)
{
	if (j->msg)
		return guest_start(g, j->request.type, j->msg, &call_ops, j, &j->call);
	return guest_start_encoded(g, &j->request, &call_ops, j, &j->call);
}

static void busy_error(struct err *e)
{
	err_set(e, EAGAIN, "sandbox_busy",
	        "too many calls are open in this sandbox: wait for some to end");
}

static void on_link(void *arg, const struct err *e, struct sandbox *sb, struct guest *g)
{
	struct job *j = arg;
	struct err full;
	int r;

	j->linking = false;
	if (!j->ops) {
		job_free(j);
		return;
	}
	if (e) {
		if (j->starting)
			fail_later(j, e);
		else
			tell_failure(j, e);
		return;
	}
	if (!j->busy) {
		host_busy(j->host, sb);
		j->busy = true;
	}
	if (!only_looks(j->request.type))
		history_touch(sb);
	r = begin(j, g);
	if (r == -EAGAIN && loop_now_ms(j->host->loop) < j->give_up_ms) {
		guest_room_wait(g, &j->room);
		loop_timer_set(j->host->loop, &j->patience, j->give_up_ms);
		return;
	}
	if (r < 0) {
		if (r == -EAGAIN)
			busy_error(&full);
		else
			err_set(&full, -r, "internal", "cannot ask the sandbox: %s", strerror(-r));
		if (j->starting)
			fail_later(j, &full);
		else
			tell_failure(j, &full);
		return;
	}
	j->guest = g;
	loop_timer_clear(j->host->loop, &j->patience);
	free(take_ptr(j->owned));
	if (j->starting)
		return;
	job_push(j);
	on_writable(j, j->call);
}

static void job_try(struct job *j)
{
	struct sandbox *sb = host_find(j->host, NULL, j->id);
	struct err e;

	if (!sb) {
		err_set(&e, ENOENT, "sandbox_not_found", "sandbox not found");
		tell_failure(j, &e);
		return;
	}
	j->linking = true;
	link_use(j->host, sb, on_link, j);
}

/* The connection has room, or is gone: then the next try makes a new one. */
static void on_room(void *arg)
{
	struct job *j = arg;

	loop_defer(j->host->loop, &j->again);
}

static void on_again(void *arg)
{
	struct job *j = arg;

	if (j->failed.code) {
		tell_failure(j, &j->failed);
		return;
	}
	if (!j->call) {
		job_try(j);
		return;
	}
	job_push(j);
	if (j->want_write && guest_sendable(j->call))
		on_writable(j, j->call);
	else if (j->want_write)
		guest_room_wait(j->guest, &j->room);
	kick(j);
}

static void on_impatience(void *arg)
{
	struct job *j = arg;
	struct err e;

	if (j->linking)
		return; /* on_link() looks at the time */
	busy_error(&e);
	tell_failure(j, &e);
}

static void on_point(void *arg)
{
	struct job *j = arg;

	j->linking = false;
	if (j->ops)
		job_try(j);
	else
		job_free(j);
}

static struct job *job_new(struct host *h, const struct sandbox *sb, const struct job_ops *ops,
                           void *arg, struct err *e)
{
	struct job *j = calloc(1, sizeof(*j));

	if (!j) {
		err_nomem(e);
		return NULL;
	}
	j->host = h;
	memcpy(j->id, sb->id, sizeof(j->id));
	j->ops = ops;
	j->arg = arg;
	j->patience = (struct loop_timer){.fn = on_impatience, .arg = j};
	j->room = (struct guest_room){.fn = on_room, .arg = j};
	j->again = (struct loop_defer){.fn = on_again, .arg = j};
	j->flush = (struct loop_defer){.fn = on_flush, .arg = j};
	j->give_up_ms = loop_now_ms(h->loop) + PATIENCE_MS;
	return j;
}

/* The caller's message goes when job_start() returns, and the request has not begun. */
static int keep_request(struct job *j, size_t n)
{
	const struct wire_desc *d = wire_desc_of(j->request.type);

	if (!d)
		return 0;
	j->owned = malloc(n);
	if (!j->owned)
		return -ENOMEM;
	wire_encode(d, j->msg, j->owned, n);
	j->request.p = j->owned;
	j->request.n = n;
	return 0;
}

/* mark: with a checkpoint before it. */
static void job_go(struct job *j, struct sandbox *sb, bool mark)
{
	j->starting = true;
	j->linking = true;
	if (!mark || !host_checkpoint_before(j->host, sb, on_point, j))
		link_use(j->host, sb, on_link, j);
	j->starting = false;
}

static struct job *start_message(struct host *h, struct sandbox *sb, uint8_t type, const void *msg,
                                 bool mark, const struct job_ops *ops, void *arg, struct err *e)
{
	const struct wire_desc *d = wire_desc_of(type);
	size_t n = d ? wire_length(d, msg) : 0;
	struct job *j;

	if (n > WIRE_PAYLOAD_MAX) {
		err_set(e, E2BIG, "too_large",
		        "command, arguments, environment and paths together may have %d bytes",
		        WIRE_PAYLOAD_MAX);
		return NULL;
	}
	j = job_new(h, sb, ops, arg, e);
	if (!j)
		return NULL;
	j->request.type = type;
	j->msg = msg;
	job_go(j, sb, mark);
	if (!j->call && !j->failed.code && keep_request(j, n) < 0) {
		job_abandon(j);
		err_nomem(e);
		return NULL;
	}
	j->msg = NULL;
	return j;
}

struct job *job_start(struct host *h, struct sandbox *sb, uint8_t type, const void *msg,
                      const struct job_ops *ops, void *arg, struct err *e)
{
	return start_message(h, sb, type, msg, false, ops, arg, e);
}

struct job *job_start_marked(struct host *h, struct sandbox *sb, uint8_t type, const void *msg,
                             const struct job_ops *ops, void *arg, struct err *e)
{
	return start_message(h, sb, type, msg, true, ops, arg, e);
}

struct job *job_start_encoded(struct host *h, struct sandbox *sb, const struct guest_request *rq,
                              const struct job_ops *ops, void *arg, struct err *e)
{
	struct job *j = job_new(h, sb, ops, arg, e);

	if (!j)
		return NULL;
	j->request = *rq;
	job_go(j, sb, true);
	return j;
}

/* ---- what the caller says ---- */

size_t job_send(struct job *j, const void *p, size_t n)
{
	size_t sent = 0, k;

	while (j->call && sent < n && (k = guest_send(j->call, (const char *)p + sent, n - sent)))
		sent += k;
	if (sent < n) {
		j->want_write = true;
		/* For want of credit the guest itself tells, by on_writable(). */
		if (j->call)
			guest_room_wait(j->guest, &j->room);
	}
	if (sent)
		kick(j);
	return sent;
}

void job_send_eof(struct job *j)
{
	j->want_eof = true;
	job_push(j);
	kick(j);
}

void job_resize(struct job *j, unsigned rows, unsigned cols)
{
	if (j->call && guest_resize(j->call, rows, cols) == 0)
		kick(j);
}

void job_signal(struct job *j, int signo, uint32_t flags)
{
	if (j->call && guest_send_signal(j->call, signo, flags) == 0)
		kick(j);
}

void job_credit(struct job *j, uint8_t chan, size_t n)
{
	if (!j->call || !n)
		return;
	guest_credit(j->call, chan, n);
	kick(j);
}

void job_cancel(struct job *j)
{
	j->want_cancel = true;
	job_push(j);
	kick(j);
}

void job_abandon(struct job *j)
{
	if (!j)
		return;
	j->ops = NULL;
	if (j->call)
		job_cancel(j);
	else if (!j->linking)
		job_free(j); /* it waits for room, or to tell of its failure */
}

/* ---- errors ---- */

static const struct {
	int code;
	const char *kind;
} kinds[] = {
    {ENOENT, "file_not_found"}, {ESRCH, "exec_not_found"},
    {EACCES, "forbidden"},      {EPERM, "forbidden"},
    {ENOSPC, "disk_full"},      {EDQUOT, "disk_full"},
    {EISDIR, "is_a_directory"}, {ENOTDIR, "not_a_directory"},
    {EINVAL, "bad_path"},       {ENAMETOOLONG, "bad_path"},
    {ELOOP, "bad_path"},        {EEXIST, "exists"},
    {ENOTEMPTY, "conflict"},    {EBUSY, "sandbox_busy"},
    {EAGAIN, "sandbox_busy"},   {EXDEV, "bad_path"},
    {EROFS, "forbidden"},       {ENXIO, "bad_path"},
    {ECONNREFUSED, "upstream"}, {EMFILE, "sandbox_busy"},
    {ETXTBSY, "conflict"},      {EFBIG, "too_large"},
    {EIO, "guest_io"},          {EPROTO, "upstream"},
};

int job_error(const struct job_end *end, const char *what, struct err *ret)
{
	const char *kind = "internal";

	if (end->e) {
		*ret = *end->e;
		return -ret->code;
	}
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (kinds[i].code == end->guest)
			kind = kinds[i].kind;
	if (strcmp(kind, "disk_full") == 0)
		return err_set(ret, end->guest, kind, "%s: the sandbox's disk is full", what);
	return err_set(ret, end->guest, kind, "%s: %s%s%s", what, end->text, *end->text ? ": " : "",
	               strerror(end->guest));
}

void job_fail(struct call *c, const struct job_end *end, const char *what)
{
	struct err e;

	job_error(end, what, &e);
	call_error(c, &e);
}
