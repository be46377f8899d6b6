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
#include "net/nl.h"

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

static void forward_path(const struct host *h, char ret[80])
{
	snprintf(ret, 80, "/proc/sys/net/ipv4/conf/%s/forwarding", h->wan);
}

static int find_wan(struct host *h, char why[MAKE_WHY])
{
	struct mnl_socket *s;
	uint32_t index;
	int r;

	r = nl_open(NETLINK_ROUTE, &s);
	if (r < 0) {
		snprintf(why, MAKE_WHY, "netlink: %s", strerror(-r));
		return r;
	}
	if (h->wan[0]) {
		r = nl_link_index(s, h->wan, &index);
		if (r < 0)
			snprintf(why, MAKE_WHY, "there is no interface %s", h->wan);
	} else if (nl_wan(s, &index) < 0 || !if_indextoname(index, h->wan)) {
		h->wan[0] = '\0'; /* a host without a way out: slots work, they lead nowhere */
	}
	nl_close(s);
	return r;
}

/*
 * Answers come in on wan and must be forwarded. Where that was off we turn it on for this interface
 * alone, and a table beside it says that all else which comes in there is still not forwarded. That
 * table is also the note, for the pandad that closes, that it was us.
 */
static int open_wan(struct host *h, char why[MAKE_WHY])
{
	autofree char *now = NULL, *rules = NULL;
	char path[80];
	size_t n;
	int r;

	forward_path(h, path);
	r = io_read_file(AT_FDCWD, path, 16, &now, &n);
	if (r < 0) {
		snprintf(why, MAKE_WHY, "cannot read %s: %s", path, strerror(-r));
		return r;
	}
	if (now[0] == '1') {
		h->forward_ours = make_nft(h->nft, "list table inet panda_fwd\n", why) == 0;
		return 0;
	}
	if (asprintf(&rules,
	             "table inet panda_fwd\ndelete table inet panda_fwd\ntable inet panda_fwd {\n"
	             "	chain forward {\n"
	             "		type filter hook forward priority -10; policy accept;\n"
	             "		iifname \"%s\" oifname != \"" HOST_PREFIX "*\" drop\n"
	             "	}\n"
	             "}\n",
	             h->wan) < 0) {
		rules = NULL;
		return -ENOMEM;
	}
	r = make_nft(h->nft, rules, why);
	if (r < 0)
		return r;
	r = io_write_file(AT_FDCWD, path, "1");
	if (r < 0) {
		snprintf(why, MAKE_WHY, "cannot write %s: %s", path, strerror(-r));
		return r;
	}
	h->forward_ours = true;
	return 0;
}

int net_host_open(struct host *h, char why[MAKE_WHY])
{
	autofree char *rules = NULL;
	int r;

	r = find_wan(h, why);
	if (r < 0)
		return r;
	rules = rules_host(h);
	if (!rules)
		return -ENOMEM;
	r = make_nft(h->nft, rules, why);
	if (r < 0)
		return r;
	return h->wan[0] ? open_wan(h, why) : 0;
}

void net_host_close(const struct host *h)
{
	char why[MAKE_WHY], path[80];
	struct mnl_socket *s;
	unsigned left = 1;

	if (nl_open(NETLINK_ROUTE, &s) < 0)
		return;
	if (nl_count_links(s, HOST_PREFIX, &left) < 0)
		left = 1;
	nl_close(s);
	if (left)
		return; /* of machines that live on, or of another pandad: they still need all of
			 * it */
	if (h->forward_ours) {
		forward_path(h, path);
		io_write_file(AT_FDCWD, path, "0");
	}
	make_nft(h->nft, rules_host_gone, why);
}
