#include "core/machine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/pidfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/sock.h"
#include "core/machine_internal.h"

enum {
	GUEST_ANSWER_MS = 60000,
	BOOK_BYTES_MAX = 1 << 20,
};

static bool id_valid(const char *id)
{
	size_t n = strlen(id);

	return n > 0 && n <= ENGINE_ID_MAX && id[0] != '-' &&
	       strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789_-") == n;
}

int machines_open(struct machines *ms, struct engine *engine, const char *run_dir, struct err *e)
{
	char path[PATH_MAX];

	*ms = (struct machines){.engine = engine, .dir = -1, .disks = -1};
	snprintf(path, sizeof(path), "%s/machines", run_dir);
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return err_set(e, errno, "run_dir", "cannot make %s: %s", path, strerror(errno));
	ms->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (ms->dir < 0)
		return err_set(e, errno, "run_dir", "cannot open %s: %s", path, strerror(errno));
	return 0;
}

void machines_close(struct machines *ms)
{
	closep(&ms->dir);
	closep(&ms->disks);
	free(ms->disks_path);
	*ms = (struct machines){.engine = ms->engine, .dir = -1, .disks = -1};
}

void machine_new_id(char ret[ENGINE_ID_MAX + 1])
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
	unsigned char r[10];

	if (getrandom(r, sizeof(r), 0) != sizeof(r))
		abort(); /* a kernel without random numbers runs no sandbox */
	for (size_t i = 0; i < sizeof(r); i++)
		ret[2 + i] = letters[r[i] % 32];
	memcpy(ret, "m_", 2);
	ret[2 + sizeof(r)] = 0;
}

/* --- the books: machine.json and one map file per sealed layer -------------------------------- */

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

static int map_file(char buf[64], int fd)
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

		r = map_file(name, l->fd);
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
			json_array_append_new(
			    list, json_pack("{s:i, s:I, s:b, s:I, s:I}", "slot", i, "size",
			                    (json_int_t)v->size, "read_only", v->read_only, "dev",
			                    (json_int_t)v->dev, "ino", (json_int_t)v->ino));
	}
	return list;
}

static bool list_names(const json_t *layers, const char *map)
{
	const json_t *l;
	size_t i;

	json_array_foreach(layers, i, l) if (!strcmp(json_string_value(json_object_get(l, "map")),
	                                             map)) return true;
	return false;
}

/*
 * A map is named by the inode of its layer. When the layer is no more, the number may be given to
 * another one, and the map must not be taken for that one's.
 */
