#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "guest/init/agent.h"
#include "guest/init/exec.h"
#include "wire/guest.h"

enum {
	GROUPS_MAX = 64,
	ARGV_EXTRA = 3, /* "/bin/sh", "-c", NULL */
	ENV_EXTRA = 5,  /* HOME, USER, TERM, PANDA_EXEC, NULL */
	POINTERS = 96,  /* for argv and env together; more than that is allocated */
};

/* What execve() gets. The strings stay where they are, most of them in the request. */
struct image {
	char **argv, **envp;
	unsigned n_env;
};

struct user {
	bool change;
	uid_t uid;
	gid_t gid;
	gid_t groups[GROUPS_MAX];
	int n_groups;
	char home[256], name[64];
};

static void env_set(struct image *im, char *kv, bool override)
{
	char **envp = im->envp;

	size_t key = strcspn(kv, "=");

	for (unsigned i = 0; i < im->n_env; i++) {
		if (strncmp(envp[i], kv, key) == 0 && envp[i][key] == '=') {
			if (override)
				envp[i] = kv;
			return;
		}
	}
	envp[im->n_env++] = kv;
}

static int find_user(const char *spec, struct user *ret)
{
	char buf[2048], *end;
	struct passwd pw, *found = NULL;
	unsigned long uid, gid;

	uid = strtoul(spec, &end, 10);
	if (end != spec && (*end == 0 || *end == ':')) {
		gid = uid;
		if (*end == ':') {
			const char *g = end + 1;

			gid = strtoul(g, &end, 10);
			if (end == g || *end)
				return -EINVAL;
		}
		if (uid >= UINT32_MAX || gid >= UINT32_MAX)
			return -EINVAL;
		getpwuid_r((uid_t)uid, &pw, buf, sizeof(buf), &found);
		ret->uid = (uid_t)uid;
		ret->gid = found && !strchr(spec, ':') ? pw.pw_gid : (gid_t)gid;
	} else {
		getpwnam_r(spec, &pw, buf, sizeof(buf), &found);
		if (!found)
			return -ENOENT;
		ret->uid = pw.pw_uid;
		ret->gid = pw.pw_gid;
	}
	ret->groups[0] = ret->gid;
	ret->n_groups = 1;
	if (found) {
		ret->n_groups = GROUPS_MAX;
		if (getgrouplist(pw.pw_name, ret->gid, ret->groups, &ret->n_groups) < 0)
			ret->n_groups = GROUPS_MAX; /* more than we take */
	}
	snprintf(ret->home, sizeof(ret->home), "HOME=%s", found ? pw.pw_dir : "/");
	snprintf(ret->name, sizeof(ret->name), "USER=%s", found ? pw.pw_name : spec);
	ret->change = true;
	return 0;
}

/* Like execvpe(), with the PATH the program will see, and without allocation. */
static void __attribute__((noinline)) exec_search(const struct image *im)
{
	const char *path = "/usr/local/bin:/usr/bin:/bin", *name = im->argv[0];
	char full[PATH_MAX];
	int err = ENOENT;

	for (unsigned i = 0; i < im->n_env; i++)
		if (strncmp(im->envp[i], "PATH=", 5) == 0)
			path = im->envp[i] + 5;
	while (*path && *name) {
		size_t n = strcspn(path, ":");

		if ((size_t)snprintf(full, sizeof(full), "%.*s/%s", (int)n, path, name) <
		    sizeof(full)) {
			execve(full, im->argv, im->envp);
			if (errno == EACCES)
				err = EACCES;
			else if (errno != ENOENT && errno != ENOTDIR)
				return;
		}
		path += n + (path[n] == ':');
	}
	errno = err;
}

