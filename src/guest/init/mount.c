/*
 * guest/init/mount.c - volumes: file systems that the machine did not boot with
 * A mount reads a few blocks, but one that must play back a journal takes as long as that takes,
 * and no other client is served meanwhile: most are mounted before a client works in the machine.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <mntent.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "guest/init/agent.h"
#include "wire/guest.h"

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

struct ext4 {
	bool clean; /* it was unmounted in peace: its journal is empty */
	uint64_t bytes;
};

static bool ext4_look(int fd, struct ext4 *ret)
{
	enum { BLOCK = 4096, SUPER = 1024, MAGIC = 56, INCOMPAT = 96, RECOVER = 4, BIG = 0x80 };
	enum { BLOCKS = 4, BLOCKS_HIGH = 0x150, SHIFT = 24 };
	uint8_t b[BLOCK], *s = b + SUPER;
	uint32_t low, high;

	if (pread(fd, b, sizeof(b), 0) != sizeof(b) || s[MAGIC] != 0x53 || s[MAGIC + 1] != 0xef)
		return false;
	memcpy(&low, s + BLOCKS, sizeof(low));
	memcpy(&high, s + BLOCKS_HIGH, sizeof(high));
	ret->clean = !(s[INCOMPAT] & RECOVER);
	ret->bytes = ((s[INCOMPAT] & BIG ? (uint64_t)high << 32 : 0) | low)
	             << (10 + MIN(s[SHIFT], 6));
	return true;
}

/* The volume has become larger: its file system takes what there is. Journaled, like all it does.
 * 0, or -1 with errno. */
static int ext4_grow(const char *path, uint64_t bytes)
{
	const unsigned long resize = _IOW('f', 16, uint64_t); /* EXT4_IOC_RESIZE_FS */
	autoclose int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	uint64_t blocks = bytes / 4096;

	return fd < 0 ? -1 : ioctl(fd, resize, &blocks);
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
	struct ext4 fs = {0};

	/* Its file has holes where nothing was ever written, so nothing needs to be zeroed in the
	 * background; and what is deleted becomes a hole again. */
	if (read_only)
		return mount(device, path, "ext4", flags, "noinit_itable");
	if (!ext4_look(fd, &fs) || !fs.clean) {
		if (mount(device, path, "ext4", flags, "noinit_itable,discard") < 0)
			return -1;
		ext4_look(fd, &fs); /* what was played back may be a larger one */
	} else {
		if (mount(device, path, "ext4", flags, "noinit_itable,discard,barrier=0") < 0)
			return -1;
		if (mount(NULL, path, NULL, flags | MS_REMOUNT, "barrier=1") < 0) {
			int err = errno;

			umount2(path, MNT_DETACH); /* never without the promise of a sync */
			errno = err;
			return -1;
		}
	}
	/* Grown while no machine had it. Should that fail, it is good as it is. */
	if (fs.bytes && fs.bytes < device_size(fd))
		ext4_grow(path, device_size(fd));
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

static int open_device(unsigned volume, char name[32])
{
	snprintf(name, 32, "/dev/pvol%u", volume);
	return open(name, O_RDONLY | O_CLOEXEC);
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
	fd = open_device(m->volume, device);
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

static bool of_volume(const struct mntent *m)
{
	return strncmp(m->mnt_fsname, "/dev/pvol", 9) == 0;
}

/* A mount whose device has no file: a volume that this life was not given. */
static bool lost(const struct mntent *m)
{
	autoclose int fd = -1;

	if (!of_volume(m))
		return false;
	fd = open(m->mnt_fsname, O_RDONLY | O_CLOEXEC);
	return device_size(fd) == 0;
}

/* Again until nothing moves: one may be mounted inside another. */
static void undo_those(bool (*which)(const struct mntent *m), int flags)
{
	bool moved = true;

	while (moved) {
		FILE *f = setmntent("/proc/self/mounts", "re");
		char buf[2 * PATH_MAX];
		struct mntent m;

		moved = false;
		while (f && !moved && getmntent_r(f, &m, buf, sizeof(buf)))
			moved = which(&m) && umount2(m.mnt_dir, UMOUNT_NOFOLLOW | flags) == 0;
		if (f)
			endmntent(f);
	}
}

void mount_undo_all(void)
{
	undo_those(of_volume, 0); /* no process works in them any more */
}

void mount_undo(struct conn *c, uint32_t id, const struct wire_path_flags *m)
{
	bool force = m->flags & WIRE_UMOUNT_FORCE;
	int err;

	if (!c->a->init) {
		reply_end(c, id, EPERM, "only the init of a machine mounts volumes");
		return;
	}
	if (m->flags & WIRE_UMOUNT_LOST) {
		/* A process that has something open there gets errors; the path is what it was
		 * without it. */
		undo_those(lost, MNT_DETACH);
		reply_end(c, id, 0, NULL);
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

/* The root of what is mounted there, if it is this volume; else -1, and the host was told. */
static int open_mounted(struct conn *c, uint32_t id, const struct wire_mount *m, uint64_t *ret_size)
{
	autoclose int fd = -1, dev = -1;
	struct stat there, device;
	char name[32];

	if (!c->a->init) {
		reply_end(c, id, EPERM, "only the init of a machine mounts volumes");
		return -1;
	}
	dev = open_device(m->volume, name);
	fd = open(m->path.p, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dev < 0 || fd < 0 || fstat(dev, &device) < 0 || fstat(fd, &there) < 0 ||
	    there.st_dev != device.st_rdev) {
		reply_end(c, id, EINVAL, "the volume is not mounted there");
		return -1;
	}
	*ret_size = device_size(dev);
	return take_fd(&fd);
}

void mount_grow(struct conn *c, uint32_t id, const struct wire_mount *m)
{
	uint64_t size = 0;
	autoclose int fd = open_mounted(c, id, m, &size);
	int err;

	if (fd < 0)
		return;
	err = ext4_grow(m->path.p, size) < 0 ? errno : 0;
	reply_end(c, id, err, explain(err, false));
}

/*
 * Frozen, a file system on disk is what it is in memory. Who writes into it meanwhile waits, and if
 * that were us no process would be left to thaw it: so we do nothing else until then.
 */
void mount_freeze(struct conn *c, uint32_t id, const struct wire_mount *m)
{
	uint64_t size;
	autoclose int fd = open_mounted(c, id, m, &size);
	struct pollfd pfd = {.fd = c->fd, .events = POLLIN};
	int r;

	if (fd < 0)
		return;
	if (ioctl(fd, FIFREEZE, 0) < 0) {
		reply_end(c, id, errno,
		          errno == EBUSY ? "another program has frozen it" : explain(errno, false));
		return;
	}
	reply_end(c, id, 0, NULL);
	conn_push(c);
	r = poll(&pfd, 1, WIRE_FREEZE_MS);
	c->thaw_err = ioctl(fd, FITHAW, 0) < 0 ? errno : r == 1 ? 0 : ETIMEDOUT;
}
