/*
 * liar.c - in place of panda-um, in the real jail: a machine's process that has lost its mind to
 * its guest. It lies to the host on the control socket, and to pandad on the agent's. Static;
 * -DLIE=... says in what it lies. What it does not lie about, it says as panda-um would.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire/control.h"

enum lie {
	MUTE,      /* no answer, ever */
	DIE,       /* it ends when it should answer */
	SHORT,     /* half a message */
	HUGE_ONE,  /* a message larger than any */
	GARBAGE,   /* a message of noise, and noise for the agent */
	WRONG,     /* another answer than that to the question */
	FLOOD,     /* answers to questions that were not asked, a quarter of a million */
	WRITES,    /* all it can write to, with noise; sizes that are none */
	AGENT,     /* a good start, and an agent that talks noise for ever */
	RUNS,      /* a snapshot of more pages than there are numbers */
	OVERLAP,   /* of pages that lie over each other, and outside of memory */
	CLAIM,     /* of all pages, none of which it has written */
	CUT,       /* in a map that is cut off, with a top that has no size any more */
	POSITIVE,  /* with an error that is none */
	ALL_LAYERS /* that needs layers which were never there */
};

enum { TALKS = 64, RUN = 16 };

static struct ctl_msg got;
static char noise[1 << 16];
static int agents[TALKS];
static unsigned n_agents;

