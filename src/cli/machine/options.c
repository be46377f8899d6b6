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

#include "base/macro.h"
#include "cli/cli.h"
#include "cli/machine/machine_internal.h"
#include "machine/engine.h"

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

/* Options that fill one member of struct opts, and nothing else. */
static const struct simple {
	int key;
	enum {
		FLAG,   /* a bool */
		TEXT,   /* a const char * */
		NUMBER, /* an int or unsigned, from min to max */
	} kind;
	size_t at;
	unsigned min, max;
	const char *name, *takes; /* said of a wrong number; takes NULL: "MIN to MAX" */
} simple[] = {
#define AT(member) offsetof(struct opts, member)
    {.key = 'i', .kind = FLAG, .at = AT(stdin_on)},
    {.key = 't', .kind = FLAG, .at = AT(tty)},
    {.key = O_VERIFY, .kind = FLAG, .at = AT(verify)},
    {.key = O_WEAK, .kind = FLAG, .at = AT(keep_jail_optional)},
    {.key = O_TIMING, .kind = FLAG, .at = AT(timing)},
    {.key = 'C', .kind = TEXT, .at = AT(cwd)},
    {.key = 'u', .kind = TEXT, .at = AT(user)},
    {.key = O_ID, .kind = TEXT, .at = AT(id)},
    {.key = O_IMAGE, .kind = TEXT, .at = AT(image)},
    {.key = O_UPPER, .kind = TEXT, .at = AT(upper)},
    {.key = O_ENGINE, .kind = TEXT, .at = AT(engine)},
    {'m', NUMBER, AT(memory_mib), 64, 1 << 20, "--memory", "64 MiB and more"},
    {'n', NUMBER, AT(count), 1, FORKS_MAX, "-n", NULL},
    {O_TIMEOUT, NUMBER, AT(timeout_s), 0, 1 << 30, "--timeout", "seconds"},
    {O_CPU, NUMBER, AT(cpu), 0, 4095, "--cpu", "a cpu number"},
    {O_CPUS, NUMBER, AT(cpus), 1, CPUS_MAX, "--cpus", NULL},
    {O_CPU_MAX, NUMBER, AT(cpu_percent), 1, 100, "--cpu-max", NULL},
    {O_TAP_FD, NUMBER, AT(tap_fd), 3, INT_MAX, "--tap-fd", "an fd number"},
#undef AT
};

static int take_simple(const struct simple *w, const char *arg, struct opts *o)
{
	void *at = (char *)o + w->at;
	uint64_t v;

	if (w->kind == FLAG) {
		*(bool *)at = true;
		return 0;
	}
	if (w->kind == TEXT) {
		*(const char **)at = arg;
		return 0;
	}
	if (machine_number(arg, w->max, &v) && v >= w->min) {
		*(unsigned *)at = (unsigned)v;
		return 0;
	}
	if (w->takes)
		return cli_usage("machine", "%s takes %s, not '%s'", w->name, w->takes, arg);
	return cli_usage("machine", "%s takes %u to %u, not '%s'", w->name, w->min, w->max, arg);
}

static int take_other(int key, char *arg, struct opts *o)
{
	switch (key) {
	case 'h':
		return -1;
	case 'e':
		if (!strchr(arg, '=') || o->nenv + 1 == ARRAY_LEN(o->env))
			return cli_usage("machine", "--env takes NAME=VALUE, at most %zu times",
			                 ARRAY_LEN(o->env) - 1);
		o->env[o->nenv++] = arg;
		return 0;
	case O_KERNEL:
		o->kernel = o->vmlinux = arg; /* whichever the engine is */
		return 0;
	case O_VOLUME:
		if (o->nvolumes == ENGINE_VOLUMES_MAX)
			return cli_usage("machine", "a machine has at most %d volumes",
			                 ENGINE_VOLUMES_MAX);
		add_volume(o, arg);
		return 0;
	case O_MOUNT:
		if (arg[0] < '0' || arg[0] >= '0' + ENGINE_VOLUMES_MAX || arg[1] != ':' ||
		    arg[2] != '/')
			return cli_usage("machine", "--mount takes N:/PATH, not '%s'", arg);
		o->volumes[arg[0] - '0'].mount = arg + 2;
		return 0;
	}
	fprintf(stderr, "Try 'panda machine --help'.\n");
	return CLI_USAGE;
}

int machine_options(int argc, char **argv, struct opts *o)
{
	int key, r = 0;

	/* Options end at the first word that is none: what follows an id or '--' is the guest's. */
	while (r == 0 && (key = getopt_long(argc, argv, "+hm:n:ite:C:u:", longs, NULL)) != -1) {
		size_t i = 0;

		while (i < ARRAY_LEN(simple) && simple[i].key != key)
			i++;
		r = i < ARRAY_LEN(simple) ? take_simple(&simple[i], optarg, o)
		                          : take_other(key, optarg, o);
	}
	return r;
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
