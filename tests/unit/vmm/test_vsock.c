/*
 * vmm/virtio/vsock.h: streams between a unix socket and a guest's driver.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_vsock.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "guest.h"
#include "turn.h"
#include "vmm/virtio/vsock.h"

enum { RX, TX, EVENT, BUFFER = 4096 };

struct bench {
	struct guest g;
	struct vsock s;
	struct loop *loop;
	pthread_mutex_t lock;
	int listener;
	struct sockaddr_un addr;
};

static void give_buffers(struct bench *b, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct piece p = {GUEST_DATA + (b->g.next[RX] % GUEST_QUEUE) * BUFFER, BUFFER,
		                  VRING_DESC_F_WRITE};

		guest_add(&b->g, RX, &p, 1);
	}
}

static int setup(void **state)
{
	struct bench *b = calloc(1, sizeof(*b));
	struct piece event = {GUEST_DATA + 0x40000, 4, VRING_DESC_F_WRITE};

	guest_new(&b->g);
	pthread_mutex_init(&b->lock, NULL);
	assert_int_equal(loop_new(&b->loop), 0);
	b->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	b->addr.sun_family = AF_UNIX;
	snprintf(b->addr.sun_path + 1, sizeof(b->addr.sun_path) - 1, "panda-vsock-%d", getpid());
	assert_int_equal(bind(b->listener, (struct sockaddr *)&b->addr, sizeof(b->addr)), 0);
	assert_int_equal(listen(b->listener, 8), 0);
	assert_int_equal(vsock_init(&b->s, b->loop, &b->lock, b->listener, 7, &b->g.mem), 0);
	guest_probe(&b->g, &b->s.vdev);
	guest_add(&b->g, EVENT, &event, 1);
	give_buffers(b, GUEST_QUEUE);
	*state = b;
	return 0;
}

static int teardown(void **state)
{
	struct bench *b = *state;

	vsock_fini(&b->s);
	loop_free(b->loop);
	close(b->listener);
	guest_free(&b->g);
	free(b);
	return 0;
}

static int client(struct bench *b)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(connect(fd, (struct sockaddr *)&b->addr, sizeof(b->addr)), 0);
	turn(b->loop);
	return fd;
}

/* What the device put into the guest's next buffer. */
static bool guest_hears(struct bench *b, struct virtio_vsock_hdr *h, char *data)
{
	uint16_t head;
	uint32_t len;
	char *p;

	if (!guest_used_next(&b->g, RX, &head, &len))
		return false;
	p = guest_at(&b->g, GUEST_DATA + head * BUFFER);
	memcpy(h, p, sizeof(*h));
	assert_int_equal(len, sizeof(*h) + h->len);
	if (data)
		memcpy(data, p + sizeof(*h), h->len);
	assert_int_equal(h->src_cid, VSOCK_HOST_CID);
	assert_int_equal(h->dst_cid, VSOCK_GUEST_CID);
	return true;
}

static void expect(struct bench *b, unsigned op, struct virtio_vsock_hdr *h)
{
	assert_true(guest_hears(b, h, NULL));
	assert_int_equal(h->op, op);
}

static void guest_says(struct bench *b, const struct virtio_vsock_hdr *to, uint16_t op,
                       const void *data, uint32_t len)
{
	struct virtio_vsock_hdr h = {.src_cid = VSOCK_GUEST_CID,
	                             .dst_cid = VSOCK_HOST_CID,
	                             .src_port = to->dst_port,
	                             .dst_port = to->src_port,
	                             .len = len,
	                             .type = VIRTIO_VSOCK_TYPE_STREAM,
	                             .op = op,
	                             .flags = op == VIRTIO_VSOCK_OP_SHUTDOWN ? 3 : 0,
	                             .buf_alloc = to->buf_alloc ? to->buf_alloc : 1 << 20,
	                             .fwd_cnt = to->fwd_cnt};
	const uint64_t at = GUEST_DATA + 0x80000;

	memcpy(guest_at(&b->g, at), &h, sizeof(h));
	if (len)
		memcpy(guest_at(&b->g, at + sizeof(h)), data, len);
	guest_add(&b->g, TX, &(struct piece){at, (uint32_t)sizeof(h) + len, 0}, 1);
	guest_ring(&b->s.vdev, TX);
	assert_true(guest_used_next(&b->g, TX, NULL, NULL));
}

