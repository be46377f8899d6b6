/*
 * guest/init/listen.c - where connections come from: our char device, vsock, or a unix socket in
 * tests
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "guest/init/agent.h"
#include "guest/init/list.h"

#define PANDA_CHAN_ACCEPT _IO('P', 1)

enum {
	VSOCK_PORT = 1, /* as the monitor knows it (src/vmm) */
};

static int chan_accept(int fd)
{
	int r = ioctl(fd, PANDA_CHAN_ACCEPT, 0);

	return r < 0 ? -errno : r;
}

static int socket_accept(int fd)
{
	int r = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	return r < 0 ? -errno : r;
}

static void listener_ready(struct source *s, uint32_t events)
{
	struct agent_listener *l = container_of(s, struct agent_listener, src);
	int fd = l->accept(l->fd);

	if (fd >= 0)
		conn_accepted(l->a, fd);
}

static int listen_on(struct agent *a, int fd, int (*accept)(int fd), bool reset_means_reborn)
{
	a->listener = (struct agent_listener){.src.ready = listener_ready,
	                                      .a = a,
	                                      .fd = fd,
	                                      .accept = accept,
	                                      .reset_means_reborn = reset_means_reborn};
	return source_add(a, &a->listener.src, fd, EPOLLIN);
}

int listen_chan(struct agent *a)
{
	int fd = open("/dev/panda-chan", O_RDWR | O_CLOEXEC | O_NONBLOCK);

	return fd < 0 ? -errno : listen_on(a, fd, chan_accept, true);
}

static int listen_socket(struct agent *a, const void *addr, socklen_t n, bool reset_means_reborn)
{
	autoclose int fd = -1;

	fd = socket(((const struct sockaddr *)addr)->sa_family,
	            SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, addr, n) < 0 || listen(fd, CONNS_MAX) < 0)
		return -errno;
	return listen_on(a, take_fd(&fd), socket_accept, reset_means_reborn);
}

int listen_vsock(struct agent *a)
{
	struct sockaddr_vm addr = {.svm_family = AF_VSOCK,
	                           .svm_cid = VMADDR_CID_ANY,
	                           .svm_port = VSOCK_PORT};

	return listen_socket(a, &addr, sizeof(addr), true);
}

int listen_unix(struct agent *a, const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	if (strlen(path) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	memcpy(addr.sun_path, path, strlen(path));
	return listen_socket(a, &addr, sizeof(addr), false);
}
