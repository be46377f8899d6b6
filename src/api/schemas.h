/*
 * api/schemas.h - the objects of the API, for its description
 * Types: string, integer, number, boolean, object (anything), map (of strings), the name of a
 * schema; "T[]" is a list, "T?" may be null. A name that ends in '!' is always there.
 */
#pragma once
#include <stddef.h>

struct field {
	const char *name, *type, *what;
};

struct schema {
	const char *name, *what;
	const struct field *fields; /* until a name is NULL */
};

extern const struct schema schemas[];
extern const size_t nschemas;

/* NULL: there is none of that name. */
const struct schema *schema_find(const char *name, size_t len);
