#include "base/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"

enum { BACKLOG = 64 };

static int make(int dirfd, const char *name, int type, bool listening, int *ret)
{
	autoclose int fd =
	    socket(AF_UNIX, type | SOCK_CLOEXEC | (listening ? 0 : SOCK_NONBLOCK), 0);
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int r;

	if (fd < 0)
		return -errno;
	if ((size_t)snprintf(sa.sun_path, sizeof(sa.sun_path), "/proc/self/fd/%d/%s", dirfd,
	                     name) >= sizeof(sa.sun_path))
		return -ENAMETOOLONG;
	if (listening)
		r = bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 ? -1 : listen(fd, BACKLOG);
	else
		r = connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 ? -1
		                                                        : fcntl(fd, F_SETFL, 0);
	if (r < 0)
		return -errno;
	*ret = take_fd(&fd);
	return 0;
}

int sock_listen(int dirfd, const char *name, int type, int *ret)
{
	return make(dirfd, name, type, true, ret);
}

int sock_connect(int dirfd, const char *name, int type, int *ret)
{
	return make(dirfd, name, type, false, ret);
}
