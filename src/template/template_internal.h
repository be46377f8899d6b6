/*
 * template/template_internal.h - what template.c (which there are) and bake.c (made ready) share
 */
#pragma once
#include <pthread.h>

#include "layers/snapshot.h"
#include "template/template.h"

struct template_waiter {
	struct template_waiter *next;
	void (*done)(void *arg, const struct err *e, struct template *t);
	void *arg;
};

struct templates {
	struct depot *depot;
	struct template *list; /* by name */
	struct builds *builds;
	bool stale;               /* one that is being baked has changed */
	pthread_mutex_t put_lock; /* of template_put(): what is there is looked at, then replaced */
};

/* Text of a description. */
static inline const char *text_of(const json_t *doc, const char *key, const char *otherwise)
{
	const char *s = json_string_value(json_object_get(doc, key));

	return s ? s : otherwise;
}

/* Id of the snapshot that is its bake, be it there or not. */
int bake_name(struct depot *depot, const struct template *t, char ret[SNAPSHOT_ID_MAX + 1],
              struct err *e);
