/*
 * panda machine - its options, and what holds without them
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/machine_internal.h"

enum {
	MEMORY_DEFAULT_MIB = 512,
	CPUS_MAX = 8,
};

/* Beside our own program: build/panda-um, build/base.img... (tools/up links them). */
static const char *beside(const char *env, const char *name)
{
	static char buf[5][PATH_MAX];
	static int next;
	char self[PATH_MAX], *slash, *p = buf[next++ % 5];
	ssize_t n;

	if (getenv(env))
		return getenv(env);
	n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (n < 0)
		return name;
	self[n] = 0;
	for (int up = 0; up < 3 && (slash = strrchr(self, '/')); up++) {
		*slash = 0;
		snprintf(p, PATH_MAX, "%.*s/%s", PATH_MAX - 32, self, name);
		if (access(p, R_OK) == 0)
			return p;
	}
	return name;
}

bool machine_number(const char *text, uint64_t max, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && !*end && !errno && *ret <= max;
}

static void add_volume(struct opts *o, char *text)
{
	size_t n = strlen(text);
	unsigned i = o->nvolumes++;

	if (n > 3 && !strcmp(text + n - 3, ":ro")) {
		text[n - 3] = 0;
		o->volumes[i].read_only = true;
	}
	o->volumes[i].path = text;
}

