/*
 * db/settings.c - the table settings
 */
#include "db/settings.h"

#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "db/db_internal.h"

const struct db_table db_settings_table = {
    .steps[0] = "CREATE TABLE settings(key TEXT PRIMARY KEY, value TEXT NOT NULL);",
};

struct setting {
	char *ret;
	size_t n;
	bool found, too_long;
};

static bool setting_keep(void *arg, struct db_row *row)
{
	struct setting *s = arg;
	const char *value = db_text(row, 0);

	s->found = true;
	s->too_long = strlen(value) >= s->n;
	if (!s->too_long)
		snprintf(s->ret, s->n, "%s", value);
	return false;
}

int db_setting_get(struct db *d, const char *key, char *ret, size_t n, struct err *e)
{
	struct setting s = {.ret = ret, .n = n};
	int r =
	    db_each(d, e, setting_keep, &s, "SELECT value FROM settings WHERE key = ?", "t", key);

	if (r == 0 && s.too_long)
		r = err_set(e, E2BIG, "db_failed",
		            "the setting %s on record is longer than %zu characters", key, n - 1);
	if (r == 0 && !s.found)
		ret[0] = 0;
	return r;
}

int db_setting_set(struct db *d, const char *key, const char *value, struct err *e)
{
	return db_run(d, e,
	              "INSERT INTO settings(key, value) VALUES(?, ?)"
	              " ON CONFLICT(key) DO UPDATE SET value = excluded.value",
	              "tt", key, value);
}
