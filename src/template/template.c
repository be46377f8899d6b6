#include "template/template.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "base/macro.h"
#include "base/pool.h"
#include "base/uuid.h"
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "template/build.h"
#include "template/depot.h"
#include "template/oci.h"
#include "template/template_internal.h"
#include "template/verified.h"
#include "wire/guest.h"

enum {
	MEMORY_MB_DEFAULT = 512,
};

static void template_free(struct template *t)
{
	if (!t)
		return;
	json_decref(t->doc);
	engine_image_fini(&t->image);
	free(t);
}

static struct template *read_template(struct templates *ts, int dirfd, const char *file)
{
	struct template *t = calloc(1, sizeof(*t));
	autoclose int fd = openat(dirfd, file, O_RDONLY | O_CLOEXEC);
	const char *name;
	json_int_t v;

	if (!t || fd < 0)
		goto bad;
	t->image = (struct engine_image)ENGINE_IMAGE_EMPTY;
	t->doc = json_loadfd(fd, JSON_REJECT_DUPLICATES, NULL);
	name = text_of(t->doc, "name", "");
	if (!json_is_object(t->doc) || !name[0] || strlen(name) > TEMPLATE_NAME_MAX) {
		log_warn("a template cannot be read, left out file=%s", file);
		goto bad;
	}
	snprintf(t->name, sizeof(t->name), "%s", name);
	snprintf(t->tenant, sizeof(t->tenant), "%s", text_of(t->doc, "owner_workspace", ""));
	v = json_integer_value(json_object_get(t->doc, "cpu"));
	t->cpu = v > 0 ? (unsigned)v : 1;
	v = json_integer_value(json_object_get(t->doc, "memory_mb"));
	t->memory_mb = v > 0 ? (unsigned)v : MEMORY_MB_DEFAULT;
	v = json_integer_value(json_object_get(t->doc, "disk_gb"));
	t->disk_gb = v > 0 ? (unsigned)v : 8;
	v = json_integer_value(json_object_get(t->doc, "generation"));
	t->generation = v > 0 ? (uint64_t)v : 1;
	t->runner = strcmp(text_of(t->doc, "runner", "shell"), "python") ? "shell" : "python";
	return t;
bad:
	template_free(t);
	return NULL;
}

/* The old ones that are the same stay: what they have loaded is in use. */
static struct template *take_same(struct template **old, const struct template *t)
{
	for (struct template **p = old; *p; p = &(*p)->next)
		if (!strcmp((*p)->name, t->name) && !strcmp((*p)->tenant, t->tenant) &&
		    (json_equal((*p)->doc, t->doc) || (*p)->baking)) {
			struct template *same = *p;

			*p = same->next;
			return same;
		}
	return NULL;
}

struct drop {
	struct depot *depot;
	char id[SNAPSHOT_ID_MAX + 1];
};

static void drop_work(void *arg)
{
	struct drop *d = arg;

	verified_drop(d->depot, d->id, NULL);
}

static void drop_done(void *arg)
{
	free(arg);
}

/* Should that fail, the next start does it. */
static void drop_snapshot(struct depot *depot, const char *id)
{
	struct drop *d = id[0] ? calloc(1, sizeof(*d)) : NULL;

	if (!d)
		return;
	d->depot = depot;
	snprintf(d->id, sizeof(d->id), "%s", id);
	if (pool_submit(depot->pool, drop_work, drop_done, d) < 0)
		free(d);
}

int templates_reload(struct templates *ts, struct err *e)
{
	char path[PATH_MAX];
	autoclosedir DIR *d = NULL;
	struct template *old = ts->list, *list = NULL, *gone = NULL;
	struct dirent *de;

	snprintf(path, sizeof(path), "%s/templates", ts->depot->data_dir);
	d = opendir(path);
	if (!d)
		return err_set(e, errno, "data_dir", "cannot read %s: %s", path, strerror(errno));
	while ((de = readdir(d))) {
		size_t n = strlen(de->d_name);
		struct template *t, *same, **at;

		if (n < 6 || strcmp(de->d_name + n - 5, ".json") != 0 || de->d_name[0] == '.')
			continue;
		t = read_template(ts, dirfd(d), de->d_name);
		if (!t)
			continue;
		same = take_same(&old, t);
		if (same) {
			if (!json_equal(same->doc, t->doc))
				ts->stale = true;
			template_free(t);
			t = same;
		}
		for (at = &list; *at && strcmp((*at)->name, t->name) < 0; at = &(*at)->next)
			;
		t->next = *at;
		*at = t;
	}
	while (old) {
		struct template *t = old;

		old = t->next;
		if (t->baking) { /* a create waits for it: it stays until the next reload */
			t->next = list;
			list = t;
			ts->stale = true;
		} else {
			t->next = gone;
			gone = t;
		}
	}
	ts->list = list;
	while (gone) {
		struct template *t = gone;

		gone = t->next;
		/* The host's: no other code drops its bake. What runs has its layers by links. */
		if (!json_object_get(t->doc, "snapshot") && !templates_own(ts, t->bake))
			drop_snapshot(ts->depot, t->bake);
		template_free(t);
	}
	return 0;
}

