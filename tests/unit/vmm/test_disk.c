/*
 * vmm/disk.h, index.h and virtio/blk.h: layers of a disk, and the requests that read and write
 * them.
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
#include "vmm/virtio/blk.h"

enum { SLOT = 100, BLOCKS = 64, BLOCK = INDEX_PAGE, SIZE = BLOCKS * BLOCK };

static int layer_of(char fill)
{
	int fd = memfd_create("layer", MFD_CLOEXEC);
	char block[BLOCK];

	assert_true(fd >= 0 && ftruncate(fd, SIZE) == 0);
	memset(block, fill, sizeof(block));
	for (int i = 0; fill && i < BLOCKS; i++)
		assert_int_equal(pwrite(fd, block, BLOCK, i * BLOCK), BLOCK);
	return fd;
}

static void place(int fd, unsigned slot)
{
	assert_true(dup2(fd, (int)slot) >= 0);
	close(fd);
}

/* A base of 'a' and an empty top. */
static void two_layers(struct disk *d)
{
	place(layer_of('a'), SLOT);
	place(layer_of(0), SLOT + 1);
	assert_int_equal(disk_init(d, SLOT, SIZE, 2, false), 0);
}

static void put(struct disk *d, unsigned block, char fill)
{
	char buf[BLOCK];
	struct iovec iov = {buf, BLOCK};

	memset(buf, fill, BLOCK);
	assert_int_equal(disk_write(d, &iov, 1, block * BLOCK), 0);
}

static char get(struct disk *d, unsigned block)
{
	char buf[BLOCK];
	struct iovec iov = {buf, BLOCK};

	memset(buf, '?', BLOCK);
	assert_int_equal(disk_read(d, &iov, 1, block * BLOCK), 0);
	assert_memory_equal(buf, buf + 1, BLOCK - 1);
	return buf[0];
}

/* As the host does it: the top again, read-only, and a new empty file. */
static void seal(struct disk *d)
{
	char path[32];
	uint64_t live;

	assert_int_equal(disk_compact(d, &live), 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%u", SLOT + d->layers - 1);
	assert_int_equal(disk_seal(d, open(path, O_RDONLY | O_CLOEXEC), layer_of(0)), 0);
}

static void what_was_written_is_read_and_the_base_stays(void **state)
{
	struct disk d;
	char base;

	two_layers(&d);
	put(&d, 3, 'x');
	assert_int_equal(get(&d, 2), 'a');
	assert_int_equal(get(&d, 3), 'x');
	assert_int_equal(pread(SLOT, &base, 1, 3 * BLOCK), 1);
	assert_int_equal(base, 'a');
	disk_fini(&d);
}

static void a_read_may_cross_layers_and_pieces(void **state)
{
	char buf[4 * BLOCK];
	struct iovec iov[] = {{buf, 100},
	                      {buf + 100, 2 * BLOCK},
	                      {buf + 100 + 2 * BLOCK, 2 * BLOCK - 100}};
	struct disk d;

	two_layers(&d);
	put(&d, 1, 'x');
	put(&d, 2, 'y');
	assert_int_equal(disk_read(&d, iov, 3, 0), 0);
	for (size_t i = 0; i < sizeof(buf); i++)
		assert_int_equal(buf[i], "axya"[i / BLOCK]);
	disk_fini(&d);
}

static void zeroed_blocks_read_as_zeros_and_hide_the_base(void **state)
{
	struct disk d;

	two_layers(&d);
	assert_int_equal(disk_zero(&d, BLOCK, 2 * BLOCK), 0);
	assert_int_equal(get(&d, 0), 'a');
	assert_int_equal(get(&d, 1), 0);
	assert_int_equal(get(&d, 2), 0);
	assert_int_equal(get(&d, 3), 'a');
	assert_int_equal(disk_zero(&d, SIZE - BLOCK, 2 * BLOCK), -EINVAL);
	assert_int_equal(disk_zero(&d, 512, BLOCK), -EINVAL);
	disk_fini(&d);
}

static void what_reaches_past_the_end_is_refused(void **state)
{
	char buf[2 * BLOCK];
	struct disk d;
	const struct {
		uint64_t off, len;
	} bad[] = {{SIZE, BLOCK}, {SIZE - BLOCK, 2 * BLOCK},      {512, BLOCK}, {0, 512},
	           {0, 0},        {UINT64_MAX - BLOCK + 1, BLOCK}};

	two_layers(&d);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct iovec iov = {buf, bad[i].len};

		assert_int_equal(disk_read(&d, &iov, 1, bad[i].off), -EINVAL);
		assert_int_equal(disk_write(&d, &iov, 1, bad[i].off), -EINVAL);
	}
	d.read_only = true;
	assert_int_equal(disk_write(&d, &(struct iovec){buf, BLOCK}, 1, 0), -EROFS);
	assert_int_equal(disk_zero(&d, 0, BLOCK), -EROFS);
	disk_fini(&d);
}