/* Takes a message, and puts the fds that came with it where they belong. */
static bool hear(int fd)
{
	static char room[CMSG_SPACE(CTL_FDS_MAX * sizeof(int))];
	struct iovec iov = {&got, sizeof(got)};
	struct msghdr m = {.msg_iov = &iov,
	                   .msg_iovlen = 1,
	                   .msg_control = room,
	                   .msg_controllen = sizeof(room)};
	struct cmsghdr *c;
	int came[CTL_FDS_MAX], high;
	unsigned n = 0;

	if (recvmsg(fd, &m, 0) <= 0)
		return false;
	c = CMSG_FIRSTHDR(&m);
	if (c)
		n = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
	for (unsigned i = 0; i < n; i++) { /* out of the way of those that have a place */
		memcpy(&high, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
		came[i] = fcntl(high, F_DUPFD, 1100);
		close(high);
	}
	for (unsigned i = 0; i < n; i++) {
		dup3(came[i], got.slot[i], 0);
		close(came[i]);
	}
	return true;
}

static void say(int fd, uint32_t type)
{
	struct ctl_msg m = {.magic = CTL_MAGIC, .type = type};

	sendto(fd, &m, sizeof(m), MSG_NOSIGNAL | (LIE == FLOOD ? MSG_DONTWAIT : 0), NULL, 0);
}

static void write_everywhere(void)
{
	for (int fd = 0; fd < 1100; fd++) {
		if (fcntl(fd, F_GETFD) < 0 || (fd >= 3 && fd <= 5))
			continue;
		for (off_t at = 0; at < 1 << 22; at += (off_t)sizeof(noise))
			pwrite(fd, noise, sizeof(noise), at);
		pwrite(fd, noise, sizeof(noise), (off_t)1 << 40);
		ftruncate(fd, 0);
		ftruncate(fd, (off_t)1 << 50);
		lseek(fd, 0, SEEK_SET);
		write(fd, noise, sizeof(noise));
	}
	for (int i = 0; i < 256; i++)
		write(1, noise, sizeof(noise));
}

/* One frame of the agent's; the payloads are as src/wire/guest.h has them. */
static void frame(int fd, uint8_t type, uint32_t stream, const void *payload, uint32_t n)
{
	struct {
		uint32_t length;
		uint8_t version, type, chan, zero;
		uint32_t stream;
		uint8_t payload[64];
	} f = {n, 0xa1, type, 0, 0, stream, {0}};

	memcpy(f.payload, payload, n);
	sendto(fd, &f, 12 + n, MSG_NOSIGNAL | MSG_DONTWAIT, NULL, 0);
}

/* Each request has come to a good end. */
static bool agent(int fd)
{
	static uint8_t in[1 << 17];
	uint8_t ended[52] = {[0] = 1}, nothing[12] = {0};
	ssize_t n = read(fd, in, sizeof(in));

	if (n <= 0)
		return false;
	if (LIE == AGENT || LIE == GARBAGE) {
		while (write(fd, noise, sizeof(noise)) > 0)
			;
		return true;
	}
	for (ssize_t at = 0; at + 12 <= n;) {
		uint32_t length, stream;

		memcpy(&length, in + at, 4);
		memcpy(&stream, in + at + 8, 4);
		if (in[at + 5] == 32) { /* WIRE_EXEC: it began, and exited with 0 */
			frame(fd, 9, stream, ended, 12);
			frame(fd, 10, stream, ended, sizeof(ended));
		}
		if (in[at + 5] >= 32)
			frame(fd, 7, stream, nothing, 9);
		at += 12 + (ssize_t)length;
	}
	return true;
}

static void snapshot(int fd)
{
	struct ctl_msg m = {.magic = CTL_MAGIC, .type = CTL_DONE};
	uint64_t runs[4] = {0, 1, 0, 0};

	m.arg[CTL_DONE_LIVE] = LIE == ALL_LAYERS ? UINT64_MAX : 0;
	m.arg[CTL_DONE_RUNS] = LIE == RUNS ? UINT64_MAX / RUN : LIE == OVERLAP ? 2 : 1;
	m.arg[CTL_DONE_STOP_NS] = UINT64_MAX;
	if (LIE == POSITIVE)
		m.arg[CTL_DONE_ERR] = 1;
	if (LIE == OVERLAP)
		runs[3] = UINT64_MAX;
	if (LIE == CLAIM)
		runs[1] = (512 << 20) / 4096;
	for (unsigned d = 0; d < CTL_DISKS_MAX; d++) {
		m.disk[d].size = m.arg[CTL_DONE_LIVE];
		m.disk[d].layers = LIE == RUNS ? UINT32_MAX : 0;
	}
	pwrite(CTL_TO_MAP, runs, sizeof(runs), 0);
	pwrite(CTL_TO_STATE, noise, sizeof(noise), 0);
	if (LIE == CUT) {
		ftruncate(CTL_TO_MAP, 3);
		ftruncate(CTL_FD_TOP, 0);
		ftruncate(CTL_TO_STATE, (off_t)1 << 45);
	}
	for (int to = CTL_TO_STATE; to < CTL_DISK_TOP + CTL_DISKS_MAX; to++)
		close(to);
	for (int disk = CTL_FD_DISK; disk < CTL_FD_VOLUME; disk++)
		close(disk);
	close(CTL_FD_TOP);
	sendto(fd, &m, sizeof(m), MSG_NOSIGNAL, NULL, 0);
}

static void serve(int control)
{
	for (;;) {
		struct pollfd p[3 + TALKS] = {{3, POLLIN, 0},
		                              {CTL_FD_AGENT, POLLIN, 0},
		                              {control, POLLIN, 0}};

		for (unsigned i = 0; i < n_agents; i++)
			p[3 + i] = (struct pollfd){agents[i], POLLIN, 0};
		poll(p, 3 + n_agents, -1);
		for (unsigned i = n_agents; i--;)
			if (p[3 + i].revents && !agent(agents[i])) {
				close(agents[i]);
				agents[i] = agents[--n_agents];
			}
		if (p[1].revents && n_agents < TALKS) {
			int new = accept4(CTL_FD_AGENT, NULL, NULL, 0);

			if (new >= 0)
				agents[n_agents++] = new;
		}
		if (p[0].revents && control < 0) {
			control = accept4(3, NULL, NULL, 0);
		} else if (p[2].revents && !hear(control)) {
			close(control);
			control = -1; /* whoever adopts the machine makes another one */
		} else if (p[2].revents && got.type == CTL_SNAPSHOT) {
			snapshot(control);
		} else if (p[2].revents) {
			say(control, CTL_DONE);
		}
	}
}

int main(void)
{
	int control = accept4(3, NULL, NULL, 0);
	uint32_t seed = 1;

	for (size_t i = 0; i < sizeof(noise); i++)
		noise[i] = (char)((seed = seed * 1664525 + 1013904223) >> 24);
	if (control < 0 || !hear(control))
		return 4;
	switch (LIE) {
	case MUTE:
		poll(NULL, 0, -1);
		break;
	case DIE:
		return 3;
	case SHORT:
		sendto(control, &got, sizeof(got) / 2, MSG_NOSIGNAL, NULL, 0);
		break;
	case HUGE_ONE:
		sendto(control, noise, sizeof(noise), MSG_NOSIGNAL, NULL, 0);
		break;
	case GARBAGE:
		sendto(control, noise, sizeof(got), MSG_NOSIGNAL, NULL, 0);
		break;
	case WRONG:
		say(control, CTL_DONE);
		break;
	case FLOOD:
		for (int i = 0; i < 1 << 18; i++)
			say(control, CTL_READY);
		return 5;
	case WRITES:
		write_everywhere();
		say(control, CTL_READY);
		break;
	default:
		say(control, CTL_READY);
	}
	serve(control);
}
