/*
 * panda cp - files and directories, in and out
 * What a guest says about its files is not believed: names with a slash are refused, and everything
 * is made below the directory that was asked for, without following links.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

enum {
	DEPTH_MAX = 100,
};

static const struct cli_opt opts[] = {
    {'r', "recursive", NULL, "directories, with all that is in them", WORD_NONE},
    {0},
};

struct cp {
	struct cli *c;
	char id[CLI_ID];
	bool recursive;
	int failed; /* things that could not be copied */
	long long files, bytes;
};

static int complain(struct cp *k, const char *what, const char *path, int errnum)
{
	char shown[300];

	show_clean(path, shown, sizeof(shown));
	fprintf(stderr, "panda: cannot %s %s: %s\n", what, shown, strerror(errnum));
	k->failed++;
	return CLI_PANDA;
}

static int complain_e(struct cp *k, const struct panda_error *e)
{
	k->failed++;
	return cli_say(k->c, e);
}

/* NULL: out of memory, said. */
static char *join(struct cp *k, const char *dir, const char *name)
{
	char *s = NULL;
	size_t n = strlen(dir);

	if (asprintf(&s, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name) >= 0)
		return s;
	cli_die("out of memory");
	k->failed++;
	return NULL;
}

/* ---- into the sandbox ---- */

static ssize_t from_fd(void *arg, void *buf, size_t n)
{
	ssize_t r;

	do
		r = read(*(int *)arg, buf, n);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : r;
}

static int put_fd(struct cp *k, int fd, const struct stat *st, const char *to)
{
	char mode[8];
	autofree char *path = NULL;
	autojson json_t *reply = NULL;
	struct panda_error e;

	snprintf(mode, sizeof(mode), "%04o", st->st_mode & 07777);
	path = S_ISREG(st->st_mode)
	           ? panda_path("/v1/sandboxes/%s/fs?path=%s&mode=%s", k->id, to, mode)
	           : panda_path("/v1/sandboxes/%s/fs?path=%s", k->id, to);
	if (!path)
		return cli_die("out of memory");
	if (panda_upload(k->c->panda, "PUT", path, S_ISREG(st->st_mode) ? st->st_size : -1, from_fd,
	                 &fd, &reply, &e) < 0)
		return complain_e(k, &e);
	k->files++;
	k->bytes += ji(reply, "bytes");
	return 0;
}

static int post(struct cp *k, const char *what, json_t *body)
{
	autofree char *path = panda_path("/v1/sandboxes/%s/fs/%s", k->id, what);
	autojson json_t *owned = body;
	struct panda_error e;

	if (!path || !owned)
		return cli_die("that name is not UTF-8");
	if (panda_call(k->c->panda, "POST", path, owned, NULL, &e) < 0)
		return complain_e(k, &e);
	return 0;
}

static int put_dir(struct cp *k, int dirfd, const struct stat *st, const char *to, int depth);

static int put_at(struct cp *k, int dirfd, const char *name, const char *to, int depth)
{
	autoclose int fd = -1;
	char target[PATH_MAX];
	struct stat st;
	ssize_t n;

	/* What was named on the command line may be a link to what is meant; what is found is
	 * not. */
	if (fstatat(dirfd, name, &st, depth ? AT_SYMLINK_NOFOLLOW : 0) < 0)
		return complain(k, "read", name, errno);
	if (S_ISLNK(st.st_mode)) {
		n = readlinkat(dirfd, name, target, sizeof(target) - 1);
		if (n < 0)
			return complain(k, "read", name, errno);
		target[n] = 0;
		return post(k, "symlink", json_pack("{s:s, s:s}", "target", target, "path", to));
	}
	if (depth && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
		fprintf(stderr, "panda: %s is neither file nor directory: left out\n", name);
		return 0;
	}
	fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | (depth ? O_NOFOLLOW : 0));
	if (fd < 0 || fstat(fd, &st) < 0)
		return complain(k, "open", name, errno);
	if (!S_ISDIR(st.st_mode))
		return put_fd(k, fd, &st, to);
	if (!k->recursive)
		return cli_die("%s is a directory: panda cp -r copies it", name);
	return put_dir(k, fd, &st, to, depth);
}

