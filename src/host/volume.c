/*
 * host/volume.c - volumes on record: made, listed, deleted, and what a crash left of that
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/pool.h"
#include "base/uuid.h"
#include "db/sandboxes.h"
#include "db/volumes.h"
#include "host/disk_use.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/sandbox.h"
#include "host/volume.h"
#include "host/volume_internal.h"
#include "host/volume_use.h"
#include "machine/engine.h"
#include "template/depot.h"

extern char **environ;

_Static_assert((uint64_t)VOLUME_MB_MAX << 20 <= ENGINE_VOLUME_BYTES_MAX,
               "no machine could write all of it");

bool volume_name_valid(const char *name)
{
	size_t n = strlen(name);

	return n > 0 && n <= VOLUME_NAME_MAX && name[0] != '.' &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
	           n;
}

void volume_path(struct host *h, const char *file, char ret[PATH_MAX])
{
	snprintf(ret, PATH_MAX, "%s/volumes/%s.img", h->config.data_dir, file);
}

/* --- records ---------------------------------------------------------------------------------- */

static void read_row(struct host *h, const struct db_volume *row, struct volume_row *ret)
{
	char path[PATH_MAX];
	struct stat st;

	*ret = (struct volume_row){.info = {.size_bytes = row->size_bytes,
	                                    .created_ms = row->created_ms,
	                                    .snapshot = !strcmp(row->kind, "snapshot")}};
	snprintf(ret->info.name, sizeof(ret->info.name), "%s", row->name);
	snprintf(ret->info.source, sizeof(ret->info.source), "%s", row->source);
	snprintf(ret->file, sizeof(ret->file), "%s", row->file);
	volume_path(h, ret->file, path);
	if (stat(path, &st) == 0)
		ret->info.used_bytes = (uint64_t)st.st_blocks * 512;
}

struct find {
	struct host *host;
	struct volume_row row;
	bool found;
};

static bool found_row(void *arg, const struct db_volume *row)
{
	struct find *f = arg;

	read_row(f->host, row, &f->row);
	f->found = true;
	return false;
}

int volume_find(struct host *h, const char *tenant, const char *name, struct volume_row *ret,
                struct err *e)
{
	struct find f = {.host = h};
	int r = db_volume_get(h->db, tenant, name, found_row, &f, e);

	if (r == 0 && !f.found)
		r = err_set(e, ENOENT, "volume_not_found",
		            "there is no volume '%.64s': make it first (POST /v1/volumes)", name);
	if (r == 0)
		*ret = f.row;
	return r;
}

int volume_get(struct host *h, const char *tenant, const char *name, struct volume_info *ret,
               struct err *e)
{
	struct volume_row row;
	int r = volume_find(h, tenant, name, &row, e);

	if (r == 0)
		*ret = row.info;
	return r;
}

struct each {
	struct host *host;
	bool (*fn)(void *arg, const struct volume_info *v);
	void *arg;
};

static bool tell(void *arg, const struct db_volume *row)
{
	struct each *each = arg;
	struct volume_row r;

	read_row(each->host, row, &r);
	return each->fn(each->arg, &r.info);
}

int volume_each(struct host *h, const char *tenant, const char *snapshots_of,
                bool (*fn)(void *arg, const struct volume_info *v), void *arg, struct err *e)
{
	struct each each = {.host = h, .fn = fn, .arg = arg};

	return db_volumes_each(h->db, tenant, snapshots_of, tell, &each, e);
}

void volume_usage(struct host *h, const char *tenant, uint64_t *ret_count, uint64_t *ret_mb)
{
	uint64_t bytes = 0;

	*ret_count = 0;
	db_volumes_usage(h->db, tenant, ret_count, &bytes, NULL);
	*ret_mb = bytes >> 20;
}

