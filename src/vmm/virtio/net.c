#include "vmm/virtio/net.h"

#include <errno.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_net.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/loop.h"
#include "base/macro.h"
#include "vmm/virtio/mmio.h"
#include "vmm/virtio/queue.h"

enum {
	RX,
	TX,
	SHORT = sizeof(struct virtio_net_hdr),          /* the tap's */
	LONG = sizeof(struct virtio_net_hdr_mrg_rxbuf), /* the guest's */
	FRAME_MAX = 65536 + 64,                         /* without headers */
	CHAINS_MAX = 64, /* buffers that one frame may need: 64 KiB in small ones */
	BATCH = 64,      /* frames before another device has a turn */
};

static const uint8_t guest_mac[6] = {0x06, 0x00, 0xac, 0x1f, 0xff, 0x02};

static void want_frames(struct virtio_net *n, bool reading)
{
	if (n->tap < 0 || n->reading == reading)
		return;
	n->reading = reading;
	loop_io_set(n->loop, &n->io, reading ? EPOLLIN : 0);
}

/* --- to the tap */

static void send_frame(struct virtio_net *n, struct chain *c)
{
	struct iovec iov[CHAIN_MAX + 1];
	uint8_t head[LONG];
	int k;

	if (n->tap < 0 || c->out_len <= LONG || c->out_len > LONG + FRAME_MAX)
		return;
	iov_copy_out(c->iov, c->nout, 0, head, LONG);
	iov[0] = (struct iovec){head, SHORT};
	k = iov_slice(c->iov, c->nout, LONG, c->out_len - LONG, iov + 1, CHAIN_MAX);
	if (k > 0)
		(void)!writev(n->tap, iov, k + 1);
}

static void send_frames(struct virtio_net *n)
{
	bool any = false;
	struct chain c;

	while (vdev_pop(&n->vdev, TX, &c)) {
		send_frame(n, &c);
		queue_push(&n->vdev.queue[TX], c.head, 0);
		any = true;
	}
	if (any)
		vdev_signal(&n->vdev, TX);
}

/* --- from the tap */

/* Buffers that together hold any frame, or what there is. */
struct room {
	unsigned chains;
	uint16_t head[CHAINS_MAX];
	uint32_t len[CHAINS_MAX];
	unsigned niov;
	struct iovec iov[CHAIN_MAX];
	size_t total;
};

static void take_room(struct virtio_net *n, struct room *r, size_t want)
{
	unsigned max = vdev_has(&n->vdev, VIRTIO_NET_F_MRG_RXBUF) ? CHAINS_MAX : 1;
	struct chain c;

	r->chains = r->niov = 0;
	r->total = 0;
	while (r->chains < max && r->total < want && vdev_pop(&n->vdev, RX, &c)) {
		if (c.nout || c.in_len < LONG) {
			vdev_break(&n->vdev);
			return;
		}
		if (r->niov + c.nin > CHAIN_MAX) {
			queue_unpop(&n->vdev.queue[RX]);
			break;
		}
		memcpy(r->iov + r->niov, c.iov, c.nin * sizeof(c.iov[0]));
		r->niov += c.nin;
		r->head[r->chains] = c.head;
		r->len[r->chains++] = (uint32_t)c.in_len;
		r->total += c.in_len;
	}
}

static void give_back(struct virtio_net *n, const struct room *r, unsigned used)
{
	for (unsigned i = used; i < r->chains; i++)
		queue_unpop(&n->vdev.queue[RX]);
}

/* True: a frame came, whatever became of it. */
static bool receive_frame(struct virtio_net *n, bool *ret_any)
{
	struct iovec iov[CHAIN_MAX + 1];
	struct virtio_net_hdr_mrg_rxbuf head = {0};
	struct room r;
	unsigned used = 0;
	ssize_t len;
	size_t left;
	int k;

	take_room(n, &r, LONG + FRAME_MAX);
	if (r.chains == 0) {
		want_frames(n, false); /* until the guest gives buffers */
		return false;
	}
	iov[0] = (struct iovec){&head, SHORT};
	k = iov_slice(r.iov, r.niov, LONG, r.total - LONG, iov + 1, CHAIN_MAX);
	len = k <= 0 ? -1 : readv(n->tap, iov, k + 1);
	if (len <= SHORT) {
		give_back(n, &r, 0);
		return false;
	}
	left = (size_t)len - SHORT + LONG;
	if (left > r.total) { /* a tap says how long it was, whatever there was room for: lost */
		give_back(n, &r, 0);
		return true;
	}
	while (used < r.chains && left) {
		r.len[used] = (uint32_t)MIN((size_t)r.len[used], left);
		left -= r.len[used++];
	}
	head.num_buffers = (uint16_t)used;
	iov_copy_in(r.iov, r.niov, 0, &head, LONG);
	give_back(n, &r, used);
	queue_push_many(&n->vdev.queue[RX], r.head, r.len, used);
	*ret_any = true;
	return true;
}

static void receive_frames(struct virtio_net *n)
{
	bool any = false;

	for (unsigned i = 0; i < BATCH && receive_frame(n, &any); i++)
		;
	if (any)
		vdev_signal(&n->vdev, RX);
}

static void tap_ready(void *arg, uint32_t events)
{
	struct virtio_net *n = arg;

	pthread_mutex_lock(n->lock);
	if (vdev_live(&n->vdev))
		receive_frames(n);
	else
		want_frames(n, false);
	if (events & (EPOLLERR | EPOLLHUP)) { /* its other end was taken down */
		loop_io_del(n->loop, &n->io);
		n->tap = -1;
		vdev_config_changed(&n->vdev);
	}
	pthread_mutex_unlock(n->lock);
}

static void net_work(struct vdev *v)
{
	struct virtio_net *n = (struct virtio_net *)v;

	if (!vdev_live(v))
		return;
	send_frames(n);
	if (n->tap >= 0 && !n->reading)
		want_frames(n, true);
}

static void net_config(struct vdev *v, size_t off, void *buf, size_t len)
{
	const struct virtio_net *n = (const struct virtio_net *)v;
	struct virtio_net_config config = {.status = n->tap >= 0 ? VIRTIO_NET_S_LINK_UP : 0};

	memcpy(config.mac, guest_mac, sizeof(guest_mac));
	memcpy(buf, (char *)&config + off, len);
}

static const struct vdev_ops net_ops = {
    .id = VIRTIO_ID_NET,
    .features = 1ull << VIRTIO_NET_F_CSUM | 1ull << VIRTIO_NET_F_GUEST_CSUM |
                1ull << VIRTIO_NET_F_MAC | 1ull << VIRTIO_NET_F_GUEST_TSO4 |
                1ull << VIRTIO_NET_F_HOST_TSO4 | 1ull << VIRTIO_NET_F_MRG_RXBUF |
                1ull << VIRTIO_NET_F_STATUS,
    .queues = 2,
    .queue_max = 256,
    .work = net_work,
    .config_len = sizeof(struct virtio_net_config),
    .config_read = net_config,
};

int net_init(struct virtio_net *n, struct loop *loop, pthread_mutex_t *lock, int tap,
             const struct mem *mem)
{
	*n = (struct virtio_net){.loop = loop,
	                         .lock = lock,
	                         .tap = tap,
	                         .io = {.fn = tap_ready, .arg = n}};
	vdev_init(&n->vdev, &net_ops, mem);
	return tap < 0 ? 0 : loop_io_add(loop, &n->io, tap, 0);
}
