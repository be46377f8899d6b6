/*
 * vmm/virtio/queue.h and mmio.h: a driver that behaves, and drivers that lie.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "guest.h"

/* A device that writes one byte into each request. */
static void echo_work(struct vdev *v)
{
	struct chain c;

	while (vdev_pop(v, 0, &c)) {
		if (c.nin)
			iov_copy_in(chain_in(&c), c.nin, 0, "x", 1);
		queue_push(&v->queue[0], c.head, 1);
		vdev_signal(v, 0);
	}
}

static void config_read(struct vdev *v, size_t off, void *buf, size_t len)
{
	memcpy(buf, "abcdefgh" + off, len);
}

static const struct vdev_ops echo = {.id = 42,
                                     .features = 1,
                                     .queues = 2,
                                     .queue_max = 64,
                                     .work = echo_work,
                                     .config_len = 8,
                                     .config_read = config_read};

struct bench {
	struct guest g;
	struct vdev v;
};

static int setup(void **state)
{
	struct bench *b = calloc(1, sizeof(*b));

	guest_new(&b->g);
	vdev_init(&b->v, &echo, &b->g.mem);
	guest_probe(&b->g, &b->v);
	*state = b;
	return 0;
}

static int teardown(void **state)
{
	struct bench *b = *state;

	guest_free(&b->g);
	free(b);
	return 0;
}

static void a_request_is_answered(void **state)
{
	struct bench *b = *state;
	const struct piece p[] = {{GUEST_DATA, 16, 0}, {GUEST_DATA + 4096, 8, VRING_DESC_F_WRITE}};
	uint16_t head, got;
	uint32_t len;

	for (unsigned i = 0; i < 3 * GUEST_QUEUE; i++) { /* the rings go round */
		head = guest_add(&b->g, 0, p, 2);
		guest_ring(&b->v, 0);
		assert_true(guest_used_next(&b->g, 0, &got, &len));
		assert_int_equal(got, head);
		assert_int_equal(len, 1);
		assert_int_equal(*(char *)guest_at(&b->g, GUEST_DATA + 4096), 'x');
	}
	assert_int_equal(b->g.interrupts, 3 * GUEST_QUEUE);
	assert_false(guest_sees_broken(&b->v));
}

static unsigned rung;

static void count_ring(void *arg, struct vdev *v)
{
	rung++;
}

/* Each ring wakes a thread, and a boot writes four times to each of a dozen devices. */
static void a_device_is_woken_when_its_driver_is_ready_and_not_before(void **state)
{
	struct bench *b = *state;

	b->v.ring = count_ring;
	rung = 0;
	guest_probe(&b->g, &b->v);
	assert_int_equal(rung, 1);
	reg_write(&b->v, VIRTIO_MMIO_STATUS, reg_read(&b->v, VIRTIO_MMIO_STATUS));
	assert_int_equal(rung, 1);
	guest_ring(&b->v, 0);
	assert_int_equal(rung, 2);
}

static void interrupts_that_nobody_wants_do_not_come(void **state)
{
	struct bench *b = *state;
	const struct piece p = {GUEST_DATA, 8, VRING_DESC_F_WRITE};

	*(uint16_t *)guest_at(&b->g, guest_avail(0)) = VRING_AVAIL_F_NO_INTERRUPT;
	guest_add(&b->g, 0, &p, 1);
	guest_ring(&b->v, 0);
	assert_true(guest_used_next(&b->g, 0, NULL, NULL));
	assert_int_equal(b->g.interrupts, 0);
}

static void a_table_of_its_own_may_be_longer_than_the_queue(void **state)
{
	struct bench *b = *state;
	struct vring_desc *t = guest_at(&b->g, GUEST_DATA);
	enum { N = 100 };

	for (unsigned i = 0; i < N; i++)
		t[i] = (struct vring_desc){GUEST_DATA + 0x10000 + i * 16, 16,
		                           VRING_DESC_F_WRITE | (i + 1 < N ? VRING_DESC_F_NEXT : 0),
		                           (uint16_t)(i + 1)};
	guest_add(&b->g, 0, &(struct piece){GUEST_DATA, N * sizeof(*t), VRING_DESC_F_INDIRECT}, 1);
	guest_ring(&b->v, 0);
	assert_true(guest_used_next(&b->g, 0, NULL, NULL));
	assert_false(guest_sees_broken(&b->v));
}

