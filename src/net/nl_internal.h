/*
 * net/nl_internal.h - one request over netlink, for nl.c and nf.c
 */
#pragma once
#include <libmnl/libmnl.h>

enum {
	NL_BUF = 32768, /* dumps come in pieces of up to this */
};

/* Sends h with a number of its own, runs cb for what comes back, until the ack or the end of a
 * dump. */
int nl_talk(struct mnl_socket *s, struct nlmsghdr *h, mnl_cb_t cb, void *arg);
