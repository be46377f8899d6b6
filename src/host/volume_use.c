/*
 * host/volume_use.c - who has which volume, and its file for those who may
 * A spec's list of volumes is never changed, only replaced: {name, path, read_only}, and what is
 * ours: slot, where the machine has it (its place in the list, unless said otherwise), and copy, of
 * a fork that has a file of its own with that number.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/log.h"
#include "base/macro.h"
#include "db/volumes.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/sandbox.h"
#include "host/volume.h"
#include "host/volume_internal.h"
#include "host/volume_use.h"
#include "machine/engine.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "template/depot.h"

enum {
	SETTLE_MS = 2000, /* what a guest gets to write down what its volumes miss */
};

static const char *text(const json_t *item, const char *key)
{
	const char *s = json_string_value(json_object_get(item, key));

	return s ? s : "";
}

static bool volume_writable(const json_t *item)
{
	return !json_is_true(json_object_get(item, "read_only"));
}

/* A fork's own. */
static bool volume_is_copy(const json_t *item)
{
	return json_is_integer(json_object_get(item, "copy"));
}

unsigned volume_slot(const json_t *item, size_t i)
{
	const json_t *slot = json_object_get(item, "slot");
	json_int_t n = json_is_integer(slot) ? json_integer_value(slot) : (json_int_t)i;

	return n >= 0 && n < ENGINE_VOLUMES_MAX ? (unsigned)n : 0;
}

static void copy_path(struct host *h, const char *sandbox, json_int_t n, char ret[PATH_MAX])
{
	snprintf(ret, PATH_MAX, "%s/volumes/clone-%s-%d.img", h->config.data_dir, sandbox, (int)n);
}

/* Its file, and how much of it counts: 0 is all of it. */
static int file_of(struct host *h, const char *tenant, const char *sandbox, const json_t *item,
                   char path[PATH_MAX], uint64_t *ret_size, struct err *e)
{
	struct volume_row row;
	int r;

	*ret_size = 0;
	if (volume_is_copy(item)) {
		copy_path(h, sandbox, json_integer_value(json_object_get(item, "copy")), path);
		return 0;
	}
	r = volume_find(h, tenant, text(item, "name"), &row, e);
	if (r < 0)
		return r;
	volume_path(h, row.file, path);
	*ret_size = row.info.size_bytes;
	return 0;
}

/* --- leases ----------------------------------------------------------------------------------- */

struct sandbox *volume_holder(struct host *h, const char *tenant, const char *name,
                              bool writers_only, const struct sandbox *except)
{
	for (struct sandbox *sb = h->newest; sb; sb = sb->next) {
		const json_t *item;
		size_t i;

		if (sb == except || strcmp(sb->tenant, tenant) != 0 || sb->state == SANDBOX_FAILED)
			continue;
		json_array_foreach(sb->spec.volumes, i, item) {
			if (!strcmp(text(item, "name"), name) && !volume_is_copy(item) &&
			    (volume_writable(item) || !writers_only))
				return sb;
		}
	}
	return NULL;
}

/* Free, but for the sandbox that has it already? */
static int check_lease(struct host *h, const char *tenant, const json_t *item,
                       const struct sandbox *self, struct err *e)
{
	const struct sandbox *who;
	struct volume_info info;
	int r = volume_get(h, tenant, text(item, "name"), &info, e);

	if (r < 0)
		return r;
	if (info.snapshot && volume_writable(item))
		return err_set(
		    e, EBUSY, "conflict",
		    "'%s' is a snapshot of a volume, which no sandbox can write: mount it "
		    "read_only, or make a volume from it",
		    info.name);
	who = volume_holder(h, tenant, info.name, !volume_writable(item), self);
	if (who)
		return err_set(e, EBUSY, "volume_busy",
		               "volume '%s' is attached to sandbox %s: detach it there, or attach "
		               "a snapshot of it, or attach it read-only everywhere",
		               info.name, who->id);
	return 0;
}

