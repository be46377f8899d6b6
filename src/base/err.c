#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct err *e, int code, const char *kind, const char *fmt, ...)
{
	va_list ap;

	if (code <= 0)
		code = EIO;
	if (!e)
		return -code;
	e->code = code;
	e->kind = kind;
	va_start(ap, fmt);
	vsnprintf(e->text, sizeof(e->text), fmt, ap);
	va_end(ap);
	return -code;
}

int err_nomem(struct err *e)
{
	return err_set(e, ENOMEM, "no_memory", "no memory");
}

int err_prefix(struct err *e, const char *fmt, ...)
{
	char old[sizeof(e->text)];
	va_list ap;
	int n;

	if (!e)
		return -1;
	memcpy(old, e->text, sizeof(old));
	va_start(ap, fmt);
	n = vsnprintf(e->text, sizeof(e->text), fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < sizeof(e->text))
		snprintf(e->text + n, sizeof(e->text) - (size_t)n, ": %s", old);
	return -e->code;
}
