/*
 * layers/sync.h - files that have to be on stable storage, all at once
 * One fsync after the other waits for one commit of a journal after the other. Here the data of all
 * files goes to the disk first, then each is synced: the first commit takes the others with it.
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

/* 0: all are on stable storage, and the list is empty. Directories are the caller's business. */
int sync_all(struct sync_list *s);

/* Forgets them, unsynced. */
void sync_fini(struct sync_list *s);