/* Each of these breaks the device, and nothing else; a reset mends it. */
static void a_lie_breaks_the_device_until_it_is_reset(void **state)
{
	struct bench *b = *state;
	const struct vring_desc lies[] = {
	    {GUEST_SIZE - 8, 16, VRING_DESC_F_WRITE, 0},      /* past the end */
	    {GUEST_SIZE, 1, VRING_DESC_F_WRITE, 0},           /* no memory there */
	    {UINT64_MAX - 4, 16, VRING_DESC_F_WRITE, 0},      /* wraps */
	    {MEM_HIGH, 16, VRING_DESC_F_WRITE, 0},            /* above the hole: too small */
	    {GUEST_DATA, 0, VRING_DESC_F_WRITE, 0},           /* nothing */
	    {GUEST_DATA, 16, VRING_DESC_F_NEXT, 0},           /* a loop */
	    {GUEST_DATA, 16, VRING_DESC_F_NEXT, GUEST_QUEUE}, /* off the table */
	    {GUEST_DATA, 24, VRING_DESC_F_INDIRECT, 0},       /* half a descriptor */
	    {GUEST_SIZE - 16, 32, VRING_DESC_F_INDIRECT, 0},  /* a table past the end */
	    {GUEST_DATA, 1 << 20, VRING_DESC_F_INDIRECT, 0},  /* a huge one */
	    {GUEST_DATA, 16, VRING_DESC_F_INDIRECT | VRING_DESC_F_NEXT, 1},
	};

	for (size_t i = 0; i < ARRAY_LEN(lies); i++) {
		unsigned before = b->g.interrupts;

		guest_desc_set(&b->g, 0, 0, lies[i]);
		guest_offer(&b->g, 0, 0);
		guest_ring(&b->v, 0);
		assert_true(guest_sees_broken(&b->v));
		assert_int_equal(b->g.interrupts, before + 1);
		assert_true(reg_read(&b->v, VIRTIO_MMIO_INTERRUPT_STATUS) & VIRTIO_MMIO_INT_CONFIG);
		/* Deaf from now on. */
		guest_add(&b->g, 0, &(struct piece){GUEST_DATA, 8, VRING_DESC_F_WRITE}, 1);
		guest_ring(&b->v, 0);
		assert_false(guest_used_next(&b->g, 0, NULL, NULL));

		memset(guest_at(&b->g, GUEST_RINGS), 0, 2 * GUEST_RING_SPACE);
		memset(b->g.avail, 0, sizeof(b->g.avail));
		memset(b->g.next, 0, sizeof(b->g.next));
		guest_probe(&b->g, &b->v);
		assert_false(guest_sees_broken(&b->v));
	}
}

static void pieces_that_are_read_come_before_those_that_are_written(void **state)
{
	struct bench *b = *state;
	const struct piece p[] = {{GUEST_DATA, 8, VRING_DESC_F_WRITE}, {GUEST_DATA + 64, 8, 0}};

	guest_add(&b->g, 0, p, 2);
	guest_ring(&b->v, 0);
	assert_true(guest_sees_broken(&b->v));
}

static void an_indirect_table_within_an_indirect_table_is_a_lie(void **state)
{
	struct bench *b = *state;

	*(struct vring_desc *)guest_at(&b->g, GUEST_DATA) =
	    (struct vring_desc){GUEST_DATA, 16, VRING_DESC_F_INDIRECT, 0};
	guest_add(&b->g, 0, &(struct piece){GUEST_DATA, 16, VRING_DESC_F_INDIRECT}, 1);
	guest_ring(&b->v, 0);
	assert_true(guest_sees_broken(&b->v));
}

static void more_requests_than_the_queue_holds_are_a_lie(void **state)
{
	struct bench *b = *state;

	((uint16_t *)guest_at(&b->g, guest_avail(0)))[1] = GUEST_QUEUE + 1;
	guest_ring(&b->v, 0);
	assert_true(guest_sees_broken(&b->v));
}