int volume_room(struct host *h, uint64_t bytes, struct err *e)
{
	struct statvfs fs;

	if (bytes && statvfs(h->config.data_dir, &fs) == 0 &&
	    bytes + h->config.disk_reserve > (uint64_t)fs.f_bavail * fs.f_frsize)
		return err_set(e, ENOSPC, "disk_full",
		               "copies of volumes take %llu MiB, which the disk of the data "
		               "directory has not got: delete some volumes or snapshots",
		               (unsigned long long)(bytes >> 20));
	return 0;
}

int volume_admit(struct host *h, const char *tenant, uint64_t size_mb, bool one_more, uint64_t used,
                 const struct quota *quota, struct err *e)
{
	uint64_t count, mb, max = quota && quota->volumes ? quota->volumes : VOLUMES_MAX;
	int r = host_admit(h, tenant, 0, 0, NULL, e);

	if (r == 0)
		r = disk_use_admit(h, tenant, quota, e);
	if (r < 0)
		return r;
	volume_usage(h, tenant, &count, &mb);
	if (one_more && count >= max)
		return err_set(e, EDQUOT, "quota_exceeded",
		               "your quota is %llu volumes and snapshots of volumes, and you have "
		               "%llu: delete some",
		               (unsigned long long)max, (unsigned long long)count);
	if (quota && quota->volumes_mb && mb + size_mb > quota->volumes_mb)
		return err_set(e, EDQUOT, "quota_exceeded",
		               "your quota is %llu MiB of volumes, you have %llu and this needs "
		               "%llu more: delete some",
		               (unsigned long long)quota->volumes_mb, (unsigned long long)mb,
		               (unsigned long long)size_mb);
	return volume_room(h, used, e);
}

/* --- making one ------------------------------------------------------------------------------- */

struct make {
	struct host *host;
	volume_done *done;
	void *arg;
	char tenant[TENANT_MAX + 1], file[SANDBOX_ID + 1];
	struct volume_info info;
	int r;
	struct err err;
};

/* No reserved blocks; lazy tables stay holes: a thin volume stays thin. */
static int mkfs(const char *path, struct err *e)
{
	char *argv[] = {"mke2fs",
	                "-q",
	                "-F",
	                "-t",
	                "ext4",
	                "-b",
	                "4096",
	                "-m",
	                "0",
	                "-E",
	                "lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0,nodiscard",
	                (char *)path,
	                NULL};
	posix_spawn_file_actions_t fa;
	int status = -1, r;
	pid_t pid;

	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&fa, 1, "/dev/null", O_WRONLY, 0);
	r = posix_spawnp(&pid, "/sbin/mke2fs", &fa, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&fa);
	if (r != 0)
		return err_set(e, r, "volume_failed",
		               "cannot run mke2fs (%s): install the package e2fsprogs",
		               strerror(r));
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		return err_set(e, EIO, "disk_full",
		               "mke2fs could not make %s: is the disk of the data directory full?",
		               path);
	return 0;
}

static void make_work(void *arg)
{
	struct make *m = arg;
	autoclose int fd = -1;
	char path[PATH_MAX];

	fault_at("volume.recorded");
	volume_path(m->host, m->file, path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)m->info.size_bytes) < 0)
		m->r = err_set(&m->err, errno, "disk_full", "cannot make %s: %s", path,
		               strerror(errno));
	else
		m->r = mkfs(path, &m->err);
	if (m->r == 0 && fsync(fd) < 0)
		m->r = err_set(&m->err, errno, "disk_full", "cannot sync %s: %s", path,
		               strerror(errno));
	if (m->r < 0)
		unlink(path);
	fault_at("volume.made");
}

int volume_insert(struct host *h, const char *tenant, const char *file,
                  const struct volume_info *info, struct err *e)
{
	const struct db_volume row = {.tenant = tenant,
	                              .name = info->name,
	                              .file = file,
	                              .kind = info->snapshot ? "snapshot" : "volume",
	                              .source = info->source,
	                              .size_bytes = info->size_bytes,
	                              .created_ms = info->created_ms};
	int r = db_volume_insert(h->db, &row, e);

	if (r == -EEXIST)
		err_set(
		    e, EEXIST, "exists",
		    "there is a volume or a snapshot '%s' already: delete it, or take another name",
		    info->name);
	return r;
}

