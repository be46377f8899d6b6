/*
 * base/err.h - what a person or an API client is told when something fails
 * Mechanisms return 0 or a negative errno. Where a caller asked for something, the last
 * parameter is a struct err. Setting it never allocates, so it can report ENOMEM.
 */
#pragma once

struct err {
	int code;         /* errno value, positive; 0 means no error */
	const char *kind; /* stable word clients match on, a string literal */
	char text[240];   /* one sentence for the person who asked */
};

/* Fills *e (which may be NULL) and returns -code. A code that is no errno value is EIO: "all went
 * well" is no error that one can tell, and a guest may have said it. */
int err_set(struct err *e, int code, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* ENOMEM, kind "no_memory": the one answer of all rooms when memory is out. */
int err_nomem(struct err *e);

/* Puts "what: " in front of the text of an error that is already set; returns -e->code. */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
