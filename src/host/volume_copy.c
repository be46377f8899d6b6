/*
 * host/volume_copy.c - another volume, or a snapshot, with what one holds
 * On record as 'creating', then copied on the pool, then 'ready': a pandad that dies in between
 * leaves a file and a record that the next pandad removes. A volume that no sandbox writes is
 * locked against writers while it is copied; one that a sandbox writes is copied in a turn of that
 * sandbox.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/pool.h"
#include "base/uuid.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/op.h"
#include "host/sandbox.h"
#include "host/volume.h"
#include "host/volume_internal.h"
#include "host/volume_use.h"
#include "machine/engine.h"
#include "machine/machine.h"
#include "template/depot.h"

struct volume_copy {
	struct op op; /* of the sandbox that writes it, if there is one */
	struct host *host;
	volume_done *done;
	void *arg;
	char tenant[TENANT_MAX + 1], file[SANDBOX_ID + 1], machine[SANDBOX_ID + 1];
	char from[PATH_MAX], to[PATH_MAX];
	uint64_t from_size;
	struct volume_info info;   /* of the new one */
	struct volume_wants wants; /* of the sandbox */
	size_t which;
	atomic_bool stop;
	int r;
	struct err err;
};

/*
 * Two bytes of the superblock: is there a journal to be played back? Who mounts it read-only could
 * not do that. What a guest wrote there is its own business.
 */
static bool clean(int fd)
{
	enum { SUPER = 1024, MAGIC = SUPER + 56, INCOMPAT = SUPER + 96, RECOVER = 4 };
	uint8_t magic[2], incompat;

	return io_pread_full(fd, magic, sizeof(magic), MAGIC) == 0 && magic[0] == 0x53 &&
	       magic[1] == 0xef && io_pread_full(fd, &incompat, 1, INCOMPAT) == 0 &&
	       !(incompat & RECOVER);
}

static int copy_at_rest(struct volume_copy *c, int to)
{
	autoclose int from = open(c->from, O_RDONLY | O_CLOEXEC);
	int r;

	if (from < 0)
		return err_set(&c->err, errno, "volume_not_found", "cannot open %s: %s", c->from,
		               strerror(errno));
	if (flock(from, LOCK_SH | LOCK_NB) < 0)
		return err_set(&c->err, EBUSY, "volume_busy",
		               "volume '%s' is being attached or detached: try again in a moment",
		               c->info.source);
	r = engine_volume_clone(from, to);
	if (r < 0)
		return err_set(&c->err, -r, "disk_full", "cannot copy %s: %s", c->from,
		               strerror(-r));
	return 0;
}

