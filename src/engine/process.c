/*
 * engine/process.c - the processes of machines: started in their jails, some before they are asked
 * for
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/macro.h"
#include "base/sock.h"
#include "engine/cpu.h"
#include "engine/engines_internal.h"
#include "jail/cgroup.h"
#include "jail/jail.h"
#include "jail/uid.h"
#include "machine/engine.h"
#include "wire/control.h"

enum {
	PIDS_DEFAULT = 2048,
	WORDS_MAX = 24, /* of a command line, as many as the longest recipe has and some */
	/* fds: beside the fixed slots each guest process has one, and so has each agent stream */
	NOFILE = CTL_FD_DYNAMIC + PIDS_DEFAULT + 256,
};

/* Host memory a machine needs beside the guest's: page tables, stubs, the kernel's own image. The
 * guest's counts twice: what its sealed layers hold for forks, and what it wrote since. */
#define MEMORY_ROOM ((uint64_t)64 << 20)
#define FILE_ROOM   ((uint64_t)64 << 20)

/*
 * A child that borrows our memory (vfork) lets us go on a moment before its exec gives it memory of
 * its own: what is opened of it then is ours. -ESRCH: it has ended.
 */
static int wait_for_exec(pid_t pid, int program)
{
	uint64_t deadline = mono_ms() + START_TIMEOUT_MS;
	struct stat want, st;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
	if (fstat(program, &want) < 0)
		return -errno;
	while (stat(path, &st) == 0 && mono_ms() < deadline) {
		if (st.st_dev == want.st_dev && st.st_ino == want.st_ino)
			return 0;
		usleep(50);
	}
	return -ESRCH;
}

/*
 * Opened with CAP_SYS_ADMIN, a pagemap would tell the guest's kernel physical addresses of the
 * host; it needs no more than which pages were copied.
 */
static int open_pagemap(pid_t pid)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct had[2], less[2];
	char path[64];
	bool have;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/pagemap", (int)pid);
	have = syscall(SYS_capget, &head, had) == 0;
	if (have) {
		memcpy(less, had, sizeof(less));
		less[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective &= ~CAP_TO_MASK(CAP_SYS_ADMIN);
		syscall(SYS_capset, &head, less);
	}
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (have)
		syscall(SYS_capset, &head, had);
	return fd < 0 ? -errno : fd;
}

/*
 * No file of a machine is larger than its largest disk, or than a volume can be that is attached
 * later: a limit cannot be raised again everywhere. Whatever its kernel has become, no layer and no
 * volume grows past that. What it writes while it is saved is small beside it.
 */
static uint64_t largest_file(const struct engine_start *s)
{
	uint64_t max = ENGINE_VOLUME_BYTES_MAX;

	if (s) {
		max = MAX(max, s->image->memory_size);
		for (size_t d = 0; d < s->image->ndisks; d++)
			max = MAX(max, s->image->disks[d].size);
		for (size_t i = 0; i < ENGINE_VOLUMES_MAX; i++)
			max = MAX(max, s->volumes[i].size);
	}
	return max + FILE_ROOM;
}

/* The jail of a machine; s is NULL when it is not known yet which machine it will be, and whose. */
static struct jail_spec jail_for(struct local_engines *local, const struct engine_program *w,
                                 const char *id, const struct engine_start *s)
{
	struct jail_spec spec = {
	    .id = id,
	    .tenant = !local->shared ? NULL
	              : s            ? s->tenant
	                             : "",
	    .exe_fd = w->program_fd,
	    .limits.pids_max = s && s->pids_max ? s->pids_max : PIDS_DEFAULT,
	    .nofile_max = NOFILE,
	    .file_max = largest_file(s),
	    .no_aslr = w->recipe->no_aslr,
	    .filter = &w->filter,
	    .want = local->want,
	};
	int cpu = -1;

	if (!s)
		return spec;
	spec.limits.memory_max =
	    s->memory_limit ? s->memory_limit : 2 * s->image->memory_size + MEMORY_ROOM;
	spec.limits.cpu_max_percent = s->cpu_max_percent;
	if (s->cpu >= 0)
		cpu = s->cpu;
	else if (w->recipe->one_cpu)
		cpu = cpu_choose(local->run_dirfd);
	spec.pin = cpu >= 0;
	spec.cpu = spec.pin ? (unsigned)cpu : 0;
	return spec;
}

void machine_process_fini(struct machine_process *p)
{
	closep(&p->pidfd);
	closep(&p->control);
	closep(&p->pagemap);
}

void machine_process_end(struct local_engines *local, const char *id, struct machine_process *p)
{
	local_stop(&local->engines, id, p->pid, NULL);
	machine_process_fini(p);
	*p = (struct machine_process)MACHINE_PROCESS_EMPTY;
}

