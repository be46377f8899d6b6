/*
 * machine/record.c - the books of a machine: machine.json, and one map file per sealed layer
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"
#include "layers/digest.h"
#include "layers/layer.h"
#include "layers/map.h"
#include "layers/set.h"
#include "machine/engine.h"
#include "machine/machine.h"
#include "machine/machine_internal.h"

enum { BOOK_BYTES_MAX = 1 << 20 };

bool machine_id_valid(const char *id)
{
	size_t n = strlen(id);

	return n > 0 && n <= ENGINE_ID_MAX && id[0] != '-' &&
	       strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789_-") == n;
}

/* Clock ticks since boot: with the pid it names a process for ever. 0 when it is gone. */
static uint64_t start_time(pid_t pid)
{
	autofree char *text = NULL;
	unsigned long long t = 0;
	char path[64], state = 0;
	char *p;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (io_read_file(AT_FDCWD, path, 4096, &text, NULL) < 0 || !(p = strrchr(text, ')')))
		return 0;
	if (sscanf(
		p + 1,
		" %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
		&state, &t) != 2 ||
	    state == 'Z' || state == 'X')
		return 0;
	return t;
}

int machine_map_name(char buf[64], int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	snprintf(buf, 64, "%llx-%llx.map", (unsigned long long)st.st_dev,
	         (unsigned long long)st.st_ino);
	return 0;
}

static int write_layers(int dirfd, const struct set *s, json_t **ret)
{
	AUTO(json_decrefp) json_t *list = json_array();
	char name[64], digest[DIGEST_TEXT] = "";
	int r;

	for (size_t i = 0; i < s->n; i++) {
		const struct layer *l = s->at[i];
		autofree unsigned char *bytes = NULL;
		size_t n;

		r = machine_map_name(name, l->fd);
		if (r < 0)
			return r;
		if (faccessat(dirfd, name, F_OK, 0) < 0) {
			r = map_encode(&l->map, s->pages, &bytes, &n);
			if (r < 0)
				return r;
			r = io_replace_file(dirfd, name, bytes, n, 0600, false);
			if (r < 0)
				return r;
		}
		if (l->has_digest)
			digest_text(&l->digest, digest);
		json_array_append_new(list, json_pack("{s:s, s:s}", "map", name, "digest",
		                                      l->has_digest ? digest : ""));
	}
	*ret = take_ptr(list);
	return 0;
}

static json_t *volumes_json(const struct engine_machine *m)
{
	json_t *list = json_array();

	for (int i = 0; i < ENGINE_VOLUMES_MAX; i++) {
		const struct engine_volume *v = &m->volumes[i];

		if (v->size)
			json_array_append_new(list,
			                      json_pack("{s:i, s:I, s:b, s:I, s:I}", "slot", i,
			                                "size", (json_int_t)v->size, "read_only",
			                                v->read_only, "dev", (json_int_t)v->dev,
			                                "ino", (json_int_t)v->ino));
	}
	return list;
}

static bool list_names(const json_t *layers, const char *map)
{
	const json_t *l;
	size_t i;

	json_array_foreach(layers, i, l)
		if (!strcmp(json_string_value(json_object_get(l, "map")), map))
			return true;
	return false;
}

/*
 * A map is named by the inode of its layer. When the layer is no more, the number may be given to
 * another one, and the map must not be taken for that one's.
 */
static void drop_stale_maps(int dirfd, const json_t *book)
{
	autoclosedir DIR *d = io_opendir(dirfd, ".", 0);
	struct dirent *de;

	while (d && (de = readdir(d))) {
		const char *dot = strrchr(de->d_name, '.');
		const json_t *disk;
		bool used;
		size_t i;

		if (!dot || strcmp(dot, ".map") != 0 || !strcmp(de->d_name, ENGINE_UNBOOKED))
			continue;
		used = list_names(json_object_get(book, "memory"), de->d_name);
		json_array_foreach(json_object_get(book, "disks"), i, disk)
			used = used || list_names(json_object_get(disk, "layers"), de->d_name);
		if (!used)
			unlinkat(dirfd, de->d_name, 0);
	}
}

