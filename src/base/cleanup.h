/*
 * base/cleanup.h - ownership that shows
 * autofree and autoclose variables start as NULL or -1 and are released on every exit from
 * their scope; take_ptr() and take_fd() mark the line where something changes hands.
 */
#pragma once
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define AUTO(fn) __attribute__((cleanup(fn)))

static inline void freep(void *p)
{
	free(*(void **)p);
}

static inline void closep(int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	errno = saved;
}

static inline void fclosep(FILE **f)
{
	if (*f)
		fclose(*f);
}

static inline void closedirp(DIR **d)
{
	if (*d)
		closedir(*d);
}

#define autofree     AUTO(freep)
#define autoclose    AUTO(closep)
#define autofclose   AUTO(fclosep)
#define autoclosedir AUTO(closedirp)

static inline int take_fd(int *fd)
{
	int v = *fd;

	*fd = -1;
	return v;
}

#define take_ptr(p)                         \
	({                                  \
		typeof(p) *taken_ = &(p);   \
		typeof(p) value_ = *taken_; \
		*taken_ = NULL;             \
		value_;                     \
	})
