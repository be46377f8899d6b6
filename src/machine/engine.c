#include "machine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "layers/layer.h"
#include "layers/map.h"
#include "layers/set.h"
#include "layers/sparse.h"

const struct engine *engine_find(const struct engines *engines, const char *name, struct err *e)
{
	if (!name || !*name || !strcmp(name, "auto"))
		return &engines->list[0];
	for (size_t i = 0; i < engines->count; i++)
		if (!strcmp(engines->list[i].name, name))
			return &engines->list[i];
	err_set(e, ENOTSUP, "engine_missing",
	        "the engine '%.16s' does not work on this host, which has: %s%s%s ('panda doctor' "
	        "says why)",
	        name, engines->list[0].name, engines->count > 1 ? " and " : "",
	        engines->count > 1 ? engines->list[1].name : "");
	return NULL;
}

void engine_image_fini(struct engine_image *i)
{
	set_fini(&i->memory);
	for (size_t d = 0; d < i->ndisks; d++) {
		set_fini(&i->disks[d].layers);
	}
	closep(&i->state);
	*i = (struct engine_image)ENGINE_IMAGE_EMPTY;
}

uint64_t engine_image_bytes(const struct engine_image *i)
{
	uint64_t n = 0;
	struct stat st;

	for (size_t k = 0; k < i->memory.n; k++)
		if (fstat(i->memory.at[k]->fd, &st) == 0)
			n += (uint64_t)st.st_blocks * 512;
	for (size_t d = 0; d < i->ndisks; d++)
		for (size_t k = 0; !i->disks[d].read_only && k < i->disks[d].layers.n; k++)
			if (fstat(i->disks[d].layers.at[k]->fd, &st) == 0)
				n += (uint64_t)st.st_blocks * 512;
	return n;
}

int engine_image_copy(const struct engine_image *i, struct engine_image *ret)
{
	struct engine_image c = ENGINE_IMAGE_EMPTY;
	int r;

	c.engine = i->engine;
	c.memory_size = i->memory_size;
	r = set_copy(&i->memory, &c.memory);
	for (size_t d = 0; r == 0 && d < i->ndisks; d++) {
		c.disks[d] = i->disks[d];
		c.disks[d].layers = (struct set){.pages = i->disks[d].layers.pages};
		c.ndisks = d + 1;
		r = set_copy(&i->disks[d].layers, &c.disks[d].layers);
	}
	if (r == 0 && i->state >= 0) {
		c.state = fcntl(i->state, F_DUPFD_CLOEXEC, 3);
		r = c.state < 0 ? -errno : 0;
	}
	if (r < 0) {
		engine_image_fini(&c);
		return r;
	}
	*ret = c;
	return 0;
}

/* A whole file as the only layer below all that the machine writes. */
static int add_disk(struct engine_image *i, const char *path, bool read_only, struct err *e)
{
	AUTO(layer_unrefp) struct layer *l = NULL;
	AUTO(map_fini) struct map map = {0};
	autoclose int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct engine_disk *d = &i->disks[i->ndisks];
	struct stat st;
	int r;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(e, errno, "image_missing", "cannot open the image %s: run 'make up'",
		               path);
	if (st.st_size == 0 || st.st_size % MAP_PAGE)
		return err_set(e, EINVAL, "image_unusable",
		               "the size of %s is not whole 4096-byte blocks", path);
	*d = (struct engine_disk){.size = (uint64_t)st.st_size,
	                          .read_only = read_only,
	                          .layers = {.pages = (uint64_t)st.st_size / MAP_PAGE}};
	i->ndisks++;
	r = map_add(&map, 0, d->layers.pages);
	if (r == 0)
		r = layer_adopt(fd, d->layers.pages, &map, &l);
	if (r == 0)
		r = set_push(&d->layers, l);
	if (r < 0)
		return err_set(e, -r, "image_unusable", "cannot use %s: %s", path,
		               r == -EBUSY ? "a process has it open for writing" : strerror(-r));
	return 0;
}

int engine_image_cold(uint64_t memory_size, const char *root, const char *upper,
                      struct engine_image *ret, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	int r;

	i.memory_size = memory_size;
	i.memory.pages = memory_size / MAP_PAGE;
	r = add_disk(&i, root, true, e);
	if (r == 0)
		r = add_disk(&i, upper, false, e);
	if (r < 0)
		return r;
	*ret = i;
	i = (struct engine_image)ENGINE_IMAGE_EMPTY;
	return 0;
}

int engine_volume_open(const char *path, bool read_only, struct engine_volume *ret, struct err *e)
{
	/* O_NONBLOCK: a fifo in its place must not hold us up. */
	autoclose int fd =
	    open(path, (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_set(e, errno, errno == ENOENT ? "volume_missing" : "volume_unusable",
		               "cannot open the volume %s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode) || st.st_size <= 0 || st.st_size % MAP_PAGE)
		return err_set(e, EINVAL, "volume_unusable",
		               "%s is no volume: it must be a file of whole 4096-byte blocks",
		               path);
	if (flock(fd, (read_only ? LOCK_SH : LOCK_EX) | LOCK_NB) < 0)
		return err_set(e, EBUSY, "volume_busy",
		               read_only ? "the volume %s is in use by a machine that writes it"
		                         : "the volume %s is in use by another machine",
		               path);
	*ret = (struct engine_volume){.size = (uint64_t)st.st_size,
	                              .read_only = read_only,
	                              .fd = take_fd(&fd),
	                              .dev = st.st_dev,
	                              .ino = st.st_ino};
	return 0;
}

void engine_volume_close(struct engine_volume *v)
{
	if (v->size)
		closep(&v->fd);
	*v = (struct engine_volume){.fd = -1};
}

int engine_volume_clone(int from, int to)
{
	struct stat st;

	if (ioctl(to, FICLONE, from) == 0)
		return 0;
	if (fstat(from, &st) < 0 || ftruncate(to, st.st_size) < 0)
		return -errno;
	return sparse_copy(from, to, 0, st.st_size);
}

void engine_machine_fini(struct engine_machine *m)
{
	closep(&m->dirfd);
	closep(&m->pidfd);
	closep(&m->top);
	closep(&m->control);
	engine_image_fini(&m->image);
	*m = (struct engine_machine)ENGINE_MACHINE_EMPTY;
}
