/*
 * net/nft.c - runs nft with a text of rules, in the namespace of the calling thread
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "net/make.h"

enum {
	NFT_MS = 10 * 1000, /* it takes 5 ms; a caller shall not wait for ever */
};

/* Without pidfds it is waited for as long as it takes. */
static bool ends_in_time(pid_t pid)
{
	autoclose int fd = (int)syscall(SYS_pidfd_open, pid, 0);
	struct pollfd p = {.fd = fd, .events = POLLIN};
	uint64_t end = mono_ms() + NFT_MS, now;

	while (fd >= 0 && (now = mono_ms()) < end)
		if (poll(&p, 1, (int)(end - now)) > 0)
			return true;
	return fd < 0;
}

int make_nft(const char *nft, const char *text, char why[MAKE_WHY])
{
	char *argv[] = {(char *)nft, "-f", "-", NULL},
	     *envp[] = {"PATH=/usr/sbin:/sbin", "LC_ALL=C", NULL};
	autoclose int in = memfd_create("nft-in", MFD_CLOEXEC),
		      out = memfd_create("nft-out", MFD_CLOEXEC);
	posix_spawn_file_actions_t acts;
	posix_spawnattr_t attr;
	sigset_t none;
	bool hung;
	int r, status;
	char said[120];
	ssize_t n;
	pid_t pid;

	snprintf(why, MAKE_WHY, "cannot run %s", nft);
	if (in < 0 || out < 0)
		return -errno;
	r = io_pwrite_full(in, text, strlen(text), 0);
	if (r < 0)
		return r;
	sigemptyset(&none);
	if (posix_spawn_file_actions_init(&acts))
		return -ENOMEM;
	if (posix_spawnattr_init(&attr)) {
		posix_spawn_file_actions_destroy(&acts);
		return -ENOMEM;
	}
	r = posix_spawn_file_actions_adddup2(&acts, in, 0);
	r = r ? r : posix_spawn_file_actions_adddup2(&acts, out, 1);
	r = r ? r : posix_spawn_file_actions_adddup2(&acts, out, 2);
	r = r ? r : posix_spawnattr_setsigmask(&attr, &none);
	r = r ? r : posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
	r = r ? r : posix_spawn(&pid, nft, &acts, &attr, argv, envp);
	posix_spawn_file_actions_destroy(&acts);
	posix_spawnattr_destroy(&attr);
	if (r) {
		snprintf(why, MAKE_WHY, "cannot run %s: %s (install the package nftables)", nft,
		         strerror(r));
		return -r;
	}
	hung = !ends_in_time(pid);
	if (hung)
		kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	if (hung) {
		snprintf(why, MAKE_WHY, "%s did not end within %d s", nft, NFT_MS / 1000);
		return -ETIMEDOUT;
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	n = pread(out, said, sizeof(said) - 1, 0);
	said[n > 0 ? n : 0] = '\0';
	said[strcspn(said, "\n")] = '\0';
	snprintf(why, MAKE_WHY, "%s refused the rules: %s", nft, said);
	return -EIO;
}
