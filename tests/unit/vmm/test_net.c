/*
 * vmm/virtio/net.h, rng.h and balloon.h: frames, random bytes, and memory that goes back.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_balloon.h>
#include <linux/virtio_net.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "guest.h"
#include "turn.h"
#include "vmm/virtio/balloon.h"
#include "vmm/virtio/net.h"
#include "vmm/virtio/rng.h"

enum { RX, TX, SHORT = 10, LONG = 12 };

struct bench {
	struct guest g;
	struct virtio_net n;
	struct loop *loop;
	pthread_mutex_t lock;
	int tap, wire; /* what the device has, and the other end */
};

static int setup(void **state)
{
	struct bench *b = calloc(1, sizeof(*b));
	int s[2];

	guest_new(&b->g);
	pthread_mutex_init(&b->lock, NULL);
	assert_int_equal(loop_new(&b->loop), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, s), 0);
	b->tap = s[0];
	b->wire = s[1];
	assert_int_equal(net_init(&b->n, b->loop, &b->lock, b->tap, &b->g.mem), 0);
	guest_probe(&b->g, &b->n.vdev);
	*state = b;
	return 0;
}

static int teardown(void **state)
{
	struct bench *b = *state;

	loop_free(b->loop);
	close(b->tap);
	close(b->wire);
	guest_free(&b->g);
	free(b);
	return 0;
}

static void a_frame_goes_out_with_the_short_header(void **state)
{
	struct bench *b = *state;
	const struct piece p[] = {{GUEST_DATA, LONG, 0}, {GUEST_DATA + 100, 60, 0}};
	uint8_t got[100];

	memset(guest_at(&b->g, GUEST_DATA), 0x11, LONG);
	memset(guest_at(&b->g, GUEST_DATA + 100), 0x22, 60);
	guest_add(&b->g, TX, p, 2);
	guest_ring(&b->n.vdev, TX);
	assert_true(guest_used_next(&b->g, TX, NULL, NULL));
	assert_int_equal(read(b->wire, got, sizeof(got)), SHORT + 60);
	assert_int_equal(got[SHORT - 1], 0x11);
	assert_int_equal(got[SHORT], 0x22);
	/* What has no frame in it is swallowed. */
	guest_add(&b->g, TX, p, 1);
	guest_ring(&b->n.vdev, TX);
	assert_true(guest_used_next(&b->g, TX, NULL, NULL));
	assert_int_equal(read(b->wire, got, sizeof(got)), -1);
	assert_false(guest_sees_broken(&b->n.vdev));
}

static void a_large_frame_fills_several_buffers(void **state)
{
	struct bench *b = *state;
	uint8_t frame[SHORT + 3000], *at = guest_at(&b->g, GUEST_DATA);
	struct virtio_net_hdr_mrg_rxbuf head;
	uint32_t len[3];

	for (unsigned i = 0; i < 4; i++)
		guest_add(&b->g, RX,
		          &(struct piece){GUEST_DATA + i * 4096u, 1500, VRING_DESC_F_WRITE}, 1);
	guest_ring(&b->n.vdev, RX);
	memset(frame, 0x33, SHORT);
	frame[0] = 0;
	memset(frame + SHORT, 0x44, 3000);
	assert_int_equal(write(b->wire, frame, sizeof(frame)), sizeof(frame));
	turn(b->loop);
	for (unsigned i = 0; i < 3; i++)
		assert_true(guest_used_next(&b->g, RX, NULL, &len[i]));
	assert_false(guest_used_next(&b->g, RX, NULL, NULL)); /* the fourth is still free */
	assert_int_equal(len[0] + len[1] + len[2], LONG + 3000);
	memcpy(&head, at, sizeof(head));
	assert_int_equal(head.num_buffers, 3);
	assert_int_equal(at[LONG], 0x44);
	assert_int_equal(at[2 * 4096 + len[2] - 1], 0x44);
	assert_int_equal(b->n.vdev.queue[RX].next_avail, 3);
}

static void a_frame_waits_while_there_is_no_room(void **state)
{
	struct bench *b = *state;
	uint8_t frame[SHORT + 60] = {0};
	uint32_t len;

	guest_ring(&b->n.vdev, RX);
	assert_int_equal(write(b->wire, frame, sizeof(frame)), sizeof(frame));
	turn(b->loop);
	turn(b->loop);
	assert_false(b->n.reading); /* nor does anybody spin */
	guest_add(&b->g, RX, &(struct piece){GUEST_DATA, 2048, VRING_DESC_F_WRITE}, 1);
	guest_ring(&b->n.vdev, RX);
	turn(b->loop);
	assert_true(guest_used_next(&b->g, RX, NULL, &len));
	assert_int_equal(len, LONG + 60);
}

static void a_receive_buffer_that_is_none_breaks_the_device(void **state)
{
	struct bench *b = *state;
	uint8_t frame[SHORT + 60] = {0};

	guest_add(&b->g, RX, &(struct piece){GUEST_DATA, LONG - 1, VRING_DESC_F_WRITE}, 1);
	guest_ring(&b->n.vdev, RX);
	assert_int_equal(write(b->wire, frame, sizeof(frame)), sizeof(frame));
	turn(b->loop);
	assert_true(guest_sees_broken(&b->n.vdev));
	turn(b->loop);
}

