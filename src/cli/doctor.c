/*
 * panda doctor - what this host can do, and what to do about the rest
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "cli/cli.h"
#include "jail/jail.h"

static int problems;

static void row(bool ok, const char *name, const char *detail, const char *todo)
{
	printf("%-4s %-14s %s\n", ok ? "ok" : "no", name, detail);
	if (!ok && todo)
		printf("     %-14s -> %s\n", "", todo);
	problems += !ok;
}

/* Machines find what they dirtied with this ioctl; a zero-length scan tells whether it is there. */
static void check_pagemap_scan(void)
{
	autoclose int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	unsigned long long arg[12] = {sizeof(arg)};
	bool ok =
	    fd >= 0 && ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 'f', 16, sizeof(arg)), arg) >= 0;

	row(ok, "pagemap scan", ok ? "PAGEMAP_SCAN works" : "the kernel has no PAGEMAP_SCAN",
	    "use Linux 6.7 or newer");
}

static void check_map_count(void)
{
	autofree char *text = NULL;
	char detail[80];
	long n = 0;

	if (io_read_file(AT_FDCWD, "/proc/sys/vm/max_map_count", 64, &text, NULL) == 0)
		n = strtol(text, NULL, 10);
	snprintf(detail, sizeof(detail), "vm.max_map_count is %ld", n);
	row(n >= 65530, "map count", detail,
	    "sysctl vm.max_map_count=262144: guests with much scattered memory need many mappings");
}

static void check_kvm(void)
{
	autofree char *text = NULL;
	bool flags = io_read_file(AT_FDCWD, "/proc/cpuinfo", 16 << 20, &text, NULL) == 0 &&
	             (strstr(text, " vmx") || strstr(text, " svm"));
	bool device = access("/dev/kvm", R_OK | W_OK) == 0;

	/* Not a problem: the user-mode engine is there for such hosts. */
	printf("%-4s %-14s %s\n", "--", "kvm",
	       flags && device ? "hardware virtualization is there (engine to come)"
	       : device        ? "/dev/kvm opens, but the cpu has no vmx or svm: engine um is used"
	                       : "no hardware virtualization: engine um is used");
}

int cmd_doctor(int argc, char **argv)
{
	const char *run_dir = getenv("PANDA_RUN") ? getenv("PANDA_RUN") : "/run/panda";
	struct jail_part parts[JAIL_PARTS];
	struct jail *jail = NULL;
	struct err e;

	if (argc > 1 && !strcmp(argv[1], "--help")) {
		printf(
		    "usage: panda doctor\n\nSays what this host can do for machines and what is\n"
		    "missing. Exit code 0: everything is there; 1: something is missing.\n\n"
		    "Examples:\n  panda doctor\n  panda doctor && panda machine run -- uname -a\n");
		return CLI_OK;
	}
	if (argc > 1)
		return cli_usage("doctor", "it takes no arguments");
	row(geteuid() == 0, "root", geteuid() == 0 ? "running as root" : "not running as root",
	    "run it again as root: machines get uids of their own");
	if (mkdir(run_dir, 0700) < 0 && errno != EEXIST)
		row(false, "run directory", run_dir, "make it writable, or set PANDA_RUN");
	if (jail_new(&(struct jail_config){.run_dir = run_dir}, &jail, &e) < 0) {
		row(false, "jail", e.text, NULL);
	} else {
		jail_probe(jail, parts);
		for (size_t i = 0; i < JAIL_PARTS; i++)
			row(parts[i].ok, parts[i].name, parts[i].detail, parts[i].todo);
		jail_free(jail);
	}
	check_pagemap_scan();
	check_map_count();
	check_kvm();
	return problems ? CLI_FAILED : CLI_OK;
}
