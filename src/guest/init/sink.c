#include "guest/init/sink.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "guest/init/agent.h"
#include "wire/guest.h"

void sink_close(struct sink *k)
{
	if (k->fd >= 0)
		source_close(k->a, k->fd);
	k->fd = -1;
	free(k->buf);
	k->buf = NULL;
	k->head = k->len = 0;
}

static size_t sink_write(struct sink *k, const uint8_t *p, size_t n)
{
	ssize_t r;

	if (k->fd < 0)
		return n;
	do
		r = write(k->fd, p, n);
	while (r < 0 && errno == EINTR);
	if (r >= 0)
		return (size_t)r;
	if (errno == EAGAIN)
		return 0;
	sink_close(k);
	return n;
}

size_t sink_push(struct sink *k, const uint8_t *p, size_t n)
{
	size_t done = k->len || k->hold ? 0 : sink_write(k, p, n);
	size_t rest = n - done;

	if (!rest)
		return n;
	if (!k->buf)
		k->buf = malloc(WIRE_WINDOW);
	if (!k->buf) {
		sink_close(k); /* better an early end than a hole in the middle */
		return n;
	}
	if (k->head + k->len + rest > WIRE_WINDOW) {
		memmove(k->buf, k->buf + k->head, k->len);
		k->head = 0;
	}
	assert(k->len + rest <= WIRE_WINDOW); /* the credit we gave */
	memcpy(k->buf + k->head + k->len, p + done, rest);
	k->len += (uint32_t)rest;
	return done;
}

size_t sink_flush(struct sink *k)
{
	size_t done = 0;

	while (k->len) {
		size_t n = sink_write(k, k->buf + k->head, k->len);

		if (!n)
			return done;
		done += n;
		if (k->fd < 0)
			return done;
		k->head += (uint32_t)n;
		k->len -= (uint32_t)n;
	}
	k->head = 0;
	return done;
}