/* A stream that is open. buf: how much the guest takes. */
static int open_stream(struct bench *b, uint32_t buf, struct virtio_vsock_hdr *h)
{
	int fd = client(b);

	expect(b, VIRTIO_VSOCK_OP_REQUEST, h);
	assert_int_equal(h->dst_port, VSOCK_AGENT_PORT);
	h->buf_alloc = buf;
	h->fwd_cnt = 0;
	guest_says(b, h, VIRTIO_VSOCK_OP_RESPONSE, NULL, 0);
	return fd;
}

static void bytes_go_both_ways(void **state)
{
	struct bench *b = *state;
	struct virtio_vsock_hdr h, heard;
	char data[BUFFER], buf[16];
	int fd = open_stream(b, 1 << 20, &h);

	assert_int_equal(write(fd, "question", 8), 8);
	turn(b->loop);
	assert_true(guest_hears(b, &heard, data));
	assert_int_equal(heard.op, VIRTIO_VSOCK_OP_RW);
	assert_memory_equal(data, "question", 8);
	guest_says(b, &h, VIRTIO_VSOCK_OP_RW, "answer", 6);
	assert_int_equal(read(fd, buf, sizeof(buf)), 6);
	assert_memory_equal(buf, "answer", 6);
	assert_true(b->g.interrupts > 0);
	close(fd);
}

static void says_times(struct bench *b, const struct virtio_vsock_hdr *to, unsigned n)
{
	while (n--)
		guest_says(b, to, VIRTIO_VSOCK_OP_RW, "x", 1);
}

static void that_packets_were_taken_waits_for_the_next_interrupt_or_half_a_queue(void **state)
{
	struct bench *b = *state;
	struct virtio_vsock_hdr h, heard;
	int fd = open_stream(b, 1 << 20, &h);
	unsigned before;

	assert_int_equal(write(fd, "q", 1), 1);
	turn(b->loop);
	expect(b, VIRTIO_VSOCK_OP_RW, &heard);
	before = b->g.interrupts;
	says_times(b, &h, GUEST_QUEUE / 2 - 1);
	assert_int_equal(b->g.interrupts, before);
	says_times(b, &h, 1);
	assert_int_equal(b->g.interrupts, before + 1);
	/* One that was not wanted was none. */
	says_times(b, &h, GUEST_QUEUE / 2 - 1);
	*(uint16_t *)guest_at(&b->g, guest_avail(RX)) = VRING_AVAIL_F_NO_INTERRUPT;
	assert_int_equal(write(fd, "q", 1), 1);
	turn(b->loop);
	expect(b, VIRTIO_VSOCK_OP_RW, &heard);
	assert_int_equal(b->g.interrupts, before + 1);
	says_times(b, &h, 1);
	assert_int_equal(b->g.interrupts, before + 2);
	close(fd);
}

static void a_guest_gets_no_more_than_it_takes(void **state)
{
	struct bench *b = *state;
	struct virtio_vsock_hdr h, heard;
	int fd = open_stream(b, 10, &h);

	assert_int_equal(write(fd, "0123456789abcdef", 16), 16);
	turn(b->loop);
	assert_true(guest_hears(b, &heard, NULL));
	assert_int_equal(heard.len, 10);
	turn(b->loop);
	assert_false(guest_hears(b, &heard, NULL));
	h.fwd_cnt = 10; /* it has read them */
	guest_says(b, &h, VIRTIO_VSOCK_OP_CREDIT_UPDATE, NULL, 0);
	assert_true(guest_hears(b, &heard, NULL));
	assert_int_equal(heard.len, 6);
	close(fd);
}

static void a_guest_that_sends_more_than_it_may_loses_the_stream(void **state)
{
	struct bench *b = *state;
	struct virtio_vsock_hdr h, heard;
	static char data[32 << 10];
	int fd = open_stream(b, 1 << 20, &h), small = 4096;
	size_t sent = 0;

	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	while (b->s.streams && sent < 64 << 20) { /* nobody reads fd */
		guest_says(b, &h, VIRTIO_VSOCK_OP_RW, data, sizeof(data));
		sent += sizeof(data);
	}
	assert_null(b->s.streams);
	while (guest_hears(b, &heard, NULL))
		;
	assert_int_equal(heard.op, VIRTIO_VSOCK_OP_RST);
	close(fd);
}

