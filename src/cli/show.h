/*
 * cli/show.h - how things look: tables, ages, sizes, trees
 * Pure but for table_print(). What comes from guests and users is made harmless first: no control
 * character reaches the terminal.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

/* ---- tables ---- */

enum {
	TABLE_COLS = 10,
};

struct table {
	char **cells;
	size_t cols, n, cap;
	bool failed; /* out of memory: printing says so */
};

/* Headings with a space in between, up to TABLE_COLS. */
void table_init(struct table *t, const char *heads);
void table_add(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Columns as wide as they must be, two spaces between. false: out of memory. */
bool table_print(const struct table *t, FILE *to);
void table_fini(struct table *t);

/* ---- words ---- */

/* Copies with control characters and broken UTF-8 as '?'. Always NUL-terminated. */
void show_clean(const char *text, char *buf, size_t n);
/*
 * What a guest wrote, to a terminal: lines and tabs stay, a carriage return is a space, all else is
 * cleaned as above. Pieces may end anywhere; zeroed is ready.
 */
struct show_text {
	char part[4]; /* of a character that is not whole yet */
	size_t n;
};
void show_text(struct show_text *s, const char *p, size_t n, FILE *to);
/* All of what a guest wrote: as above when it goes to a terminal, else as it is. */
void show_said(const char *text, FILE *to);
/* "12s", "5m", "3h", "8d" since an RFC 3339 time; "-" when it is none. */
void show_age(const char *time_text, time_t now, char *buf, size_t n);
/* "512", "1.5K", "20M", "3.2G" bytes */
void show_size(long long bytes, char *buf, size_t n);
/* Seconds since the epoch of "2026-11-15T16:31:02[.123]Z"; -1 when it is none. */
time_t show_time(const char *text);
/* How many characters of their ids tell the list's objects apart: 8 at least. */
int show_short(const json_t *list);

/* ---- ids ---- */

enum match {
	MATCH_ONE,
	MATCH_NONE,
	MATCH_MANY,
};

/*
 * The object whose key begins with text; one that equals it wins, and so does one whose name is
 * text. *ret is borrowed from the list.
 */
enum match match_prefix(const json_t *list, const char *key, const char *text, const json_t **ret);

/* ---- the fork tree ---- */

/*
 * Draws a list of sandboxes by parent_id. Children stand below their parent, oldest first; a child
 * whose parent is gone stands at the root. Caller frees; NULL when there is no memory.
 */
char *tree_draw(const json_t *list, bool utf8, time_t now);

/* ---- the way out of a terminal ---- */

/* Zeroed is right behind a line end. */
struct escape {
	enum {
		ESCAPE_FRESH,
		ESCAPE_TILDE,
		ESCAPE_INSIDE,
	} state;
};

/*
 * What of the keys is for the guest: everything, but "~." at the start of a line ends the session
 * (true), and "~~" there is one tilde. out has room for n + 1. Pieces may end anywhere.
 */
bool escape_feed(struct escape *s, const char *in, size_t n, char *out, size_t *out_len);
