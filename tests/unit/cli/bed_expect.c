/*
 * cli/bed_expect.c - what is expected of a command, and its files
 */
#include "bed_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "common/request.h"

static void differs(const char *file, int line, const char *what, const char *is, const char *want)
{
	print_error("%s is:\n%s\n--- and not:\n%s\n--- exit code %d, stderr:\n%s\n", what, is, want,
	            bed.code, bed.err);
	_cmocka_fail(file, line, "the command did something else");
}

static void check_code(const char *file, int line, int code)
{
	char is[16], want[16];

	snprintf(is, sizeof(is), "%d", bed.code);
	snprintf(want, sizeof(want), "%d", code);
	if (bed.code != code)
		differs(file, line, "the exit code", is, want);
}

void bed_gives(const char *file, int line, int code, const char *out, const char *err)
{
	check_code(file, line, code);
	if (out && strcmp(bed.out, out) != 0)
		differs(file, line, "stdout", bed.out, out);
	if (err && strcmp(bed.err, err) != 0)
		differs(file, line, "stderr", bed.err, err);
}

void bed_fails(const char *file, int line, int code, const char *part)
{
	check_code(file, line, code);
	if (*bed.out)
		differs(file, line, "stdout", bed.out, "");
	if (!strstr(bed.err, part))
		differs(file, line, "stderr", bed.err, part);
}

static json_t *parsed(const char *file, int line, const char *text)
{
	json_error_t why;
	json_t *j = json_loads(text, JSON_DECODE_ANY, &why);

	if (!j)
		differs(file, line, "what should be JSON", text, why.text);
	return j;
}

static void compare_json(const char *file, int line, const char *what, const char *is,
                         const char *want)
{
	autofree char *text = bed_json(want);
	json_t *a = parsed(file, line, is), *w = parsed(file, line, text);
	int same = json_equal(a, w);

	json_decref(a);
	json_decref(w);
	if (!same)
		differs(file, line, what, is, want);
}

void bed_prints(const char *file, int line, const char *json)
{
	check_code(file, line, 0);
	compare_json(file, line, "stdout", bed.out, json);
}

void bed_sent(const char *file, int line, size_t i, const char *json)
{
	const char *body = i < bed.nasked ? bed.asked[i].body : "(no such request)";

	if (!json && *body)
		differs(file, line, "the body", body, "");
	if (json)
		compare_json(file, line, "the body", body, json);
}

const char *bed_field(size_t i, const char *name)
{
	static char value[1024];

	request_field(bed.asked[i].text, bed.asked[i].text_len, name, value, sizeof(value));
	return value;
}

/* ---- files ---- */

static const char *full(const char *path)
{
	static char text[4096];

	snprintf(text, sizeof(text), "%s/%s", bed.dir, path);
	return text;
}

void bed_mkdir(const char *path)
{
	char *text = strdup(full(path));

	for (char *at = text + strlen(bed.dir) + 1; (at = strchr(at, '/')); *at++ = '/') {
		*at = 0;
		(void)mkdir(text, 0755);
	}
	(void)mkdir(text, 0755);
	free(text);
}

void bed_file(const char *path, const char *text, size_t n, mode_t mode)
{
	autofree char *dir = strdup(path);
	autoclose int fd = -1;

	if (strrchr(dir, '/')) {
		*strrchr(dir, '/') = 0;
		bed_mkdir(dir);
	}
	fd = open(full(path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || io_write_full(fd, text, n ? n : strlen(text)) < 0 || fchmod(fd, mode) < 0)
		abort();
}

const char *bed_content(const char *path, size_t *len)
{
	char *text = NULL;

	if (io_read_file(AT_FDCWD, full(path), 1 << 28, &text, len) < 0)
		return NULL;
	return bed_keep(text);
}

mode_t bed_mode(const char *path)
{
	struct stat st;

	return stat(full(path), &st) < 0 ? 0 : st.st_mode & 07777;
}

int bed_entries(const char *path)
{
	DIR *d = opendir(full(path));
	int n = -2;

	if (!d)
		return -1;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}
