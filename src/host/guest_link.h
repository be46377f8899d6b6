/*
 * host/guest_link.h - the way to a sandbox's agent, on the loop
 * One connection per sandbox for all its calls, made when it is needed and given back when it has
 * not been used for a while. A hibernated sandbox wakes up first.
 */
#pragma once
#include "host/host.h"

/*
 * Calls ready() with the guest, maybe at once, maybe after a wake-up: start calls on it then, they
 * are written when the loop's round is over. e says why there is none (sandbox_paused,
 * sandbox_failed, sandbox_not_found, guest_silent, ...); g is NULL then. The guest must not be
 * kept: ask again. When the connection breaks, every call on it ends with an errno.
 */
void link_use(struct host *h, struct sandbox *sb,
              void (*ready)(void *arg, const struct err *e, struct sandbox *sb, struct guest *g),
              void *arg);

/* The job that started its machine has talked to its agent already: this is that connection. Takes
 * *g; when it cannot be used it is closed, and another is made when it is needed. */
void link_take(struct host *h, struct sandbox *sb, struct guest **g);

/* After calls were started or credit was given outside of the guest's own callbacks. */
void link_kick(struct host *h, const char *sandbox_id);

/* Drops the connection: its calls end. */
void link_drop(struct sandbox *sb);