int volume_finish(struct host *h, const char *tenant, const char *file, int r,
                  struct volume_info *info, struct err *e)
{
	disk_use_changed(h);
	if (r == 0)
		r = db_volume_ready(h->db, file, e);
	if (r < 0) {
		char path[PATH_MAX];

		volume_path(h, file, path);
		unlink(path);
		db_volume_delete(h->db, file, NULL);
		return r;
	}
	log_info("%s made tenant=%s volume=%s source=%s bytes=%llu",
	         info->snapshot ? "snapshot of a volume" : "volume", tenant, info->name,
	         info->source, (unsigned long long)info->size_bytes);
	volume_get(h, tenant, info->name, info, NULL);
	return 0;
}

int volume_check_new(const char *name, uint64_t size_mb, struct err *e)
{
	if (!volume_name_valid(name))
		return err_set(
		    e, EINVAL, "bad_request",
		    "'%.64s' is no name for a volume: 1 to %d letters, digits, '.', '_' or '-'",
		    name, VOLUME_NAME_MAX);
	if (size_mb < VOLUME_MB_MIN || size_mb > VOLUME_MB_MAX)
		return err_set(e, EINVAL, "bad_request", "size_mb must be %d to %d", VOLUME_MB_MIN,
		               VOLUME_MB_MAX);
	return 0;
}

static void make_done(void *arg)
{
	struct make *m = arg;

	m->r = volume_finish(m->host, m->tenant, m->file, m->r, &m->info, &m->err);
	m->done(m->arg, m->r < 0 ? &m->err : NULL, m->r < 0 ? NULL : &m->info);
	free(m);
}

void volume_create(struct host *h, const char *tenant, const char *name, uint64_t size_mb,
                   const struct quota *quota, volume_done *done, void *arg)
{
	struct make *m = calloc(1, sizeof(*m));
	struct err e;
	int r = m ? volume_check_new(name, size_mb, &e) : err_nomem(&e);

	if (r == 0)
		r = volume_admit(h, tenant, size_mb, true, 0, quota, &e);
	if (r == 0) {
		*m = (struct make){.host = h, .done = done, .arg = arg};
		m->info.size_bytes = size_mb << 20;
		m->info.created_ms = wall_ms();
		snprintf(m->tenant, sizeof(m->tenant), "%s", tenant);
		snprintf(m->info.name, sizeof(m->info.name), "%s", name);
		uuid_new(m->file);
		r = volume_insert(h, tenant, m->file, &m->info, &e);
	}
	if (r == 0 && pool_submit_for(h->pool, tenant, make_work, make_done, m) < 0) {
		r = err_nomem(&e);
		volume_finish(h, tenant, m->file, r, &m->info, &e);
	}
	if (r < 0) {
		free(m);
		done(arg, &e, NULL);
	}
}

/* --- deleting --------------------------------------------------------------------------------- */

struct removal {
	struct host *host;
	host_done *done;
	void *arg;
	char file[SANDBOX_ID + 1], path[PATH_MAX];
	int r;
	struct err err;
};

/* A large file takes its time. */
static void remove_work(void *arg)
{
	struct removal *d = arg;

	fault_at("volume.delete_recorded");
	if (unlink(d->path) < 0 && errno != ENOENT)
		d->r = err_set(&d->err, errno, "disk_full", "cannot remove %s: %s", d->path,
		               strerror(errno));
}

static void remove_done(void *arg)
{
	struct removal *d = arg;

	if (d->r == 0)
		d->r = db_volume_delete(d->host->db, d->file, &d->err);
	disk_use_changed(d->host);
	d->done(d->arg, d->r < 0 ? &d->err : NULL, NULL);
	free(d);
}