static int put_dir(struct cp *k, int dirfd, const struct stat *st, const char *to, int depth)
{
	autoclosedir DIR *d = NULL;
	struct dirent *de;
	char mode[8];

	if (depth > DEPTH_MAX)
		return complain(k, "go down to", to, ELOOP);
	snprintf(mode, sizeof(mode), "%04o", st->st_mode & 07777);
	if (post(k, "mkdir", json_pack("{s:s, s:s, s:b}", "path", to, "mode", mode, "parents", 1)))
		return CLI_PANDA;
	d = fdopendir(fcntl(dirfd, F_DUPFD_CLOEXEC, 3));
	if (!d)
		return complain(k, "read", to, errno);
	while ((de = readdir(d))) {
		autofree char *path = NULL;

		if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
			continue;
		path = join(k, to, de->d_name);
		if (!path)
			return CLI_PANDA;
		put_at(k, dirfd, de->d_name, path, depth + 1);
	}
	return 0;
}

/* ---- out of the sandbox ---- */

static int to_fd(void *arg, const void *p, size_t n)
{
	return io_write_full(*(int *)arg, p, n);
}

/* Bytes of a file to an fd. The server's error, or the one of our own disk. */
static int get_bytes(struct cp *k, const char *from, int fd, const char *name)
{
	autofree char *path = panda_path("/v1/sandboxes/%s/fs?path=%s", k->id, from);
	struct panda_error e;
	int r;

	if (!path)
		return cli_die("out of memory");
	r = panda_download(k->c->panda, path, to_fd, &fd, &e);
	if (r < 0 && !strcmp(e.code, "stopped"))
		return complain(k, "write", name, -r);
	return r < 0 ? complain_e(k, &e) : 0;
}

/*
 * Beside its final place first: a copy that broke off must not look like a file. named: our user
 * said this very name, so it may lead to a device or a fifo. A name the guest chose may not: what
 * is there could be a link that came from the same guest a moment ago.
 */
