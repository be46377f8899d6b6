/*
 * host/accept.h - which end of a command counts as success
 * "exit_code == 0", "exit_code != 0 && stdout contains \"ok\"", "duration_ms < 2000": up to
 * ACCEPT_TERMS_MAX terms with "&&" between them. A term is a number (exit_code, duration_ms,
 * stdout_bytes, stderr_bytes), one of == != < <= > >=, and a whole number; or stdout or stderr,
 * contains or lacks, and a text in double quotes (\" and \\ inside). No I/O.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
	ACCEPT_TERMS_MAX = 8,
	ACCEPT_TEXT_MAX = 256,
};

struct accept_term {
	char field; /* x exit_code, d duration_ms, o stdout, e stderr, O and E their lengths */
	char op;    /* = ! < > { (<=) } (>=), or c contains, l lacks */
	int64_t number;
	char text[ACCEPT_TEXT_MAX + 1];
};

struct accept {
	struct accept_term term[ACCEPT_TERMS_MAX];
	size_t n;
};

/* bad_request: says where it cannot be understood. */
int accept_parse(const char *text, struct accept *ret, struct err *e);

struct outcome {
	int64_t exit_code, duration_ms;
	const char *out, *err; /* may have NULs inside */
	size_t out_len, err_len;
};

bool accept_holds(const struct accept *a, const struct outcome *o);
