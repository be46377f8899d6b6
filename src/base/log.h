/*
 * base/log.h - one line per event on stderr
 * A constant phrase, then key=value. Rooms below host return errors and do not log. Control
 * characters become '?': whatever the values are, a line is one line.
 */
#pragma once

enum log_level {
	LOG_ERROR, /* someone must act */
	LOG_WARN,  /* we went on, and the line says how */
	LOG_INFO,  /* one line per life event */
	LOG_DEBUG,
};

extern enum log_level log_level; /* the one global that changes */

void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)