static int get_file(struct cp *k, const char *from, int dirfd, const char *name, bool named,
                    mode_t mode)
{
	autoclose int fd = -1;
	char temp[64], proc[32];
	struct stat st;
	bool unnamed;
	int r;

	if (named && fstatat(dirfd, name, &st, 0) == 0 && !S_ISREG(st.st_mode) &&
	    !S_ISDIR(st.st_mode)) {
		fd = openat(dirfd, name, O_WRONLY | O_CLOEXEC | O_NOCTTY); /* /dev/stdout, a fifo */
		return fd < 0 ? complain(k, "write", name, errno) : get_bytes(k, from, fd, name);
	}
	snprintf(temp, sizeof(temp), ".panda-cp.%d.%lld", (int)getpid(), k->files);
	/* Without a name until it is whole, where the file system can: nothing is left of a
	 * kill. */
	fd = openat(dirfd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
	unnamed = fd >= 0;
	if (!unnamed)
		fd =
		    openat(dirfd, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return complain(k, "write", name, errno);
	r = get_bytes(k, from, fd, name);
	snprintf(proc, sizeof(proc), "/proc/self/fd/%d", fd);
	/* Permissions for us and others, never setuid: the guest chose these bits. */
	if (r == 0 && (fchmod(fd, mode & 0777) < 0 ||
	               (unnamed && linkat(AT_FDCWD, proc, dirfd, temp, AT_SYMLINK_FOLLOW) < 0) ||
	               renameat(dirfd, temp, dirfd, name) < 0)) {
		r = complain(k, "write", name, errno);
		unlinkat(dirfd, temp, 0);
	} else if (r && !unnamed) {
		unlinkat(dirfd, temp, 0);
	}
	k->files += !r;
	return r;
}

static int get_stat(struct cp *k, const char *path, bool follow, json_t **ret,
                    struct panda_error *e)
{
	autofree char *at =
	    panda_path("/v1/sandboxes/%s/fs/stat?path=%s&follow=%d", k->id, path, (int)follow);

	return at ? panda_call(k->c->panda, "GET", at, NULL, ret, e) : -ENOMEM;
}

static mode_t perm_of(const json_t *info, mode_t usual)
{
	const char *perm = js(info, "perm");

	return *perm ? (mode_t)strtoul(perm, NULL, 8) : usual;
}

/* In place of what is there, unless that is a directory. 0, or -1 and errno. */
static int get_link(const char *target, int dirfd, const char *name)
{
	char temp[64];
	int saved;

	if (symlinkat(target, dirfd, name) == 0)
		return 0;
	snprintf(temp, sizeof(temp), ".panda-cp.%d.link", (int)getpid());
	if (errno != EEXIST || symlinkat(target, dirfd, temp) < 0)
		return -1;
	if (renameat(dirfd, temp, dirfd, name) == 0)
		return 0;
	saved = errno;
	unlinkat(dirfd, temp, 0);
	errno = saved;
	return -1;
}

static int get_dir(struct cp *k, const char *from, int parent, const char *name, bool named,
                   mode_t mode, int depth);

static int get_entry(struct cp *k, const char *dir, int dirfd, const json_t *entry, int depth)
{
	const char *name = js(entry, "name"), *kind = js(entry, "mode");
	autofree char *from = NULL;

	if (!*name || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, ".."))
		return complain(k, "take a file with the name", name, EINVAL);
	from = join(k, dir, name);
	if (!from)
		return CLI_PANDA;
	if (*kind == 'l') {
		if (get_link(js(entry, "target"), dirfd, name) < 0)
			return complain(k, "write", name, errno);
		return 0;
	}
	if (json_is_true(json_object_get(entry, "is_dir")))
		return get_dir(k, from, dirfd, name, false, perm_of(entry, 0755), depth + 1);
	if (*kind != 'f')
		return 0; /* devices, sockets */
	return get_file(k, from, dirfd, name, false, perm_of(entry, 0644));
}

static int get_dir(struct cp *k, const char *from, int parent, const char *name, bool named,
                   mode_t mode, int depth)
{
	autofree char *at = panda_path("/v1/sandboxes/%s/fs/dir?path=%s", k->id, from);
	autojson json_t *reply = NULL;
	autoclose int fd = -1;
	struct panda_error e;
	json_t *entry;
	size_t i;

	if (depth > DEPTH_MAX)
		return complain(k, "go down to", from, ELOOP);
	if (!at)
		return cli_die("out of memory");
	if (panda_call(k->c->panda, "GET", at, NULL, &reply, &e) < 0)
		return complain_e(k, &e);
	if (mkdirat(parent, name, 0700) < 0 && errno != EEXIST)
		return complain(k, "make", name, errno);
	fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (named ? 0 : O_NOFOLLOW));
	if (fd < 0)
		return complain(k, "open", name, errno);
	json_array_foreach(json_object_get(reply, "entries"), i, entry)
		get_entry(k, from, fd, entry, depth);
	/* Last: a directory that may not be written to could not have been filled. */
	if (fchmod(fd, mode & 0777) < 0)
		return complain(k, "chmod", name, errno);
	return 0;
}

/* ---- which way ---- */

/* "ID:/path", and the ':' before any '/': "./a:b" is a file of ours. */
static bool is_remote(const char *s)
{
	const char *colon = strchr(s, ':'), *slash = strchr(s, '/');

	return colon && colon != s && (!slash || colon < slash);
}

static const char *base_name(const char *s)
{
	size_t n = strlen(s);
	const char *p;

	while (n > 1 && s[n - 1] == '/')
		n--;
	for (p = s + n; p > s && p[-1] != '/';)
		p--;
	return p;
}

static int remote_of(struct cp *k, const char *s, const char **path)
{
	autofree char *id = strndup(s, (size_t)(strchr(s, ':') - s));

	*path = strchr(s, ':') + 1;
	if (!id)
		return cli_die("out of memory");
	if (**path != '/')
		return cli_bad(k->c, "paths in a sandbox begin with '/': %s:/%s", id, *path);
	return cli_id(k->c, id, k->id);
}