int machine_write_book(int dirfd, const struct engine_machine *m, const struct machine_info *info)
{
	AUTO(json_decrefp) json_t *j = NULL;
	AUTO(json_decrefp) json_t *disks = json_array();
	json_t *layers = NULL;
	autofree char *text = NULL;
	int r;

	r = write_layers(dirfd, &m->image.memory, &layers);
	if (r < 0)
		return r;
	j = json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:o}", "id", info->id, "parent",
	              info->parent, "engine", m->image.engine->name, "pid", (int)m->pid,
	              "start_time", (json_int_t)start_time(m->pid), "memory_size",
	              (json_int_t)m->image.memory_size, "created_at_ms",
	              (json_int_t)info->created_at_ms, "generation", (json_int_t)info->generation,
	              "memory", layers);
	for (size_t d = 0; d < m->image.ndisks; d++) {
		const struct engine_disk *k = &m->image.disks[d];

		r = write_layers(dirfd, &k->layers, &layers);
		if (r < 0)
			return r;
		json_array_append_new(disks,
		                      json_pack("{s:I, s:b, s:o}", "size", (json_int_t)k->size,
		                                "read_only", k->read_only, "layers", layers));
	}
	if (!j || json_object_set(j, "disks", disks) < 0 ||
	    json_object_set_new(j, "volumes", volumes_json(m)) < 0 ||
	    json_object_set_new(j, "net", json_boolean(m->net)) < 0 ||
	    !(text = json_dumps(j, JSON_INDENT(1))))
		return -ENOMEM;
	/* Not durable: when the host goes down, so does the machine. */
	r = io_replace_file(dirfd, "machine.json", text, strlen(text), 0600, false);
	if (r == 0)
		drop_stale_maps(dirfd, j);
	return r;
}

int machine_read_book(struct machines *ms, const char *id, bool lock, int *ret_dir, json_t **ret,
                      struct err *e)
{
	autoclose int dir = -1;
	autofree char *text = NULL;
	json_t *j;

	if (!machine_id_valid(id))
		return err_set(
		    e, EINVAL, "bad_id",
		    "'%.40s' is no machine id: letters a-z, digits, '_' and '-' make one", id);
	dir = openat(ms->dir, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0)
		return err_set(e, ENOENT, "machine_not_found",
		               "there is no machine %s: 'panda machine ls' shows those there are",
		               id);
	if (lock && flock(dir, LOCK_EX) < 0)
		return err_set(e, errno, "machine_dir", "cannot lock machine %s: %s", id,
		               strerror(errno));
	*ret = NULL;
	if (io_read_file(dir, "machine.json", BOOK_BYTES_MAX, &text, NULL) == 0) {
		j = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
		if (j && !json_is_object(j)) {
			json_decref(j);
			j = NULL;
		}
		*ret = j;
	}
	*ret_dir = take_fd(&dir);
	return 0;
}

uint64_t book_int(const json_t *j, const char *key)
{
	json_int_t v = json_integer_value(json_object_get(j, key));

	return v < 0 ? 0 : (uint64_t)v;
}

void book_text(const json_t *j, const char *key, char *buf, size_t n)
{
	const char *s = json_string_value(json_object_get(j, key));

	snprintf(buf, n, "%s", s ? s : "");
}

/* Why did it end? The kernel's own words are the last in its log. */
static void end_of(int dir, char *buf, size_t n)
{
	autofree char *text = NULL;
	const char *p;
	size_t len = 0;

	snprintf(buf, n, "killed");
	if (io_read_file(dir, "console.log", 8 << 20, &text, &len) < 0)
		return;
	if ((p = strstr(text, "Kernel panic")))
		snprintf(buf, n, "crashed: %.*s", (int)MIN(strcspn(p, "\r\n"), (size_t)90), p);
	else if (strstr(text, "reboot: Power down") || strstr(text, "reboot: System halted"))
		snprintf(buf, n, "powered off");
	else if (strstr(text, "reboot: Restarting system"))
		snprintf(buf, n, "rebooted");
	for (char *c = buf; *c; c++)
		if ((unsigned char)*c < 32 || (unsigned char)*c > 126)
			*c = '?';
}