static void what_a_slow_reader_leaves_is_kept_and_credit_comes_back(void **state)
{
	struct bench *b = *state;
	struct virtio_vsock_hdr h, heard = {0};
	static char data[32 << 10], back[32 << 10];
	size_t sent = 0, got = 0;
	int fd = open_stream(b, 1 << 20, &h);
	bool told = false;

	while (sent < 1 << 20) {
		/* As a guest that keeps to its credit: half of it, then wait to be told. */
		for (unsigned i = 0; i < 2; i++) {
			memset(data, (int)(sent >> 15), sizeof(data));
			guest_says(b, &h, VIRTIO_VSOCK_OP_RW, data, sizeof(data));
			sent += sizeof(data);
		}
		while (got < sent) {
			ssize_t n = recv(fd, back, sizeof(back) - got % sizeof(back), MSG_DONTWAIT);

			if (n < 0) {
				turn(b->loop);
				continue;
			}
			for (ssize_t i = 0; i < n; i++)
				assert_int_equal((unsigned char)back[i],
				                 ((got + (size_t)i) >> 15) & 0xff);
			got += (size_t)n;
		}
		turn(b->loop);
		while (guest_hears(b, &heard, NULL)) {
			told = heard.op == VIRTIO_VSOCK_OP_CREDIT_UPDATE;
			give_buffers(b, 1);
		}
	}
	assert_true(told);
	assert_int_equal(heard.fwd_cnt, sent);
	close(fd);
}

static void the_end_of_a_client_reaches_the_guest(void **state)
{
	struct bench *b = *state;
	struct virtio_vsock_hdr h, heard;
	int fd = open_stream(b, 1 << 20, &h);

	assert_int_equal(write(fd, "bye", 3), 3);
	close(fd);
	turn(b->loop);
	turn(b->loop);
	assert_true(guest_hears(b, &heard, NULL));
	assert_int_equal(heard.op, VIRTIO_VSOCK_OP_RW); /* not a byte is lost */
	assert_int_equal(heard.len, 3);
	expect(b, VIRTIO_VSOCK_OP_SHUTDOWN, &heard);
	assert_int_equal(heard.flags, 3);
	assert_null(b->s.streams);
}

static void half_an_end_lets_the_answer_through(void **state)
{
	struct bench *b = *state;
	struct virtio_vsock_hdr h, heard;
	char buf[8];
	int fd = open_stream(b, 1 << 20, &h);

	shutdown(fd, SHUT_WR);
	turn(b->loop);
	expect(b, VIRTIO_VSOCK_OP_SHUTDOWN, &heard);
	assert_int_equal(heard.flags, VIRTIO_VSOCK_SHUTDOWN_SEND);
	guest_says(b, &h, VIRTIO_VSOCK_OP_RW, "late", 4);
	assert_int_equal(read(fd, buf, sizeof(buf)), 4);
	guest_says(b, &h, VIRTIO_VSOCK_OP_SHUTDOWN, NULL, 0);
	assert_int_equal(read(fd, buf, sizeof(buf)), 0);
	assert_null(b->s.streams);
	close(fd);
}

static void a_guest_that_does_not_listen_yet_is_asked_again(void **state)
{
	struct bench *b = *state;
	struct virtio_vsock_hdr h;
	int fd = client(b);

	expect(b, VIRTIO_VSOCK_OP_REQUEST, &h);
	guest_says(b, &h, VIRTIO_VSOCK_OP_RST, NULL, 0);
	for (int i = 0; i < 1000 && !guest_hears(b, &h, NULL); i++) {
		usleep(1000);
		turn(b->loop);
	}
	assert_int_equal(h.op, VIRTIO_VSOCK_OP_REQUEST);
	guest_says(b, &h, VIRTIO_VSOCK_OP_RESPONSE, NULL, 0);
	close(fd);
	turn(b->loop);
	turn(b->loop);
	while (guest_hears(b, &h, NULL))
		;
	/* Once it has listened, no means no. */
	fd = client(b);
	expect(b, VIRTIO_VSOCK_OP_REQUEST, &h);
	guest_says(b, &h, VIRTIO_VSOCK_OP_RST, NULL, 0);
	assert_null(b->s.streams);
	assert_int_equal(read(fd, &h, 1), 0);
	close(fd);
}

static void packets_of_nobodys_stream_are_refused(void **state)
{
	struct bench *b = *state;
	struct virtio_vsock_hdr h = {.src_port = 99, .dst_port = 98}, heard;

	guest_says(b, &h, VIRTIO_VSOCK_OP_RW, "x", 1);
	expect(b, VIRTIO_VSOCK_OP_RST, &heard);
	assert_int_equal(heard.src_port, 99);
	assert_int_equal(heard.dst_port, 98);
	guest_says(b, &h, VIRTIO_VSOCK_OP_REQUEST, NULL, 0); /* the guest calls nobody */
	expect(b, VIRTIO_VSOCK_OP_RST, &heard);
	guest_says(b, &h, VIRTIO_VSOCK_OP_RST, NULL, 0); /* and this is not answered */
	assert_false(guest_hears(b, &heard, NULL));
}

