#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

enum log_level log_level = LOG_INFO;

void log_line(enum log_level level, const char *fmt, ...)
{
	static const char *const names[] = {"error", "warn", "info", "debug"};
	char line[1024];
	va_list ap;
	int n;

	if (level > log_level)
		return;
	n = snprintf(line, sizeof(line), "%s ", names[level]);
	va_start(ap, fmt);
	vsnprintf(line + n, sizeof(line) - (size_t)n, fmt, ap);
	va_end(ap);
	for (char *p = line; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = '?'; /* some of it may be a guest's, who would like to write a line */
	fprintf(stderr, "%s\n", line);
}