static void drop_stale_maps(int dirfd, const json_t *book)
{
	autoclosedir DIR *d = NULL;
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *de;

	d = fd < 0 ? NULL : fdopendir(fd);
	while (d && (de = readdir(d))) {
		const char *dot = strrchr(de->d_name, '.');
		const json_t *disk;
		bool used;
		size_t i;

		if (!dot || strcmp(dot, ".map") != 0 || !strcmp(de->d_name, ENGINE_UNBOOKED))
			continue;
		used = list_names(json_object_get(book, "memory"), de->d_name);
		json_array_foreach(json_object_get(book, "disks"), i, disk) used =
		    used || list_names(json_object_get(disk, "layers"), de->d_name);
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
	              info->parent, "engine", m->image.kind->name, "pid", (int)m->pid, "start_time",
	              (json_int_t)start_time(m->pid), "memory_size",
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

/*
 * With lock, nobody else controls the machine as long as *ret_dir or a copy of it is open: what the
 * books say and what the machine holds must change together.
 */
static int read_book(struct machines *ms, const char *id, bool lock, int *ret_dir, json_t **ret,
                     struct err *e)
{
	autoclose int dir = -1;
	autofree char *text = NULL;
	json_t *j;

	if (!id_valid(id))
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

static uint64_t get_int(const json_t *j, const char *key)
{
	json_int_t v = json_integer_value(json_object_get(j, key));

	return v < 0 ? 0 : (uint64_t)v;
}

static void get_text(const json_t *j, const char *key, char *buf, size_t n)
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

static void fill_info(struct machines *ms, const char *id, int dir, const json_t *j,
                      struct machine_info *ret)
{
	*ret = (struct machine_info){.generation = get_int(j, "generation"),
	                             .memory_size = get_int(j, "memory_size"),
	                             .created_at_ms = get_int(j, "created_at_ms"),
	                             .pid = (pid_t)get_int(j, "pid")};
	snprintf(ret->id, sizeof(ret->id), "%s", id);
	get_text(j, "parent", ret->parent, sizeof(ret->parent));
	ret->kind = engine_kind(ms->engine, json_string_value(json_object_get(j, "engine")), NULL);
	ret->alive = ret->pid > 0 && start_time(ret->pid) == get_int(j, "start_time") &&
	             get_int(j, "start_time") > 0;
	if (!j)
		snprintf(ret->end, sizeof(ret->end), "never started");
	else if (!ret->alive) {
		ret->oom_killed = ms->engine->why_ended(ms->engine, id, ret->end, sizeof(ret->end));
		if (!ret->oom_killed)
			end_of(dir, ret->end, sizeof(ret->end));
	}
}

int machine_look(struct machines *ms, const char *id, struct machine_info *ret, struct err *e)
{
	AUTO(json_decrefp) json_t *j = NULL;
	autoclose int dir = -1;
	int r = read_book(ms, id, false, &dir, &j, e);

	if (r == 0)
		fill_info(ms, id, dir, j, ret);
	return r;
}

int machine_each(struct machines *ms, void (*fn)(const struct machine_info *m, void *arg),
                 void *arg, struct err *e)
{
	autoclosedir DIR *d = NULL;
	int fd = openat(ms->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *de;

	d = fd < 0 ? NULL : fdopendir(fd);
	if (!d)
		return err_set(e, errno, "run_dir", "cannot list machines: %s", strerror(errno));
	while ((de = readdir(d))) {
		struct machine_info info;

		if (id_valid(de->d_name) && machine_look(ms, de->d_name, &info, NULL) == 0)
			fn(&info, arg);
	}
	return 0;
}

/* A layer the machine holds, by its map file; without one, sealed but never booked. */
static int read_layer(struct machines *ms, int dirfd, const char *path, int disk, uint64_t pages,
                      struct layer **ret)
{
	AUTO(map_fini) struct map map = {0};
	autofree char *bytes = NULL;
	autoclose int fd = -1;
	uint64_t deadline = 0;
	char name[64];
	size_t n;
	int r;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	r = fd < 0 ? -errno : map_file(name, fd);
	if (r < 0)
		return r;
	r = io_read_file(dirfd, name, MAP_BYTES_MAX, &bytes, &n);
	if (r == 0)
		r = map_parse(bytes, n, pages, &map);
	else if (r == -ENOENT) {
		r = ms->engine->unbooked(ms->engine, dirfd, disk, pages, &map);
		if (r == -ENOENT)
			r = -EBADMSG;     /* it holds another file than we gave it */
		if (r == 0 && disk < 0) { /* sealing takes a writable fd */
			close(fd);
			fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
			r = fd < 0 ? -errno : 0;
		}
	}
	if (r < 0)
		return r;
	do
		r = layer_adopt(fd, pages, &map, ret);
	while (layer_busy(r, &deadline));
	return r;
}

/*
 * The layers of one memory or disk, from the fds the machine process holds, n of them. The books
 * know their digests.
 */
static int read_layers(struct machines *ms, int dirfd, pid_t pid, int disk, size_t n,
                       uint64_t pages, const json_t *list, struct set *ret)
{
	unsigned slot = disk < 0 ? ms->engine->memory_slot
	                         : ms->engine->disk_slot + (unsigned)disk * ENGINE_LAYERS_MAX;
	struct set s = {.pages = pages};
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++) {
		AUTO(layer_unrefp) struct layer *l = NULL;
		char path[64], name[64], want[64], digest[DIGEST_TEXT + 1];
		size_t k;
		json_t *item;

		snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)pid, slot + (unsigned)i);
		r = read_layer(ms, dirfd, path, disk, pages, &l);
		if (r == 0)
			r = map_file(name, l->fd);
		json_array_foreach(list, k, item)
		{
			get_text(item, "map", want, sizeof(want));
			get_text(item, "digest", digest, sizeof(digest));
			if (r == 0 && digest[0] && strcmp(want, name) == 0)
				l->has_digest = digest_parse(digest, &l->digest) == 0;
		}
		if (r == 0)
			r = set_push(&s, l);
	}
	if (r < 0) {
		set_fini(&s);
		return r;
	}
	*ret = s;
	return 0;
}

/* How many fds the process has from this number on. */
static size_t count_fds(pid_t pid, unsigned slot)
{
	char path[64];
	size_t n = 0;

	for (; n < ENGINE_LAYERS_MAX; n++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)pid, slot + (unsigned)n);
		if (faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
			break;
	}
	return n;
}

