/*
 * vmm/virtio/net.h - eth0: frames of a tap
 * The device is there in every life; whether there is a tap behind it is its carrier. Frames of the
 * tap carry the short header (10 bytes), those of the guest the long one (12). What the tap does
 * not take is lost, as on a wire.
 */
#pragma once
#include <pthread.h>

#include "base/loop.h"
#include "vmm/virtio/mmio.h"

struct virtio_net {
	struct vdev vdev;
	struct loop *loop;
	pthread_mutex_t *lock;
	int tap; /* -1: none */
	struct loop_io io;
	bool reading; /* the tap is watched: there is room for what comes */
};

/* The tap is the caller's, and non-blocking. */
int net_init(struct virtio_net *n, struct loop *loop, pthread_mutex_t *lock, int tap,
             const struct mem *mem);