void volume_delete(struct host *h, const char *tenant, const char *name, host_done *done, void *arg)
{
	struct removal *d = calloc(1, sizeof(*d));
	const struct sandbox *who;
	struct volume_row row;
	struct err e;
	int r = d ? volume_find(h, tenant, name, &row, &e) : err_nomem(&e);

	who = r == 0 ? volume_holder(h, tenant, name, false, NULL) : NULL;
	if (who)
		r = err_set(&e, EBUSY, "volume_busy",
		            "volume '%s' is attached to sandbox %s: detach it there, or kill that "
		            "one first",
		            name, who->id);
	if (r == 0)
		r = db_volume_deleting(h->db, row.file, &e);
	if (r == -ENOSPC) /* as host_snapshot_delete(); attaching it needs a record, too */
		r = 0;
	if (r < 0) {
		free(d);
		done(arg, &e, NULL);
		return;
	}
	d->host = h;
	d->done = done;
	d->arg = arg;
	memcpy(d->file, row.file, sizeof(d->file));
	volume_path(h, row.file, d->path);
	if (pool_submit(h->pool, remove_work, remove_done, d) < 0) {
		remove_work(d);
		remove_done(d);
	}
}

/* --- after a crash ---------------------------------------------------------------------------- */

static bool drop_file(void *arg, const struct db_volume *row)
{
	struct host *h = arg;
	char path[PATH_MAX];

	volume_path(h, row->file, path);
	unlink(path);
	log_info("undid a volume volume=%s", row->name);
	return true;
}

/* It was growing when we or the host went down, or a hostile kernel made it longer: what is on
 * record is what it is. */
static bool fit_file(void *arg, const struct db_volume *row)
{
	struct host *h = arg;
	char path[PATH_MAX];
	struct stat st;

	volume_path(h, row->file, path);
	if (stat(path, &st) < 0 || (uint64_t)st.st_size == row->size_bytes)
		return true;
	if (row->size_bytes < (uint64_t)VOLUME_MB_MIN << 20)
		log_error("a volume's record is damaged, its file is left alone file=%s bytes=%llu",
		          row->file, (unsigned long long)row->size_bytes);
	else if (truncate(path, (off_t)row->size_bytes) == 0)
		log_info("a volume is as large as its record says file=%s", row->file);
	return true;
}

/* Is a file of that name, without .img, on record? One that cannot be looked up is. */
static bool file_known(struct host *h, char *name)
{
	bool known = true;
	struct err e;
	int r;

	if (!strncmp(name, "clone-", 6)) {
		name[6 + SANDBOX_ID] = 0;
		r = db_sandbox_known(h->db, name + 6, &known, &e);
	} else {
		r = db_volume_known(h->db, name, &known, &e);
	}
	if (r < 0)
		log_error("cannot look up whose a file is, it stays file=%s why=\"%s\"", name,
		          e.text);
	return known;
}

int volumes_recover(struct host *h, struct err *e)
{
	char path[PATH_MAX];
	autoclosedir DIR *d = NULL;
	struct dirent *de;
	int r;

	r = db_volumes_unfinished(h->db, drop_file, h, e);
	if (r == 0)
		r = db_volumes_delete_unfinished(h->db, e);
	if (r == 0)
		r = db_volumes_ready(h->db, fit_file, h, e);
	snprintf(path, sizeof(path), "%s/volumes", h->config.data_dir);
	d = r == 0 ? opendir(path) : NULL;
	while (d && (de = readdir(d))) {
		char name[64];
		size_t n = strlen(de->d_name);

		if (n < 5 || n >= sizeof(name) || strcmp(de->d_name + n - 4, ".img") != 0)
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)n - 4, de->d_name);
		if (!file_known(h, name) && unlinkat(dirfd(d), de->d_name, 0) == 0)
			log_info("removed a volume's file without a record file=%s", de->d_name);
	}
	return r;
}
