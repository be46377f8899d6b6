#include "layers/sync.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>

#include "base/cleanup.h"
#include "layers/crew.h"

int sync_add(struct sync_list *s, int *fd)
{
	int r = s->n == SYNC_FILES_MAX ? sync_all(s) : 0;

	if (r < 0)
		return r;
	sync_file_range(*fd, 0, 0, SYNC_FILE_RANGE_WRITE);
	s->fds[s->n++] = take_fd(fd);
	return 0;
}

struct syncing {
	const struct sync_list *list;
	atomic_size_t next;
	atomic_int r; /* of one that failed */
};

static void *work(void *arg)
{
	struct syncing *s = arg;
	size_t i;

	while ((i = s->next++) < s->list->n)
		if (fsync(s->list->fds[i]) < 0)
			s->r = -errno;
	return NULL;
}

int sync_all(struct sync_list *s)
{
	struct syncing at = {.list = s};

	/* May fail where a file system does not know it; fsync decides. */
	for (size_t i = 0; i < s->n; i++)
		sync_file_range(s->fds[i], 0, 0,
		                SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
		                    SYNC_FILE_RANGE_WAIT_AFTER);
	crew_run((unsigned)s->n, work, &at); /* they only wait */
	if (at.r < 0)
		return at.r;
	sync_fini(s);
	return 0;
}

void sync_fini(struct sync_list *s)
{
	for (size_t i = 0; i < s->n; i++)
		close(s->fds[i]);
	s->n = 0;
}
