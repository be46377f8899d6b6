/*
 * api/routes/preview_cookie.h - cookies of guests' services, between them and browsers
 * Pure. Texts are headers as they came: any bytes are fine. NULL: no memory; the caller owns.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/*
 * A Set-Cookie for one service alone: without Domain, so that it goes back to that host name only,
 * and where services share a host name, with a Path below prefix (NULL: it has one of its own).
 */
char *cookie_narrow(const char *set_cookie, const char *prefix);

/* A Cookie header without the one of that name; "" when nothing is left. */
char *cookie_without(const char *cookies, const char *name);

/* False: it has none of that name, or one that is too long. */
bool cookie_get(const char *cookies, const char *name, char *ret, size_t n);