static void nonsense_ends_one_stream(void **state)
{
	struct bench *b = *state;
	struct virtio_vsock_hdr h, other, heard;
	int a = open_stream(b, 1 << 20, &h), c = open_stream(b, 1 << 20, &other);

	guest_says(b, &h, 77, NULL, 0);
	expect(b, VIRTIO_VSOCK_OP_RST, &heard);
	assert_int_equal(heard.src_port, h.src_port);
	assert_non_null(b->s.streams);
	guest_says(b, &other, VIRTIO_VSOCK_OP_RW, "fine", 4);
	assert_int_equal(read(c, &heard, sizeof(heard)), 4);
	assert_false(guest_sees_broken(&b->s.vdev));
	close(a);
	close(c);
}

static void a_restored_guest_hears_first_that_its_streams_are_gone(void **state)
{
	struct bench *b = *state;
	struct virtio_vsock_hdr h;
	uint32_t len;
	int fd;

	b->s.answered = true;
	vsock_reborn(&b->s);
	assert_true(guest_used_next(&b->g, EVENT, NULL, &len));
	assert_int_equal(len, sizeof(struct virtio_vsock_event));
	fd = client(b);
	assert_false(guest_hears(b, &h, NULL)); /* not before it has acted on it */
	guest_add(&b->g, EVENT, &(struct piece){GUEST_DATA + 0x40000, 4, VRING_DESC_F_WRITE}, 1);
	guest_ring(&b->s.vdev, EVENT);
	expect(b, VIRTIO_VSOCK_OP_REQUEST, &h);
	close(fd);
}

static void a_client_that_has_gone_before_the_answer_is_heard_if_it_said_something(void **state)
{
	struct bench *b = *state;
	struct virtio_vsock_hdr h, heard;
	char data[BUFFER];
	int fd = client(b);

	expect(b, VIRTIO_VSOCK_OP_REQUEST, &h);
	close(fd);
	turn(b->loop);
	assert_null(b->s.streams);

	fd = client(b);
	expect(b, VIRTIO_VSOCK_OP_REQUEST, &h);
	assert_int_equal(write(fd, "last words", 10), 10);
	close(fd);
	turn(b->loop);
	h.buf_alloc = 1 << 20;
	h.fwd_cnt = 0;
	guest_says(b, &h, VIRTIO_VSOCK_OP_RESPONSE, NULL, 0);
	assert_true(guest_hears(b, &heard, data));
	assert_int_equal(heard.op, VIRTIO_VSOCK_OP_RW);
	assert_memory_equal(data, "last words", 10);
	expect(b, VIRTIO_VSOCK_OP_SHUTDOWN, &heard);
	assert_null(b->s.streams);
}

static void a_reset_driver_has_no_streams(void **state)
{
	struct bench *b = *state;
	struct virtio_vsock_hdr h;
	char c;
	int fd = open_stream(b, 1 << 20, &h);

	reg_write(&b->s.vdev, VIRTIO_MMIO_STATUS, 0);
	assert_null(b->s.streams);
	assert_int_equal(read(fd, &c, 1), 0);
	close(fd);
	/* Who came before the driver waits for it. */
	fd = client(b);
	memset(guest_at(&b->g, GUEST_RINGS), 0, 3 * GUEST_RING_SPACE);
	memset(b->g.avail, 0, sizeof(b->g.avail));
	memset(b->g.seen, 0, sizeof(b->g.seen));
	memset(b->g.next, 0, sizeof(b->g.next));
	guest_probe(&b->g, &b->s.vdev);
	give_buffers(b, 1);
	guest_ring(&b->s.vdev, RX);
	expect(b, VIRTIO_VSOCK_OP_REQUEST, &h);
	close(fd);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
	    T(bytes_go_both_ways),
	    T(that_packets_were_taken_waits_for_the_next_interrupt_or_half_a_queue),
	    T(a_guest_gets_no_more_than_it_takes),
	    T(a_guest_that_sends_more_than_it_may_loses_the_stream),
	    T(what_a_slow_reader_leaves_is_kept_and_credit_comes_back),
	    T(the_end_of_a_client_reaches_the_guest),
	    T(half_an_end_lets_the_answer_through),
	    T(a_guest_that_does_not_listen_yet_is_asked_again),
	    T(packets_of_nobodys_stream_are_refused),
	    T(nonsense_ends_one_stream),
	    T(a_restored_guest_hears_first_that_its_streams_are_gone),
	    T(a_client_that_has_gone_before_the_answer_is_heard_if_it_said_something),
	    T(a_reset_driver_has_no_streams),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