/*
 * Books and machine must agree, unless whoever asked for a snapshot died before it was booked:
 * then the machine is right, and what it says of that snapshot is used.
 */
static int read_image(struct machines *ms, int dirfd, pid_t pid, const json_t *j,
                      struct engine_image *ret)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	const json_t *disks = json_object_get(j, "disks"), *list = json_object_get(j, "memory");
	AUTO(map_fini) struct map sealed = {0};
	size_t n;
	bool unbooked;
	int r;

	i.kind = engine_kind(ms->engine, json_string_value(json_object_get(j, "engine")), NULL);
	if (!i.kind)
		return -ENOTSUP;
	i.memory_size = get_int(j, "memory_size");
	unbooked =
	    ms->engine->unbooked(ms->engine, dirfd, -1, i.memory_size / MAP_PAGE, &sealed) == 0;
	n = count_fds(pid, ms->engine->memory_slot);
	r = !unbooked && n != json_array_size(list)
	        ? -EBADMSG
	        : read_layers(ms, dirfd, pid, -1, n, i.memory_size / MAP_PAGE, list, &i.memory);
	for (size_t d = 0; r == 0 && d < json_array_size(disks) && d < ENGINE_DISKS_MAX; d++) {
		const json_t *k = json_array_get(disks, d);
		struct engine_disk *disk = &i.disks[i.ndisks++];

		*disk = (struct engine_disk){.size = get_int(k, "size"),
		                             .read_only =
		                                 json_is_true(json_object_get(k, "read_only"))};
		list = json_object_get(k, "layers");
		n = count_fds(pid, ms->engine->disk_slot + (unsigned)d * ENGINE_LAYERS_MAX);
		if (!disk->read_only && n > 0)
			n--; /* the last one is its top, no layer yet */
		r = !unbooked && n != json_array_size(list)
		        ? -EBADMSG
		        : read_layers(ms, dirfd, pid, (int)d, n, disk->size / MAP_PAGE, list,
		                      &disk->layers);
	}
	if (r < 0)
		return r;
	*ret = i;
	i = (struct engine_image)ENGINE_IMAGE_EMPTY;
	return 0;
}

static void read_volumes(const json_t *j, struct engine_machine *m)
{
	size_t i;
	json_t *v;

	json_array_foreach(json_object_get(j, "volumes"), i, v)
	{
		uint64_t slot = get_int(v, "slot");

		if (slot < ENGINE_VOLUMES_MAX)
			m->volumes[slot] = (struct engine_volume){
			    .size = get_int(v, "size"),
			    .read_only = json_is_true(json_object_get(v, "read_only")),
			    .fd = -1,
			    .dev = get_int(v, "dev"),
			    .ino = get_int(v, "ino")};
	}
}

int machine_volume_file(struct machines *ms, const struct engine_machine *m, unsigned slot,
                        int *ret, struct err *e)
{
	autoclose int fd = -1;
	char path[64];
	struct stat st;

	if (slot >= ENGINE_VOLUMES_MAX || !m->volumes[slot].size)
		return err_set(e, ENOENT, "volume_missing", "machine %s has no volume %u", m->id,
		               slot);
	snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)m->pid, ms->engine->volume_slot + slot);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(e, errno, "machine_gone", "machine %s has ended", m->id);
	if (st.st_dev != m->volumes[slot].dev || st.st_ino != m->volumes[slot].ino)
		return err_set(e, EBADMSG, "machine_gone",
		               "volume %u of machine %s is not the file we gave it", slot, m->id);
	*ret = take_fd(&fd);
	return 0;
}

