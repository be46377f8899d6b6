/*
 * vmm/control.h - the host's side talks to us here: wire/control.h, the same as panda-um's
 * One message is one packet, one request has one answer. The host may go and another one come: the
 * listening socket stays. Main thread only.
 */
#pragma once
#include "vmm/machine.h"

enum { CONTROL_CONNS_MAX = 8, CONTROL_STATS_MS = 100 };

struct control;

/* Waits for the first message, CTL_HELLO, and puts its fds into their slots. */
int control_hello(int listener, struct ctl_msg *ret, int *ret_conn);

/* Was this slot filled by the message? */
bool control_has(const struct ctl_msg *hello, unsigned slot);

/* Answers CTL_READY on conn, which is taken, and serves from then on, in m's loop. */
int control_start(struct machine *m, int listener, int conn, uint64_t lost, struct control **ret);