int machine_process_start(struct local_engines *local, const struct engine_program *w,
                          const char *id, int dirfd, const struct engine_start *s,
                          struct machine_process *ret, struct err *e)
{
	AUTO(machine_process_fini) struct machine_process p = MACHINE_PROCESS_EMPTY;
	struct jail_spec spec = jail_for(local, w, id, s);
	char mem[48], cpus[32], extra[512];
	const char *argv[WORDS_MAX] = {w->recipe->program};
	char *envp[] = {"PANDA=1", NULL};
	autoclose int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	autoclose int log =
	    openat(dirfd, "console.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	autoclose int control = -1;
	struct jail_fd fds[5] = {{null, 0}, {log, 1}, {log, 2}};
	struct jail_uid uid;
	size_t n = 1;
	int r;

	r = null < 0 || log < 0 ? -errno : 0;
	unlinkat(dirfd, "control", 0); /* of a process that was made ahead in vain */
	if (r == 0)
		r = sock_listen(dirfd, "control", SOCK_SEQPACKET, &control);
	if (r == 0) /* before it begins: from its first moment on it ends with us */
		r = sock_connect(dirfd, "control", SOCK_SEQPACKET, &p.control);
	if (r < 0)
		return err_set(e, -r, "machine_dir", "cannot write in the directory of %s: %s", id,
		               strerror(-r));
	fds[3] = (struct jail_fd){control, CTL_FD_CTL};
	fds[4] = (struct jail_fd){w->kvm_fd, CTL_FD_KVM};
	spec.fds = fds;
	spec.nfds = w->recipe->kvm ? 5 : 4;
	if (s && s->image->state < 0) {
		snprintf(mem, sizeof(mem), "mem=%lluK",
		         (unsigned long long)(s->image->memory_size >> 10));
		snprintf(cpus, sizeof(cpus), "cpus=%u", MAX(s->cpus, 1u));
		snprintf(extra, sizeof(extra), "%s", s->cmdline ? s->cmdline : "panda=1");
		argv[n++] = mem;
		if (w->recipe->kvm)
			argv[n++] = cpus;
		for (const char *const *word = w->recipe->boot; *word; word++)
			argv[n++] = *word;
		argv[n++] = extra;
	} else if (!s && w->recipe->kvm) {
		argv[n++] = "ahead";
	}
	spec.argv = (char *const *)argv;
	spec.envp = envp;
	r = jail_uid_take(local->jail, &uid, e);
	if (r < 0)
		return r;
	spec.uid = uid.uid;
	spec.gid = uid.uid;
	r = jail_spawn(local->jail, &spec, &p.pidfd, &p.pid, e);
	jail_uid_drop(&uid);
	if (r < 0)
		return r;
	r = wait_for_exec(p.pid, w->program_fd);
	if (r == 0)
		r = p.pagemap = open_pagemap(p.pid);
	if (r < 0) {
		machine_process_end(local, id, &p);
		return err_set(e, -r, "jail_failed", "machine %s did not begin: %s", id,
		               strerror(-r));
	}
	p.program = w;
	*ret = p;
	p = (struct machine_process)MACHINE_PROCESS_EMPTY;
	return 0;
}

/* Of the default engine, one that will be given a state: a boot has another command line. */
int local_prepare(struct engines *engines, const char *id, int dirfd, struct err *e)
{
	struct local_engines *local = (struct local_engines *)engines;
	struct prepared_process *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return err_nomem(e);
	snprintf(p->id, sizeof(p->id), "%s", id);
	r = machine_process_start(local, &local->programs[0], id, dirfd, NULL, &p->process, e);
	if (r < 0) {
		free(p);
		return r;
	}
	pthread_mutex_lock(&local->lock);
	p->next = local->prepared;
	local->prepared = p;
	pthread_mutex_unlock(&local->lock);
	return 0;
}

/* What was made ahead for this id is the caller's from now on. False: nothing. */
static bool take_prepared(struct local_engines *local, const char *id, struct machine_process *ret)
{
	struct prepared_process **at = &local->prepared, *p;

	pthread_mutex_lock(&local->lock);
	while (*at && strcmp((*at)->id, id) != 0)
		at = &(*at)->next;
	p = *at;
	if (p)
		*at = p->next;
	pthread_mutex_unlock(&local->lock);
	if (!p)
		return false;
	*ret = p->process;
	free(p);
	return true;
}

void local_forget(struct engines *engines, const char *id)
{
	struct local_engines *local = (struct local_engines *)engines;
	struct machine_process p;

	if (take_prepared(local, id, &p))
		machine_process_end(local, id, &p);
}

/* Can one that was made ahead become this machine? Then it gets the machine's limits. */
static bool fits(struct local_engines *local, const struct engine_program *w,
                 const struct engine_start *s, const struct machine_process *p)
{
	struct jail_spec has = jail_for(local, w, s->id, NULL), want = jail_for(local, w, s->id, s);
	struct pollfd ended = {.fd = p->pidfd, .events = POLLIN};

	want.tenant = has.tenant; /* that is where it is */
	return p->program == w && s->image->state >= 0 && has.file_max == want.file_max &&
	       has.limits.pids_max == want.limits.pids_max && poll(&ended, 1, 0) == 0 &&
	       jail_limit(local->jail, &want, p->pid, NULL) == 0;
}

bool machine_process_take(struct local_engines *local, const struct engine_program *w,
                          const struct engine_start *s, struct machine_process *ret)
{
	if (!take_prepared(local, s->id, ret))
		return false;
	if (fits(local, w, s, ret))
		return true;
	machine_process_end(local, s->id, ret);
	return false;
}
