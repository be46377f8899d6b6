/*
 * host/upper.h - what machines have written over their template, compared
 * The input is what panda-upper (guest/upper/upper.c) says inside a guest: it is not trusted, only
 * bounded. No I/O here.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	UPPER_ENTRIES_MAX = 200000,
	UPPER_BYTES_MAX = 64 << 20,
};

struct upper_file {
	char type; /* f file, l link, d directory, o other; '-': there is nothing */
	unsigned mode;
	uint64_t size;
	int64_t mtime_ns;
};

struct upper_entry {
	const char *path, *target; /* into the bytes */
	unsigned uid, gid;
	int64_t ctime_ns;           /* when it was written, or went */
	struct upper_file now, low; /* low: as the template has it */
};

struct upper { /* sorted by path, each path once */
	char *bytes;
	struct upper_entry *at;
	size_t n;
};

/* Takes bytes (malloc()ed, n of them), also on failure. -EBADMSG, -E2BIG, -ENOMEM. */
int upper_parse(char *bytes, size_t n, struct upper *ret);
void upper_fini(struct upper *u);

enum upper_change {
	UPPER_ADDED,
	UPPER_CHANGED,
	UPPER_REMOVED,
	UPPER_TOUCHED, /* a file of the same size with another time: its content decides */
};

/*
 * Calls fn, ordered by path, for what is different between two machines of the same template; until
 * it returns false. target is of b, or of a when b has nothing there.
 */
void upper_compare(const struct upper *a, const struct upper *b,
                   bool (*fn)(void *arg, const char *path, enum upper_change change,
                              const struct upper_file *from, const struct upper_file *to),
                   void *arg);

/* NULL: nothing was written there. */
const struct upper_entry *upper_find(const struct upper *u, const char *path, size_t len);