static int put(struct cp *k, const char *from, const char *to)
{
	autojson json_t *info = NULL;
	autofree char *inside = NULL;
	struct panda_error e;
	bool dash = !strcmp(from, "-");
	int r;

	r = get_stat(k, to, true, &info, &e);
	if (r < 0 && e.status != 404)
		return complain_e(k, &e);
	if (json_is_true(json_object_get(info, "is_dir")) || to[strlen(to) - 1] == '/') {
		if (dash)
			return cli_bad(k->c, "%s is a directory: name the file", to);
		inside = join(k, to, base_name(from));
		if (!inside)
			return CLI_PANDA;
		while (inside[strlen(inside) - 1] == '/')
			inside[strlen(inside) - 1] = 0;
	}
	if (dash)
		return put_fd(k, 0, &(struct stat){.st_mode = S_IFIFO}, to);
	return put_at(k, AT_FDCWD, from, inside ? inside : to, 0);
}

static int get(struct cp *k, const char *from, const char *to)
{
	autojson json_t *info = NULL;
	autofree char *inside = NULL;
	struct panda_error e;
	struct stat st;

	if (!strcmp(to, "-"))
		return get_bytes(k, from, 1, "standard output");
	if (get_stat(k, from, true, &info, &e) < 0)
		return complain_e(k, &e);
	if (stat(to, &st) == 0 && S_ISDIR(st.st_mode)) {
		autofree char *name = strdup(base_name(from));

		if (name && *name)
			name[strcspn(name, "/")] = 0;
		inside = join(k, to, name && *name ? name : "root");
		if (!inside)
			return CLI_PANDA;
		to = inside;
	}
	if (!json_is_true(json_object_get(info, "is_dir"))) {
		/* Temporary file and rename happen in the directory the file will be in. */
		autofree char *dir = strndup(to, (size_t)(base_name(to) - to));
		autoclose int fd = -1;

		fd = open(dir && *dir ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0)
			return complain(k, "write into", dir && *dir ? dir : ".", errno);
		return get_file(k, from, fd, base_name(to), !inside, perm_of(info, 0644));
	}
	if (!k->recursive)
		return cli_die("%s is a directory: panda cp -r copies it", from);
	return get_dir(k, from, AT_FDCWD, to, !inside, perm_of(info, 0755), 0);
}

static int run(struct cli *c)
{
	struct cp k = {.c = c, .recursive = cli_has(c, 'r')};
	const char *from, *to, *path;
	int r;

	if (cli_args(c, 2, 2))
		return CLI_PANDA;
	from = c->argv[0];
	to = c->argv[1];
	if (is_remote(from) == is_remote(to))
		return cli_bad(c, is_remote(from) ? "one of both must be a file of this host"
		                                  : "one of both must be in a sandbox: ID:/path");
	if (remote_of(&k, is_remote(from) ? from : to, &path))
		return CLI_PANDA;
	r = is_remote(from) ? get(&k, path, to) : put(&k, from, path);
	if (c->json && !(is_remote(from) && !strcmp(to, "-"))) { /* that is the file's */
		autojson json_t *j =
		    json_pack("{s:I, s:i}", "files", (json_int_t)k.files, "failed", k.failed);
		cli_json(j);
	}
	return r || k.failed ? CLI_PANDA : CLI_OK;
}

const struct cli_command command_cp = {
    .name = "cp",
    .args = "[OPTION]... FROM TO",
    .what = "copy files in and out: ID:/path, '-' is stdin or stdout",
    .about =
	"Copies a file, or with -r a directory, into a sandbox or out of it. In a sandbox is what\n"
	"is written ID:/path. A file appears whole or not at all; '-' is stdin or stdout.",
    .opts = opts,
    .word = WORD_FILE,
    .examples = "  panda cp -r ./project 3f2a:/root/project\n"
		"  panda cp 3f2a:/etc/os-release - | head -1\n",
    .run = run,
};
