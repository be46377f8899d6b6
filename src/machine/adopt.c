/*
 * machine/adopt.c - taking up a machine that another process started
 * The machine process holds what it works with; /proc shows those files, and the books say which is
 * which. Both are believed only where they agree.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "layers/digest.h"
#include "layers/layer.h"
#include "layers/map.h"
#include "layers/set.h"
#include "machine/engine.h"
#include "machine/machine.h"
#include "machine/machine_internal.h"

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
	r = fd < 0 ? -errno : machine_map_name(name, fd);
	if (r < 0)
		return r;
	r = io_read_file(dirfd, name, MAP_BYTES_MAX, &bytes, &n);
	if (r == 0)
		r = map_parse(bytes, n, pages, &map);
	else if (r == -ENOENT) {
		r = ms->engines->unbooked(ms->engines, dirfd, disk, pages, &map);
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
	unsigned slot = disk < 0 ? ms->engines->memory_slot
	                         : ms->engines->disk_slot + (unsigned)disk * ENGINE_LAYERS_MAX;
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
			r = machine_map_name(name, l->fd);
		json_array_foreach(list, k, item) {
			book_text(item, "map", want, sizeof(want));
			book_text(item, "digest", digest, sizeof(digest));
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
 * Books and machine must agree, unless the process that asked for a snapshot died before it was
 * booked: then the machine is right, and what it says of that snapshot is used.
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

	i.engine = engine_find(ms->engines, json_string_value(json_object_get(j, "engine")), NULL);
	if (!i.engine)
		return -ENOTSUP;
	i.memory_size = book_int(j, "memory_size");
	unbooked =
	    ms->engines->unbooked(ms->engines, dirfd, -1, i.memory_size / MAP_PAGE, &sealed) == 0;
	n = count_fds(pid, ms->engines->memory_slot);
	r = !unbooked && n != json_array_size(list)
	        ? -EBADMSG
	        : read_layers(ms, dirfd, pid, -1, n, i.memory_size / MAP_PAGE, list, &i.memory);
	for (size_t d = 0; r == 0 && d < json_array_size(disks) && d < ENGINE_DISKS_MAX; d++) {
		const json_t *k = json_array_get(disks, d);
		struct engine_disk *disk = &i.disks[i.ndisks++];

		*disk = (struct engine_disk){.size = book_int(k, "size"),
		                             .read_only =
		                                 json_is_true(json_object_get(k, "read_only"))};
		list = json_object_get(k, "layers");
		n = count_fds(pid, ms->engines->disk_slot + (unsigned)d * ENGINE_LAYERS_MAX);
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

	json_array_foreach(json_object_get(j, "volumes"), i, v) {
		uint64_t slot = book_int(v, "slot");

		if (slot < ENGINE_VOLUMES_MAX)
			m->volumes[slot] =
			    (struct engine_volume){.size = book_int(v, "size"),
			                           .read_only = json_is_true(
						       json_object_get(v, "read_only")),
			                           .fd = -1,
			                           .dev = book_int(v, "dev"),
			                           .ino = book_int(v, "ino")};
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
	snprintf(path, sizeof(path), "/proc/%d/fd/%u", (int)m->pid,
	         ms->engines->volume_slot + slot);
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
	fd = pidfd_getfd(m->pidfd, (int)ms->engines->net_slot, 0);
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

	r = machine_read_book(ms, id, true, &dir, &j, e);
	if (r < 0)
		return r;
	machine_fill_info(ms, id, dir, j, info);
	if (!info->alive)
		return err_set(e, ESRCH, "machine_gone", "machine %s has ended (%s)", id,
		               info->end);
	r = read_image(ms, dir, info->pid, j, &image);
	if (r < 0)
		return err_set(e, -r, "machine_gone",
		               "the layers of machine %s are not as we left them: %s", id,
		               strerror(-r));
	r = ms->engines->adopt(ms->engines, id, dir, info->pid, &image, ret, e);
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