void machine_fill_info(struct machines *ms, const char *id, int dir, const json_t *j,
                       struct machine_info *ret)
{
	const json_t *disk;
	size_t d;

	*ret = (struct machine_info){.generation = book_int(j, "generation"),
	                             .memory_size = book_int(j, "memory_size"),
	                             .created_at_ms = book_int(j, "created_at_ms"),
	                             .pid = (pid_t)book_int(j, "pid")};
	json_array_foreach(json_object_get(j, "disks"), d, disk) {
		if (!json_is_true(json_object_get(disk, "read_only")))
			ret->disk_size = MAX(ret->disk_size, book_int(disk, "size"));
	}
	snprintf(ret->id, sizeof(ret->id), "%s", id);
	book_text(j, "parent", ret->parent, sizeof(ret->parent));
	ret->engine =
	    engine_find(ms->engines, json_string_value(json_object_get(j, "engine")), NULL);
	ret->alive = ret->pid > 0 && start_time(ret->pid) == book_int(j, "start_time") &&
	             book_int(j, "start_time") > 0;
	if (!j)
		snprintf(ret->end, sizeof(ret->end), "never started");
	else if (!ret->alive) {
		ret->oom_killed =
		    ms->engines->why_ended(ms->engines, id, ret->end, sizeof(ret->end));
		if (!ret->oom_killed)
			end_of(dir, ret->end, sizeof(ret->end));
	}
}

int machine_look(struct machines *ms, const char *id, struct machine_info *ret, struct err *e)
{
	AUTO(json_decrefp) json_t *j = NULL;
	autoclose int dir = -1;
	int r = machine_read_book(ms, id, false, &dir, &j, e);

	if (r == 0)
		machine_fill_info(ms, id, dir, j, ret);
	return r;
}

int machine_each(struct machines *ms, void (*fn)(const struct machine_info *m, void *arg),
                 void *arg, struct err *e)
{
	autoclosedir DIR *d = io_opendir(ms->dir, ".", 0);
	struct dirent *de;

	if (!d)
		return err_set(e, errno, "run_dir", "cannot list machines: %s", strerror(errno));
	while ((de = readdir(d))) {
		struct machine_info info;

		if (machine_id_valid(de->d_name) && machine_look(ms, de->d_name, &info, NULL) == 0)
			fn(&info, arg);
	}
	return 0;
}

static void note_digests(json_t *list, const struct set *s)
{
	json_t *item;
	size_t k;

	json_array_foreach(list, k, item) {
		for (size_t i = 0; i < s->n; i++) {
			char name[64], text[DIGEST_TEXT];

			if (!s->at[i]->has_digest || machine_map_name(name, s->at[i]->fd) < 0 ||
			    strcmp(json_string_value(json_object_get(item, "map")), name) != 0)
				continue;
			digest_text(&s->at[i]->digest, text);
			json_object_set_new(item, "digest", json_string(text));
		}
	}
}

void machine_saved(struct machines *ms, const char *id, const struct engine_image *i)
{
	AUTO(json_decrefp) json_t *j = NULL;
	autofree char *text = NULL;
	autoclose int dir = -1;
	json_t *disk;
	size_t d;

	if (machine_read_book(ms, id, true, &dir, &j, NULL) < 0 || !j)
		return;
	note_digests(json_object_get(j, "memory"), &i->memory);
	json_array_foreach(json_object_get(j, "disks"), d, disk) {
		if (d < i->ndisks)
			note_digests(json_object_get(disk, "layers"), &i->disks[d].layers);
	}
	text = json_dumps(j, JSON_INDENT(1));
	if (text)
		io_replace_file(dir, "machine.json", text, strlen(text), 0600, false);
}
