/*
 * base/log.h - one line per event on stderr
 * A line is its level, the room that speaks, a constant phrase, then key=value:
 *
 *	info host: sandbox created sandbox=4f0c... template=base boot_ms=9
 *
 * Rooms below host return errors and do not log. Control characters become '?': whatever the values
 * are, a line is one line. A line that is off costs one comparison; nothing computes its values.
 */
#pragma once

#include <stdbool.h>

#include "base/err.h"

enum log_level {
	LOG_ERROR, /* an operator must act */
	LOG_WARN,  /* we went on, and the line says how */
	LOG_INFO,  /* one line per life event */
	LOG_DEBUG,
};

enum {
	LOG_ROOMS_MAX = 16,
	LOG_SANDBOX_MAX = 64,
};

/* What is logged. */
struct log_filter {
	enum log_level level; /* of the rooms that are not named below */
	struct {
		char name[16];
		enum log_level level;
	} rooms[LOG_ROOMS_MAX];
	unsigned nrooms;
	char sandbox[LOG_SANDBOX_MAX + 1]; /* the beginning of an id; "": every line */
};

/*
 * Reads LEVEL, ROOM=LEVEL and sandbox=ID with commas between, each any number of times: the last
 * one counts. LEVEL is error, warn, info or debug, and info when none is given. Kind: bad_config;
 * the text names the word and what may stand there.
 */
int log_filter_parse(const char *text, struct log_filter *ret, struct err *e);

/*
 * From now on; before the first call it is "info". With a sandbox, lines about others are left out;
 * lines about none come when they are errors or warnings. Call it before there are threads.
 */
void log_filter_set(const struct log_filter *f);

/* The most that any room says: the one global that changes, with the filter behind it. */
extern enum log_level log_most;

static inline bool log_on(enum log_level level)
{
	return level <= log_most;
}

/* file is __FILE__ of the line: its room is the directory below src/. */
void log_line(enum log_level level, const char *file, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define log_at(level, ...) (log_on(level) ? log_line((level), __FILE__, __VA_ARGS__) : (void)0)
#define log_error(...)     log_at(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)      log_at(LOG_WARN, __VA_ARGS__)
#define log_info(...)      log_at(LOG_INFO, __VA_ARGS__)
#define log_debug(...)     log_at(LOG_DEBUG, __VA_ARGS__)