int volume_check_one(struct host *h, const char *tenant, const json_t *list, size_t i,
                     const struct sandbox *self, struct err *e)
{
	const json_t *item = json_array_get(list, i), *other;
	const char *name = text(item, "name"), *path = text(item, "path");
	size_t k;

	if (json_array_size(list) > SANDBOX_VOLUMES_MAX)
		return err_set(e, EINVAL, "bad_request", "a sandbox can have %d volumes at most",
		               SANDBOX_VOLUMES_MAX);
	if (!name[0] || path[0] != '/' || !path[1] || strlen(path) > 255)
		return err_set(e, EINVAL, "bad_request",
		               "volumes[%zu] needs a name, and an absolute path to be mounted at",
		               i);
	json_array_foreach(list, k, other) {
		if (k < i &&
		    (!strcmp(text(other, "name"), name) || !strcmp(text(other, "path"), path)))
			return err_set(e, EINVAL, "bad_request",
			               "volumes[%zu] repeats the name or path of another", i);
	}
	return check_lease(h, tenant, item, self, e);
}

int volume_check(struct host *h, const char *tenant, const json_t *list, struct err *e)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < json_array_size(list); i++)
		r = volume_check_one(h, tenant, list, i, NULL, e);
	return r;
}

int volume_check_again(struct host *h, const struct sandbox *sb, struct err *e)
{
	const json_t *item;
	size_t i;
	int r = 0;

	json_array_foreach(sb->spec.volumes, i, item) {
		if (r == 0 && !volume_is_copy(item))
			r = check_lease(h, sb->tenant, item, sb, e);
	}
	return r;
}

/* --- files for a machine that starts ---------------------------------------------------------- */

