/*
 * host/unified.h - two texts as a unified diff
 */
#pragma once
#include <stddef.h>

enum {
	UNIFIED_EDITS_MAX = 600, /* lines added and removed; more is not worth reading */
	UNIFIED_LINES_MAX = 20000,
	UNIFIED_CONTEXT = 3,
};

/*
 * Text with "@@" hunks and no file names, "" when they are the same. Caller frees *ret. -E2BIG: too
 * long or too different. -EILSEQ: one is no text (it has a NUL). -ENOMEM.
 */
int unified_diff(const char *a, size_t na, const char *b, size_t nb, char **ret);