int machine_net_fd(struct machines *ms, const struct engine_machine *m, int *ret, struct err *e)
{
	int fd;

	if (!m->net)
		return err_set(e, ENOENT, "net_missing", "machine %s has no network", m->id);
	/* The very open file, not the device anew: a tap is what it was attached to. */
	fd = pidfd_getfd(m->pidfd, (int)ms->engine->net_slot, 0);
	if (fd < 0)
		return err_set(e, errno, "machine_gone", "cannot take the tap of machine %s: %s",
		               m->id, strerror(errno));
	*ret = fd;
	return 0;
}

int machine_take_up(struct machines *ms, const char *id, struct engine_machine *ret,
                    struct machine_info *info, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image image = ENGINE_IMAGE_EMPTY;
	AUTO(json_decrefp) json_t *j = NULL;
	autoclose int dir = -1;
	int r;

	r = read_book(ms, id, true, &dir, &j, e);
	if (r < 0)
		return r;
	fill_info(ms, id, dir, j, info);
	if (!info->alive)
		return err_set(e, ESRCH, "machine_gone", "machine %s has ended (%s)", id,
		               info->end);
	r = read_image(ms, dir, info->pid, j, &image);
	if (r < 0)
		return err_set(e, -r, "machine_gone",
		               "the layers of machine %s are not as we left them: %s", id,
		               strerror(-r));
	r = ms->engine->adopt(ms->engine, id, dir, info->pid, &image, ret, e);
	if (r == 0) {
		read_volumes(j, ret);
		ret->net = json_is_true(json_object_get(j, "net"));
	}
	if (r == 0 && faccessat(dir, ENGINE_UNBOOKED, F_OK, 0) == 0 &&
	    machine_write_book(dir, ret, info) == 0)
		unlinkat(dir, ENGINE_UNBOOKED, 0);
	return r;
}

int machine_adopt(struct machines *ms, const char *id, struct engine_machine *ret, struct err *e)
{
	struct machine_info info;

	return machine_take_up(ms, id, ret, &info, e);
}

/* --- the guest ----------------------------------------------------------------------------------
 */

static int connect_guest(int dir, const char *id, struct guest **ret, struct err *e)
{
	autoclose int fd = -1;
	int r;

	r = sock_connect(dir, "agent", SOCK_STREAM, &fd);
	if (r == 0)
		r = guest_new(fd, ret);
	if (r < 0)
		return err_set(e, -r, "guest_silent", "the agent of machine %s does not answer: %s",
		               id, strerror(-r));
	take_fd(&fd);
	return 0;
}

int machine_guest(struct machines *ms, const char *id, struct guest **ret, struct err *e)
{
	AUTO(json_decrefp) json_t *j = NULL;
	autoclose int dir = -1;
	struct machine_info info;
	int r;

	r = read_book(ms, id, false, &dir, &j, e);
	if (r < 0)
		return r;
	fill_info(ms, id, dir, j, &info);
	if (!info.alive)
		return err_set(e, ESRCH, "machine_gone", "machine %s has ended (%s)", id, info.end);
	return connect_guest(dir, id, ret, e);
}

struct books {
	int dir, r;
	const struct engine_machine *m;
	const struct machine_info *info;
};

static void keep_books(void *arg)
{
	struct books *b = arg;

	b->r = machine_write_book(b->dir, b->m, b->info);
}

/*
 * Tells a guest who it is from now on. Clock and entropy are the kernel's business. The books are
 * written while it thinks about that: it has a cpu of its own, mostly.
 */