static void rings_that_are_not_in_memory_are_refused(void **state)
{
	struct bench *b = *state;
	const struct {
		uint32_t reg, value;
	} bad[] = {
	    {VIRTIO_MMIO_QUEUE_NUM, 0},
	    {VIRTIO_MMIO_QUEUE_NUM, 3},
	    {VIRTIO_MMIO_QUEUE_NUM, 128}, /* more than the device takes */
	    {VIRTIO_MMIO_QUEUE_NUM, 0x10008},
	    {VIRTIO_MMIO_QUEUE_DESC_LOW, GUEST_SIZE - 16},
	    {VIRTIO_MMIO_QUEUE_DESC_LOW, GUEST_DATA + 8},
	    {VIRTIO_MMIO_QUEUE_AVAIL_LOW, GUEST_SIZE - 2},
	    {VIRTIO_MMIO_QUEUE_AVAIL_HIGH, 1},
	    {VIRTIO_MMIO_QUEUE_USED_LOW, GUEST_DATA + 2},
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		guest_probe(&b->g, &b->v);
		reg_write(&b->v, VIRTIO_MMIO_QUEUE_SEL, 1);
		reg_write(&b->v, VIRTIO_MMIO_QUEUE_READY, 0);
		reg_write(&b->v, bad[i].reg, bad[i].value);
		reg_write(&b->v, VIRTIO_MMIO_QUEUE_READY, 1);
		assert_int_equal(reg_read(&b->v, VIRTIO_MMIO_QUEUE_READY), 0);
		assert_true(guest_sees_broken(&b->v));
	}
}

