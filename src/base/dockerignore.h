/*
 * base/dockerignore.h - what a .dockerignore leaves out
 * Pure. Its lines are patterns (base/glob.h) of files and directories; '!' in front of one makes an
 * exception, '#' a comment; the last line that speaks of a file counts. text may be NULL: there is
 * no .dockerignore.
 */
#pragma once
#include <stdbool.h>

#define IGNORE_FILE ".dockerignore"

enum {
	IGNORE_MAX = 64 << 10, /* bytes of it that a reader of one takes */
	IGNORE_LINE_MAX = 1024,
};

/* path: relative to where the file is, without "." and "..". Lines that are too long say
 * nothing. */
bool ignore_leaves_out(const char *text, const char *path);
/* Are there exceptions: may something in a directory that is left out stay? */
bool ignore_has_exceptions(const char *text);
