#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "guest/init/agent.h"
#include "guest/init/exec.h"

enum {
	PASSES_MAX = 64, /* who forks faster than we look is cut off by the limits of the machine */
};

struct proc {
	pid_t pid, ppid;
	bool hit;
};

/* "pid (comm) state ppid pgrp session": comm may hold anything, so look from its last ')'. */
static bool read_stat(int proc, const char *pid, struct proc *p, pid_t *pgrp, pid_t *session)
{
	char path[64], buf[512], state, *end;
	autoclose int fd = -1;
	ssize_t n;

	snprintf(path, sizeof(path), "%.20s/stat", pid);
	fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);
	if (n <= 0)
		return false;
	buf[n] = 0;
	end = strrchr(buf, ')');
	if (!end || sscanf(end + 1, " %c %d %d %d", &state, &p->ppid, pgrp, session) != 4)
		return false;
	p->pid = (pid_t)atoi(pid);
	return state != 'Z' && state != 'X';
}

/* Is the cookie one of the strings of its environment? */
static bool has_cookie(int proc, const char *pid, const char *cookie, size_t len)
{
	char path[64], buf[4096];
	autoclose int fd = -1;
	size_t have = 0;
	ssize_t r;

	snprintf(path, sizeof(path), "%.20s/environ", pid);
	fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	while ((r = read(fd, buf + have, sizeof(buf) - have)) > 0) {
		have += (size_t)r;
		if (memmem(buf, have, cookie, len))
			return true;
		if (have > len) { /* the cookie may lie across two reads */
			memmove(buf, buf + have - len, len);
			have = len;
		}
	}
	return false;
}

struct procs {
	struct proc *p;
	unsigned n;
};

static bool was_hit(const struct procs *before, pid_t pid)
{
	for (unsigned i = 0; i < before->n; i++)
		if (before->p[i].hit && before->p[i].pid == pid)
			return true;
	return false;
}

/*
 * One look at all processes; signals those that belong to x and were not among them before (a
 * process with SIGKILL pending forks no more). Returns whether there were any; *seen is replaced.
 */
static bool pass(struct exec *x, int signo, struct procs *seen)
{
	autoclosedir DIR *d = opendir("/proc");
	struct proc *all = NULL;
	unsigned n = 0, cap = 0, hits = 0;
	struct dirent *e;
	char cookie[64];
	size_t len;
	bool more = true;

	/* With the NUL behind it: exec 1 is not exec 12. */
	len = 1 + (size_t)snprintf(cookie, sizeof(cookie), "PANDA_EXEC=%llu.%llx",
	                           (unsigned long long)x->id, (unsigned long long)x->a->nonce);
	while (d && (e = readdir(d))) {
		pid_t pgrp, session;
		struct proc p;

		if (!isdigit((unsigned char)e->d_name[0]) ||
		    !read_stat(dirfd(d), e->d_name, &p, &pgrp, &session) || p.pid == getpid())
			continue;
		if (n == cap) {
			struct proc *bigger =
			    realloc(all, (cap = cap ? cap * 2 : 64) * sizeof(*all));

			if (!bigger)
				break;
			all = bigger;
		}
		/* Once the leader was reaped its number may be another process's. */
		p.hit = (!x->exited && (p.pid == x->pid || pgrp == x->pid || session == x->pid)) ||
		        has_cookie(dirfd(d), e->d_name, cookie, len);
		all[n++] = p;
	}
	while (more) { /* children of those we have */
		more = false;
		for (unsigned i = 0; i < n; i++) {
			for (unsigned j = 0; !all[i].hit && j < n; j++) {
				if (all[j].hit && all[j].pid == all[i].ppid)
					all[i].hit = more = true;
			}
		}
	}
	for (unsigned i = 0; i < n; i++)
		if (all[i].hit && !was_hit(seen, all[i].pid) && kill(all[i].pid, signo) == 0)
			hits++;
	free(seen->p);
	*seen = (struct procs){.p = all, .n = n};
	return hits > 0;
}

void kill_tree(struct exec *x, int signo)
{
	struct procs seen = {0};

	if (!x->exited && signo == SIGKILL)
		kill(-x->pid, signo); /* at one stroke: no member can fork away meanwhile */
	for (int i = 0; i < PASSES_MAX && pass(x, signo, &seen) && signo == SIGKILL; i++)
		;
	free(seen.p);
}