static int introduce(int dir, const struct engine_machine *em, const struct machine_info *info,
                     const struct engine_start *s, struct guest **ret, struct err *e)
{
	struct books books = {.dir = dir, .m = em, .info = info};
	struct guest *g = NULL;
	unsigned char raw[16];
	char machine_id[33], host[ENGINE_ID_MAX + 1];
	struct wire_reborn m = {.generation = info->generation};
	struct wire_mount mounts[ENGINE_VOLUMES_MAX];
	size_t n = 0;
	int r;

	r = connect_guest(dir, info->id, &g, e);
	if (r < 0)
		return r;
	if (getrandom(raw, sizeof(raw), 0) != sizeof(raw))
		abort();
	for (size_t i = 0; i < sizeof(raw); i++)
		snprintf(machine_id + 2 * i, 3, "%02x", raw[i]);
	snprintf(host, sizeof(host), "%s", s->hostname ? s->hostname : info->id);
	for (char *c = host; *c; c++)
		if (*c == '_')
			*c = '-'; /* as host names go */
	m.hostname = (struct wire_str){.p = host, .len = strlen(host)};
	m.machine_id = (struct wire_str){.p = machine_id, .len = strlen(machine_id)};
	guest_set_deadline(g, GUEST_ANSWER_MS);
	for (unsigned i = 0; i < ENGINE_VOLUMES_MAX; i++)
		if (s->volumes[i].size && s->volumes[i].mount)
			mounts[n++] = (struct wire_mount){
			    .volume = i,
			    .flags = s->volumes[i].read_only ? WIRE_MOUNT_RO : 0,
			    .path = wire_str(s->volumes[i].mount)};
	guest_set_meanwhile(g, keep_books, &books);
	r = guest_reborn_mount(g, &m, mounts, n, e);
	if (r == 0 && info->volumes_lost && s->umount_lost)
		r = guest_umount_lost(g, e);
	if (books.r < 0)
		r = err_set(e, -books.r, "machine_dir", "cannot write the books of %s: %s",
		            info->id, strerror(-books.r));
	guest_set_meanwhile(g, NULL, NULL);
	guest_set_deadline(g, 0);
	if (r < 0)
		guest_free(g);
	else
		*ret = g;
	return r;
}

/* --- life ----------------------------------------------------------------------------------------
 */

/* Files only. Removing what is not there is fine. */
static int empty_dir(int fd)
{
	autoclosedir DIR *d = NULL;
	struct dirent *de;

	fd = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	d = fd < 0 ? NULL : fdopendir(fd);
	if (!d) {
		int r = -errno;

		closep(&fd);
		return r;
	}
	while ((de = readdir(d)))
		if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0 &&
		    unlinkat(fd, de->d_name, 0) < 0 && errno != ENOENT)
			return -errno;
	return 0;
}

