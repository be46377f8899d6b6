#include "engine/engines_internal.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"

int um_packet_add(struct um_packet *p, int fd, unsigned slot)
{
	uint32_t n = p->msg.nr_fds;

	if (n == UM_FDS_MAX)
		return -E2BIG;
	p->fds[n] = fd;
	p->msg.slot[n] = (uint16_t)slot;
	p->msg.nr_fds = n + 1;
	return 0;
}

int um_call(int control, int alive, const struct um_packet *p, unsigned timeout_ms,
            struct um_msg *ret)
{
	uint64_t deadline = mono_ms() + timeout_ms;
	struct um_msg answer;
	ssize_t n;
	int r;

	r = io_send_fds(control, &p->msg, sizeof(p->msg), p->fds, p->msg.nr_fds);
	if (r < 0)
		return r == -EPIPE || r == -ECONNRESET ? -ESRCH : r;
	for (;;) {
		struct pollfd pfd[2] = {{.fd = control, .events = POLLIN},
		                        {.fd = alive, .events = POLLIN}};
		uint64_t now = mono_ms();

		if (now >= deadline)
			return -ETIMEDOUT;
		r = poll(pfd, alive < 0 ? 1 : 2, (int)(deadline - now));
		if (r < 0 && errno != EINTR)
			return -errno;
		if (r > 0 && pfd[0].revents)
			break;
		if (r > 0)
			return -ESRCH;
	}
	n = io_recv_fds(control, &answer, sizeof(answer), NULL, NULL);
	if (n == 0)
		return -ESRCH;
	if (n < 0)
		return n == -ECONNRESET ? -ESRCH : n == -EMSGSIZE ? -EPROTO : (int)n;
	if ((size_t)n != sizeof(answer) || answer.magic != UM_MAGIC)
		return -EPROTO;
	*ret = answer;
	return 0;
}

int um_done(const struct um_msg *a)
{
	int64_t said = (int64_t)a->arg[UM_DONE_ERR];

	return a->type != UM_DONE || said > 0 || said < -4095 ? -EPROTO : (int)said;
}

int um_ask(struct engine_machine *m, enum um_type type, struct um_msg *ret, struct err *e)
{
	struct um_packet p = {.msg = {.magic = UM_MAGIC, .type = (uint32_t)type}};
	int r = um_call(m->control, m->pidfd, &p, UM_CALL_TIMEOUT_MS, ret);

	if (r == 0)
		r = um_done(ret);
	if (r < 0)
		return err_set(e, -r, r == -ESRCH ? "machine_gone" : "machine_silent",
		               "machine %s does not answer: %s", m->id,
		               r == -ESRCH ? "it has ended" : strerror(-r));
	return 0;
}
