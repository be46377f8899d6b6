#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/io.h"

const char *agent_path;
bool agent_is_small;
struct err why;

uint64_t soon_deadline(void)
{
	return mono_ms() + PATIENCE_MS;
}

bool soon_wait(uint64_t deadline)
{
	poll(NULL, 0, 5); /* between two looks, not instead of one */
	return mono_ms() < deadline;
}

int box_raw(struct box *b)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(addr.sun_path, b->sock, strlen(b->sock));
	if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

struct guest *box_connect(struct box *b)
{
	struct guest *g = NULL;
	int fd = -1;

	assert_soon((fd = box_raw(b)) >= 0 || process_gone(b->pid));
	if (fd < 0)
		fail_msg("the agent is gone");
	assert_int_equal(guest_new(fd, &g), 0);
	guest_set_deadline(g, PATIENCE_MS);
	return g;
}

/*
 * A guest's kernel starts its PID 1 with no signal ignored. We may be started otherwise: make uses
 * posix_spawn(), after which the signals that libc keeps for itself are; only a bare call resets
 * them.
 */
static void no_signal_ignored(void)
{
	const char default_action[32] = {0}; /* the kernel's struct sigaction, all zero */

	for (int sig = 1; sig < _NSIG; sig++)
		syscall(SYS_rt_sigaction, sig, default_action, NULL, _NSIG / 8);
}

int box_start(struct box *b, const char *option)
{
	memset(b, 0, sizeof(*b));
	snprintf(b->dir, sizeof(b->dir), "/tmp/panda-agent-XXXXXX");
	if (!mkdtemp(b->dir))
		return -1;
	snprintf(b->sock, sizeof(b->sock), "%s/sock", b->dir);
	b->pid = fork();
	if (b->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		no_signal_ignored();
		close_range(3, ~0u, 0); /* what we inherited is none of its business */
		execl(agent_path, agent_path, "--serve", b->sock, option, (char *)NULL);
		_exit(127);
	}
	return b->pid < 0 ? -1 : 0;
}

void box_stop(struct box *b)
{
	struct guest *g = box_connect(b);
	char cmd[128];
	int status = -1;

	assert_ok(guest_ask(g, WIRE_SHUTDOWN, &(struct wire_shutdown){0}, "shut down", &why));
	guest_free(g);
	assert_int_equal(waitpid(b->pid, &status, 0), b->pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0); /* no sanitizer complained */
	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", b->dir);
	assert_int_equal(system(cmd), 0);
}

static int start_group(void **state, const char *option)
{
	struct box *b = calloc(1, sizeof(*b));

	*state = b;
	return b ? box_start(b, option) : -1;
}

int group_setup(void **state)
{
	return start_group(state, NULL);
}

int group_setup_reborn(void **state)
{
	return start_group(state, "--reset-is-reborn");
}

int group_teardown(void **state)
{
	box_stop(*state);
	free(*state);
	return 0;
}

int test_setup(void **state)
{
	struct box *b = *state;

	b->g = box_connect(b);
	return 0;
}

int test_teardown(void **state)
{
	struct box *b = *state;

	guest_free(b->g);
	b->g = NULL;
	return 0;
}

void turn(struct guest *g)
{
	struct wire_stats stats;

	assert_ok(guest_stats(g, &stats, &why));
}

void collect(void *arg, uint8_t chan, const void *p, size_t n)
{
	struct result *r = arg;
	struct text *t = chan == WIRE_OUT ? &r->out : &r->err;

	t->p = realloc(t->p, t->n + n + 1);
	assert_non_null(t->p);
	memcpy(t->p + t->n, p, n);
	t->n += n;
	t->p[t->n] = 0;
}

struct result run_exec(struct guest *g, struct guest_exec x)
{
	struct result r = {0};

	r.out.p = calloc(1, 1);
	r.err.p = calloc(1, 1);
	x.output = collect;
	x.arg = &r;
	assert_ok(guest_exec_wait(g, &x, &r.exit, &why));
	return r;
}

struct result run_sh(struct guest *g, const char *script)
{
	return run_exec(g, (struct guest_exec){.script = script});
}

void result_free(struct result *r)
{
	free(r->out.p);
	free(r->err.p);
}

bool process_gone(pid_t pid)
{
	char path[64], *stat = NULL, *end;
	bool gone;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (io_read_file(AT_FDCWD, path, 4096, &stat, NULL) < 0)
		return true;
	end = strrchr(stat, ')');
	gone = end && end[2] == 'Z';
	free(stat);
	return gone;
}

char *path_in(struct box *b, const char *name)
{
	static char buf[4][256];
	static unsigned i;

	i = (i + 1) % 4;
	snprintf(buf[i], sizeof(buf[i]), "%s/%s", b->dir, name);
	return buf[i];
}

char *read_small(const char *path)
{
	static char buf[4096];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);

	if (fd >= 0)
		close(fd);
	buf[n > 0 ? n : 0] = 0;
	return buf;
}