static void copy_work(void *arg)
{
	struct volume_copy *c = arg;
	autoclose int fd = -1;

	fault_at("copy.recorded");
	fd = open(c->to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		c->r = err_set(&c->err, errno, "disk_full", "cannot make %s: %s", c->to,
		               strerror(errno));
	else if (c->op.sb)
		c->r = machine_volume_copy(&c->host->machines, c->machine, &c->wants.v[c->which],
		                           fd, &c->stop, &c->err);
	else
		c->r = copy_at_rest(c, fd);
	if (c->r == 0 && c->info.snapshot && !clean(fd))
		c->r = err_set(&c->err, EBUSY, "volume_unclean",
		               "volume '%s' was not unmounted cleanly, and a snapshot could not be "
		               "mounted: attach it to a sandbox once, or make a volume from it",
		               c->info.source);
	if (c->r == 0 && (ftruncate(fd, (off_t)c->info.size_bytes) < 0 || fsync(fd) < 0))
		c->r = err_set(&c->err, errno, "disk_full", "cannot sync %s: %s", c->to,
		               strerror(errno));
	fault_at("copy.made");
}

static void copy_end(struct volume_copy *c)
{
	c->r = volume_finish(c->host, c->tenant, c->file, c->r, &c->info, &c->err);
	c->host->volume_copies--;
	c->done(c->arg, c->r < 0 ? &c->err : NULL, c->r < 0 ? NULL : &c->info);
	if (c->op.sb)
		op_end(&c->op);
	volume_wants_fini(&c->wants);
	free(c);
}

static void copy_done(void *arg)
{
	copy_end(arg);
}

static void copy_submit(struct volume_copy *c)
{
	if (pool_submit_for(c->host->pool, c->tenant, copy_work, copy_done, c) < 0) {
		c->r = err_nomem(&c->err);
		copy_end(c);
	}
}

static void copy_begin(struct op *op)
{
	struct volume_copy *c = (struct volume_copy *)op;
	struct sandbox *sb = op->sb;

	c->r = sandbox_need_running(sb, &c->err);
	if (c->r == 0)
		c->r = volume_want_all(c->host, sb, &c->wants, &c->err);
	while (c->r == 0 && c->which < c->wants.n && strcmp(c->wants.file[c->which], c->from) != 0)
		c->which++;
	if (c->r == 0 && c->which == c->wants.n)
		c->r = err_set(&c->err, EBUSY, "volume_busy",
		               "volume '%s' was detached meanwhile: try again", c->info.source);
	if (c->r < 0) {
		copy_end(c);
		return;
	}
	memcpy(c->machine, sb->machine, sizeof(c->machine));
	copy_submit(c);
}

static void copy_cancel(struct op *op)
{
	atomic_store(&((struct volume_copy *)op)->stop, true);
}

static int prepare(struct volume_copy *c, const char *name, uint64_t size_mb,
                   const struct volume_row *from, const struct quota *quota, struct err *e)
{
	struct host *h = c->host;
	int r;

	if (!size_mb || c->info.snapshot)
		size_mb = from->info.size_bytes >> 20;
	r = volume_check_new(name, size_mb, e);
	if (r == 0 && size_mb << 20 < from->info.size_bytes)
		r = err_set(e, EINVAL, "bad_request",
		            "'%s' has %llu MiB: what is made from it is at least as large",
		            from->info.name, (unsigned long long)(from->info.size_bytes >> 20));
	if (r == 0 && h->volume_copies >= VOLUME_COPIES_MAX)
		r = err_set(e, EAGAIN, "host_full",
		            "%d volumes are being copied already: try again in a moment",
		            VOLUME_COPIES_MAX);
	if (r == 0)
		r = volume_admit(h, c->tenant, size_mb, true, from->info.used_bytes, quota, e);
	if (r < 0)
		return r;
	c->info.size_bytes = size_mb << 20;
	c->info.created_ms = wall_ms();
	snprintf(c->info.name, sizeof(c->info.name), "%s", name);
	snprintf(c->info.source, sizeof(c->info.source), "%s", from->info.name);
	uuid_new(c->file);
	volume_path(h, from->file, c->from);
	volume_path(h, c->file, c->to);
	return volume_insert(h, c->tenant, c->file, &c->info, e);
}

void volume_copy(struct host *h, const char *tenant, const char *from, const char *name,
                 bool snapshot, uint64_t size_mb, const struct quota *quota, volume_done *done,
                 void *arg)
{
	struct volume_copy *c = calloc(1, sizeof(*c));
	struct volume_row row;
	struct sandbox *sb;
	struct err e;
	int r = c ? volume_find(h, tenant, from, &row, &e) : err_nomem(&e);

	if (r == 0) {
		c->host = h;
		c->done = done;
		c->arg = arg;
		c->info.snapshot = snapshot;
		snprintf(c->tenant, sizeof(c->tenant), "%s", tenant);
		r = prepare(c, name, size_mb, &row, quota, &e);
	}
	if (r < 0) {
		free(c);
		done(arg, &e, NULL);
		return;
	}
	h->volume_copies++;
	sb = volume_holder(h, tenant, from, true, NULL);
	if (!sb) {
		copy_submit(c);
		return;
	}
	c->op.begin = copy_begin;
	c->op.cancel = copy_cancel;
	host_touch(h, sb);
	if (sb->state == SANDBOX_HIBERNATED)
		host_wake(h, sb, NULL, NULL);
	op_queue(sb, "copy-volume", &c->op);
}
