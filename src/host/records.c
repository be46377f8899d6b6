#include "host/records.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/pool.h"
#include "db/db.h"
#include "host/disk.h"
#include "host/host.h"

enum {
	RECORDS_MS = 2000,
	BALLAST_BYTES = 1 << 20, /* more than SQLite takes to open its files */
};

/*
 * A pandad that starts on a full disk needs a little room before it can pause anybody. This file
 * has it: it is given up then, and made again when there is room.
 */
static void ballast_path(const struct host *h, char ret[PATH_MAX])
{
	snprintf(ret, PATH_MAX, "%s/ballast", h->config.data_dir);
}

static void ballast_make(const struct host *h)
{
	char path[PATH_MAX];
	autoclose int fd = -1;

	ballast_path(h, path);
	if (access(path, F_OK) == 0)
		return;
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd >= 0 && posix_fallocate(fd, 0, BALLAST_BYTES) != 0)
		unlink(path);
}

/* True: there is some room now. */
static bool ballast_drop(const struct host *h)
{
	char path[PATH_MAX];

	ballast_path(h, path);
	return unlink(path) == 0;
}

static void checkpoint_work(void *arg)
{
	struct records *r = arg;

	if (!r->low)
		ballast_make(r->host);
	r->result = r->low ? db_checkpoint_keep(r->path, &r->bytes, &r->err)
	                   : db_checkpoint(r->path, &r->bytes, &r->err);
}

static void checkpoint_done(void *arg)
{
	struct records *r = arg;

	r->busy = false;
	r->host->stats.records_log_bytes = r->bytes;
	if (r->result < 0 && !r->failed)
		log_error("the log of the records cannot be moved into their file, we try again "
		          "log_bytes=%llu why=\"%s\"",
		          (unsigned long long)r->bytes, r->err.text);
	else if (r->result == 0 && r->failed)
		log_info("the log of the records is moved into their file again");
	r->failed = r->result < 0;
	if (!r->closing)
		loop_timer_set(r->host->loop, &r->timer, mono_ms() + RECORDS_MS);
}

static void checkpoint_start(void *arg)
{
	struct records *r = arg;

	if (r->busy || r->closing)
		return;
	r->busy = true;
	r->low = r->host->disk.low;
	if (pool_submit(r->pool, checkpoint_work, checkpoint_done, r) == 0)
		return;
	r->busy = false;
	loop_timer_set(r->host->loop, &r->timer, mono_ms() + RECORDS_MS);
}

int records_open(struct records *r, struct host *h, struct err *e)
{
	int ret;

	*r = (struct records){.host = h};
	snprintf(r->path, sizeof(r->path), "%s/panda.db", h->config.data_dir);
	if (pool_new(h->loop, 1, &r->pool) < 0)
		return err_set(e, EAGAIN, "no_memory", "cannot start threads");
	ret = db_open(r->path, &h->db, e);
	if ((ret == -ENOSPC || ret == -EIO) && ballast_drop(h)) {
		log_warn("the disk of the data directory is full, its ballast is given up");
		ret = db_open(r->path, &h->db, e);
	}
	return ret;
}

void records_begin(struct records *r)
{
	r->timer = (struct loop_timer){.fn = checkpoint_start, .arg = r};
	db_on_large_log(r->host->db, checkpoint_start, r);
	checkpoint_start(r);
}

void records_hurry(struct records *r)
{
	checkpoint_start(r);
}

bool records_drain(struct records *r)
{
	r->closing = true;
	loop_timer_clear(r->host->loop, &r->timer);
	return !r->busy;
}

void records_close(struct records *r)
{
	struct err e;

	r->closing = true;
	loop_timer_clear(r->host->loop, &r->timer);
	if (r->pool)
		pool_free(r->pool);
	if (r->host->db)
		db_checkpoint(r->path, &r->bytes, &e);
	db_close(r->host->db);
	r->host->db = NULL;
}