/* Descriptions that were being written when we ended. */
static void sweep(struct templates *ts)
{
	char path[PATH_MAX];
	autoclosedir DIR *d = NULL;
	struct dirent *de;

	snprintf(path, sizeof(path), "%s/templates", ts->depot->data_dir);
	d = opendir(path);
	while (d && (de = readdir(d)))
		if (!strncmp(de->d_name, ".tpl-", 5))
			unlinkat(dirfd(d), de->d_name, 0);
}

int templates_open(struct depot *depot, struct err *e)
{
	struct templates *ts = calloc(1, sizeof(*ts));
	int r;

	if (!ts)
		return err_nomem(e);
	ts->depot = depot;
	pthread_mutex_init(&ts->put_lock, NULL);
	r = templates_reload(ts, e);
	if (r == 0) {
		sweep(ts);
		verified_sweep(depot);
	}
	if (r == 0)
		r = builds_open(depot, &ts->builds, e);
	if (r < 0) {
		templates_close(ts);
		return r;
	}
	depot->templates = ts;
	return 0;
}

void templates_close(struct templates *ts)
{
	if (!ts)
		return;
	builds_close(ts->builds);
	while (ts->list) {
		struct template *t = ts->list;

		ts->list = t->next;
		template_free(t);
	}
	pthread_mutex_destroy(&ts->put_lock);
	free(ts);
}

bool templates_own(struct templates *ts, const char *bake)
{
	char name[SNAPSHOT_ID_MAX + 1];

	if (!strncmp(bake, TEMPLATE_STEP, sizeof(TEMPLATE_STEP) - 1))
		return true; /* whole as it is there at all, and builds_open() counts them */
	for (struct template *t = ts->list; t; t = t->next)
		if (bake_name(ts->depot, t, name, NULL) == 0 && !strcmp(name, bake))
			return true;
	return false;
}

static bool seen_by(const struct template *t, const char *tenant)
{
	return !t->tenant[0] || !tenant || !strcmp(t->tenant, tenant);
}

static bool called(const struct template *t, const char *name)
{
	const json_t *alias;
	size_t i;

	if (!strcmp(t->name, name))
		return true;
	json_array_foreach(json_object_get(t->doc, "aliases"), i, alias)
		if (json_is_string(alias) && !strcmp(json_string_value(alias), name))
			return true;
	return false;
}

static struct template *look(struct templates *ts, const char *tenant, const char *name)
{
	for (struct template *t = ts->list; t; t = t->next)
		if (seen_by(t, tenant) && called(t, name))
			return t;
	return NULL;
}

struct template *template_of_ref(struct templates *ts, const char *tenant, const char *written)
{
	char ref[OCI_REF_MAX + 1];
	const json_t *v;
	size_t i;

	if (!oci_ref(written, ref))
		return NULL;
	for (struct template *t = ts->list; t; t = t->next)
		json_array_foreach(json_object_get(t->doc, "refs"), i, v) {
			if (seen_by(t, tenant) && json_is_string(v) &&
			    !strcmp(json_string_value(v), ref))
				return t;
		}
	return NULL;
}

struct template *template_find(struct templates *ts, const char *tenant, const char *name,
                               struct err *e)
{
	struct template *t = look(ts, tenant, name);
	char known[160] = "";

	if (t)
		return t;
	templates_reload(ts, NULL); /* it may have come since */
	t = look(ts, tenant, name);
	if (t)
		return t;
	for (t = template_next(ts, tenant, NULL); t; t = template_next(ts, tenant, t)) {
		size_t n = strlen(known);

		snprintf(known + n, sizeof(known) - n, "%s%s", n ? ", " : "", t->name);
	}
	err_set(e, ENOENT, "template_not_found", "there is no template '%.40s'; there are: %s",
	        name, known[0] ? known : "none, tools/image makes them");
	return NULL;
}

struct template *template_next(struct templates *ts, const char *tenant, struct template *after)
{
	struct template *t = after ? after->next : ts->list;

	while (t && !seen_by(t, tenant))
		t = t->next;
	return t;
}

/* --- deleting --------------------------------------------------------------------------------- */

