/*
 * tests/unit/db/db_bed.h - records in a file of their own, and what can go wrong with a file
 */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "db/db.h"

struct db_bed {
	char dir[64], path[96];
	struct db *db;
	struct err e;
};

int db_bed_open(void **state);
int db_bed_close(void **state);

#define db_bed_test(name) cmocka_unit_test_setup_teardown(name, db_bed_open, db_bed_close)

/* Closes and opens the file again, as the next pandad does. */
void db_bed_reopen(struct db_bed *b);
/* By another program, while nobody else has the file open. */
void db_bed_sql(struct db_bed *b, const char *sql);
/* From here on the file may not grow, as on a full disk. */
void db_bed_fill(struct db_bed *b);
/* The first page of this table holds nonsense from here on. */
void db_bed_damage(struct db_bed *b, const char *table);

/* Larger than what is left on a page that is in use. */
const char *db_bed_large(void);

#define assert_full(b, call)                                   \
	do {                                                   \
		assert_int_equal(call, -ENOSPC);               \
		assert_string_equal((b)->e.kind, "disk_full"); \
	} while (0)
#define assert_damaged(b, call)                                \
	do {                                                   \
		assert_int_equal(call, -EIO);                  \
		assert_string_equal((b)->e.kind, "db_failed"); \
	} while (0)
#define assert_not_open(b, call)                               \
	do {                                                   \
		assert_int_equal(call, -EBADF);                \
		assert_string_equal((b)->e.kind, "db_failed"); \
	} while (0)
