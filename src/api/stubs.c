/*
 * api/stubs.c - answers of what is being written; each goes when the real one lands
 */
#include <errno.h>

#include "api/api.h"

#define STUB(name)                                                                \
	__attribute__((weak)) void name(struct call *c)                           \
	{                                                                         \
		call_fail(c, ENOSYS, "not_implemented", "not there yet: " #name); \
	}

STUB(repl_once)
STUB(repl_languages)
STUB(repl_create)
STUB(repl_list)
STUB(repl_run)
STUB(repl_run_stream)
STUB(repl_interrupt)
STUB(repl_delete)

__attribute__((weak)) json_t *api_openapi(void)
{
	return json_object();
}

__attribute__((weak)) char *api_reference(void)
{
	return calloc(1, 1);
}