/* In the child, on the parent's stack and memory: system calls and nothing else. */
static void __attribute__((noreturn, noinline))
become(struct spawn *s, const struct user *u, const struct image *im)
{
	sigset_t none;

	s->what = "cannot set up the process";
	if (setsid() < 0)
		goto fail;
	if (s->tty >= 0 && (ioctl(s->tty, TIOCSCTTY, 0) < 0 || dup2(s->tty, 0) < 0 ||
	                    dup2(s->tty, 1) < 0 || dup2(s->tty, 2) < 0))
		goto fail;
	if (s->in >= 0 && dup2(s->in, 0) < 0)
		goto fail;
	if (u->change) {
		s->what = "cannot become user";
		if (setgroups((size_t)u->n_groups, u->groups) < 0 || setgid(u->gid) < 0 ||
		    setuid(u->uid) < 0)
			goto fail;
	}
	if (s->m->cwd.len) {
		s->what = "cannot enter directory";
		s->reason = WIRE_REASON_DIRECTORY;
		if (chdir(s->m->cwd.p) < 0)
			goto fail;
	}
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	s->what = "cannot start program";
	s->reason = WIRE_REASON_PROGRAM;
	if (strchr(im->argv[0], '/'))
		execve(im->argv[0], im->argv, im->envp);
	else
		exec_search(im); /* not inline: its path buffer would cost a page of stack */
fail:
	s->err = errno;
	_exit(127);
}

static void lay_out_argv(struct image *im, const struct wire_exec *m)
{
	const char *arg;
	uint32_t pos = 0;
	unsigned n = 0;

	if (m->flags & WIRE_EXEC_SHELL) {
		im->argv[n++] = (char *)"/bin/sh";
		im->argv[n++] = (char *)"-c";
	}
	while ((arg = wire_list_next(&m->argv, &pos)))
		im->argv[n++] = (char *)arg;
	im->argv[n] = NULL;
}

static void lay_out_env(struct image *im, struct agent *a, const struct wire_exec *m,
                        struct user *u, char *cookie)
{
	const char *kv;
	uint32_t pos = 0;

	im->n_env = 0;
	for (unsigned i = 0; i < a->n_env; i++)
		im->envp[im->n_env++] = a->env[i];
	if (u->change) {
		env_set(im, u->home, true);
		env_set(im, u->name, true);
	}
	while ((kv = wire_list_next(&m->env, &pos)))
		env_set(im, (char *)kv, true);
	if (m->flags & WIRE_EXEC_PTY)
		env_set(im, (char *)"TERM=xterm-256color", false);
	env_set(im, cookie, true);
	im->envp[im->n_env] = NULL;
}

/* A function of its own: between its two returns no variable of the caller can change. */
static pid_t __attribute__((noinline))
launch(struct spawn *s, const struct user *u, const struct image *im)
{
	pid_t pid = vfork();

	if (pid == 0)
		become(s, u, im);
	return pid < 0 ? -errno : pid;
}

pid_t spawn_exec(struct agent *a, struct spawn *s)
{
	size_t n_argv = (size_t)s->m->argv.count + ARGV_EXTRA;
	size_t n_env = (size_t)a->n_env + s->m->env.count + ENV_EXTRA;
	char *near[POINTERS];
	autofree char **far = NULL;
	struct image im;
	struct user u;
	char cookie[64];
	pid_t pid;
	int r;

	u.change = false;
	if (s->m->user.len) {
		s->what = "no such user";
		r = find_user(s->m->user.p, &u);
		if (r < 0)
			return r;
	}
	s->what = "cannot start a process";
	s->err = 0;
	if (n_argv + n_env > POINTERS) {
		far = malloc((n_argv + n_env) * sizeof(*far));
		if (!far)
			return -ENOMEM;
	}
	im.argv = far ? far : near;
	im.envp = im.argv + n_argv;
	/* How kill_tree() finds what left the session. */
	snprintf(cookie, sizeof(cookie), "PANDA_EXEC=%llu.%llx", (unsigned long long)s->id,
	         (unsigned long long)a->nonce);
	lay_out_argv(&im, s->m);
	lay_out_env(&im, a, s->m, &u, cookie);
	pid = launch(s, &u, &im);
	return s->err ? -s->err : pid; /* a failed one is a zombie now; exec_reap() takes it */
}
