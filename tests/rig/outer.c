/*
 * rig/outer.c - init of the emulated outer machine (tools/rig): from its initramfs to a shell
 * script. Loads the modules that lie in its initramfs, in the order of the file "modules", mounts
 * the host's file system with a memory file system over it, so that nothing written stays, and runs
 * there the script that the command line names (rig=DIR, DIR/run). Only DIR and what out= names are
 * the host's own, also for writing.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

/* The machine ends here, and says why. A reset ends the emulator (-no-reboot). */
static _Noreturn void end(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	if (fmt) {
		fprintf(stderr, "rig: ");
		vfprintf(stderr, fmt, ap);
		fprintf(stderr, ": %s\n", strerror(errno));
	}
	va_end(ap);
	sync();
	reboot(RB_AUTOBOOT);
	for (;;)
		pause();
}

static void must_mount(const char *what, const char *where, const char *type, unsigned long flags,
                       const char *options)
{
	mkdir(where, 0755);
	if (mount(what, where, type, flags, options) < 0)
		end("cannot mount %s", where);
}

static void load_modules(void)
{
	FILE *list = fopen("/modules", "re");
	char line[256];

	while (list && fgets(line, sizeof(line), list)) {
		int fd;

		line[strcspn(line, "\n")] = 0;
		fd = open(line, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST))
			end("cannot load %s", line);
		close(fd);
	}
	if (list)
		fclose(list);
}

/* The host's directory that the kernel's command line names, at its place in the root to come. */
static void share(const char *name, char dir[512])
{
	char line[4096] = "", from[600], to[600], *at;
	FILE *f = fopen("/proc/cmdline", "re");

	if (!f || !fgets(line, sizeof(line), f) || !(at = strstr(line, name)))
		end("no%s on the command line", name);
	fclose(f);
	at += strlen(name);
	snprintf(dir, 512, "%.*s", (int)strcspn(at, " \n"), at);
	snprintf(from, sizeof(from), "/host%s", dir);
	snprintf(to, sizeof(to), "/root%s", dir);
	if (mount(from, to, NULL, MS_BIND, NULL) < 0)
		end("cannot mount %s", dir);
}

/* What comes there is a heartbeat of tools/rig, for nobody to read, and not to be echoed. */
static void be_deaf(void)
{
	struct termios t;

	if (tcgetattr(STDIN_FILENO, &t) < 0)
		return;
	t.c_cflag &= ~(tcflag_t)CREAD;
	tcsetattr(STDIN_FILENO, TCSANOW, &t);
}

int main(void)
{
	char out[512], dir[512], script[600];
	char *env[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	               "HOME=/root",
	               "TERM=dumb",
	               "LANG=C.UTF-8",
	               "TMPDIR=/run/tmp",
	               NULL};
	pid_t pid, ended;

	be_deaf();
	must_mount("proc", "/proc", "proc", 0, NULL);
	load_modules();
	must_mount("host", "/host", "virtiofs", 0, NULL);
	must_mount("tmpfs", "/over", "tmpfs", 0, "mode=0755,size=90%");
	mkdir("/over/upper", 0755);
	mkdir("/over/work", 0755);
	must_mount("overlay", "/root", "overlay", 0,
	           "lowerdir=/host,upperdir=/over/upper,workdir=/over/work");
	must_mount("proc", "/root/proc", "proc", 0, NULL);
	must_mount("sysfs", "/root/sys", "sysfs", 0, NULL);
	must_mount("devtmpfs", "/root/dev", "devtmpfs", 0, NULL);
	must_mount("devpts", "/root/dev/pts", "devpts", 0, "ptmxmode=0666");
	must_mount("tmpfs", "/root/dev/shm", "tmpfs", 0, "mode=1777");
	must_mount("tmpfs", "/root/run", "tmpfs", 0, "mode=0755,size=90%");
	must_mount("cgroup2", "/root/sys/fs/cgroup", "cgroup2", 0, NULL);
	mkdir("/root/run/tmp", 01777);
	(void)!symlink("/proc/self/fd", "/root/dev/fd");
	share(" rig=", dir);
	share(" out=", out);
	snprintf(script, sizeof(script), "%s/run", dir);
	if (chdir("/root") < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 ||
	    chdir("/") < 0)
		end("cannot go to the host's files");
	pid = fork();
	if (pid == 0) {
		setsid();
		execve("/bin/bash", (char *[]){"bash", script, NULL}, env);
		end("cannot start a shell");
	}
	while ((ended = wait(NULL)) != pid)
		if (ended < 0 && errno != EINTR)
			break;
	end(NULL);
}
