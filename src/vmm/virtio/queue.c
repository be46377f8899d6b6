#include "vmm/virtio/queue.h"

#include <errno.h>
#include <linux/virtio_ring.h>

#include "base/macro.h"
#include "vmm/mem.h"

bool queue_usable(const struct queue *q)
{
	uint64_t n = q->size;

	return n != 0 && n <= q->max && (n & (n - 1)) == 0 && q->desc % 16 == 0 &&
	       q->avail % 2 == 0 && q->used % 4 == 0 &&
	       mem_at(q->mem, q->desc, n * sizeof(struct vring_desc)) &&
	       mem_at(q->mem, q->avail, 6 + 2 * n) &&
	       mem_at(q->mem, q->used, 6 + n * sizeof(struct vring_used_elem));
}

static uint16_t *avail_ring(const struct queue *q)
{
	return mem_at(q->mem, q->avail, 6 + 2ull * q->size);
}

/* One table: the queue's own, or the one that an indirect descriptor names. */
struct virtq_table {
	const uint8_t *at; /* not aligned, if the guest likes it so */
	unsigned n;
};

static int add_piece(const struct queue *q, const struct vring_desc *d, struct chain *c)
{
	unsigned n = c->nout + c->nin;
	bool in = d->flags & VRING_DESC_F_WRITE;
	size_t *total = in ? &c->in_len : &c->out_len;
	void *p;

	if (n == CHAIN_MAX || (!in && c->nin))
		return -EPROTO; /* longer than we take, or not in order */
	p = mem_at(q->mem, d->addr, d->len);
	if (!p || *total + d->len > UINT32_MAX)
		return -EFAULT;
	c->iov[n] = (struct iovec){p, d->len};
	*total += d->len;
	if (in)
		c->nin++;
	else
		c->nout++;
	return 0;
}

static int walk(const struct queue *q, struct virtq_table t, unsigned i, bool indirect,
                struct chain *c)
{
	struct vring_desc d;
	int r;

	for (unsigned steps = 0;; steps++) {
		if (i >= t.n || steps == t.n)
			return -EPROTO; /* off the table, or a loop */
		mem_copy_in(&d, t.at + i * sizeof(d), sizeof(d));
		if (d.flags & VRING_DESC_F_INDIRECT) {
			if (indirect || d.flags & (VRING_DESC_F_NEXT | VRING_DESC_F_WRITE) ||
			    steps > 0)
				return -EPROTO;
			t.n = d.len / sizeof(d);
			t.at = mem_at(q->mem, d.addr, d.len);
			if (!t.at || d.len % sizeof(d) || t.n > CHAIN_MAX)
				return -EFAULT;
			return walk(q, t, 0, true, c);
		}
		r = add_piece(q, &d, c);
		if (r < 0)
			return r;
		if (!(d.flags & VRING_DESC_F_NEXT))
			return 0;
		i = d.next;
	}
}

bool queue_asked(const struct queue *q)
{
	return mem_load16(&avail_ring(q)[1]) != q->next_avail;
}

int queue_pop(struct queue *q, struct chain *ret)
{
	uint16_t *ring = avail_ring(q), idx = mem_load16(&ring[1]);
	struct virtq_table t = {mem_at(q->mem, q->desc, q->size * sizeof(struct vring_desc)),
	                        q->size};
	int r;

	if (idx == q->next_avail)
		return 0;
	if ((uint16_t)(idx - q->next_avail) > q->size)
		return -EPROTO;
	ret->head = mem_load16(&ring[2 + q->next_avail % q->size]);
	ret->nout = ret->nin = 0;
	ret->out_len = ret->in_len = 0;
	r = walk(q, t, ret->head, false, ret);
	if (r < 0)
		return r;
	q->next_avail++;
	return 1;
}

void queue_unpop(struct queue *q)
{
	q->next_avail--;
}

void queue_push_many(struct queue *q, const uint16_t *heads, const uint32_t *lens, unsigned n)
{
	uint8_t *used = mem_at(q->mem, q->used, 6 + q->size * sizeof(struct vring_used_elem));

	for (unsigned i = 0; i < n; i++) {
		struct vring_used_elem e = {heads[i], lens[i]};
		uint16_t slot = (uint16_t)(q->next_used + i) % q->size;

		memcpy(used + 4 + slot * sizeof(e), &e, sizeof(e));
	}
	q->next_used += (uint16_t)n;
	mem_store16(used + 2, q->next_used);
}

void queue_push(struct queue *q, uint16_t head, uint32_t len)
{
	queue_push_many(q, &head, &len, 1);
}

bool queue_wants_interrupt(const struct queue *q)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST); /* the driver sets the flag, then looks at used */
	return !(mem_load16(avail_ring(q)) & VRING_AVAIL_F_NO_INTERRUPT);
}

static size_t copy(const struct iovec *iov, unsigned niov, size_t off, void *to, const void *from,
                   size_t n)
{
	size_t done = 0;

	for (unsigned i = 0; i < niov && done < n; i++) {
		char *p = iov[i].iov_base;
		size_t len = iov[i].iov_len;

		if (off >= len) {
			off -= len;
			continue;
		}
		len = MIN(len - off, n - done);
		if (to)
			mem_copy_in((char *)to + done, p + off, len);
		else
			memcpy(p + off, (const char *)from + done, len);
		done += len;
		off = 0;
	}
	return done;
}

size_t iov_copy_out(const struct iovec *iov, unsigned niov, size_t off, void *buf, size_t n)
{
	return copy(iov, niov, off, buf, NULL, n);
}

size_t iov_copy_in(const struct iovec *iov, unsigned niov, size_t off, const void *buf, size_t n)
{
	return copy(iov, niov, off, NULL, buf, n);
}

int iov_slice(const struct iovec *iov, unsigned niov, size_t off, size_t n, struct iovec *to,
              unsigned max)
{
	unsigned used = 0;

	for (unsigned i = 0; i < niov && n; i++) {
		size_t len = iov[i].iov_len;

		if (off >= len) {
			off -= len;
			continue;
		}
		if (used == max)
			return -E2BIG;
		len = MIN(len - off, n);
		to[used++] = (struct iovec){(char *)iov[i].iov_base + off, len};
		n -= len;
		off = 0;
	}
	return n ? -EINVAL : (int)used;
}
