#include "core/volume.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/dict.h"
#include "base/log.h"
#include "core/host_internal.h"

extern char **environ;

bool volume_name_valid(const char *name)
{
	size_t n = strlen(name);

	return n > 0 && n <= VOLUME_NAME_MAX && name[0] != '.' &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
	           n;
}

static void file_path(struct host *h, const char *file, char ret[PATH_MAX])
{
	snprintf(ret, PATH_MAX, "%s/volumes/%s.img", h->config.data_dir, file);
}

/* A fork's child has copies of its own: "<child>-<slot>" instead of the volume's file. */
static void clone_path(struct host *h, const char *sandbox, size_t slot, char ret[PATH_MAX])
{
	snprintf(ret, PATH_MAX, "%s/volumes/clone-%s-%zu.img", h->config.data_dir, sandbox, slot);
}

/* --- records ---------------------------------------------------------------------------------- */

struct row {
	struct volume_info info;
	char file[SANDBOX_ID + 1];
};

static void read_row(struct host *h, struct db_row *row, struct row *ret)
{
	char path[PATH_MAX];
	struct stat st;

	*ret = (struct row){.info = {.size_bytes = (uint64_t)db_int(row, 2),
	                             .created_ms = (uint64_t)db_int(row, 3)}};
	snprintf(ret->info.name, sizeof(ret->info.name), "%s", db_text(row, 0));
	snprintf(ret->file, sizeof(ret->file), "%s", db_text(row, 1));
	file_path(h, ret->file, path);
	if (stat(path, &st) == 0)
		ret->info.used_bytes = (uint64_t)st.st_blocks * 512;
}

struct find {
	struct host *host;
	struct row row;
	bool found;
};

static bool found_row(void *arg, struct db_row *row)
{
	struct find *f = arg;

	read_row(f->host, row, &f->row);
	f->found = true;
	return false;
}

static int find(struct host *h, const char *tenant, const char *name, struct row *ret,
                struct err *e)
{
	struct find f = {.host = h};
	int r = db_each(h->db, e, found_row, &f,
	                "SELECT name, file, size, created_at FROM volumes"
	                " WHERE tenant = ? AND name = ? AND state = 'ready'",
	                "tt", tenant, name);

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
	struct row row;
	int r = find(h, tenant, name, &row, e);

	if (r == 0)
		*ret = row.info;
	return r;
}

struct each {
	struct host *host;
	bool (*fn)(void *arg, const struct volume_info *v);
	void *arg;
};

static bool tell(void *arg, struct db_row *row)
{
	struct each *each = arg;
	struct row r;

	read_row(each->host, row, &r);
	return each->fn(each->arg, &r.info);
}

int volume_each(struct host *h, const char *tenant,
                bool (*fn)(void *arg, const struct volume_info *v), void *arg, struct err *e)
{
	struct each each = {.host = h, .fn = fn, .arg = arg};

	return db_each(h->db, e, tell, &each,
	               "SELECT name, file, size, created_at FROM volumes"
	               " WHERE tenant = ? AND state = 'ready' ORDER BY name",
	               "t", tenant);
}

/* --- making one ------------------------------------------------------------------------------- */

