/*
 * panda-tool - pandad's hands in a machine whose root may have no programs at all
 *
 * panda-tool at DIRECTORY COMMAND...: runs a command of the image that the machine booted from, in
 * this directory of the machine's root.
 * panda-tool chown USER[:GROUP]: gives away what stdin names (paths, each with a NUL); users are
 * those of the machine's root.
 * panda-tool id USER[:GROUP]: prints both as numbers.
 * panda-tool mount ro|rw FROM TO, tmpfs TO, umount TO.
 * panda-tool glob PATTERN: prints the paths that it matches, each with a NUL.
 *
 * A program of guests, as panda-init is: static. template/build_copy.c puts it there.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static uid_t uid = (uid_t)-1;
static gid_t gid = (gid_t)-1;

static int die(const char *what, const char *of)
{
	fprintf(stderr, "%s %s: %s\n", what, of, strerror(errno));
	return 1;
}

/* The mount is in a place of our own, and gone with us. Nothing of the image's root is needed but
 * an empty directory for it: /sys is in every machine. */
static int run_at(char **argv)
{
	if (chdir(argv[0]) < 0)
		return die("cannot go to", argv[0]);
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("/dev/pblk0", "/sys", "erofs", MS_RDONLY, NULL) < 0 || chroot("/sys") < 0)
		return die("cannot use", "the root image");
	execvp(argv[1], argv + 1);
	return die("cannot run", argv[1]);
}

/* A number, or what the function says of the name. */
static int number(const char *text, unsigned *ret)
{
	char *end;
	unsigned long v = strtoul(text, &end, 10);

	if (!*text || *end || v >= UINT_MAX)
		return -1;
	*ret = (unsigned)v;
	return 0;
}

static int find_owner(char *owner)
{
	char *group = strchr(owner, ':');
	const struct passwd *pw;
	const struct group *gr;

	if (group)
		*group++ = 0;
	if (number(owner, &uid) < 0) {
		pw = getpwnam(owner);
		if (!pw) {
			fprintf(stderr, "there is no user '%s' in the image\n", owner);
			return -1;
		}
		uid = pw->pw_uid;
		gid = pw->pw_gid;
	} else {
		gid = uid;
	}
	if (group && number(group, &gid) < 0) {
		gr = getgrnam(group);
		if (!gr) {
			fprintf(stderr, "there is no group '%s' in the image\n", group);
			return -1;
		}
		gid = gr->gr_gid;
	}
	return 0;
}

static int give_all(char *owner)
{
	char *path = NULL;
	size_t cap = 0;

	if (find_owner(owner) < 0)
		return 1;
	while (getdelim(&path, &cap, 0, stdin) > 0)
		if (lchown(path, uid, gid) < 0)
			return die("cannot give away", path);
	free(path);
	return 0;
}

/* Names that begin with a dot are names as others. */
static int print_matches(const char *pattern)
{
	glob_t g;
	int r = glob(pattern, GLOB_PERIOD, NULL, &g);

	if (r == GLOB_NOMATCH)
		return 0;
	if (r != 0)
		return die("cannot look for", pattern);
	for (size_t i = 0; i < g.gl_pathc; i++) {
		const char *path = g.gl_pathv[i], *slash = strrchr(path, '/');

		if (strcmp(slash ? slash : path, "/.") != 0 &&
		    strcmp(slash ? slash : path, "/..") != 0)
			fwrite(path, 1, strlen(path) + 1, stdout);
	}
	return fflush(stdout) == 0 ? 0 : die("cannot print", pattern);
}

static int bind_at(const char *how, const char *from, const char *to)
{
	if (mount(from, to, NULL, MS_BIND, NULL) < 0 ||
	    (!strcmp(how, "ro") &&
	     mount(NULL, to, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) < 0))
		return die("cannot mount at", to);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 3 && !strcmp(argv[1], "at"))
		return run_at(argv + 2);
	if (argc == 3 && !strcmp(argv[1], "chown"))
		return give_all(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "glob"))
		return print_matches(argv[2]);
	if (argc == 3 && !strcmp(argv[1], "id"))
		return find_owner(argv[2]) < 0 || printf("%u:%u", uid, gid) < 0;
	if (argc == 5 && !strcmp(argv[1], "mount"))
		return bind_at(argv[2], argv[3], argv[4]);
	if (argc == 3 && !strcmp(argv[1], "tmpfs"))
		return mount("tmpfs", argv[2], "tmpfs", 0, NULL) < 0
		           ? die("cannot mount at", argv[2])
		           : 0;
	if (argc == 3 && !strcmp(argv[1], "umount"))
		return umount2(argv[2], MNT_DETACH) < 0 ? die("cannot unmount", argv[2]) : 0;
	fprintf(
	    stderr,
	    "usage: panda-tool at DIRECTORY COMMAND... | chown OWNER | id OWNER | glob PATTERN |\n"
	    "       mount ro|rw FROM TO | tmpfs TO | umount TO\n");
	return 2;
}
