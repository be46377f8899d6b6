/*
 * host/network.h - which place in the host's network a sandbox has
 * For the files of the host. A slot of src/net belongs to one life of a machine: taken before it
 * starts, returned when it has ended; a fork's child and a woken sandbox get another one, with the
 * same policy. A host without the means has no network for guests, and says so once.
 */
#pragma once
#include "host/host.h"

/* h->net stays NULL when it is switched off or this host cannot. */
void network_open(struct host *h);
void network_close(struct host *h);

/*
 * What spec.egress may be: NULL, the host's default; a list of what may be reached; "open"; or an
 * object {"allow": one of these or null, "limits": {"connections", "up_kbit", "down_kbit"}}.
 * Is this one that we can hold a sandbox to? Kinds: bad_request; forbidden, when it is more than
 * egress_max. What is on record already is not asked: the room net holds it to egress_max.
 */
int network_check(struct host *h, const json_t *egress, struct err *e);
const json_t *network_allow(const json_t *egress);  /* a list, "open", or NULL */
const json_t *network_limits(const json_t *egress); /* or NULL */
/* Borrows both. *ret is NULL when both are. -ENOMEM */
int network_join(const json_t *allow, const json_t *limits, json_t **ret);
/* "off", "list" or "open": what that comes to on this host. */
const char *network_mode(const struct host *h, const json_t *egress);

/* Calls ready() when the sandbox has a slot, or there is no network; maybe at once. On the loop. */
void network_take(struct sandbox *sb, void (*ready)(void *arg, const struct err *e), void *arg);
int network_fd(const struct sandbox *sb); /* for engine_start; -1: none. Stays the slot's */
void network_return(struct sandbox *sb);  /* its machine has ended; idle is fine */

/* The machine was started by an earlier pandad. */
void network_adopt(struct sandbox *sb);

/* Holds a running sandbox to what its spec says now. */
int network_apply(struct sandbox *sb, struct err *e);
