/*
 * daemon/config.h - the one file that says how this pandad works
 * Lines of `key = value`; '#' begins a comment. Every key has a default that suits one plain host.
 * A key is read straight into the struct of the room that works by it. Besides the keys, the room's
 * struct has what main.c adds: callbacks, and what follows from several keys.
 */
#pragma once
#include <stdbool.h>
#include <stdio.h>

#include "api/api.h"
#include "base/err.h"
#include "engine/engines.h"
#include "host/host.h"
#include "http/server.h"

enum {
	LISTEN_MAX = 8,
};

/* The text that keys say is the config's: the rooms have it until config_fini(). */
struct config {
	const char *listen[LISTEN_MAX]; /* "127.0.0.1:8080", "[::1]:8080", "unix:/path" */
	size_t nlisten;
	const char *log; /* as log_filter_parse() reads it */
	bool weak_jail;  /* start machines without what this host lacks of the jail */
	struct host_config host;
	struct engines_config engines;
	struct api_config api;
	struct http_config http;
};

int config_default(struct config *c);
/* One "key=value", as in the file. Kind: bad_config; the text names the key and what it takes. */
int config_set(struct config *c, const char *key, const char *value, struct err *e);
int config_read(struct config *c, const char *path, struct err *e);
void config_fini(struct config *c);
/* All keys with what they mean, in the form of a file. */
void config_print(const struct config *c, FILE *to);
