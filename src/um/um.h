/*
 * um/um.h - the user-mode engine: a Linux kernel that is a jailed, unprivileged host process
 */
#pragma once
#include "core/engine.h"

struct um_config {
	const char *kernel;        /* path of panda-um */
	const char *run_dir;       /* exists; uid locks and cpu samples */
	const char *cgroup_parent; /* NULL: "panda" */
	unsigned jail_want;        /* JAIL_*: refuse to start machines without these */
};

/* Kinds: kernel_missing, and those of jail_new(). Caller frees with (*ret)->free(). */
int um_engine_new(const struct um_config *cfg, struct engine **ret, struct err *e);
