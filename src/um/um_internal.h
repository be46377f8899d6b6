/*
 * um/um_internal.h - between the files of the user-mode engine
 */
#pragma once
#include "core/engine.h"
#include "jail/jail.h"
#include "um/um_wire.h"

extern const struct jail_rules um_rules;

/* A message with its fds, built step by step. */
struct um_packet {
	struct um_msg msg;
	int fds[UM_FDS_MAX];
};

/* -E2BIG when it is full. fd is borrowed until the send. */
int um_packet_add(struct um_packet *p, int fd, unsigned slot);

/*
 * Sends and waits for the answer. alive is a pidfd: its death ends the waiting with -ESRCH.
 * -ETIMEDOUT after timeout_ms, -EPROTO when the answer makes no sense.
 */
int um_call(int control, int alive, const struct um_packet *p, unsigned timeout_ms,
            struct um_msg *ret);