struct make {
	struct host *host;
	void (*done)(void *arg, const struct err *e, const struct volume_info *v);
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
	file_path(m->host, m->file, path);
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

static void make_done(void *arg)
{
	struct make *m = arg;
	struct host *h = m->host;

	if (m->r == 0)
		m->r = db_run(h->db, &m->err,
		              "UPDATE volumes SET state = 'ready' WHERE tenant = ? AND name = ?",
		              "tt", m->tenant, m->info.name);
	if (m->r < 0) {
		char path[PATH_MAX];

		file_path(h, m->file, path);
		unlink(path);
		db_run(h->db, NULL, "DELETE FROM volumes WHERE tenant = ? AND name = ?", "tt",
		       m->tenant, m->info.name);
	} else {
		volume_get(h, m->tenant, m->info.name, &m->info, NULL);
		log_info("volume made tenant=%s volume=%s bytes=%llu", m->tenant, m->info.name,
		         (unsigned long long)m->info.size_bytes);
	}
	m->done(m->arg, m->r < 0 ? &m->err : NULL, m->r < 0 ? NULL : &m->info);
	free(m);
}

static bool add_size(void *arg, struct db_row *row)
{
	*(uint64_t *)arg = (uint64_t)db_int(row, 0);
	return false;
}

void volume_create(struct host *h, const char *tenant, const char *name, uint64_t size_mb,
                   const struct quota *quota,
                   void (*done)(void *arg, const struct err *e, const struct volume_info *v),
                   void *arg)
{
	struct make *m = calloc(1, sizeof(*m));
	uint64_t have = 0;
	struct err e;
	int r = 0;

	if (!m)
		r = err_set(&e, ENOMEM, "no_memory", "no memory");
	else if (!volume_name_valid(name))
		r = err_set(
		    &e, EINVAL, "bad_request",
		    "'%.64s' is no name for a volume: 1 to %d letters, digits, '.', '_' or '-'",
		    name, VOLUME_NAME_MAX);
	else if (size_mb < 16 || size_mb > VOLUME_MB_MAX)
		r = err_set(&e, EINVAL, "bad_request", "size_mb must be 16 to %d", VOLUME_MB_MAX);
	else
		r = host_admit(h, tenant, 0, 0, NULL, &e);
	if (r == 0 && quota && quota->volumes_mb) {
		db_each(h->db, NULL, add_size, &have,
		        "SELECT COALESCE(SUM(size), 0) FROM volumes WHERE tenant = ?", "t", tenant);
		if ((have >> 20) + size_mb > quota->volumes_mb)
			r = err_set(
			    &e, EDQUOT, "quota_exceeded",
			    "your quota is %llu MiB of volumes and you have %llu: delete some",
			    (unsigned long long)quota->volumes_mb,
			    (unsigned long long)(have >> 20));
	}
	if (r == 0) {
		*m = (struct make){.host = h, .done = done, .arg = arg};
		m->info.size_bytes = size_mb << 20;
		m->info.created_ms = wall_ms();
		snprintf(m->tenant, sizeof(m->tenant), "%s", tenant);
		snprintf(m->info.name, sizeof(m->info.name), "%s", name);
		uuid_new(m->file);
		r = db_run(h->db, &e,
		           "INSERT INTO volumes(tenant, name, file, size, state, created_at)"
		           " VALUES(?, ?, ?, ?, 'creating', ?)",
		           "tttii", tenant, name, m->file, (int64_t)m->info.size_bytes,
		           (int64_t)m->info.created_ms);
		if (r == -EEXIST)
			err_set(&e, EEXIST, "exists", "there is a volume '%s' already", name);
	}
	if (r == 0 && pool_submit(h->pool, make_work, make_done, m) < 0) {
		r = err_set(&e, ENOMEM, "no_memory", "no memory");
		db_run(h->db, NULL, "DELETE FROM volumes WHERE tenant = ? AND name = ?", "tt",
		       tenant, name);
	}
	if (r < 0) {
		free(m);
		done(arg, &e, NULL);
	}
}

/* --- who has it ------------------------------------------------------------------------------- */

static bool writable_in(const json_t *item)
{
	return !json_is_true(json_object_get(item, "read_only"));
}

/* A sandbox that has the volume's own file: forks have copies of what they could write. */
static const struct sandbox *holder(struct host *h, const char *tenant, const char *name,
                                    bool writers_only)
{
	for (struct sandbox *sb = h->newest; sb; sb = sb->next) {
		const json_t *item;
		size_t i;

		if (strcmp(sb->tenant, tenant) != 0 || sb->state == SANDBOX_FAILED)
			continue;
		json_array_foreach(
		    sb->spec.volumes, i,
		    item) if (!strcmp(json_string_value(json_object_get(item, "name")), name) &&
		              !(sb->parent[0] && writable_in(item)) &&
		              (writable_in(item) || !writers_only)) return sb;
	}
	return NULL;
}

int volume_check(struct host *h, const char *tenant, const json_t *list, struct err *e)
{
	const json_t *item, *other;
	size_t i, k;

	if (json_array_size(list) > SANDBOX_VOLUMES_MAX)
		return err_set(e, EINVAL, "bad_request", "a sandbox can have %d volumes at most",
		               SANDBOX_VOLUMES_MAX);
	json_array_foreach(list, i, item)
	{
		const char *name = json_string_value(json_object_get(item, "name"));
		const char *path = json_string_value(json_object_get(item, "path"));
		const struct sandbox *who;
		struct volume_info info;
		int r;

		if (!name || !path || path[0] != '/' || !path[1] || strlen(path) > 255)
			return err_set(
			    e, EINVAL, "bad_request",
			    "volumes[%zu] needs a name, and an absolute path to be mounted at", i);
		r = volume_get(h, tenant, name, &info, e);
		if (r < 0)
			return r;
		json_array_foreach(
		    list, k,
		    other) if (k < i &&
		               (!strcmp(json_string_value(json_object_get(other, "name")), name) ||
		                !strcmp(json_string_value(json_object_get(other, "path")),
		                        path))) return err_set(e, EINVAL, "bad_request",
		                                               "volumes[%zu] repeats the name or "
		                                               "path of another",
		                                               i);
		who = holder(h, tenant, name, !writable_in(item));
		if (who)
			return err_set(
			    e, EBUSY, "volume_busy",
			    "volume '%s' is attached to sandbox %s: kill that one, or attach "
			    "it read-only everywhere",
			    name, who->id);
	}
	return 0;
}

int volume_open_all(struct host *h, const char *tenant, const json_t *list, const char *clone_for,
                    bool mount, struct engine_volume ret[ENGINE_VOLUMES_MAX], struct err *e)
{
	const json_t *item;
	size_t i;
	int r = 0;

	json_array_foreach(list, i, item)
	{
		char path[PATH_MAX];
		struct row row;

		r = find(h, tenant, json_string_value(json_object_get(item, "name")), &row, e);
		if (r < 0)
			break;
		file_path(h, row.file, path);
		if (clone_for && writable_in(item)) {
			char own[PATH_MAX];

			clone_path(h, clone_for, i, own);
			if (access(own, F_OK) == 0)
				memcpy(path, own, sizeof(path));
		}
		r = engine_volume_open(path, !writable_in(item), &ret[i], e);
		if (r < 0)
			break;
		if (mount)
			ret[i].mount = json_string_value(json_object_get(item, "path"));
	}
	if (r < 0)
		volume_close_all(ret);
	return r;
}

void volume_close_all(struct engine_volume v[ENGINE_VOLUMES_MAX])
{
	for (size_t i = 0; i < ENGINE_VOLUMES_MAX; i++)
		if (v[i].fd >= 0)
			engine_volume_close(&v[i]);
}

int volume_clone_all(struct host *h, const struct volume_sources *from, const char *clone_for,
                     struct err *e)
{
	for (size_t i = 0; i < from->n; i++) {
		autoclose int in = -1, out = -1;
		char path[PATH_MAX];
		int r;

		if (!from->path[i][0])
			continue; /* read-only: shared */
		clone_path(h, clone_for, i, path);
		in = open(from->path[i], O_RDONLY | O_CLOEXEC);
		out = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (in < 0 || out < 0)
			return err_set(e, errno, "disk_full", "cannot copy a volume to %s: %s",
			               path, strerror(errno));
		r = engine_volume_clone(in, out);
		if (r < 0)
			return err_set(e, -r, "disk_full", "cannot copy a volume to %s: %s", path,
			               strerror(-r));
	}
	return 0;
}

int volume_sync_all(const struct volume_sources *from, struct err *e)
{
	for (size_t i = 0; i < from->n; i++) {
		autoclose int fd =
		    from->path[i][0] ? open(from->path[i], O_RDONLY | O_CLOEXEC) : -1;

		if (fd >= 0 && fdatasync(fd) < 0)
			return err_set(e, errno, "disk_full", "cannot sync %s: %s", from->path[i],
			               strerror(errno));
	}
	return 0;
}

int volume_sources(struct host *h, const struct sandbox *sb, struct volume_sources *ret,
                   struct err *e)
{
	const json_t *item;
	size_t i;

