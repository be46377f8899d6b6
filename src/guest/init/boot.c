/*
 * guest/init/boot.c - PID 1: from the kernel's read-only root to a machine, and the way out
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "guest/init/agent.h"

static int try_mount(struct agent *a, const char *what, const char *where, const char *type,
                     unsigned long flags, const char *options)
{
	if (mount(what, where, type, flags, options) == 0 || errno == EBUSY)
		return 0;
	agent_log(a, "panda-init: cannot mount path=%s type=%s error=%s\n", where, type,
	          strerror(errno));
	return -errno;
}

/*
 * No work in the background: a machine at rest shall sleep (see rest_after_work()). What is deleted
 * becomes a hole in the host's files.
 */
static const char quiet_ext4[] = "commit=30,discard,noinit_itable,no_prefetch_block_bitmaps";

/* The writable half: the disk that forks with the machine, or memory when there is none. */
static int mount_upper(struct agent *a)
{
	int r = -ENOENT;

	if (access("/dev/pblk1", F_OK) == 0)
		r = try_mount(a, "/dev/pblk1", "/.panda/rw", "ext4", MS_NOATIME, quiet_ext4);
	else
		r = try_mount(a, "tmpfs", "/.panda/rw", "tmpfs", 0, "mode=0755");
	if (r < 0)
		return r;
	a->rw_fd = open("/.panda/rw", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if ((mkdir("/.panda/rw/upper", 0755) < 0 && errno != EEXIST) ||
	    (mkdir("/.panda/rw/work", 0755) < 0 && errno != EEXIST))
		return -errno;
	return 0;
}

/*
 * Overlay over the image, made the new root. The old root is not unmounted (the overlay lives on
 * it) but detached: no path leads there any more.
 */
static int switch_root(struct agent *a)
{
	static const char *const moved[] = {"/proc", "/sys", "/dev"};
	char to[32];
	int r;

	r = mount_upper(a);
	if (r < 0)
		return r;
	r = try_mount(a, "overlay", "/.panda/root", "overlay", MS_NOATIME,
	              "lowerdir=/,upperdir=/.panda/rw/upper,workdir=/.panda/rw/work");
	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_LEN(moved); i++) {
		snprintf(to, sizeof(to), "/.panda/root%s", moved[i]);
		mkdir(to, 0755);
		if (mount(moved[i], to, NULL, MS_MOVE, NULL) < 0)
			return -errno;
	}
	if (chdir("/.panda/root") < 0 || syscall(SYS_pivot_root, ".", ".") < 0)
		return -errno;
	/* Stacked by pivot_root(".", "."): the old root lies on top at ".", take it off. */
	if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return -errno;
	return 0;
}

void sysctl_set(const char *path, const char *value)
{
	autoclose int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd >= 0)
		(void)!write(fd, value, strlen(value));
}

/*
 * What was written reaches the disk within a minute, in one go, as does the journal (commit=30):
 * each look that finds nothing old enough wakes a machine that has gone to sleep.
 */
static void rest_after_work(void)
{
	sysctl_set("/proc/sys/vm/dirty_writeback_centisecs", "3000");
	sysctl_set("/proc/sys/vm/dirty_expire_centisecs", "2500");
}

/*
 * Disks and volumes are called pblk<n> and pvol<n> in every machine. Where they are virtio disks,
 * the kernel calls disks vda, vdb and so on, in the order of their numbers, and there is no volume
 * before a program opens the node that leads to it.
 */
static void name_disks(void)
{
	enum { VOLUMES = 6, FIRST = 64, MINORS = 16 }; /* kernel/kvm/patches/0004 */
	char device[] = "/dev/vda", name[16];
	unsigned driver = 0;
	struct stat st;

	for (unsigned i = 0; i < 26 && stat(device, &st) == 0; i++) {
		snprintf(name, sizeof(name), "/dev/pblk%u", i);
		(void)!symlink(device, name);
		driver = major(st.st_rdev);
		device[7]++;
	}
	for (unsigned i = 0; driver && i < VOLUMES; i++) {
		snprintf(name, sizeof(name), "/dev/pvol%u", i);
		(void)!mknod(name, S_IFBLK | 0600, makedev(driver, (FIRST + i) * MINORS));
	}
}

int boot_mounts(struct agent *a)
{
	int r;

	try_mount(a, "proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	try_mount(a, "sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	try_mount(a, "devtmpfs", "/dev", "devtmpfs", MS_NOSUID, "mode=0755");
	name_disks();
	r = switch_root(a);
	if (r < 0)
		return r;
	mkdir("/dev/pts", 0755);
	mkdir("/dev/shm", 01777);
	try_mount(a, "devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
	          "mode=0620,gid=5,ptmxmode=0666");
	try_mount(a, "tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
	try_mount(a, "tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755");
	(void)!symlink("/proc/self/fd", "/dev/fd");
	(void)!symlink("/proc/self/fd/0", "/dev/stdin");
	(void)!symlink("/proc/self/fd/1", "/dev/stdout");
	(void)!symlink("/proc/self/fd/2", "/dev/stderr");
	chmod("/tmp", 01777);
	net_up(a);
	rest_after_work();
	(void)!sethostname("panda", 5);
	return 0;
}

/* A file in /run that shows at path; rewritten in place, it costs one write per life. */
static int file_over(const char *name, const char *path)
{
	int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0444), at;

	if (fd < 0)
		return -1;
	if (access(path, F_OK) < 0) {
		at = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
		if (at >= 0)
			close(at);
	}
	if (mount(name, path, NULL, MS_BIND, NULL) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

void boot_identity(struct agent *a)
{
	char id[64];
	autoclose int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, id, sizeof(id));

	mkdir("/run/panda", 0755);
	a->random_fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
	a->machine_id_fd = file_over("/run/panda/machine-id", "/etc/machine-id");
	a->boot_id_fd = file_over("/run/panda/boot-id", "/proc/sys/kernel/random/boot_id");
	if (a->boot_id_fd >= 0 && n > 0)
		(void)!pwrite(a->boot_id_fd, id, (size_t)n, 0);
	a->generation_fd = open("/run/panda/generation", O_RDWR | O_CREAT | O_CLOEXEC, 0444);
	sys_tell_generation(a);
}

/*
 * Volumes are, and so are clean for their next machine. The disk cannot be unmounted, the overlay
 * we run from holds it. Freezing does what matters: all is written, the journal is empty, and the
 * disk is marked clean.
 */
void boot_power_off(struct agent *a)
{
	mount_undo_all();
	sync();
	if (a->rw_fd >= 0)
		ioctl(a->rw_fd, FIFREEZE, 0);
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}
