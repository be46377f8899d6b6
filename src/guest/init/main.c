/*
 * panda-init - PID 1 of every sandbox: runs commands, moves bytes, reaps
 *
 *   panda-init                 as PID 1: mounts, then serves /dev/panda-chan (or vsock)
 *   panda-init --serve PATH    as an ordinary process: serves a unix socket, for tests
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "guest/init/agent.h"

static struct agent agent; /* not on the stack: what the loop touches lies together */

/* stdin is /dev/null for every child; 1 and 2 belong to the next exec (exec_prepare_spare()). */
static int arrange_fds(struct agent *a)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return -errno;
	a->log = fcntl(2, F_DUPFD_CLOEXEC, 3);
	if (dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0)
		return -errno;
	close(null);
	return 0;
}

/*
 * The kernel gave us its console as 0, 1 and 2, or has none: then its log must do, or anything,
 * for no other file may get these numbers.
 */
static int occupy_stdio(void)
{
	int fd;

	do {
		fd = open("/dev/console", O_RDWR | O_NOCTTY | O_CLOEXEC);
		if (fd < 0)
			fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
		if (fd < 0)
			fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0)
			return -errno;
	} while (fd <= 2);
	close(fd);
	return 0;
}

static int start_as_init(struct agent *a)
{
	int r = occupy_stdio();

	if (r < 0)
		return r;
	r = boot_mounts(a);
	if (r < 0) {
		agent_log(a, "panda-init: cannot set up the root error=%s\n", strerror(-r));
		return r;
	}
	r = arrange_fds(a);
	if (r < 0)
		return r;
	boot_identity(a);
	oom_watch(a);
	r = agent_setup(a);
	if (r < 0)
		return r;
	r = listen_chan(a);
	if (r < 0)
		r = listen_vsock(a);
	if (r < 0)
		agent_log(a, "panda-init: no way to be reached: /dev/panda-chan is missing\n");
	return r;
}

static int start_as_process(struct agent *a, const char *path, bool reset_is_reborn)
{
	int r;

	if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		return -errno;
	r = arrange_fds(a);
	if (r < 0)
		return r;
	r = agent_setup(a);
	if (r == 0)
		r = listen_unix(a, path);
	a->listener.reset_means_reborn = reset_is_reborn;
	if (r < 0)
		agent_log(a, "panda-init: cannot listen path=%s error=%s\n", path, strerror(-r));
	return r;
}

/* SIGTERM, time to react, SIGKILL. */
static void stop_everything(struct agent *a)
{
	struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
	uint64_t end = mono_ms() + a->grace_ms;

	if (!a->init) {
		exec_kill_all(a);
		return;
	}
	if (a->grace_ms)
		kill(-1, SIGTERM);
	while (mono_ms() < end) {
		pid_t pid = waitpid(-1, NULL, WNOHANG);

		if (pid < 0)
			break; /* no child left */
		if (pid == 0)
			nanosleep(&pause, NULL);
	}
	kill(-1, SIGKILL);
	while (waitpid(-1, NULL, 0) > 0)
		;
}

int main(int argc, char **argv)
{
	struct agent *a = &agent;
	bool init = getpid() == 1;
	int r;

	a->init = init;
	a->random_fd = a->machine_id_fd = a->boot_id_fd = -1;
	a->generation_fd = a->rw_fd = a->kmsg_fd = -1;
	a->log = 2;
	if (!init && (argc < 3 || strcmp(argv[1], "--serve") != 0)) {
		fprintf(stderr, "usage: panda-init --serve PATH [--reset-is-reborn]\n");
		return 2;
	}
	r = init ? start_as_init(a)
	         : start_as_process(a, argv[2],
	                            argc > 3 && strcmp(argv[3], "--reset-is-reborn") == 0);
	if (r == 0)
		r = sys_default_env(a);
	if (r == 0) {
		exec_prepare_spare(a);
		r = agent_run(a);
		stop_everything(a);
	}
	if (r < 0)
		agent_log(a, "panda-init: ends error=%s\n", strerror(-r));
	if (init)
		boot_power_off(a);
	return r < 0 ? 1 : 0;
}
