/*
 * machine/console.c - what a guest's kernel says is kept, but not all of it
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "machine/machine.h"

/* The machine appends, whatever we do: what comes between the two halves of this is lost. */
static void keep_tail(int fd, off_t size)
{
	autofree char *tail = malloc(CONSOLE_KEPT);
	char *line;
	size_t n = CONSOLE_KEPT;

	if (!tail || io_pread_full(fd, tail, n, size - (off_t)n) < 0 || ftruncate(fd, 0) < 0)
		return;
	line = memchr(tail, '\n', n);
	line = line ? line + 1 : tail;
	(void)!io_write_full(fd, line, n - (size_t)(line - tail));
}

void machines_trim_consoles(const struct machines *ms)
{
	autoclosedir DIR *d = io_opendir(ms->dir, ".", 0);
	struct dirent *de;

	while (d && (de = readdir(d))) {
		autoclose int fd = -1;
		char path[sizeof(de->d_name) + 16];
		struct stat st;

		snprintf(path, sizeof(path), "%s/console.log", de->d_name);
		if (fstatat(ms->dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		    st.st_size <= CONSOLE_MAX)
			continue;
		fd = openat(ms->dir, path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
		if (fd >= 0)
			keep_tail(fd, st.st_size);
	}
}