/* Tenants may have dots in their names, as templates do: the first one here is ours. */
static void file_of(const struct depot *depot, const char *tenant, const char *name,
                    char ret[PATH_MAX])
{
	char who[TENANT_MAX + 1];

	snprintf(who, sizeof(who), "%s", tenant);
	for (char *c = who; *c; c++)
		if (*c == '.' || *c == '/')
			*c = '%';
	snprintf(ret, PATH_MAX, "%s/templates/%s.%s.json", depot->data_dir, who, name);
}

int template_delete(struct templates *ts, const char *tenant, const char *name, struct err *e)
{
	struct template *t = look(ts, tenant, name);
	char path[PATH_MAX], bake[SNAPSHOT_ID_MAX + 1] = "";

	if (!t)
		return err_set(e, ENOENT, "template_not_found", "there is no template '%.40s'",
		               name);
	if (!t->tenant[0])
		return err_set(
		    e, EPERM, "forbidden",
		    "template %s is everybody's: it is removed on the host, by its file in "
		    "the templates directory",
		    t->name);
	file_of(ts->depot, t->tenant, t->name, path);
	if (unlink(path) < 0 && errno != ENOENT)
		return err_set(e, errno, "disk_full", "cannot remove %s: %s", path,
		               strerror(errno));
	fault_at("save.unlinked");
	bake_name(ts->depot, t, bake, NULL);
	drop_snapshot(ts->depot, bake);
	return templates_reload(ts, e);
}

/* --- templates of tenants --------------------------------------------------------------------- */

/* 1 to 64 letters, digits, '.', '_', '-', the first a letter or a digit. */
static bool template_name_valid(const char *name)
{
	size_t n = strlen(name);

	if (n == 0 || n > TEMPLATE_NAME_MAX || !isalnum((unsigned char)name[0]))
		return false;
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)name[i]) && !strchr("._-", name[i]))
			return false;
	return true;
}

static struct template *own(struct templates *ts, const char *tenant, const char *name)
{
	for (struct template *t = ts->list; t; t = t->next)
		if (!strcmp(t->tenant, tenant) && !strcmp(t->name, name))
			return t;
	return NULL;
}

int template_may_put(struct templates *ts, const char *tenant, const char *name, bool replace,
                     struct err *e)
{
	size_t n = 0;

	if (!template_name_valid(name))
		return err_set(e, EINVAL, "bad_request",
		               "field 'name' must have 1 to %d letters, digits, '.', '_' or '-', "
		               "and begin with a letter or a digit",
		               TEMPLATE_NAME_MAX);
	for (struct template *t = ts->list; t; t = t->next)
		if (!t->tenant[0] && called(t, name))
			return err_set(e, EPERM, "forbidden",
			               "template '%s' is everybody's and cannot be replaced: "
			               "choose another name",
			               name);
	for (struct template *t = ts->list; t; t = t->next)
		n += !strcmp(t->tenant, tenant);
	if (n >= TEMPLATES_OF_TENANT_MAX && !own(ts, tenant, name))
		return err_set(e, EDQUOT, "too_many",
		               "you have %zu templates and can have %d: delete some first", n,
		               TEMPLATES_OF_TENANT_MAX);
	if (!replace && own(ts, tenant, name))
		return err_set(e, EEXIST, "exists",
		               "there is a template '%s' already: say replace=true, or choose "
		               "another name",
		               name);
	return 0;
}

void template_new_bake(char ret[SNAPSHOT_ID_MAX + 1])
{
	char id[UUID_TEXT + 1];

	uuid_new(id);
	snprintf(ret, SNAPSHOT_ID_MAX + 1, "tpl-%s", id);
}

json_t *template_heir(const struct template *from, const char *tenant, const char *name,
                      const char *snapshot, uint64_t generation)
{
	/* "warm" and "ready" stay: what is built on it boots again. */
	static const char *const left[] = {"rebaked", "aliases",    "image",    "upper", "label",
	                                   "tools",   "size_bytes", "category", "refs"};
	json_t *doc = from ? json_deep_copy(from->doc) : json_object();
	int r = doc ? 0 : -1;

	if (r < 0)
		return NULL;
	for (size_t i = 0; i < ARRAY_LEN(left); i++)
		json_object_del(doc, left[i]);
	if (from && !from->tenant[0]) /* of all tenants: it has a root image */
		r |= json_object_set_new(doc, "root", json_string(from->name));
	r |= json_object_set_new(doc, "name", json_string(name));
	r |= json_object_set_new(doc, "owner_workspace", json_string(tenant));
	r |= json_object_set_new(doc, "snapshot", json_string(snapshot));
	r |= json_object_set_new(doc, "wire", json_integer(WIRE_VERSION));
	r |= json_object_set_new(doc, "generation", json_integer((json_int_t)generation));
	r |= json_object_set_new(doc, "base", json_string(from ? from->name : ""));
	if (r) {
		json_decref(doc);
		return NULL;
	}
	return doc;
}

