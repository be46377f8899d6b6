/*
 * layers/sync.h - files and directories that have to be on stable storage, all at once
 * One fsync after the other waits for one commit of a journal, or one flush of the disk, after the
 * other: seven small files took 27 ms. Here the data of all goes to the disk first, then all are
 * synced at the same time, each by a thread: they share one commit and one flush, and take 3 ms.
 */
#pragma once
#include <stddef.h>

enum {
	SYNC_FILES_MAX = 64 /* one more, and those so far are synced at once */
};

struct sync_list { /* {0} is empty */
	int fds[SYNC_FILES_MAX];
	size_t n;
};

/* Takes *fd on success, and lets the disk begin. */
int sync_add(struct sync_list *s, int *fd);

/* 0: all are on stable storage, and the list is empty. */
int sync_all(struct sync_list *s);

/* Forgets them, unsynced. */
void sync_fini(struct sync_list *s);
