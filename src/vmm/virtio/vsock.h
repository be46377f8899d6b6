/*
 * vmm/virtio/vsock.h - the agent's channel: streams of a unix socket, carried on as vsock streams
 * A process that connects to the listening socket is connected to a port of the guest. Streams
 * belong to this process: a restored guest is told that all it had are gone, and new ones wait
 * until it knows. Nothing that a guest says makes us hold more than VSOCK_BUF bytes for a stream.
 */
#pragma once
#include <pthread.h>

#include "base/loop.h"
#include "vmm/virtio/mmio.h"

enum {
	VSOCK_GUEST_CID = 3,
	VSOCK_HOST_CID = 2,
	VSOCK_AGENT_PORT = 1,
	VSOCK_STREAMS_MAX = 256,
	VSOCK_BUF = 128 << 10, /* what a guest may send before we have passed it on */
	VSOCK_RETRY_MS = 5,    /* the agent does not listen yet: at first; see asked_in_vain() */
};

struct vsock_stream;

struct vsock {
	struct vdev vdev;
	struct loop *loop;
	int listener; /* -1: none */
	struct loop_io accept_io;
	struct loop_timer retry;
	uint64_t since_ms;     /* how long the agent has been waited for */
	pthread_mutex_t *lock; /* of all devices: taken by what the loop calls */
	struct vsock_stream *streams;
	unsigned nr_streams;
	uint32_t next_port;
	bool answered;   /* the agent listens: a refusal is one */
	bool forget;     /* the driver was reset: streams go */
	bool reset_sent; /* a transport reset is on its way; the guest has not had it yet */
	uint16_t reset_avail;
	unsigned unsaid; /* packets of the guest that were taken since the last interrupt */
	struct {
		uint32_t host_port, guest_port;
	} refuse[64]; /* packets of streams that are not open */
	unsigned nr_refuse;
};

/* The listener is an fd of the caller's, non-blocking; random chooses the first port. */
int vsock_init(struct vsock *s, struct loop *loop, pthread_mutex_t *lock, int listener,
               uint32_t random, const struct mem *mem);
void vsock_fini(struct vsock *s);

/* After a restore, before the guest runs: its streams are gone. */
void vsock_reborn(struct vsock *s);

void vsock_save(const struct vsock *s, struct state_out *o);
int vsock_load(struct vsock *s, struct state_in *i);
