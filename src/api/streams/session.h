/*
 * api/streams/session.h - interpreters that stay: finding them, making them
 * What is made or taken answers the call itself when it cannot be had. Loop thread only.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>

#include "api/streams/cell.h"

struct call;
struct sandbox;

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

/* A Python that the bake has left for the first caller who wants one; no caller has had it. */
bool session_spare(const struct session *s);
/* Makes a new one of this language and answers with it (201) when its interpreter answers. */
void session_make(struct call *c, struct sandbox *sb, const struct language *l);
/*
 * Gives that interpreter the variables of the sandbox, then then(). then NULL: 201 is the answer,
 * and when another caller was faster, a new one is made. False: it cannot be had.
 */
bool session_take(struct call *c, struct sandbox *sb, const struct session *s, session_found *then);
/* As the API shows it. */
json_t *session_json(const struct sandbox *sb, const struct session *s);
