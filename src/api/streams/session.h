/*
 * api/streams/session.h - interpreters that stay: finding them, making them, ending them
 */
#pragma once
#include "api/streams/cell.h"

struct language {
	const char *names[5]; /* the first is what we call it */
	const char *fresh[3]; /* reads code from stdin */
	const char *stays[2]; /* a session; NULL: there are none */
};

/* What the body's "language" names, and (stays) has sessions. NULL: answered. */
const struct language *language_of(struct call *c, bool stays);
json_t *language_words(const char *const *list, size_t max);

typedef void session_found(struct call *c, struct sandbox *sb, struct session *list, size_t n);

/*
 * Looks in the guest, then found(): the one of that id, or all of them when sid is NULL. Or it was
 * answered. make: "default" is made when it is not there and the template's runner is python.
 */
void session_find(struct call *c, const char *sid, bool make, session_found *found);