static int remove_flat(int parent, const char *name)
{
	autoclose int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int r;

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	r = empty_dir(fd);
	if (r == 0 && unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		r = -errno;
	return r;
}

/*
 * Its disks first: when they are gone and it is not, whoever comes next tries again. On a disk that
 * can be written no more they stay, and machines_disks() clears them one day.
 */
static int remove_dir(struct machines *ms, const char *id)
{
	autoclose int fd = openat(ms->dir, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int r = 0;

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (ms->disks >= 0)
		r = remove_flat(ms->disks, id);
	if (r == -EROFS || r == -EIO)
		r = 0;
	if (r == 0 && unlinkat(fd, ENGINE_DISKS, 0) < 0) /* a link */
		r = errno == ENOENT ? 0 : remove_flat(fd, ENGINE_DISKS);
	return r < 0 ? r : remove_flat(ms->dir, id);
}

int machines_disks(struct machines *ms, const char *path, struct err *e)
{
	autoclosedir DIR *d = NULL;
	struct dirent *de;
	char real[PATH_MAX];

	if ((mkdir(path, 0700) < 0 && errno != EEXIST) || !realpath(path, real) ||
	    (ms->disks = open(real, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 ||
	    !(ms->disks_path = strdup(real)) || !(d = opendir(real)))
		return err_set(e, errno, "data_dir", "cannot use %s: %s", path, strerror(errno));
	while ((de = readdir(d)))
		if (id_valid(de->d_name) && faccessat(ms->dir, de->d_name, F_OK, 0) < 0)
			remove_flat(ms->disks, de->d_name);
	return 0;
}

static int make_disks(struct machines *ms, const char *id)
{
	autoclose int fd = openat(ms->dir, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char path[PATH_MAX];

	if (fd < 0)
		return -errno;
	if (ms->disks < 0)
		return mkdirat(fd, ENGINE_DISKS, 0700) < 0 ? -errno : 0;
	snprintf(path, sizeof(path), "%s/%s", ms->disks_path, id);
	return mkdirat(ms->disks, id, 0700) < 0 || symlinkat(path, fd, ENGINE_DISKS) < 0 ? -errno
	                                                                                 : 0;
}

static int make_dir(struct machines *ms, const char *id, struct err *e)
{
	int r;

	if (!id_valid(id))
		return err_set(
		    e, EINVAL, "bad_id",
		    "'%.40s' is no machine id: letters a-z, digits, '_' and '-' make one", id);
	if (mkdirat(ms->dir, id, 0700) < 0)
		return errno == EEXIST
		           ? err_set(e, EEXIST, "machine_exists", "there is a machine %s already",
		                     id)
		           : err_set(e, errno, "machine_dir", "cannot make a directory for %s: %s",
		                     id, strerror(errno));
	r = make_disks(ms, id);
	if (r == 0)
		return 0;
	remove_dir(ms, id);
	return err_set(e, -r, "machine_dir", "cannot make a directory for the disks of %s: %s", id,
	               strerror(-r));
}

int machine_prepare(struct machines *ms, const char *id, struct err *e)
{
	int r = make_dir(ms, id, e);

	if (r < 0)
		return r;
	r = ms->engine->prepare(ms->engine, id, e);
	if (r < 0)
		remove_dir(ms, id);
	return r;
}

int machine_start(struct machines *ms, struct engine_start *s, const char *parent,
                  uint64_t generation, struct machine_info *info, struct err *e)
{
	struct guest *g = NULL;
	int r = machine_start_guest(ms, s, parent, generation, info, &g, e);

	guest_free(g);
	return r;
}

int machine_start_guest(struct machines *ms, struct engine_start *s, const char *parent,
                        uint64_t generation, struct machine_info *info, struct guest **ret,
                        struct err *e)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	struct machine_info mine = {.generation = generation,
	                            .memory_size = s->image->memory_size,
	                            .created_at_ms = wall_ms(),
	                            .alive = true};
	autoclose int dir = -1;
	int r;

	if (!s->prepared) {
		r = make_dir(ms, s->id, e);
		if (r < 0)
			return r;
	}
	dir = openat(ms->dir, s->id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	snprintf(mine.id, sizeof(mine.id), "%s", s->id);
	snprintf(mine.parent, sizeof(mine.parent), "%s", parent ? parent : "");
	s->dirfd = dir;
	r = dir < 0 ? err_set(e, errno, "machine_dir", "cannot open the directory of %s", s->id)
	            : ms->engine->start(ms->engine, s, &m, e);
	if (r < 0) {
		ms->engine->forget(ms->engine, s->id);
		remove_dir(ms, s->id);
		return r;
	}
	mine.pid = m.pid;
	mine.kind = m.image.kind;
	mine.volumes_lost = m.volumes_lost;
	r = introduce(dir, &m, &mine, s, ret, e);
	if (r < 0) {
		machine_look(ms, s->id, &mine, NULL);
		if (mine.end[0])
			err_prefix(e, "machine %s %s", s->id, mine.end);
		machine_remove(ms, s->id, NULL);
		return r;
	}
	if (info)
		*info = mine;
	return 0;
}

int machine_snapshot(struct machines *ms, const char *id, struct engine_image *ret,
                     struct engine_snapshot_info *info, struct err *e)
{
	return machine_snapshot_with(ms, id, NULL, NULL, ret, info, e);
}

/* Seals and, while the machine stands still, lets the caller look after its volumes. */
static int snapshot_at_rest(struct machines *ms, struct engine_machine *m,
                            int (*at_rest)(void *arg, const struct engine_machine *m,
                                           struct err *e),
                            void *arg, struct engine_image *ret, struct engine_snapshot_info *info,
                            struct err *e)
{
	uint64_t since = mono_ns();
	int r = ms->engine->snapshot_hold(ms->engine, m, ret, info, e), r2;

	if (r < 0)
		return r;
	r = at_rest(arg, m, e);
	r2 = ms->engine->go_on(ms->engine, m, r < 0 ? NULL : e);
	if (info)
		info->stop_ns = mono_ns() - since;
	return r < 0 ? r : r2;
}

int machine_snapshot_with(struct machines *ms, const char *id,
                          int (*at_rest)(void *arg, const struct engine_machine *m, struct err *e),
                          void *arg, struct engine_image *ret, struct engine_snapshot_info *info,
                          struct err *e)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	AUTO(engine_image_fini) struct engine_image image = ENGINE_IMAGE_EMPTY;
	struct machine_info mi;
	int r;

	r = machine_take_up(ms, id, &m, &mi, e);
	if (r < 0)
		return r;
	r = at_rest ? snapshot_at_rest(ms, &m, at_rest, arg, &image, info, e)
	            : ms->engine->snapshot(ms->engine, &m, &image, info, e);
	if (r == -EBUSY)
		return r; /* done, but not sealed: whoever adopts it next books what the machine
		             says */
	if (r < 0) {
		machine_write_book(m.dirfd, &m, &mi); /* it may have dropped layers */
		unlinkat(m.dirfd, ENGINE_UNBOOKED, 0);
		return r;
	}
	r = machine_write_book(m.dirfd, &m, &mi);
	unlinkat(m.dirfd, ENGINE_UNBOOKED, 0);
	if (r < 0)
		return err_set(e, -r, "machine_dir", "cannot write the books of %s: %s", id,
		               strerror(-r));
	*ret = image;
	image = (struct engine_image)ENGINE_IMAGE_EMPTY;
	return 0;
}

int machine_remove(struct machines *ms, const char *id, struct err *e)
{
	struct machine_info info;
	int r;

	r = machine_look(ms, id, &info, e);
	if (r < 0)
		return r;
	ms->engine->forget(ms->engine, id);
	r = ms->engine->stop(ms->engine, id, info.alive ? info.pid : -1, e);
	if (r < 0)
		return r;
	r = remove_dir(ms, id);
	if (r < 0)
		return err_set(e, -r, "machine_dir", "cannot remove the directory of %s: %s", id,
		               strerror(-r));
	return 0;
}

/* --- disk
 * ----------------------------------------------------------------------------------------- */

/* What a machine of this kind may have seen of the host's cpu and kept in mind. */
static int host_flags(const struct engine_kind *k, struct manifest_flags *ret)
{
	autofree char *text = NULL;
	char *line, *end;

	if (!k->host_cpu || io_read_file(AT_FDCWD, "/proc/cpuinfo", 16 << 20, &text, NULL) < 0 ||
	    !(line = strstr(text, "\nflags")) || !(line = strchr(line, ':')))
		return manifest_flags_parse("", ret);
	end = strchr(line, '\n');
	if (end)
		*end = 0;
	return manifest_flags_parse(line + 1, ret);
}

int machine_save(struct machines *ms, const struct engine_image *i, const struct snapshot_store *st,
                 const char *snapshot_id, const char *parent, struct err *e)
{
	AUTO(manifest_fini)
	struct manifest m = {.memory_size = i->memory_size, .ndisks = i->ndisks};
	struct set disks[ENGINE_DISKS_MAX] = {0};
	int r;

	snprintf(m.engine, sizeof(m.engine), "%s", i->kind->name);
	snprintf(m.kernel, sizeof(m.kernel), "%s", i->kind->kernel);
	snprintf(m.parent, sizeof(m.parent), "%s", parent ? parent : "");
	m.created_at_ms = wall_ms();
	r = host_flags(i->kind, &m.cpu_flags);
	if (r < 0)
		return err_set(e, -r, "no_memory", "no memory");
	for (size_t d = 0; d < i->ndisks; d++) {
		snprintf(m.disks[d].name, sizeof(m.disks[d].name), "disk%zu", d);
		m.disks[d].size = i->disks[d].size;
		m.disks[d].read_only = i->disks[d].read_only;
		disks[d] = i->disks[d].layers; /* borrowed */
	}
	return snapshot_write(st, snapshot_id, &m, &i->memory, disks, i->state, e);
}

static int take_disks(const struct snapshot *s, const char *snapshot_id, struct engine_image *i,
                      struct err *e)
{
	int r = 0;

	if (s->manifest.ndisks > ENGINE_DISKS_MAX)
		return err_set(e, E2BIG, "snapshot_foreign", "snapshot %s has more than %d disks",
		               snapshot_id, ENGINE_DISKS_MAX);
	for (size_t d = 0; r == 0 && d < s->manifest.ndisks; d++) {
		i->disks[d] = (struct engine_disk){.size = s->manifest.disks[d].size,
		                                   .read_only = s->manifest.disks[d].read_only};
		i->ndisks = d + 1;
		r = set_copy(&s->disks[d], &i->disks[d].layers);
	}
	return r < 0 ? err_set(e, -r, "no_memory", "no memory to load snapshot %s", snapshot_id)
	             : 0;
}

int machine_load_disks(const struct snapshot_store *st, const char *snapshot_id,
                       struct engine_image *ret, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	AUTO(snapshot_freep) struct snapshot *s = NULL;
	int r = snapshot_load(st, snapshot_id, NULL, SNAPSHOT_SIZES, &s, e);

	if (r == 0)
		r = take_disks(s, snapshot_id, &i, e);
	if (r < 0)
		return r;
	*ret = i;
	i = (struct engine_image)ENGINE_IMAGE_EMPTY;
	return 0;
}

static void note_digests(json_t *list, const struct set *s)
{
	json_t *item;
	size_t k;

	json_array_foreach(list, k, item)
	{
		for (size_t i = 0; i < s->n; i++) {
			char name[64], text[DIGEST_TEXT];

			if (!s->at[i]->has_digest || map_file(name, s->at[i]->fd) < 0 ||
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

	if (read_book(ms, id, true, &dir, &j, NULL) < 0 || !j)
		return;
	note_digests(json_object_get(j, "memory"), &i->memory);
	json_array_foreach(json_object_get(j, "disks"), d, disk)
	{
		if (d < i->ndisks)
			note_digests(json_object_get(disk, "layers"), &i->disks[d].layers);
	}
	text = json_dumps(j, JSON_INDENT(1));
	if (text)
		io_replace_file(dir, "machine.json", text, strlen(text), 0600, false);
}

int machine_load(struct machines *ms, const struct snapshot_store *st, const char *snapshot_id,
                 bool verify, struct engine_image *ret, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	AUTO(snapshot_freep) struct snapshot *s = NULL;
	struct manifest_host hosts[ENGINE_KINDS_MAX] = {0};
	int r = 0;

	for (size_t k = 0; r == 0 && k < ms->engine->nkinds; k++) {
		const struct engine_kind *kind = &ms->engine->kinds[k];

		hosts[k].engine = kind->name;
		hosts[k].kernel = kind->kernel;
		if (k + 1 < ms->engine->nkinds)
			hosts[k].also = &hosts[k + 1];
		r = host_flags(kind, &hosts[k].cpu_flags);
		if (r < 0)
			err_set(e, -r, "no_memory", "no memory");
	}
	if (r == 0)
		r = snapshot_load(st, snapshot_id, hosts, verify ? SNAPSHOT_FULL : SNAPSHOT_SIZES,
		                  &s, e);
	for (size_t k = 0; k < ARRAY_LEN(hosts); k++)
		manifest_flags_fini(&hosts[k].cpu_flags);
	if (r < 0)
		return r;
	i.kind = engine_kind(ms->engine, s->manifest.engine, NULL);
	i.memory_size = s->manifest.memory_size;
	r = set_copy(&s->memory, &i.memory);
	r = r < 0 ? err_set(e, -r, "no_memory", "no memory to load snapshot %s", snapshot_id)
	          : take_disks(s, snapshot_id, &i, e);
	if (r < 0)
		return r;
	i.state = take_fd(&s->state);
	*ret = i;
	i = (struct engine_image)ENGINE_IMAGE_EMPTY;
	return 0;
}
