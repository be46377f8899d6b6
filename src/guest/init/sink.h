/*
 * guest/init/sink.h - bytes on their way into a pipe or socket that may not take them yet
 * Holds at most WIRE_WINDOW bytes, the credit a stream has. A peer that went away swallows all.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct agent;

struct sink {
	struct agent *a; /* whose epoll watches the fd, sometimes */
	int fd;          /* non-blocking; -1: closed */
	bool hold;       /* not connected yet: only collect */
	bool eof;        /* the sender is done; close or shut down once empty */
	uint8_t *buf;
	uint32_t head, len;
};

/* Both return how many bytes are done with: written, or of no use to a client. */
size_t sink_push(struct sink *k, const uint8_t *p, size_t n);
size_t sink_flush(struct sink *k);

void sink_close(struct sink *k);
