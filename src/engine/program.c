/*
 * engine/program.c - an engine that works here: its program, its kernel, its filter
 * What is different about the two engines stands in um.c and kvm.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "engine/engines.h"
#include "engine/engines_internal.h"
#include "engine/probe.h"
#include "jail/filter.h"

/* A kernel's build script leaves its identity beside it; without one, size and time must do. */
static void kernel_identity(const char *path, int fd, char ret[65])
{
	autofree char *id = NULL;
	char real[PATH_MAX], file[PATH_MAX + 16];
	struct stat st;
	char *slash;

	snprintf(ret, 65, "unknown");
	if (fstat(fd, &st) == 0)
		snprintf(ret, 65, "%lld-%lld", (long long)st.st_size, (long long)st.st_mtime);
	if (!realpath(path, real) || !(slash = strrchr(real, '/')))
		return;
	*slash = 0;
	snprintf(file, sizeof(file), "%s/build-id", real);
	if (io_read_file(AT_FDCWD, file, 256, &id, NULL) == 0)
		snprintf(ret, 65, "%.*s", (int)strcspn(id, "\n"), id);
}

static int open_program(const char *what, const char *path, int *ret, struct err *e)
{
	*ret = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (*ret >= 0)
		return 0;
	return err_set(e, path ? errno : ENOENT, "kernel_missing",
	               "cannot open %s %s: run 'make up', or name another", what,
	               path ? path : "(none is named)");
}

/* All that only a start needs: what the host must have, and the filter. */
static int try_to_start(struct engine_program *r, struct err *e)
{
	char why[200];

	if (!r->recipe->kvm && um_usable(why, sizeof(why)) < 0)
		return err_set(e, ENOTSUP, "um_unusable",
		               "%s; 'engine = kvm' needs hardware virtualization instead", why);
	if (r->recipe->kvm) {
		r->kvm_fd = kvm_open(why, sizeof(why));
		if (r->kvm_fd < 0)
			return err_set(e, -r->kvm_fd, "kvm_unusable",
			               "%s; 'engine = um' needs no hardware for it", why);
	}
	return jail_filter_build(r->recipe->rules, 1,
	                         getenv("PANDA_SECCOMP_LOG") ? JAIL_DENY_LOG : JAIL_DENY_ENOSYS,
	                         &r->filter, e);
}

int engine_program_init(struct engine_program *r, const struct engine_recipe *k,
                        const struct engines_config *cfg, struct err *e)
{
	const char *program = k->kvm ? cfg->vmm : cfg->kernel;
	const char *kernel = k->kvm ? cfg->vmlinux : cfg->kernel;
	int ret;

	*r = (struct engine_program){.recipe = k, .program_fd = -1, .kvm_fd = -1, .kernel_fd = -1};
	ret = open_program(k->kvm ? "the monitor" : "the kernel", program, &r->program_fd, e);
	if (ret == 0 && k->kvm)
		ret = open_program("the guest kernel", kernel, &r->kernel_fd, e);
	if (ret == 0 && !cfg->no_starts)
		ret = try_to_start(r, e);
	if (ret < 0) {
		engine_program_fini(r);
		return ret;
	}
	kernel_identity(kernel, k->kvm ? r->kernel_fd : r->program_fd, r->build);
	return 0;
}

void engine_program_fini(struct engine_program *r)
{
	if (!r->recipe)
		return;
	jail_filter_fini(&r->filter);
	closep(&r->program_fd);
	closep(&r->kvm_fd);
	closep(&r->kernel_fd);
	r->recipe = NULL;
}