static void features_that_were_not_offered_are_not_agreed_on(void **state)
{
	struct bench *b = *state;
	const uint32_t seven =
	    VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER | VIRTIO_CONFIG_S_FEATURES_OK;

	reg_write(&b->v, VIRTIO_MMIO_STATUS, 0);
	reg_write(&b->v, VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
	reg_write(&b->v, VIRTIO_MMIO_DRIVER_FEATURES, 3); /* one bit too many */
	reg_write(&b->v, VIRTIO_MMIO_STATUS, seven);
	assert_false(reg_read(&b->v, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_FEATURES_OK);
	/* and without them it does not start */
	reg_write(&b->v, VIRTIO_MMIO_STATUS, VIRTIO_CONFIG_S_DRIVER_OK);
	assert_false(vdev_live(&b->v));
	/* nor with the old way of talking */
	reg_write(&b->v, VIRTIO_MMIO_STATUS, 0);
	reg_write(&b->v, VIRTIO_MMIO_STATUS, seven);
	assert_false(reg_read(&b->v, VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_FEATURES_OK);
}

static void registers_of_odd_width_and_place_do_nothing(void **state)
{
	struct bench *b = *state;

	assert_int_equal(vdev_read(&b->v, VIRTIO_MMIO_MAGIC_VALUE, 4), 0x74726976);
	assert_int_equal(vdev_read(&b->v, VIRTIO_MMIO_MAGIC_VALUE, 2), 0);
	assert_int_equal(vdev_read(&b->v, VDEV_CONFIG, 1), 'a');
	assert_int_equal(vdev_read(&b->v, VDEV_CONFIG + 7, 1), 'h');
	assert_int_equal(vdev_read(&b->v, VDEV_CONFIG + 7, 2), 0);
	assert_int_equal(vdev_read(&b->v, VDEV_CONFIG + 8, 1), 0);
	assert_int_equal(vdev_read(&b->v, 0xffc, 4), 0);
	vdev_write(&b->v, VIRTIO_MMIO_STATUS, 1, 0);
	assert_true(vdev_live(&b->v));
	vdev_write(&b->v, VDEV_CONFIG, 8, ~0ull);
	assert_int_equal(vdev_read(&b->v, VDEV_CONFIG, 1), 'a');
}

static void a_saved_device_goes_on_elsewhere(void **state)
{
	struct bench *b = *state;
	const struct piece p = {GUEST_DATA, 8, VRING_DESC_F_WRITE};
	AUTO(state_out_fini) struct state_out out = {0};
	struct state_in in;
	struct vdev other;

	guest_add(&b->g, 0, &p, 1);
	guest_ring(&b->v, 0);
	assert_true(guest_used_next(&b->g, 0, NULL, NULL));
	vdev_save(&b->v, &out);
	vdev_init(&other, &echo, &b->g.mem);
	in = (struct state_in){.buf = out.buf, .len = out.len};
	assert_int_equal(vdev_load(&other, &in), 0);
	assert_int_equal(in.at, in.len);
	guest_add(&b->g, 0, &p, 1);
	guest_ring(&other, 0);
	assert_true(guest_used_next(&b->g, 0, NULL, NULL));
	assert_false(guest_used_next(&b->g, 0, NULL, NULL));
}

static void a_device_that_wakes_up_repeats_what_was_not_heard_and_nothing_else(void **state)
{
	struct bench *b = *state;
	const struct piece p = {GUEST_DATA, 8, VRING_DESC_F_WRITE};

	assert_false(vdev_wake(&b->v));
	assert_int_equal(b->g.interrupts, 0);
	guest_add(&b->g, 0, &p, 1); /* and not rung yet */
	assert_true(vdev_wake(&b->v));
	guest_ring(&b->v, 0);
	assert_int_equal(b->g.interrupts, 1);
	assert_false(vdev_wake(&b->v));
	assert_int_equal(b->g.interrupts, 2);
	reg_write(&b->v, VIRTIO_MMIO_INTERRUPT_ACK, reg_read(&b->v, VIRTIO_MMIO_INTERRUPT_STATUS));
	assert_false(vdev_wake(&b->v));
	assert_int_equal(b->g.interrupts, 2);
	guest_add(&b->g, 0, &p, 1);
	reg_write(&b->v, VIRTIO_MMIO_STATUS, 0); /* nobody is there any more */
	assert_false(vdev_wake(&b->v));
}

static void a_saved_device_that_cannot_be_is_refused(void **state)
{
	struct bench *b = *state;
	AUTO(state_out_fini) struct state_out out = {0};
	unsigned refused = 0;

	vdev_save(&b->v, &out);
	/* Whatever byte is damaged: loaded or refused, the device stays within its memory. */
	for (size_t i = 0; i < out.len; i++) {
		struct state_in in = {.buf = out.buf, .len = out.len};
		struct vdev other;
		int r;

		out.buf[i] ^= 0xff;
		vdev_init(&other, &echo, &b->g.mem);
		r = vdev_load(&other, &in);
		assert_true(r == 0 || r == -EBADMSG);
		refused += r < 0;
		if (r == 0)
			guest_ring(&other, 0);
		out.buf[i] ^= 0xff;
	}
	assert_true(refused > 20);
}

static void slices_and_copies_end_where_they_should(void **state)
{
	char a[4] = "abc", b[8] = "defghi", buf[16] = "";
	struct iovec iov[] = {{a, 3}, {b, 6}}, cut[2];

	assert_int_equal(iov_copy_out(iov, 2, 2, buf, sizeof(buf)), 7);
	assert_string_equal(buf, "cdefghi");
	assert_int_equal(iov_copy_in(iov, 2, 8, "XYZ", 3), 1);
	assert_int_equal(b[5], 'X');
	assert_int_equal(iov_slice(iov, 2, 2, 3, cut, 2), 2);
	assert_int_equal(cut[0].iov_len, 1);
	assert_int_equal(cut[1].iov_len, 2);
	assert_int_equal(iov_slice(iov, 2, 2, 8, cut, 2), -EINVAL);
	assert_int_equal(iov_slice(iov, 2, 2, 3, cut, 1), -E2BIG);
	assert_int_equal(iov_slice(iov, 2, 9, 0, cut, 2), 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
	    T(a_request_is_answered),
	    T(a_device_is_woken_when_its_driver_is_ready_and_not_before),
	    T(interrupts_that_nobody_wants_do_not_come),
	    T(a_table_of_its_own_may_be_longer_than_the_queue),
	    T(a_lie_breaks_the_device_until_it_is_reset),
	    T(pieces_that_are_read_come_before_those_that_are_written),
	    T(an_indirect_table_within_an_indirect_table_is_a_lie),
	    T(more_requests_than_the_queue_holds_are_a_lie),
	    T(rings_that_are_not_in_memory_are_refused),
	    T(features_that_were_not_offered_are_not_agreed_on),
	    T(registers_of_odd_width_and_place_do_nothing),
	    T(a_saved_device_goes_on_elsewhere),
	    T(a_device_that_wakes_up_repeats_what_was_not_heard_and_nothing_else),
	    T(a_saved_device_that_cannot_be_is_refused),
	    cmocka_unit_test(slices_and_copies_end_where_they_should),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
