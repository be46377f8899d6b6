#include "calls.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "base/io.h"
#include "base/macro.h"
#include "harness.h"

struct call {
	struct guest_call *c;
	bool done;
	int err;
	bool enough; /* of a watch */
	void (*file)(void *arg, const struct wire_file *m);
	bool (*event)(void *arg, const struct wire_event *m);
	void (*ready)(void *arg);
	void *arg;
	int in, out;
};

static ssize_t take_row(struct call *k, const uint8_t *p, size_t n)
{
	struct wire_event ev;
	struct wire_file f;
	ssize_t r = k->file ? wire_file_take(p, n, &f) : wire_event_take(p, n, &ev);

	if (r > 0 && k->file)
		k->file(k->arg, &f);
	if (r > 0 && k->event && !k->enough && !k->event(k->arg, &ev)) {
		k->enough = true;
		guest_cancel(k->c);
	}
	return r;
}

static void on_data(void *arg, struct guest_call *c, uint8_t chan, const void *p, size_t n)
{
	struct call *k = arg;

	if (k->out >= 0)
		assert_int_equal(io_write_full(k->out, p, n), 0);
	for (size_t at = 0; k->out < 0 && at < n;) {
		ssize_t r = take_row(k, (const uint8_t *)p + at, n - at);

		assert_true(r > 0);
		at += (size_t)r;
	}
	guest_credit(c, chan, n);
}

static void on_reply(void *arg, struct guest_call *c, uint8_t type, uint8_t chan, const void *msg)
{
	struct call *k = arg;

	if (type == WIRE_READY && k->ready)
		k->ready(k->arg);
}

static void on_end(void *arg, struct guest_call *c, const struct guest_end *end)
{
	struct call *k = arg;

	k->done = true;
	k->err = end->err;
}

/* A plain file always has something to say, or its end. */
static void feed(struct call *k)
{
	char buf[4096];
	size_t room;

	while (k->in >= 0 && (room = guest_sendable(k->c))) {
		ssize_t r = read(k->in, buf, MIN(room, sizeof(buf)));

		assert_true(r >= 0);
		if (r > 0)
			assert_int_equal(guest_send(k->c, buf, (size_t)r), r);
		else if (guest_send_eof(k->c) == 0)
			k->in = -1;
		else
			break;
	}
}

static int run(struct guest *g, struct call *k, uint8_t type, const void *msg)
{
	static const struct guest_ops ops = {.data = on_data, .reply = on_reply, .end = on_end};

	assert_int_equal(guest_start(g, type, msg, &ops, k, &k->c), 0);
	while (!k->done) {
		struct pollfd p = {.fd = guest_fd(g)};

		feed(k);
		guest_flush(g);
		/* epoll and poll have the same bits for in, out, error and hang-up */
		p.events = (short)guest_events(g);
		assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
		guest_dispatch(g, (uint32_t)p.revents);
	}
	return k->enough ? 0 : -k->err;
}

int call_dir(struct guest *g, const char *path, void (*each)(void *arg, const struct wire_file *m),
             void *arg)
{
	struct call k = {.file = each, .arg = arg, .in = -1, .out = -1};

	return run(g, &k, WIRE_DIR,
	           &(struct wire_path_flags){.path = wire_str(path), .flags = GUEST_WINDOW});
}

int call_watch(struct guest *g, const char *path, void (*ready)(void *arg),
               bool (*each)(void *arg, const struct wire_event *m), void *arg)
{
	struct call k = {.event = each, .ready = ready, .arg = arg, .in = -1, .out = -1};

	return run(g, &k, WIRE_WATCH,
	           &(struct wire_watch){.path = wire_str(path),
	                                .flags = WIRE_WATCH_RECURSIVE,
	                                .window = GUEST_WINDOW});
}

int call_connect(struct guest *g, unsigned port, int in_fd, int out_fd)
{
	struct call k = {.in = in_fd, .out = out_fd};

	return run(g, &k, WIRE_CONNECT,
	           &(struct wire_connect){.port = port, .window = GUEST_WINDOW});
}
