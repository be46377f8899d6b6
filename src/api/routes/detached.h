/*
 * api/routes/detached.h - commands the guest's agent knows of, for handlers that look for one
 */
#pragma once

struct err;
struct host;
struct sandbox;
struct wire_exec_info;

enum {
	EXECS_SHOWN_MAX = 4096, /* the agent has fewer; a guest may claim anything */
};

typedef void execs_seen(void *arg, const struct wire_exec_info *m);
typedef void execs_listed(void *arg, const struct err *e);

/* Calls seen() for each, then done(), both later and not from within. */
int execs_lookup(struct host *h, struct sandbox *sb, execs_seen *seen, execs_listed *done,
                 void *arg, struct err *e);
