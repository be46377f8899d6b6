#include "vmm/volume.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "vmm/copy.h"
#include "vmm/disk.h"
#include "vmm/index.h"
#include "vmm/state.h"
#include "vmm/virtio/blk.h"
#include "vmm/virtio/mmio.h"
#include "wire/control.h"

static int slot_of(const struct volumes *v, const struct blk *b)
{
	return CTL_FD_VOLUME + (int)(b - v->blk);
}

void volumes_init(struct volumes *v, const struct ctl_volume is[CTL_VOLUMES_MAX],
                  const struct mem *mem)
{
	char name[20];

	v->copy = (struct copy){0};
	for (unsigned i = 0; i < CTL_VOLUMES_MAX; i++) {
		struct blk *b = &v->blk[i];

		disk_init_volume(&b->disk, CTL_FD_VOLUME + i, is[i].size, is[i].read_only);
		b->number = i;
		snprintf(name, sizeof(name), "pvol%u", i);
		blk_init(b, name, mem);
	}
}

/* --- requests */

/* A driver that does not say so may have it open always. */
static bool in_use(const struct blk *b)
{
	return vdev_live(&b->vdev) && (b->open || !vdev_has(&b->vdev, BLK_F_VOLUME));
}

/* The fd that came for this slot is put there. */
static int put_fd(const struct ctl_msg *msg, const int *fds, int slot)
{
	for (size_t i = 0; i < msg->nr_fds; i++)
		if (msg->slot[i] == slot)
			return dup3(fds[i], slot, O_CLOEXEC) < 0 ? -errno : 0;
	return -EINVAL;
}

static int attach(struct volumes *v, struct blk *b, const struct ctl_volume *is,
                  const struct ctl_msg *msg, const int *fds)
{
	int r;

	if (is->size == 0 || is->size % INDEX_PAGE)
		return -EINVAL;
	if (b->disk.size)
		return -EEXIST;
	if (in_use(b))
		return -EBUSY;
	r = put_fd(msg, fds, slot_of(v, b));
	if (r < 0)
		return r;
	b->disk.size = is->size;
	b->disk.read_only = is->read_only;
	vdev_config_changed(&b->vdev);
	return 0;
}

static int detach(struct volumes *v, struct blk *b, bool force)
{
	if (!b->disk.size)
		return -ENOENT;
	if (!force && in_use(b))
		return -EBUSY;
	if (b->disk.copy)
		volumes_end_copy(v);
	b->disk.size = 0;
	b->disk.read_only = false;
	close(slot_of(v, b));
	vdev_config_changed(&b->vdev);
	return 0;
}

static int grow(struct blk *b, uint64_t size)
{
	if (!b->disk.size || size < b->disk.size || size % INDEX_PAGE)
		return -EINVAL;
	b->disk.size = size;
	vdev_config_changed(&b->vdev);
	return 0;
}

static int begin_copy(struct volumes *v, struct blk *b, const struct ctl_msg *msg, const int *fds)
{
	int r;

	if (!b->disk.size || b->disk.read_only)
		return -EINVAL;
	volumes_end_copy(v); /* one at a time: the other's host is told by COPIED */
	r = put_fd(msg, fds, CTL_FD_COPY);
	if (r == 0 && (r = put_fd(msg, fds, CTL_FD_MARKS)) < 0)
		close(CTL_FD_COPY);
	if (r < 0)
		return r;
	copy_begin(&v->copy, CTL_FD_COPY, CTL_FD_MARKS, b->disk.size);
	b->disk.copy = &v->copy;
	return 0;
}

static int end_copy(struct volumes *v)
{
	for (unsigned i = 0; i < CTL_VOLUMES_MAX; i++)
		v->blk[i].disk.copy = NULL;
	return copy_end(&v->copy);
}

void volumes_end_copy(struct volumes *v)
{
	(void)end_copy(v);
}

int volumes_request(struct volumes *v, const struct ctl_msg *msg, const int *fds)
{
	uint64_t nr = msg->arg[CTL_VOLUME_NR];
	struct blk *b;

	if (nr >= CTL_VOLUMES_MAX)
		return -EINVAL;
	b = &v->blk[nr];
	switch (msg->arg[CTL_VOLUME_VERB]) {
	case CTL_VOLUME_ATTACH:
		return attach(v, b, &msg->volume[nr], msg, fds);
	case CTL_VOLUME_DETACH:
		return detach(v, b, msg->arg[CTL_VOLUME_FORCE]);
	case CTL_VOLUME_GROW:
		return grow(b, msg->volume[nr].size);
	case CTL_VOLUME_COPY:
		return begin_copy(v, b, msg, fds);
	case CTL_VOLUME_COPIED:
		return b->disk.copy ? end_copy(v) : -ENOENT;
	default:
		return -EINVAL;
	}
}

/* --- from life to life */

struct saved_volumes {
	uint64_t size[CTL_VOLUMES_MAX];
	uint32_t read_only, open; /* one bit each */
};

void volumes_save(const struct volumes *v, struct state_out *s)
{
	struct saved_volumes k = {0};

	for (unsigned i = 0; i < CTL_VOLUMES_MAX; i++) {
		const struct blk *b = &v->blk[i];

		vdev_save(&b->vdev, s);
		k.size[i] = b->disk.size;
		k.read_only |= (uint32_t)b->disk.read_only << i;
		k.open |= (uint32_t)b->open << i;
	}
	state_put(s, STATE_VOLUME, &k, sizeof(k));
}

int volumes_load(struct volumes *v, struct state_in *s, uint64_t *ret_lost)
{
	struct saved_volumes k;
	int r = 0;

	for (unsigned i = 0; r == 0 && i < CTL_VOLUMES_MAX; i++)
		r = vdev_load(&v->blk[i].vdev, s);
	if (r == 0)
		r = state_get(s, STATE_VOLUME, &k, sizeof(k));
	if (r == 0 && (k.read_only | k.open) >> CTL_VOLUMES_MAX)
		r = -EBADMSG;
	if (r < 0)
		return r;
	*ret_lost = 0;
	for (unsigned i = 0; i < CTL_VOLUMES_MAX; i++) {
		struct blk *b = &v->blk[i];

		b->open = k.open >> i & 1;
		if (k.size[i] && !b->disk.size)
			*ret_lost |= 1ull << i;
		if (k.size[i] != b->disk.size || (k.read_only >> i & 1) != b->disk.read_only)
			vdev_config_changed(&b->vdev);
	}
	return 0;
}
