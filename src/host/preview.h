/*
 * host/preview.h - the name under which visitors without a token reach ports of a sandbox
 * It is random, on record, and not the id: what a page, a log or a certificate tells of one says
 * nothing about the other. A fork's child has its own. Loop thread only.
 */
#pragma once
#include <stdbool.h>

#include "base/err.h"
#include "host/sandbox.h"

struct host;

void preview_name_new(char ret[PREVIEW_NAME + 1]);
bool preview_name_valid(const char *name);

/* As host_find(). */
struct sandbox *preview_find(struct host *h, const char *name);

/* A new name; the one before is nobody's. Links that were signed before are of an earlier epoch. */
int preview_rotate(struct host *h, struct sandbox *sb, struct err *e);
