/*
 * api/routes/sandbox_spec.h - fields of a body, for those who read them into an err
 */
#pragma once
#include <errno.h>
#include <jansson.h>

#include "base/err.h"

/* NULL when it is missing or null: both mean the default. */
static inline const json_t *spec_field(const json_t *body, const char *key)
{
	const json_t *j = json_object_get(body, key);

	return json_is_null(j) ? NULL : j;
}

/* -EINVAL, and e says that the field key is not as it must be: "must be a number". */
static inline int spec_bad(struct err *e, const char *key, const char *what)
{
	return err_set(e, EINVAL, "bad_request", "field '%s' %s", key, what);
}