static void without_a_tap_there_is_no_carrier(void **state)
{
	struct bench *b = *state;
	struct virtio_net n;

	assert_int_equal(vdev_read(&b->n.vdev, VDEV_CONFIG + 6, 2), VIRTIO_NET_S_LINK_UP);
	assert_int_equal(vdev_read(&b->n.vdev, VDEV_CONFIG, 1), 0x06);
	assert_int_equal(net_init(&n, b->loop, &b->lock, -1, &b->g.mem), 0);
	assert_int_equal(vdev_read(&n.vdev, VDEV_CONFIG + 6, 2), 0);
	guest_probe(&b->g, &n.vdev);
	memset(guest_at(&b->g, GUEST_RINGS), 0, GUEST_RINGS);
	b->g.avail[TX] = 0;
	guest_add(&b->g, TX, &(struct piece){GUEST_DATA, 100, 0}, 1);
	guest_ring(&n.vdev, TX);
	assert_true(guest_used_next(&b->g, TX, NULL, NULL));
}

static void random_bytes_are_not_the_same_twice(void **state)
{
	struct guest g;
	struct rng r;
	uint8_t a[32], *at;
	uint32_t len;

	guest_new(&g);
	rng_init(&r, &g.mem);
	guest_probe(&g, &r.vdev);
	at = guest_at(&g, GUEST_DATA);
	for (int i = 0; i < 2; i++) {
		memcpy(a, at, sizeof(a));
		guest_add(&g, 0, &(struct piece){GUEST_DATA, 32, VRING_DESC_F_WRITE}, 1);
		guest_ring(&r.vdev, 0);
		assert_true(guest_used_next(&g, 0, NULL, &len));
		assert_int_equal(len, 32);
		assert_memory_not_equal(a, at, sizeof(a));
	}
	/* A request without room gets nothing, and harms nobody. */
	guest_add(&g, 0, &(struct piece){GUEST_DATA, 32, 0}, 1);
	guest_ring(&r.vdev, 0);
	assert_true(guest_used_next(&g, 0, NULL, &len));
	assert_int_equal(len, 0);
	guest_free(&g);
}

/* --- memory */

enum { TOP = 110, STATS = 2, REPORTS = 3, RAM_SIZE = 32 << 20 };

static void reported_pages_go_back_and_read_as_zeros(void **state)
{
	struct ram ram = {.top_slot = TOP, .layer_slot = 120, .pagemap_slot = 119};
	struct virtio_balloon_stat stat = {VIRTIO_BALLOON_S_MEMFREE, 12345678};
	unsigned char there[(2 << 20) / INDEX_PAGE];
	struct balloon b;
	struct guest g = {0};
	uint64_t at = 16 << 20;

	assert_int_equal(ram_boot(&ram, RAM_SIZE), 0);
	g.mem = ram.mem;
	balloon_init(&b, &ram);
	guest_probe(&g, &b.vdev);
	memset(ram.mem.base + at, 0x55, 2 << 20);
	guest_add(&g, REPORTS, &(struct piece){at, 2 << 20, VRING_DESC_F_WRITE}, 1);
	guest_ring(&b.vdev, REPORTS);
	assert_true(guest_used_next(&g, REPORTS, NULL, NULL));
	assert_int_equal(mincore(ram.mem.base + at, 2 << 20, there), 0);
	for (size_t i = 0; i < sizeof(there); i++)
		assert_false(there[i] & 1);
	assert_int_equal(ram.mem.base[at], 0);

	/* How much is free: told, and told again when asked. */
	memcpy(guest_at(&g, GUEST_DATA), &stat, sizeof(stat));
	guest_add(&g, STATS, &(struct piece){GUEST_DATA, sizeof(stat), 0}, 1);
	guest_ring(&b.vdev, STATS);
	assert_int_equal(b.free_bytes, 12345678);
	assert_false(guest_used_next(&g, STATS, NULL, NULL)); /* kept until then */
	assert_true(balloon_ask(&b));
	assert_true(guest_used_next(&g, STATS, NULL, NULL));
	assert_false(balloon_ask(&b));
	stat.val = ~0ull;
	memcpy(guest_at(&g, GUEST_DATA), &stat, sizeof(stat));
	guest_add(&g, STATS, &(struct piece){GUEST_DATA, sizeof(stat), 0}, 1);
	guest_ring(&b.vdev, STATS);
	assert_int_equal(b.free_bytes, RAM_SIZE);
	assert_int_equal(b.stats_seen, 2);
	ram_fini(&ram);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
	    T(a_frame_goes_out_with_the_short_header),
	    T(a_large_frame_fills_several_buffers),
	    T(a_frame_waits_while_there_is_no_room),
	    T(a_receive_buffer_that_is_none_breaks_the_device),
	    T(without_a_tap_there_is_no_carrier),
	    cmocka_unit_test(random_bytes_are_not_the_same_twice),
	    cmocka_unit_test(reported_pages_go_back_and_read_as_zeros),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
