/*
 * vmm/volume.h and copy.h: files that come and go behind a device while its driver runs, and what a
 * copy keeps.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_blk.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "guest.h"
#include "vmm/volume.h"

enum { BLOCK = INDEX_PAGE, SIZE = 3 * COPY_CHUNK + BLOCK, NR = 2 };

struct bench {
	struct guest g;
	struct volumes v;
	struct blk *b; /* the one under test */
};

/* Its driver takes all features that are offered, but for these. */
static void up_without(struct bench *t, uint64_t features)
{
	const struct ctl_volume none[CTL_VOLUMES_MAX] = {0};

	guest_new(&t->g);
	volumes_init(&t->v, none, &t->g.mem);
	t->b = &t->v.blk[NR];
	t->b->vdev.offered &= ~features;
	guest_probe(&t->g, &t->b->vdev);
	t->g.interrupts = 0;
}

static void up(struct bench *t)
{
	up_without(t, 0);
}

static void down(struct bench *t)
{
	volumes_end_copy(&t->v);
	guest_free(&t->g);
}

static int file_of(char fill, uint64_t size)
{
	int fd = memfd_create("volume", MFD_CLOEXEC);
	char block[BLOCK];

	assert_true(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	memset(block, fill, sizeof(block));
	for (uint64_t off = 0; fill && off < size; off += BLOCK)
		assert_int_equal(pwrite(fd, block, BLOCK, (off_t)off), BLOCK);
	return fd;
}

static char byte_of(int fd, uint64_t off)
{
	char c = '?';

	assert_int_equal(pread(fd, &c, 1, (off_t)off), 1);
	return c;
}

static int ask(struct bench *t, enum ctl_volume_verb verb, uint64_t size, bool read_only, int fd)
{
	struct ctl_msg msg = {.arg = {[CTL_VOLUME_NR] = NR, [CTL_VOLUME_VERB] = verb}};

	msg.volume[NR] = (struct ctl_volume){.size = size, .read_only = read_only};
	if (fd >= 0) {
		msg.nr_fds = 1;
		msg.slot[0] = CTL_FD_VOLUME + NR;
	}
	return volumes_request(&t->v, &msg, &fd);
}

static int attach(struct bench *t, uint64_t size, bool read_only)
{
	autoclose int fd = file_of('v', size);

	return ask(t, CTL_VOLUME_ATTACH, size, read_only, fd);
}

static int detach(struct bench *t, bool force)
{
	const struct ctl_msg msg = {.arg = {[CTL_VOLUME_NR] = NR,
	                                    [CTL_VOLUME_VERB] = CTL_VOLUME_DETACH,
	                                    [CTL_VOLUME_FORCE] = force}};

	return volumes_request(&t->v, &msg, NULL);
}

static void guest_opens(struct bench *t, uint32_t open)
{
	reg_write(&t->b->vdev, VDEV_CONFIG + BLK_CONFIG_OPEN, open);
}

static uint64_t capacity(struct bench *t)
{
	return vdev_read(&t->b->vdev, VDEV_CONFIG, 8) * 512;
}

static int put(struct bench *t, char fill, uint64_t off)
{
	char buf[BLOCK];
	struct iovec iov = {buf, BLOCK};

	memset(buf, fill, BLOCK);
	return disk_write(&t->b->disk, &iov, 1, off);
}

static void a_file_comes_grows_and_goes_and_the_driver_is_told(void **state)
{
	struct bench t;

	up(&t);
	assert_int_equal(detach(&t, true), -ENOENT);
	assert_int_equal(attach(&t, SIZE, false), 0);
	assert_int_equal(t.g.interrupts, 1);
	assert_int_equal(capacity(&t), SIZE);
	assert_int_equal(put(&t, 'x', BLOCK), 0);
	assert_int_equal(byte_of(CTL_FD_VOLUME + NR, BLOCK), 'x');
	assert_int_equal(attach(&t, SIZE, false), -EEXIST);
	assert_int_equal(ask(&t, CTL_VOLUME_GROW, SIZE + BLOCK, false, -1), 0);
	assert_int_equal(capacity(&t), SIZE + BLOCK);
	assert_int_equal(ask(&t, CTL_VOLUME_GROW, SIZE, false, -1), -EINVAL);
	assert_int_equal(ask(&t, CTL_VOLUME_GROW, SIZE + BLOCK + 1, false, -1), -EINVAL);
	assert_int_equal(detach(&t, false), 0);
	assert_int_equal(capacity(&t), 0);
	assert_int_equal(fcntl(CTL_FD_VOLUME + NR, F_GETFD), -1);
	assert_int_equal(put(&t, 'x', 0), -EINVAL);
	assert_int_equal(ask(&t, CTL_VOLUME_GROW, SIZE, false, -1), -EINVAL);
	down(&t);
}

/* What a driver finds at the place of the volume under test: a block device (2), or nothing. */
static uint32_t found(struct bench *t)
{
	return reg_read(&t->b->vdev, VIRTIO_MMIO_DEVICE_ID);
}

static void a_place_is_empty_until_a_file_comes_or_a_driver_knows_it(void **state)
{
	struct bench t;

	up(&t);
	reg_write(&t.b->vdev, VIRTIO_MMIO_STATUS, 0);
	assert_int_equal(found(&t), 0);
	assert_int_equal(attach(&t, SIZE, false), 0);
	assert_int_equal(found(&t), 2);
	assert_int_equal(reg_read(&t.b->vdev, VDEV_CONFIG + BLK_CONFIG_NUMBER), NR);
	assert_int_equal(detach(&t, false), 0); /* nobody has looked at it */
	assert_int_equal(found(&t), 0);
	assert_int_equal(attach(&t, SIZE, false), 0);
	guest_probe(&t.g, &t.b->vdev);
	assert_int_equal(detach(&t, false), 0);
	assert_int_equal(found(&t), 2);
	reg_write(&t.b->vdev, VIRTIO_MMIO_STATUS, 0);
	assert_int_equal(found(&t), 0);
	down(&t);
}

static void one_for_reading_says_so_and_refuses_writes(void **state)
{
	struct bench t;

	up(&t);
	assert_int_equal(attach(&t, SIZE, true), 0);
	assert_int_equal(reg_read(&t.b->vdev, VDEV_CONFIG + BLK_CONFIG_READ_ONLY), 1);
	assert_int_equal(put(&t, 'x', 0), -EROFS);
	assert_int_equal(detach(&t, false), 0);
	assert_int_equal(reg_read(&t.b->vdev, VDEV_CONFIG + BLK_CONFIG_READ_ONLY), 0);
	down(&t);
}

static void what_the_guest_has_open_is_taken_only_by_force_and_gets_nothing_new(void **state)
{
	struct bench t;

	up(&t);
	assert_int_equal(attach(&t, SIZE, false), 0);
	guest_opens(&t, 1);
	assert_int_equal(detach(&t, false), -EBUSY);
	assert_int_equal(capacity(&t), SIZE);
	assert_int_equal(detach(&t, true), 0);
	assert_int_equal(attach(&t, SIZE, false), -EBUSY);
	assert_int_equal(fcntl(CTL_FD_VOLUME + NR, F_GETFD), -1);
	guest_opens(&t, 0);
	assert_int_equal(attach(&t, SIZE, false), 0);
	/* A driver that goes has nothing open any more. */
	guest_opens(&t, 1);
	reg_write(&t.b->vdev, VIRTIO_MMIO_STATUS, 0);
	assert_int_equal(detach(&t, false), 0);
	down(&t);
}

static void a_driver_that_does_not_tell_may_have_it_open(void **state)
{
	struct bench t;

	up_without(&t, 1ull << BLK_F_VOLUME);
	guest_opens(&t, 0);
	assert_int_equal(attach(&t, SIZE, false), -EBUSY);
	down(&t);
}

static void nonsense_is_refused_and_changes_nothing(void **state)
{
	const struct ctl_msg bad[] = {
	    {.arg = {[CTL_VOLUME_NR] = CTL_VOLUMES_MAX, [CTL_VOLUME_VERB] = CTL_VOLUME_ATTACH}},
	    {.arg = {[CTL_VOLUME_NR] = UINT64_MAX, [CTL_VOLUME_VERB] = CTL_VOLUME_DETACH}},
	    {.arg = {[CTL_VOLUME_NR] = NR, [CTL_VOLUME_VERB] = 77}},
	    {.arg = {[CTL_VOLUME_NR] = NR, [CTL_VOLUME_VERB] = CTL_VOLUME_COPY}},
	};
	struct bench t;

	up(&t);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(volumes_request(&t.v, &bad[i], NULL), -EINVAL);
	assert_int_equal(ask(&t, CTL_VOLUME_ATTACH, SIZE, false, -1), -EINVAL); /* no file */
	assert_int_equal(attach(&t, SIZE + 1, false), -EINVAL);
	assert_int_equal(ask(&t, CTL_VOLUME_COPIED, 0, false, -1), -ENOENT);
	assert_int_equal(t.g.interrupts, 0);
	assert_int_equal(capacity(&t), 0);
	/* The config's other bytes are not the driver's. */
	reg_write(&t.b->vdev, VDEV_CONFIG, 5);
	vdev_write(&t.b->vdev, VDEV_CONFIG + BLK_CONFIG_OPEN, 1, 1);
	assert_int_equal(capacity(&t), 0);
	assert_false(t.b->open);
	down(&t);
}

/* --- copies */

static int begin_copy(struct bench *t, int to, int marks)
{
	struct ctl_msg msg = {.arg = {[CTL_VOLUME_NR] = NR, [CTL_VOLUME_VERB] = CTL_VOLUME_COPY},
	                      .nr_fds = 2,
	                      .slot = {CTL_FD_COPY, CTL_FD_MARKS}};
	int fds[] = {to, marks};

	return volumes_request(&t->v, &msg, fds);
}

static void what_is_about_to_change_is_kept_once(void **state)
{
	autoclose int to = file_of(0, SIZE), marks = file_of(0, 4);
	struct bench t;

	up(&t);
	assert_int_equal(attach(&t, SIZE, false), 0);
	assert_int_equal(begin_copy(&t, to, marks), 0);
	assert_int_equal(put(&t, 'x', COPY_CHUNK), 0);
	assert_int_equal(put(&t, 'y', COPY_CHUNK), 0); /* what is kept is as of then */
	assert_int_equal(disk_zero(&t.b->disk, 3 * COPY_CHUNK, BLOCK), 0);
	for (unsigned i = 0; i < 4; i++) {
		bool kept = i == 1 || i == 3; /* the last one is shorter */

		assert_int_equal(byte_of(marks, i), kept);
		assert_int_equal(byte_of(to, i * COPY_CHUNK), kept ? 'v' : 0);
	}
	assert_int_equal(byte_of(to, 2 * COPY_CHUNK - 1), 'v');
	assert_int_equal(byte_of(CTL_FD_VOLUME + NR, COPY_CHUNK), 'y');
	/* What was added since is nobody's. */
	assert_int_equal(ftruncate(CTL_FD_VOLUME + NR, SIZE + BLOCK), 0);
	assert_int_equal(ask(&t, CTL_VOLUME_GROW, SIZE + BLOCK, false, -1), 0);
	assert_int_equal(put(&t, 'x', SIZE), 0);
	assert_int_equal(ask(&t, CTL_VOLUME_COPIED, 0, false, -1), 0);
	assert_int_equal(fcntl(CTL_FD_COPY, F_GETFD), -1);
	assert_int_equal(fcntl(CTL_FD_MARKS, F_GETFD), -1);
	assert_int_equal(put(&t, 'x', 0), 0);
	assert_int_equal(byte_of(marks, 0), 0);
	down(&t);
}

static void a_copy_that_fails_does_so_alone(void **state)
{
	autoclose int to = open("/dev/full", O_RDWR | O_CLOEXEC), marks = file_of(0, 4);
	struct bench t;

	up(&t);
	assert_int_equal(attach(&t, SIZE, false), 0);
	assert_int_equal(begin_copy(&t, to, marks), 0);
	assert_int_equal(put(&t, 'x', 0), 0);
	assert_int_equal(byte_of(CTL_FD_VOLUME + NR, 0), 'x');
	assert_int_equal(ask(&t, CTL_VOLUME_COPIED, 0, false, -1), -ENOSPC);
	/* The volume goes, and with it the next one. */
	assert_int_equal(begin_copy(&t, to, marks), 0);
	assert_int_equal(detach(&t, true), 0);
	assert_int_equal(ask(&t, CTL_VOLUME_COPIED, 0, false, -1), -ENOENT);
	assert_int_equal(fcntl(CTL_FD_COPY, F_GETFD), -1);
	down(&t);
}

/* --- from life to life */

static void the_next_life_knows_what_is_open_and_what_is_lost(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0};
	struct ctl_volume is[CTL_VOLUMES_MAX] = {0};
	struct state_in in;
	struct volumes next;
	struct bench t;
	uint64_t lost;

	up(&t);
	assert_int_equal(attach(&t, SIZE, false), 0);
	guest_opens(&t, 1);
	volumes_save(&t.v, &out);
	volumes_init(&next, is, &t.g.mem);
	in = (struct state_in){.buf = out.buf, .len = out.len};
	assert_int_equal(volumes_load(&next, &in, &lost), 0);
	assert_int_equal(lost, 1 << NR);
	assert_true(next.blk[NR].open);
	assert_false(next.blk[NR - 1].open);
	assert_true(next.blk[NR].vdev.interrupts & VIRTIO_MMIO_INT_CONFIG);
	/* With the same file nothing has changed; for reading only, it has. */
	is[NR].size = SIZE;
	for (uint32_t read_only = 0; read_only < 2; read_only++) {
		is[NR].read_only = read_only;
		volumes_init(&next, is, &t.g.mem);
		in.at = 0;
		assert_int_equal(volumes_load(&next, &in, &lost), 0);
		assert_int_equal(lost, 0);
		assert_int_equal(next.blk[NR].vdev.generation - t.b->vdev.generation, read_only);
	}
	/* More volumes than there are. */
	out.buf[out.len - 1] = 1;
	in.at = 0;
	volumes_init(&next, is, &t.g.mem);
	assert_int_equal(volumes_load(&next, &in, &lost), -EBADMSG);
	down(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_file_comes_grows_and_goes_and_the_driver_is_told),
	    cmocka_unit_test(a_place_is_empty_until_a_file_comes_or_a_driver_knows_it),
	    cmocka_unit_test(one_for_reading_says_so_and_refuses_writes),
	    cmocka_unit_test(what_the_guest_has_open_is_taken_only_by_force_and_gets_nothing_new),
	    cmocka_unit_test(a_driver_that_does_not_tell_may_have_it_open),
	    cmocka_unit_test(nonsense_is_refused_and_changes_nothing),
	    cmocka_unit_test(what_is_about_to_change_is_kept_once),
	    cmocka_unit_test(a_copy_that_fails_does_so_alone),
	    cmocka_unit_test(the_next_life_knows_what_is_open_and_what_is_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
