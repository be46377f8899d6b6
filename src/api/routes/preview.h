/*
 * api/routes/preview.h - HTTP to a port of a guest, and who may come in how
 */
#pragma once
#include "api/api.h"
#include "api/routes/preview_link.h"
#include "base/err.h"
#include "host/sandbox.h"

/* What a browser has of a signed link on a host name: a cookie and, once, a word in the query. */
#define PREVIEW_COOKIE "panda_preview"

/* Answers c with what the port of c->sb says to it. prefix: our path that leads to the port, maybe
 * with our credentials; NULL: a host name of its own does. Copied. */
void proxy_run(struct call *c, unsigned port, const char *path, const char *prefix);

/* A signed link that holds now, and the sandbox that it leads to. Kinds: unauthorized,
 * sandbox_not_found. */
int preview_open(struct call *c, const char *token, struct preview *ret, struct sandbox **ret_sb,
                 struct err *e);