json_t *template_fresh(const struct template *below, const char *tenant, const char *name,
                       const char *snapshot, unsigned memory_mb)
{
	json_t *doc = template_heir(NULL, tenant, name, snapshot, 2);
	int r = doc ? 0 : -1;

	r |= json_object_set_new(doc, "root", json_string(below->name));
	r |= json_object_set_new(doc, "cpu", json_integer(below->cpu));
	r |= json_object_set_new(doc, "memory_mb", json_integer(memory_mb));
	r |= json_object_set_new(doc, "disk_gb", json_integer(below->disk_gb));
	if (r) {
		json_decref(doc);
		return NULL;
	}
	return doc;
}

/* The snapshot of what is there: "" when that is nothing. false: another's file of the same name,
 * which is left alone, pandad's or not. */
static bool what_is_there(const char *path, const char *tenant, const char *name,
                          char ret[SNAPSHOT_ID_MAX + 1])
{
	AUTO(json_decrefp) json_t *doc = NULL;

	ret[0] = 0;
	if (access(path, F_OK) < 0)
		return true;
	doc = json_load_file(path, 0, NULL);
	snprintf(ret, SNAPSHOT_ID_MAX + 1, "%s", text_of(doc, "snapshot", ""));
	return doc && !strcmp(text_of(doc, "owner_workspace", ""), tenant) &&
	       !strcmp(text_of(doc, "name", ""), name);
}

static int put(struct depot *depot, const char *tmp, const char *path, const json_t *doc,
               const struct template_put *p, char ret_replaced[SNAPSHOT_ID_MAX + 1], struct err *e)
{
	const char *name = text_of(doc, "name", "");
	char there[SNAPSHOT_ID_MAX + 1], dir[PATH_MAX];
	bool may = what_is_there(path, text_of(doc, "owner_workspace", ""), name, there);
	autoclose int fd = -1;
	int r;

	if (p->instead && strcmp(there, p->instead) != 0)
		return err_set(e, EEXIST, "exists", "template %s has changed in the meantime",
		               name);
	if (may && (p->replace || p->instead))
		r = rename(tmp, path) < 0 ? -errno : 0;
	else
		r = link(tmp, path) < 0 ? -errno : 0;
	if (r == -EEXIST)
		return err_set(e, EEXIST, "exists",
		               "there is a template '%s' already: say replace=true, or choose "
		               "another name",
		               name);
	if (r < 0)
		return err_set(e, -r, "disk_full", "cannot write %s: %s", path, strerror(-r));
	snprintf(dir, sizeof(dir), "%s/templates", depot->data_dir);
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0)
		fsync(fd);
	fault_at("save.put");
	snprintf(ret_replaced, SNAPSHOT_ID_MAX + 1, "%s", there);
	return 0;
}

int template_put(struct depot *depot, const json_t *doc, const struct template_put *p,
                 char ret_replaced[SNAPSHOT_ID_MAX + 1], struct err *e)
{
	autofree char *text = json_dumps(doc, JSON_INDENT(1));
	char path[PATH_MAX], tmp[PATH_MAX];
	int r;

	if (!text)
		return err_nomem(e);
	file_of(depot, text_of(doc, "owner_workspace", ""), text_of(doc, "name", ""), path);
	snprintf(tmp, sizeof(tmp), "%s/templates/.%s", depot->data_dir,
	         text_of(doc, "snapshot", "new"));
	r = io_replace_file(AT_FDCWD, tmp, text, strlen(text), 0644, true);
	if (r < 0)
		return err_set(e, -r, "disk_full", "cannot write %s: %s", tmp, strerror(-r));
	fault_at("save.written");
	pthread_mutex_lock(&depot->templates->put_lock);
	r = put(depot, tmp, path, doc, p, ret_replaced, e);
	pthread_mutex_unlock(&depot->templates->put_lock);
	unlink(tmp);
	return r;
}

void template_settle(struct templates *ts, const char *mine, const char *replaced)
{
	const char *ids[] = {mine, replaced};

	templates_reload(ts, NULL);
	for (size_t i = 0; i < ARRAY_LEN(ids); i++)
		if (ids[i] && ids[i][0] && !templates_own(ts, ids[i]))
			drop_snapshot(ts->depot, ids[i]);
}

struct builds *templates_builds(struct templates *ts)
{
	return ts->builds;
}
