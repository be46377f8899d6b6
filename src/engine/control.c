#include "engine/engines_internal.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "machine/engine.h"
#include "wire/control.h"

int control_packet_add(struct control_packet *p, int fd, unsigned slot)
{
	uint32_t n = p->msg.nr_fds;

	if (n == CTL_FDS_MAX)
		return -E2BIG;
	p->fds[n] = fd;
	p->msg.slot[n] = (uint16_t)slot;
	p->msg.nr_fds = n + 1;
	return 0;
}

int control_call(int control, int alive, const struct control_packet *p, unsigned timeout_ms,
                 struct ctl_msg *ret)
{
	uint64_t deadline = mono_ms() + timeout_ms;
	struct ctl_msg answer;
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
	if ((size_t)n != sizeof(answer) || answer.magic != CTL_MAGIC)
		return -EPROTO;
	*ret = answer;
	return 0;
}

int control_done(const struct ctl_msg *a)
{
	int64_t said = (int64_t)a->arg[CTL_DONE_ERR];

	return a->type != CTL_DONE || said > 0 || said < -4095 ? -EPROTO : (int)said;
}

int control_ask(struct engine_machine *m, enum ctl_type type, struct ctl_msg *ret, struct err *e)
{
	struct control_packet p = {.msg = {.magic = CTL_MAGIC, .type = (uint32_t)type}};
	int r = control_call(m->control, m->pidfd, &p, CONTROL_CALL_TIMEOUT_MS, ret);

	if (r == 0)
		r = control_done(ret);
	if (r < 0)
		return err_set(e, -r, r == -ESRCH ? "machine_gone" : "machine_silent",
		               "machine %s does not answer: %s", m->id,
		               r == -ESRCH ? "it has ended" : strerror(-r));
	return 0;
}