static void a_sealed_disk_goes_on_above_and_is_loaded_elsewhere(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0};
	struct state_in in;
	struct disk d, other;

	two_layers(&d);
	put(&d, 1, 'x');
	disk_save(&d, &out);
	seal(&d);
	assert_int_equal(d.layers, 3);
	put(&d, 1, 'y'); /* what was sealed does not change */
	put(&d, 2, 'z');
	assert_int_equal(get(&d, 1), 'y');

	place(layer_of(0), SLOT + 2); /* the other one's own top */
	assert_int_equal(disk_init(&other, SLOT, SIZE, 3, false), 0);
	in = (struct state_in){.buf = out.buf, .len = out.len};
	assert_int_equal(disk_load(&other, &in), 0);
	assert_int_equal(get(&other, 1), 'x');
	assert_int_equal(get(&other, 2), 'a');
	disk_fini(&other);

	/* With another number of layers, or another size, it is another disk. */
	assert_int_equal(disk_init(&other, SLOT, SIZE, 4, false), 0);
	in.at = 0;
	assert_int_equal(disk_load(&other, &in), -EBADMSG);
	disk_fini(&other);
	disk_fini(&d);
}

static void a_long_chain_is_kept_short_and_nothing_is_lost(void **state)
{
	uint64_t live;
	struct disk d;

	two_layers(&d);
	for (unsigned i = 0; i < 200; i++) {
		put(&d, i % BLOCKS, (char)('A' + i % 26));
		seal(&d);
		assert_true(d.layers <= DISK_CHAIN_MAX + 2);
	}
	for (unsigned i = 200 - BLOCKS; i < 200; i++)
		assert_int_equal(get(&d, i % BLOCKS), 'A' + i % 26);
	/* What it says about them is what the host needs to drop the same ones. */
	while (d.layers <= DISK_CHAIN_MAX)
		seal(&d);
	assert_int_equal(disk_compact(&d, &live), 0);
	assert_int_equal(d.layers, 2);
	assert_int_equal(live, 1);
	disk_fini(&d);
}

static void the_index_loads_what_it_saved_and_refuses_nonsense(void **state)
{
	const struct extent bad[][2] = {
	    {{0, 0, 1}, {5, 1, 1}},   /* empty */
	    {{0, 5, 1}, {4, 1, 1}},   /* overlaps */
	    {{60, 5, 1}, {70, 1, 1}}, /* past the end */
	    {{UINT64_MAX, 2, 1}, {0, 1, 1}},
	    {{0, 1, 0}, {5, 1, 1}}, /* nothing is not written down */
	    {{0, 1, 4}, {5, 1, 1}}, /* no such layer */
	    {{0, 1, 257}, {5, 1, 1}},
	};
	const struct extent good[] = {{1, 2, 3}, {3, 1, 1}, {63, 1, 2}};
	struct extent back[3];
	struct page_index x;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_int_equal(page_index_init(&x, BLOCKS), 0);
		assert_int_equal(page_index_load(&x, bad[i], 2, 3), -EBADMSG);
		page_index_fini(&x);
	}
	assert_int_equal(page_index_init(&x, BLOCKS), 0);
	assert_int_equal(page_index_load(&x, good, 3, 3), 0);
	assert_int_equal(page_index_extents(&x, back, 3), 3);
	assert_memory_equal(back, good, sizeof(good));
	assert_int_equal(page_index_extents(&x, back, 2), -E2BIG);
	/* Layer numbers from 1: the first (bit 0) dies. */
	page_index_renumber(&x, 1, 1, 0);
	assert_int_equal(x.at[1], 2);
	assert_int_equal(x.at[3], 0);
	assert_int_equal(x.at[63], 1);
	page_index_fini(&x);
}

/* --- requests */

struct bench {
	struct guest g;
	struct blk b;
};

static void blk_up(struct bench *t)
{
	guest_new(&t->g);
	two_layers(&t->b.disk);
	blk_init(&t->b, "pblk1", &t->g.mem);
	guest_probe(&t->g, &t->b.vdev);
}

static void blk_down(struct bench *t)
{
	disk_fini(&t->b.disk);
	guest_free(&t->g);
}

enum { HEAD = GUEST_DATA, STATUS = GUEST_DATA + 64, DATA = GUEST_DATA + 4096 };

/* Carries one out and returns its status byte; '?' when it was not answered. */
static int request(struct bench *t, uint32_t type, uint64_t sector, uint32_t len, bool write)
{
	struct virtio_blk_outhdr h = {.type = type, .sector = sector};
	const struct piece p[] = {{HEAD, sizeof(h), 0},
	                          {DATA, len, write ? VRING_DESC_F_WRITE : 0},
	                          {STATUS, 1, VRING_DESC_F_WRITE}};
	uint8_t *status = guest_at(&t->g, STATUS);

	memcpy(guest_at(&t->g, HEAD), &h, sizeof(h));
	*status = '?';
	if (len) {
		guest_add(&t->g, 0, p, 3);
	} else {
		const struct piece q[] = {p[0], p[2]};

		guest_add(&t->g, 0, q, 2);
	}
	guest_ring(&t->b.vdev, 0);
	while (guest_used_next(&t->g, 0, NULL, NULL))
		;
	return *status;
}

