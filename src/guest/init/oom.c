/*
 * guest/init/oom.c - who was killed for want of memory
 * Only the kernel's log tells that from any other SIGKILL. It is read when a command has ended in
 * such a way, and never else: nothing ticks, and a command that ends well costs nothing.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest/init/agent.h"

enum {
	RECORDS_MAX = 4096, /* of the log at one time: programs may write faster than we read */
	RECORD = 8192,      /* as long as one can be */
};

void oom_watch(struct agent *a)
{
	a->kmsg_fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (a->kmsg_fd >= 0)
		lseek(a->kmsg_fd, 0, SEEK_END);
}

/* "priority,number,time,flags;text". 0: no process was killed, or it is not the kernel who
 * says so. */
static pid_t victim_of(const char *record)
{
	static const char words[] = "Killed process ";
	const char *text = strchr(record, ';'), *at = text ? strstr(text, words) : NULL;

	if (strtoul(record, NULL, 10) >> 3 || !at)
		return 0;
	return (pid_t)strtol(at + strlen(words), NULL, 10);
}

static void look(struct agent *a)
{
	char record[RECORD];

	for (int i = 0; i < RECORDS_MAX; i++) {
		ssize_t n = read(a->kmsg_fd, record, sizeof(record) - 1);
		pid_t pid;

		if (n < 0 && (errno == EPIPE || errno == EINTR))
			continue; /* older records were overwritten: the next is the oldest */
		if (n <= 0)
			return;
		record[n] = 0;
		pid = victim_of(record);
		if (pid > 0)
			a->victims[a->n_victims++ % VICTIMS_MAX] = pid;
	}
}

bool oom_ended(struct agent *a, pid_t pid, int status)
{
	/* A shell says it like this when what it ran was killed. */
	bool told = WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL;

	if (a->kmsg_fd < 0 || !(told || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)))
		return false;
	look(a);
	for (unsigned i = 0; i < VICTIMS_MAX; i++) {
		if (!a->victims[i] || (!told && a->victims[i] != pid))
			continue;
		a->victims[i] = 0;
		return true;
	}
	return false;
}
