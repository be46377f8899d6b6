/*
 * agent/mount.c - volumes: file systems that the machine did not boot with
 * A mount reads a few blocks, but one that must play back a journal takes as long as that takes,
 * and nobody else is served meanwhile: volumes are mounted before anybody works in the machine.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <mntent.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent.h"
#include "base/cleanup.h"

/* A path of its own: not the root, and nothing that holds the machine together. */
static bool path_usable(const struct wire_str *path)
{
	static const char *const ours[] = {"/proc", "/sys", "/dev", "/run"};

	if (path->p[0] != '/' || path->p[strspn(path->p, "/")] == 0)
		return false;
	for (size_t i = 0; i < ARRAY_LEN(ours); i++) {
		size_t n = strlen(ours[i]);

		if (strncmp(path->p, ours[i], n) == 0 && path->p[n + strspn(path->p + n, "/")] == 0)
			return false;
	}
	return true;
}

/* Of an open device; 0 also means that there is none. */
static uint64_t device_size(int fd)
{
	uint64_t size = 0;

	return fd < 0 || ioctl(fd, BLKGETSIZE64, &size) < 0 ? 0 : size;
}

/* An ext4 that was unmounted cleanly: its journal is empty. */
static bool ext4_clean(int fd)
{
	enum { BLOCK = 4096, SUPER = 1024, MAGIC = SUPER + 56, INCOMPAT = SUPER + 96, RECOVER = 4 };
	uint8_t b[BLOCK];

	return pread(fd, b, sizeof(b), 0) == sizeof(b) && b[MAGIC] == 0x53 &&
	       b[MAGIC + 1] == 0xef && !(b[INCOMPAT] & RECOVER);
}

/*
 * A mount writes the superblock and waits until it is on the host's disk, which may take longer
 * than a whole restore, for nothing: each later commit of the journal waits for all that was
 * written before it, this block included, and until the first one nothing refers to what was
 * written. So a clean one is mounted without waiting, and waits from then on. One with a journal to
 * play back is mounted the usual way: what was played back must be on disk before the journal is
 * marked empty.
 */
static int mount_ext4(const char *device, int fd, const char *path, bool read_only)
{
	unsigned long flags = MS_NOATIME | (read_only ? MS_RDONLY : 0);

	/* Its file has holes where nothing was ever written, so nothing needs to be zeroed in the
	 * background; and what is deleted becomes a hole again. */
	if (read_only)
		return mount(device, path, "ext4", flags, "noinit_itable");
	if (!ext4_clean(fd))
		return mount(device, path, "ext4", flags, "noinit_itable,discard");
	if (mount(device, path, "ext4", flags, "noinit_itable,discard,barrier=0") < 0)
		return -1;
	if (mount(NULL, path, NULL, flags | MS_REMOUNT, "barrier=1") < 0) {
		int err = errno;

		umount2(path, MNT_DETACH); /* never without the promise of a sync */
		errno = err;
		return -1;
	}
	return 0;
}

/* errno of mount() is terse; say what the host can do about it. */
static const char *explain(int err, bool read_only)
{
	switch (err) {
	case EACCES: /* the device is read-only and we were to write */
		return "the volume is attached read-only: mount it so";
	case EROFS:
		return read_only ? "it was not unmounted cleanly and its journal must be played "
		                   "back: attach it writable once"
		                 : "the volume is attached read-only: mount it so";
	case EINVAL:
		return "there is no file system of this type on it";
	case EUCLEAN:
		return "its file system is damaged: run e2fsck on the file";
	case EBUSY:
		return "it is mounted already";
	case ENODEV:
		return "the kernel of this machine does not know this type of file system";
	case EIO:
		return "the host could not read or write its file";
	default:
		return NULL;
	}
}

void mount_volume(struct conn *c, uint32_t id, const struct wire_mount *m)
{
	bool read_only = m->flags & WIRE_MOUNT_RO;
	const char *fstype = m->fstype.len ? m->fstype.p : "ext4";
	autoclose int fd = -1; /* open until it is mounted: what was read stays in the cache */
	char device[32];
	struct stat st;
	int r;

	if (!c->a->init) { /* an ordinary process leaves the machine it runs on alone */
		reply_end(c, id, EPERM, "only the init of a machine mounts volumes");
		return;
	}
	if (!path_usable(&m->path)) {
		reply_end(c, id, EINVAL, "a volume is mounted at an absolute path of its own");
		return;
	}
	snprintf(device, sizeof(device), "/dev/pvol%u", m->volume);
	fd = open(device, O_RDONLY | O_CLOEXEC);
	if (device_size(fd) == 0) {
		reply_end(c, id, ENXIO, "the machine has no such volume");
		return;
	}
	if (file_make_parents(m->path.p, 0755) < 0 ||
	    (mkdir(m->path.p, 0755) < 0 && errno != EEXIST) || stat(m->path.p, &st) < 0) {
		reply_end(c, id, errno, "the directory cannot be made");
		return;
	}
	if (!S_ISDIR(st.st_mode)) {
		reply_end(c, id, ENOTDIR, "a file is in the way");
		return;
	}
	r = strcmp(fstype, "ext4") == 0
	        ? mount_ext4(device, fd, m->path.p, read_only)
	        : mount(device, m->path.p, fstype, MS_NOATIME | (read_only ? MS_RDONLY : 0), NULL);
	if (r < 0) {
		int err = errno;

		reply_end(c, id, err, explain(err, read_only));
		return;
	}
	reply_end(c, id, 0, NULL);
}

/* Nobody works in them any more. Again until nothing moves: one may be mounted inside another. */
void mount_undo_all(void)
{
	bool moved = true;

	while (moved) {
		FILE *f = setmntent("/proc/self/mounts", "re");
		char buf[2 * PATH_MAX];
		struct mntent m;

		moved = false;
		while (f && getmntent_r(f, &m, buf, sizeof(buf)))
			if (strncmp(m.mnt_fsname, "/dev/pvol", 9) == 0 &&
			    umount2(m.mnt_dir, UMOUNT_NOFOLLOW) == 0)
				moved = true;
		if (f)
			endmntent(f);
	}
}

void mount_undo(struct conn *c, uint32_t id, const struct wire_path_flags *m)
{
	bool force = m->flags & WIRE_UMOUNT_FORCE;
	int err;

	if (!c->a->init) {
		reply_end(c, id, EPERM, "only the init of a machine mounts volumes");
		return;
	}
	if (!path_usable(&m->path)) {
		reply_end(c, id, EINVAL, "no volume is mounted there");
		return;
	}
	/* UMOUNT_NOFOLLOW: a link of the guest's must not lead elsewhere. */
	err = umount2(m->path.p, UMOUNT_NOFOLLOW | (force ? MNT_DETACH : 0)) < 0 ? errno : 0;
	reply_end(c, id, err,
	          err == EBUSY    ? "a process has a file open there or works there"
	          : err == EINVAL ? "no volume is mounted there"
	                          : NULL);
}
