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
