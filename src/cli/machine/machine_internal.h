/*
 * cli/machine/machine_internal.h - between the files of 'panda machine'
 */
#pragma once
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "machine/machine.h"

enum { FORKS_MAX = 1000 };

/* What the command line says; all of it is borrowed from there, and from the environment. */
struct opts {
	const char *id, *parent, *engine, *kernel, *vmm, *vmlinux, *image, *upper, *run_dir, *store;
	const char *env[64], *cwd, *user;
	size_t nenv;
	unsigned memory_mib, timeout_s, count, cpus, cpu_percent;
	int cpu, tap_fd;
	bool tty, stdin_on, verify, keep_jail_optional, timing;
	struct {
		const char *path, *mount;
		bool read_only;
	} volumes[ENGINE_VOLUMES_MAX];
	unsigned nvolumes;
	char **rest;
	int nrest;
};

struct ctx {
	struct opts o;
	struct engines *engines;
	struct machines ms;
	struct snapshot_store store;
	bool store_open;
};

/*
 * Takes the options at the front of argv, until the first word that is none. 0, an exit code, or
 * negative when --help was all that was asked for.
 */
int machine_options(int argc, char **argv, struct opts *o);
/* What holds without options: the environment, and what is beside our own program. */
void machine_defaults(struct opts *o);
/* A decimal number up to max. */
bool machine_number(const char *text, uint64_t max, uint64_t *ret);

/* Runs o.rest in the machine. Its exit code, or a negative errno. */
int machine_exec(struct ctx *c, const char *id, struct err *e);

/* With --timing, how long it took. */
void machine_timing(const struct opts *o, const char *what, uint64_t since_ns);