int machine_options(int argc, char **argv, struct opts *o)
{
	enum {
		O_ID = 256,
		O_IMAGE,
		O_KERNEL,
		O_UPPER,
		O_TIMEOUT,
		O_CPU,
		O_CPU_MAX,
		O_VERIFY,
		O_WEAK,
		O_TIMING,
		O_VOLUME,
		O_MOUNT,
		O_TAP_FD,
		O_ENGINE,
		O_CPUS,
	};
	static const struct option longs[] = {
	    {"help", 0, 0, 'h'},          {"id", 1, 0, O_ID},          {"memory", 1, 0, 'm'},
	    {"count", 1, 0, 'n'},         {"stdin", 0, 0, 'i'},        {"tty", 0, 0, 't'},
	    {"env", 1, 0, 'e'},           {"cwd", 1, 0, 'C'},          {"user", 1, 0, 'u'},
	    {"timeout", 1, 0, O_TIMEOUT}, {"image", 1, 0, O_IMAGE},    {"kernel", 1, 0, O_KERNEL},
	    {"upper", 1, 0, O_UPPER},     {"cpu", 1, 0, O_CPU},        {"cpu-max", 1, 0, O_CPU_MAX},
	    {"verify", 0, 0, O_VERIFY},   {"weak-jail", 0, 0, O_WEAK}, {"timing", 0, 0, O_TIMING},
	    {"volume", 1, 0, O_VOLUME},   {"mount", 1, 0, O_MOUNT},    {"tap-fd", 1, 0, O_TAP_FD},
	    {"engine", 1, 0, O_ENGINE},   {"cpus", 1, 0, O_CPUS},      {0}};
	uint64_t v;
	int opt;

	/* Options end at the first word that is none: what follows an id or '--' is the guest's. */
	while ((opt = getopt_long(argc, argv, "+hm:n:ite:C:u:", longs, NULL)) != -1) {
		switch (opt) {
		case 'h':
			return -1;
		case 'm':
			if (!machine_number(optarg, 1 << 20, &o->memory_mib) || o->memory_mib < 64)
				return cli_usage(
				    "machine", "--memory takes 64 MiB and more, not '%s'", optarg);
			break;
		case 'n':
			if (!machine_number(optarg, FORKS_MAX, &v) || v < 1)
				return cli_usage("machine", "-n takes 1 to %d, not '%s'", FORKS_MAX,
				                 optarg);
			o->count = (unsigned)v;
			break;
		case 'i':
			o->stdin_on = true;
			break;
		case 't':
			o->tty = true;
			break;
		case 'e':
			if (!strchr(optarg, '=') || o->nenv + 1 == ARRAY_LEN(o->env))
				return cli_usage("machine",
				                 "--env takes NAME=VALUE, at most %zu times",
				                 ARRAY_LEN(o->env) - 1);
			o->env[o->nenv++] = optarg;
			break;
		case 'C':
			o->cwd = optarg;
			break;
		case 'u':
			o->user = optarg;
			break;
		case O_TIMEOUT:
			if (!machine_number(optarg, 1 << 30, &v))
				return cli_usage("machine", "--timeout takes seconds, not '%s'",
				                 optarg);
			o->timeout_ms = v * 1000;
			break;
		case O_ID:
			o->id = optarg;
			break;
		case O_IMAGE:
			o->image = optarg;
			break;
		case O_ENGINE:
			o->engine = optarg;
			break;
		case O_CPUS:
			if (!machine_number(optarg, CPUS_MAX, &v) || v < 1)
				return cli_usage("machine", "--cpus takes 1 to %d, not '%s'",
				                 CPUS_MAX, optarg);
			o->cpus = (unsigned)v;
			break;
		case O_KERNEL:
			o->kernel = o->vmlinux = optarg; /* whichever the engine is */
			break;
		case O_UPPER:
			o->upper = optarg;
			break;
		case O_CPU:
			if (!machine_number(optarg, 4095, &v))
				return cli_usage("machine", "--cpu takes a cpu number, not '%s'",
				                 optarg);
			o->cpu = (int)v;
			break;
		case O_CPU_MAX:
			if (!machine_number(optarg, 100, &v) || v < 1)
				return cli_usage("machine", "--cpu-max takes 1 to 100, not '%s'",
				                 optarg);
			o->cpu_percent = (unsigned)v;
			break;
		case O_VERIFY:
			o->verify = true;
			break;
		case O_WEAK:
			o->keep_jail_optional = true;
			break;
		case O_TIMING:
			o->timing = true;
			break;
		case O_VOLUME:
			if (o->nvolumes == ENGINE_VOLUMES_MAX)
				return cli_usage("machine", "a machine has at most %d volumes",
				                 ENGINE_VOLUMES_MAX);
			add_volume(o, optarg);
			break;
		case O_MOUNT:
			if (optarg[0] < '0' || optarg[0] >= '0' + ENGINE_VOLUMES_MAX ||
			    optarg[1] != ':' || optarg[2] != '/')
				return cli_usage("machine", "--mount takes N:/PATH, not '%s'",
				                 optarg);
			o->volumes[optarg[0] - '0'].mount = optarg + 2;
			break;
		case O_TAP_FD:
			if (!machine_number(optarg, INT_MAX, &v) || v < 3)
				return cli_usage("machine", "--tap-fd takes an fd number, not '%s'",
				                 optarg);
			o->tap_fd = (int)v;
			break;
		default:
			fprintf(stderr, "Try 'panda machine --help'.\n");
			return CLI_USAGE;
		}
	}
	return 0;
}

void machine_defaults(struct opts *o)
{
	*o = (struct opts){.memory_mib = MEMORY_DEFAULT_MIB,
	                   .count = 1,
	                   .cpu = -1,
	                   .engine = getenv("PANDA_ENGINE"),
	                   .kernel = beside("PANDA_KERNEL", "panda-um"),
	                   .vmm = beside("PANDA_VMM", "panda-vmm"),
	                   .vmlinux = beside("PANDA_VMLINUX", "panda-vmlinux"),
	                   .image = beside("PANDA_IMAGE", "base.img"),
	                   .upper = beside("PANDA_UPPER", "upper.img"),
	                   .run_dir = getenv("PANDA_RUN") ? getenv("PANDA_RUN") : "/run/panda",
	                   .store =
	                       getenv("PANDA_STORE") ? getenv("PANDA_STORE") : "/var/lib/panda"};
}
