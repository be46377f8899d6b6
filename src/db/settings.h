/*
 * db/settings.h - words and secrets that pandad made up itself and keeps, by key
 * Today: preview_secret, with which the API signs links to previews (api/api.c), and archive_key,
 * with which the host signs what it exports (host/signature.h).
 */
#pragma once
#include <stddef.h>

#include "db/db.h"

/* Up to n bytes with the 0, "" when there is none; -E2BIG when it is longer. */
int db_setting_get(struct db *d, const char *key, char *ret, size_t n, struct err *e);
/* A new one, or instead of the one there is. */
int db_setting_set(struct db *d, const char *key, const char *value, struct err *e);
