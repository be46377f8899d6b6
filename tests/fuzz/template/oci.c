/*
 * What an archive makes our unpacker say of it. Promises: what is taken is within the limits, and
 * of the types that template/build.c expects; the name of an image, made plain, stays as it is.
 */
#include "template/oci.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void strings_only(const json_t *list, size_t max)
{
	const json_t *v;
	size_t i;

	if (!list)
		return;
	if (!json_is_array(list) || !json_array_size(list) || json_array_size(list) > max)
		abort();
	json_array_foreach(list, i, v)
		if (!json_is_string(v) || json_string_length(v) > OCI_VALUE_MAX)
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO(json_decrefp) json_t *doc = NULL;
	autofree char *name = malloc(size + 1);
	char once[OCI_REF_MAX + 1], twice[OCI_REF_MAX + 1];
	const json_t *start, *v;
	const char *k;
	struct err e;

	if (!name)
		return 0;
	memcpy(name, data, size);
	name[size] = 0;
	oci_debian(name);
	if (oci_ref(name, once) && oci_ref(once, twice) && strlen(once) < strlen(twice))
		abort();
	if (oci_parse((const char *)data, size, &doc, &e) < 0)
		return 0;
	start = json_object_get(doc, "start");
	strings_only(json_object_get(doc, "refs"), OCI_REFS_MAX);
	strings_only(json_object_get(start, "entrypoint"), OCI_WORDS_MAX);
	strings_only(json_object_get(start, "cmd"), OCI_WORDS_MAX);
	strings_only(json_object_get(start, "ready"), OCI_WORDS_MAX);
	if (json_object_size(json_object_get(doc, "env")) > OCI_ENV_MAX)
		abort();
	json_object_foreach(json_object_get(doc, "env"), k, v)
		if (!*k || !json_is_string(v))
			abort();
	return 0;
}
