/*
 * What a hostile guest may send to the host's end (machine/guest.h), while calls of every kind are
 * open. The promises: every call ends exactly once, and nothing comes after that; nothing is sent
 * beyond its credit; no reply but GAP comes twice, and GAP no more often than what costs credit.
 */
#include <assert.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/io.h"
#include "base/macro.h"
#include "machine/guest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
	WINDOW = 64,
	INPUT_MAX = 32 * 1024, /* fits into a socket buffer */
};

struct seen {
	size_t bytes[2];
	unsigned replies, frames, gaps;
	int ended;
};

static void on_data(void *arg, struct guest_call *c, uint8_t chan, const void *p, size_t n)
{
	struct seen *s = arg;

	assert(!s->ended && n);
	s->frames++;
	s->bytes[chan - WIRE_OUT] += n;
	assert(s->bytes[chan - WIRE_OUT] <= WINDOW); /* we give no credit */
}

static void on_reply(void *arg, struct guest_call *c, uint8_t type, uint8_t chan, const void *msg)
{
	struct seen *s = arg;

	assert(!s->ended);
	if (type == WIRE_GAP) {
		s->gaps++;
		return;
	}
	assert(!(s->replies & 1u << type));
	s->replies |= 1u << type;
	assert(s->gaps <= s->frames + 2); /* one for each channel before EXITED */
}

static void on_end(void *arg, struct guest_call *c, const struct guest_end *end)
{
	((struct seen *)arg)->ended++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct guest_ops ops = {.data = on_data, .reply = on_reply, .end = on_end};
	struct wire_read rd = {.path = wire_str("/x"), .window = WINDOW};
	struct wire_write wr = {.path = wire_str("/x")};
	struct wire_attach at = {.id = 1, .window = WINDOW};
	struct seen seen[4] = {0};
	struct guest *g;
	int fd[2];

	if (size > INPUT_MAX || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) < 0)
		return 0;
	if (guest_new(fd[0], &g) < 0)
		abort();
	guest_start(g, WIRE_ATTACH, &at, &ops, &seen[0], NULL);
	guest_start(g, WIRE_READ, &rd, &ops, &seen[1], NULL);
	guest_start(g, WIRE_WRITE, &wr, &ops, &seen[2], NULL);
	guest_start(g, WIRE_STATS, NULL, &ops, &seen[3], NULL);
	if (io_write_full(fd[1], data, size) < 0)
		abort();
	close(fd[1]);
	while (guest_dispatch(g, EPOLLIN) == 0)
		;
	for (size_t i = 0; i < ARRAY_LEN(seen); i++)
		assert(seen[i].ended == 1);
	guest_free(g);
	return 0;
}
