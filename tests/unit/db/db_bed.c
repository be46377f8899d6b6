#include "db_bed.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "db/db_internal.h"

enum {
	PAGE = 4096,
};

int db_bed_open(void **state)
{
	struct db_bed *b = calloc(1, sizeof(*b));

	if (!b)
		return -1;
	snprintf(b->dir, sizeof(b->dir), "/tmp/panda-db-XXXXXX");
	if (!mkdtemp(b->dir)) {
		free(b);
		return -1;
	}
	snprintf(b->path, sizeof(b->path), "%s/panda.db", b->dir);
	*state = b;
	return db_open(b->path, &b->db, &b->e);
}

int db_bed_close(void **state)
{
	static const char *const ends[] = {"", "-wal", "-shm"};
	struct db_bed *b = *state;
	char path[128];

	db_close(b->db);
	for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
		snprintf(path, sizeof(path), "%s%s", b->path, ends[i]);
		unlink(path);
	}
	rmdir(b->dir);
	free(b);
	return 0;
}

static void bed_shut(struct db_bed *b)
{
	db_close(b->db);
	b->db = NULL;
}

void db_bed_reopen(struct db_bed *b)
{
	bed_shut(b);
	assert_int_equal(db_open(b->path, &b->db, &b->e), 0);
}

void db_bed_sql(struct db_bed *b, const char *sql)
{
	sqlite3 *s;

	bed_shut(b);
	assert_int_equal(sqlite3_open(b->path, &s), SQLITE_OK);
	assert_int_equal(sqlite3_exec(s, sql, NULL, NULL, NULL), SQLITE_OK);
	assert_int_equal(sqlite3_close(s), SQLITE_OK);
	assert_int_equal(db_open(b->path, &b->db, &b->e), 0);
}

void db_bed_fill(struct db_bed *b)
{
	/* Never fewer than there are. */
	assert_int_equal(db_run(b->db, &b->e, "PRAGMA max_page_count = 1", ""), 0);
}

static bool keep_number(void *arg, struct db_row *row)
{
	*(int64_t *)arg = db_int(row, 0);
	return false;
}

void db_bed_damage(struct db_bed *b, const char *table)
{
	autoclose int fd = -1;
	char page[PAGE];
	int64_t at = 0;

	assert_int_equal(db_each(b->db, &b->e, keep_number, &at,
	                         "SELECT rootpage FROM sqlite_master WHERE name = ?", "t", table),
	                 0);
	assert_true(at > 1);
	bed_shut(b);
	memset(page, 0xff, sizeof(page));
	fd = open(b->path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, page, PAGE, (at - 1) * PAGE), PAGE);
	assert_int_equal(db_open(b->path, &b->db, &b->e), 0);
}

const char *db_bed_large(void)
{
	static char text[3 * PAGE];

	if (!text[0])
		memset(text, 'x', sizeof(text) - 1);
	return text;
}
