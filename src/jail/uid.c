#include "jail/uid.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"

/*
 * The kernel knows every process of a uid, and a hostile machine cannot talk it out of that (an
 * inherited lock it could simply close). The answer is quick: no such user, no search.
 */
static bool uid_in_use(uid_t uid)
{
	return syscall(SYS_getpriority, PRIO_USER, uid) >= 0 || errno != ESRCH;
}

int uid_take(struct uid_range *range, struct jail_uid *ret, struct err *e)
{
	autoclose int fd = openat(range->dir, "uids.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0)
		return err_set(e, errno, "no_uid", "cannot open the lock file of the uid range");
	for (unsigned i = 0; i < range->count; i++) {
		unsigned slot = atomic_fetch_add(&range->hint, 1) % range->count;
		struct flock lock = {.l_type = F_WRLCK, .l_start = slot, .l_len = 1};
		uid_t uid = range->base + slot;

		if (uid_in_use(uid))
			continue;
		/* Belongs to this open file, so it excludes other threads of ours as well. */
		if (fcntl(fd, F_OFD_SETLK, &lock) < 0) {
			if (errno == EAGAIN || errno == EACCES)
				continue;
			return err_set(e, errno, "no_uid", "cannot lock a uid");
		}
		if (uid_in_use(uid)) { /* started between our look and our lock */
			lock.l_type = F_UNLCK;
			fcntl(fd, F_OFD_SETLK, &lock);
			continue;
		}
		ret->uid = uid;
		ret->lock = take_fd(&fd);
		return 0;
	}
	return err_set(e, EAGAIN, "no_uid", "all %u uids from %u on are in use", range->count,
	               range->base);
}

void jail_uid_drop(struct jail_uid *u)
{
	if (u->lock >= 0)
		close(u->lock);
	u->lock = -1;
}