int volume_open_all(struct host *h, const char *tenant, const char *sandbox, const json_t *list,
                    bool mount, struct engine_volume ret[ENGINE_VOLUMES_MAX], struct err *e)
{
	const json_t *item;
	size_t i;
	int r = 0;

	json_array_foreach(list, i, item) {
		struct engine_volume *v = &ret[volume_slot(item, i)];
		char path[PATH_MAX];
		uint64_t size;

		r = file_of(h, tenant, sandbox, item, path, &size, e);
		if (r == 0)
			r = engine_volume_open(path, !volume_writable(item), v, e);
		if (r < 0)
			break;
		/* A hostile kernel has made it longer: pandad does not count on that. */
		if (size && v->size > size && (v->read_only || ftruncate(v->fd, (off_t)size) == 0))
			v->size = size;
		if (mount)
			v->mount = text(item, "path");
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

/* --- a fork's copies -------------------------------------------------------------------------- */

json_t *volume_list_of_child(const json_t *list)
{
	json_t *copy = list ? json_deep_copy(list) : NULL, *item;
	size_t i;

	json_array_foreach(copy, i, item) {
		json_object_set_new(item, "slot", json_integer(volume_slot(item, i)));
		if (volume_writable(item))
			json_object_set_new(item, "copy", json_integer((json_int_t)i));
	}
	return copy;
}

int volume_sources(struct host *h, const struct sandbox *sb, struct volume_sources *ret,
                   struct err *e)
{
	const json_t *item;
	size_t i;
	int r = 0;

	ret->n = 0;
	ret->used = 0;
	json_array_foreach(sb->spec.volumes, i, item) {
		struct stat st;

		ret->path[i][0] = 0;
		ret->slot[i] = volume_slot(item, i);
		ret->n = i + 1;
		if (r == 0 && volume_writable(item))
			r = file_of(h, sb->tenant, sb->id, item, ret->path[i], &ret->size[i], e);
		if (r == 0 && ret->path[i][0] && stat(ret->path[i], &st) == 0)
			ret->used += (uint64_t)st.st_blocks * 512;
	}
	return r;
}

/* The copy of the i-th of a sandbox, new and empty. */
static int make_copy(struct host *h, const char *sandbox, size_t i, int *ret, struct err *e)
{
	char path[PATH_MAX];

	copy_path(h, sandbox, (json_int_t)i, path);
	*ret = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	return *ret < 0 ? err_set(e, errno, "disk_full", "cannot copy a volume to %s: %s", path,
	                          strerror(errno))
	                : 0;
}

static int clone_file(struct host *h, const char *from, uint64_t size, const char *sandbox,
                      size_t i, struct err *e)
{
	autoclose int in = open(from, O_RDONLY | O_CLOEXEC), out = -1;
	int r = make_copy(h, sandbox, i, &out, e);

	if (r < 0)
		return r;
	r = in < 0 ? -errno : engine_volume_clone(in, out);
	if (r == 0 && size && ftruncate(out, (off_t)size) < 0)
		r = -errno;
	return r < 0 ? err_set(e, -r, "disk_full", "cannot copy a volume from %s: %s", from,
	                       strerror(-r))
	             : 0;
}

/* The one that takes longest: it can be copied while the machine goes on. */
static size_t largest(const struct volume_sources *from)
{
	size_t found = from->n;
	blkcnt_t most = -1;
	struct stat st;

	for (size_t i = 0; i < from->n; i++)
		if (from->path[i][0] && stat(from->path[i], &st) == 0 && st.st_blocks > most) {
			most = st.st_blocks;
			found = i;
		}
	return found;
}

int volume_clone_begin(struct host *h, const struct volume_sources *from,
                       const struct engine_machine *m, const char *first, struct machine_copy **ret,
                       struct err *e)
{
	size_t later = largest(from);
	autoclose int out = -1;
	int r = 0;

	for (size_t i = 0; r == 0 && i < from->n; i++)
		if (from->path[i][0] && i != later)
			r = clone_file(h, from->path[i], from->size[i], first, i, e);
	if (r < 0 || later == from->n)
		return r;
	/* Last: with this the machine goes on. */
	r = make_copy(h, first, later, &out, e);
	if (r < 0)
		return r;
	return machine_copy_begin(&h->machines, m, from->slot[later],
	                          m->volumes[from->slot[later]].size, out, ret, e);
}

int volume_clone_again(struct host *h, const struct volume_sources *from, const char *first,
                       const char *other, struct err *e)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < from->n; i++) {
		char path[PATH_MAX];

		copy_path(h, first, (json_int_t)i, path);
		if (from->path[i][0])
			r = clone_file(h, path, 0, other, i, e);
	}
	return r;
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

void volume_drop_clones(struct host *h, const char *sandbox_id)
{
	for (json_int_t i = 0; i < SANDBOX_VOLUMES_MAX; i++)
		volume_drop_copy(h, sandbox_id, i);
}

void volume_drop_copy(struct host *h, const char *sandbox_id, json_int_t n)
{
	char path[PATH_MAX];

	copy_path(h, sandbox_id, n, path);
	unlink(path);
}

/* --- what a machine that runs shall have ------------------------------------------------------ */

int volume_want_all(struct host *h, const struct sandbox *sb, struct volume_wants *ret,
                    struct err *e)
{
	const json_t *item;
	size_t i;
	int r = 0;

	*ret = (struct volume_wants){.list = json_incref(sb->spec.volumes)};
	json_array_foreach(sb->spec.volumes, i, item) {
		struct machine_volume *v = &ret->v[i];
		struct stat st;

		v->slot = volume_slot(item, i);
		v->read_only = !volume_writable(item);
		v->mount = text(item, "path");
		v->file = ret->file[i];
		if (r == 0)
			r = file_of(h, sb->tenant, sb->id, item, ret->file[i], &v->size, e);
		if (r == 0 && !v->size)
			v->size = stat(v->file, &st) == 0 ? (uint64_t)st.st_size : 0;
		ret->n = i + 1;
	}
	if (r < 0)
		volume_wants_fini(ret);
	return r;
}

void volume_wants_fini(struct volume_wants *w)
{
	json_decref(w->list);
	w->list = NULL;
}

json_t *volume_list_with_slots(const json_t *list, const struct volume_wants *w)
{
	json_t *copy = list ? json_deep_copy(list) : json_array(), *item;
	size_t i;

	json_array_foreach(copy, i, item)
		json_object_set_new(item, "slot",
		                    json_integer(w && i < w->n ? w->v[i].slot
		                                               : volume_slot(item, i)));
	return copy;
}

int volume_list_set(struct sandbox *sb, json_t *list, bool pending, struct err *e)
{
	json_t *had = sb->spec.volumes;
	bool was = sb->volumes_pending;
	int r = list ? 0 : err_nomem(e);

	if (r == 0) {
		sb->spec.volumes = list;
		sb->volumes_pending = pending;
		r = record_update(sb, e);
	}
	if (r < 0 && list) {
		sb->spec.volumes = had;
		sb->volumes_pending = was;
		had = list;
	}
	if (list)
		json_decref(had);
	return r;
}

void volume_settled(struct sandbox *sb, const struct volume_wants *w)
{
	struct err e;

	if (volume_list_set(sb, volume_list_with_slots(sb->spec.volumes, w), false, &e) < 0)
		log_error("cannot record where volumes are sandbox=%s why=\"%s\"", sb->id, e.text);
}

/* --- a hostile kernel ------------------------------------------------------------------------- */

enum {
	SWEEP_ROWS = 256, /* of one look */
};

struct sweep {
	struct host *host;
	unsigned rows, nlong;
	struct {
		char tenant[TENANT_MAX + 1], name[VOLUME_NAME_MAX + 1];
	} longer[8]; /* more will be there the next time */
};

static bool look(void *arg, const struct db_volume *row)
{
	struct sweep *s = arg;
	char path[PATH_MAX];
	struct stat st;

	s->rows++;
	snprintf(s->host->volume_swept, sizeof(s->host->volume_swept), "%s", row->file);
	volume_path(s->host, row->file, path);
	if (stat(path, &st) < 0 || (uint64_t)st.st_size <= row->size_bytes)
		return true;
	snprintf(s->longer[s->nlong].tenant, sizeof(s->longer[0].tenant), "%s", row->tenant);
	snprintf(s->longer[s->nlong].name, sizeof(s->longer[0].name), "%s", row->name);
	return ++s->nlong < ARRAY_LEN(s->longer);
}

void volume_sweep(struct host *h)
{
	struct sweep s = {.host = h};
	char after[sizeof(h->volume_swept)];

	memcpy(after, h->volume_swept, sizeof(after));
	db_volumes_after(h->db, after, SWEEP_ROWS, look, &s, NULL);
	if (s.rows < SWEEP_ROWS)
		h->volume_swept[0] = 0;
	for (unsigned i = 0; i < s.nlong; i++) {
		struct sandbox *sb =
		    volume_holder(h, s.longer[i].tenant, s.longer[i].name, true, NULL);

		/* While something is done with it, a file may be ahead of its record. */
		if (!sb || sb->state != SANDBOX_RUNNING || sb->ops)
			continue;
		log_warn("killed: its kernel has made a volume longer than it is sandbox=%s",
		         sb->id);
		host_kill(h, sb, "its kernel has made a volume longer than it is", NULL, NULL);
	}
}

void volume_freeze_all(struct host *h, const char *machine, const json_t *list)
{
	struct guest *g = NULL;
	const json_t *item;
	size_t i;

	if (json_array_size(list) == 0 || machine_guest(&h->machines, machine, &g, NULL) < 0)
		return;
	guest_set_deadline(g, SETTLE_MS);
	guest_sync(g, NULL); /* also where there is no fsfreeze */
	json_array_foreach(list, i, item) {
		const char *path = json_string_value(json_object_get(item, "path"));
		char *argv[] = {"fsfreeze", "-f", (char *)path, NULL};
		struct guest_exec x = {.argv = argv};
		struct guest_exit end;

		if (!json_is_true(json_object_get(item, "read_only")) &&
		    guest_exec_wait(g, &x, &end, NULL) < 0)
			break;
	}
	guest_free(g);
}