static void requests_do_what_they_say(void **state)
{
	struct bench t;
	char *data;

	blk_up(&t);
	data = guest_at(&t.g, DATA);
	assert_int_equal(request(&t, VIRTIO_BLK_T_IN, 8, BLOCK, true), VIRTIO_BLK_S_OK);
	assert_int_equal(data[BLOCK - 1], 'a');
	memset(data, 'w', BLOCK);
	assert_int_equal(request(&t, VIRTIO_BLK_T_OUT, 8, BLOCK, false), VIRTIO_BLK_S_OK);
	assert_int_equal(get(&t.b.disk, 1), 'w');
	assert_int_equal(request(&t, VIRTIO_BLK_T_FLUSH, 0, 0, false), VIRTIO_BLK_S_OK);
	assert_int_equal(request(&t, VIRTIO_BLK_T_GET_ID, 0, 20, true), VIRTIO_BLK_S_OK);
	assert_string_equal(data, "pblk1");
	*(struct virtio_blk_discard_write_zeroes *)data =
	    (struct virtio_blk_discard_write_zeroes){.sector = 8, .num_sectors = 8};
	assert_int_equal(request(&t, VIRTIO_BLK_T_DISCARD, 0, 16, false), VIRTIO_BLK_S_OK);
	assert_int_equal(get(&t.b.disk, 1), 0);
	assert_int_equal(request(&t, 77, 0, BLOCK, true), VIRTIO_BLK_S_UNSUPP);
	blk_down(&t);
}

static void requests_that_cannot_be_fail_alone(void **state)
{
	struct bench t;
	struct virtio_blk_discard_write_zeroes *z;

	blk_up(&t);
	z = guest_at(&t.g, DATA);
	assert_int_equal(request(&t, VIRTIO_BLK_T_IN, SIZE / 512, BLOCK, true), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(&t, VIRTIO_BLK_T_IN, 1ull << 55, BLOCK, true), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(&t, VIRTIO_BLK_T_IN, 1, BLOCK, true), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(&t, VIRTIO_BLK_T_OUT, 0, 100, false), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(&t, VIRTIO_BLK_T_OUT, 0, 0, false), VIRTIO_BLK_S_IOERR);
	*z = (struct virtio_blk_discard_write_zeroes){.sector = ~0ull, .num_sectors = ~0u};
	assert_int_equal(request(&t, VIRTIO_BLK_T_WRITE_ZEROES, 0, 16, false), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(&t, VIRTIO_BLK_T_DISCARD, 0, 15, false), VIRTIO_BLK_S_IOERR);
	assert_int_equal(request(&t, VIRTIO_BLK_T_IN, 0, BLOCK, true), VIRTIO_BLK_S_OK);
	/* But one without room for an answer is no request. */
	guest_add(&t.g, 0, &(struct piece){HEAD, 16, 0}, 1);
	guest_ring(&t.b.vdev, 0);
	assert_true(guest_sees_broken(&t.b.vdev));
	blk_down(&t);
}

static void a_volume_of_no_size_has_errors_only(void **state)
{
	struct bench t;

	guest_new(&t.g);
	disk_init_volume(&t.b.disk, SLOT, 0, false);
	blk_init(&t.b, "pvol0", &t.g.mem);
	guest_probe(&t.g, &t.b.vdev);
	assert_int_equal(vdev_read(&t.b.vdev, VDEV_CONFIG, 8), 0);
	assert_int_equal(request(&t, VIRTIO_BLK_T_IN, 0, BLOCK, true), VIRTIO_BLK_S_IOERR);
	/* In its next life there is a file. */
	place(layer_of('v'), SLOT);
	disk_init_volume(&t.b.disk, SLOT, SIZE, true);
	t.g.interrupts = 0;
	vdev_config_changed(&t.b.vdev);
	assert_int_equal(t.g.interrupts, 1);
	assert_int_equal(vdev_read(&t.b.vdev, VDEV_CONFIG, 8), SIZE / 512);
	assert_int_equal(request(&t, VIRTIO_BLK_T_IN, 0, BLOCK, true), VIRTIO_BLK_S_OK);
	assert_int_equal(request(&t, VIRTIO_BLK_T_OUT, 0, BLOCK, false), VIRTIO_BLK_S_IOERR);
	guest_free(&t.g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_was_written_is_read_and_the_base_stays),
	    cmocka_unit_test(a_read_may_cross_layers_and_pieces),
	    cmocka_unit_test(zeroed_blocks_read_as_zeros_and_hide_the_base),
	    cmocka_unit_test(what_reaches_past_the_end_is_refused),
	    cmocka_unit_test(a_sealed_disk_goes_on_above_and_is_loaded_elsewhere),
	    cmocka_unit_test(a_long_chain_is_kept_short_and_nothing_is_lost),
	    cmocka_unit_test(the_index_loads_what_it_saved_and_refuses_nonsense),
	    cmocka_unit_test(requests_do_what_they_say),
	    cmocka_unit_test(requests_that_cannot_be_fail_alone),
	    cmocka_unit_test(a_volume_of_no_size_has_errors_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
