/*
 * Power cuts: what a disk may hold of a tree after one.
 * fault.c tells of every fsync; what a file or a directory was then is kept beside the tree. After
 * its writer has died, power_cut() makes the tree what that leaves, in one of two ways that file
 * systems may choose, in place: fds of directories stay good.
 */
#pragma once
#include <stdbool.h>

enum cut {
	CUT_ALL,   /* names and bytes are as they were last synced; nothing else ever was */
	CUT_BYTES, /* names are all there, but bytes that were not synced are zeros */
	CUTS,
};

/* From here on; all that is below root now is on the disk. */
void power_watch(const char *root);
void power_cut(enum cut how);
void power_end(void);

/* Of fault.c: fd, a file or a directory, was synced. One at a time. */
void power_synced(int fd);
