/*
 * api/routes/ports.h - which tcp ports of a guest something listens on
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/api.h"
#include "host/sandbox.h"

struct port_set {
	uint8_t bits[65536 / 8];
};

/* Adds those of a /proc/net/tcp or tcp6. The guest wrote it: any bytes are fine. */
void ports_parse(const char *table, size_t n, struct port_set *ret);
bool ports_has(const struct port_set *s, unsigned port);

/* Did a client declare it? */
bool ports_declared(const struct sandbox *sb, unsigned port);

/* A port in a path. False: answered with 400. */
bool port_param(struct call *c, const char *text, unsigned *ret);