	ret->n = 0;
	json_array_foreach(sb->spec.volumes, i, item)
	{
		struct row row;
		int r;

		ret->path[i][0] = 0;
		ret->n = i + 1;
		if (!writable_in(item))
			continue;
		r = find(h, sb->tenant, json_string_value(json_object_get(item, "name")), &row, e);
		if (r < 0)
			return r;
		clone_path(h, sb->id, i, ret->path[i]);
		if (access(ret->path[i], F_OK) < 0)
			file_path(h, row.file, ret->path[i]);
	}
	return 0;
}

void volume_drop_clones(struct host *h, const char *sandbox_id)
{
	char path[PATH_MAX];

	for (size_t i = 0; i < SANDBOX_VOLUMES_MAX; i++) {
		clone_path(h, sandbox_id, i, path);
		unlink(path);
	}
}

/* --- deleting --------------------------------------------------------------------------------- */

void volume_delete(struct host *h, const char *tenant, const char *name, host_done *done, void *arg)
{
	const struct sandbox *who;
	char path[PATH_MAX];
	struct row row;
	struct err e;
	int r = find(h, tenant, name, &row, &e);

	who = r == 0 ? holder(h, tenant, name, false) : NULL;
	if (who)
		r = err_set(&e, EBUSY, "volume_busy",
		            "volume '%s' is attached to sandbox %s: kill it first", name, who->id);
	if (r == 0)
		r = db_run(h->db, &e,
		           "UPDATE volumes SET state = 'deleting' WHERE tenant = ? AND name = ?",
		           "tt", tenant, name);
	if (r == 0) {
		fault_at("volume.delete_recorded");
		file_path(h, row.file, path);
		if (unlink(path) < 0 && errno != ENOENT)
			r = err_set(&e, errno, "disk_full", "cannot remove %s: %s", path,
			            strerror(errno));
	}
	if (r == 0)
		r = db_run(h->db, &e, "DELETE FROM volumes WHERE tenant = ? AND name = ?", "tt",
		           tenant, name);
	done(arg, r < 0 ? &e : NULL, NULL);
}

/* --- after a crash ---------------------------------------------------------------------------- */

static bool drop_file(void *arg, struct db_row *row)
{
	struct host *h = arg;
	char path[PATH_MAX];

	file_path(h, db_text(row, 0), path);
	unlink(path);
	log_info("undid a volume volume=%s", db_text(row, 1));
	return true;
}

static bool found_one(void *arg, struct db_row *row)
{
	*(bool *)arg = true;
	return false;
}

int volumes_recover(struct host *h, struct err *e)
{
	char path[PATH_MAX];
	autoclosedir DIR *d = NULL;
	struct dirent *de;
	int r;

	r = db_each(h->db, e, drop_file, h, "SELECT file, name FROM volumes WHERE state <> 'ready'",
	            "");
	if (r == 0)
		r = db_run(h->db, e, "DELETE FROM volumes WHERE state <> 'ready'", "");
	snprintf(path, sizeof(path), "%s/volumes", h->config.data_dir);
	d = r == 0 ? opendir(path) : NULL;
	while (d && (de = readdir(d))) {
		char name[64];
		bool known = false;
		size_t n = strlen(de->d_name);

		if (n < 5 || n >= sizeof(name) || strcmp(de->d_name + n - 4, ".img") != 0)
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)n - 4, de->d_name);
		if (!strncmp(name, "clone-", 6)) {
			name[6 + SANDBOX_ID] = 0;
			db_each(h->db, NULL, found_one, &known,
			        "SELECT 1 FROM sandboxes WHERE id = ?", "t", name + 6);
		} else {
			db_each(h->db, NULL, found_one, &known,
			        "SELECT 1 FROM volumes WHERE file = ?", "t", name);
		}
		if (!known && unlinkat(dirfd(d), de->d_name, 0) == 0)
			log_info("removed a volume's file without a record file=%s", de->d_name);
	}
	return r;
}
