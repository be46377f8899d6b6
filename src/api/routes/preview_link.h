/*
 * api/routes/preview_link.h - signed links to a port: who may come in without a token, where to,
 * until when base64url(payload) "." base64url(HMAC-SHA256(payload)), payload =
 * sandbox|port|expiry|tenant and, behind one more bar each, path prefixes with commas between them,
 * and the sandbox's epoch when it is not 0.
 * Pure.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "host/sandbox.h"
#include "template/depot.h"

enum {
	PREVIEW_KEY = 32,
	PREVIEW_PATHS_MAX = 1024, /* bytes of all prefixes */
	PREVIEW_TOKEN_MAX = 2048,
};

struct preview {
	char sandbox[SANDBOX_ID + 1];
	char tenant[TENANT_MAX + 1];
	unsigned port;
	uint64_t expires_s;                /* Unix time */
	char paths[PREVIEW_PATHS_MAX + 1]; /* "": all */
	uint64_t epoch;                    /* of the sandbox, when it was signed */
};

/* -EINVAL: a field has a '|' or a path a ',' where it must not. */
int preview_sign(const unsigned char key[PREVIEW_KEY], const struct preview *p,
                 char ret[PREVIEW_TOKEN_MAX]);

/* Kinds: unauthorized (forged, cut, expired; the text says which of the last two). */
int preview_check(const unsigned char key[PREVIEW_KEY], const char *token, uint64_t now_s,
                  struct preview *ret, struct err *e);

/* Is this path (without query) below one of the prefixes? */
bool preview_allows(const struct preview *p, const char *path);

/* "8000-<name>.<suffix>", with or without a port behind it; the name may be an id. */
bool preview_host(const char *host, const char *suffix, unsigned *port, char id[SANDBOX_ID + 1]);
