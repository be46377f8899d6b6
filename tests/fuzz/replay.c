/*
 * Runs a fuzz target over files: its corpus is an ordinary test with every compiler.
 * usage: replay PATH...   (a file, or a directory of files)
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
	INPUT_MAX = 1 << 24,
};

static int replay_file(const char *path)
{
	autofree char *text = NULL;
	autofree uint8_t *exact = NULL;
	size_t n;
	int r = io_read_file(AT_FDCWD, path, INPUT_MAX, &text, &n);

	if (r < 0) {
		fprintf(stderr, "replay: cannot read %s: %s\n", path, strerror(-r));
		return r;
	}
	exact = malloc(n ? n : 1); /* not a byte more, so a sanitizer sees the end */
	if (!exact)
		return -ENOMEM;
	memcpy(exact, text, n);
	LLVMFuzzerTestOneInput(exact, n);
	return 1;
}

/* Returns how many inputs ran, or a negative errno. */
static int replay_path(const char *path)
{
	autoclosedir DIR *d = NULL;
	struct dirent *e;
	struct stat st;
	int count = 0;

	if (stat(path, &st) < 0)
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return replay_file(path);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		char child[PATH_MAX];
		int r;

		if (e->d_name[0] == '.')
			continue;
		snprintf(child, sizeof(child), "%s/%s", path, e->d_name);
		r = replay_file(child);
		if (r < 0)
			return r;
		count += r;
	}
	return count;
}

int main(int argc, char **argv)
{
	int total = 0;

	for (int i = 1; i < argc; i++) {
		int r = replay_path(argv[i]);

		if (r < 0)
			return 1;
		total += r;
	}
	fprintf(stderr, "replay: %d inputs\n", total);
	return total > 0 ? 0 : 1; /* an empty corpus tests nothing */
}
