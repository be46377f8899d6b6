/*
 * panda doctor - what this host can do, and what to do about the rest
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/neighbours.h"
#include "client/panda.h"
#include "engine/probe.h"
#include "jail/jail.h"

static int problems;
static json_t *rows; /* --json: collected, printed at the end */

/* state: "ok", "no", or "--" for what is good to know and no problem. */
static void say(const char *state, const char *name, const char *detail, const char *todo)
{
	if (rows) {
		json_array_append_new(rows,
		                      json_pack("{s:s, s:s, s:s, s:s*}", "state", state, "name",
		                                name, "detail", detail, "todo", todo));
		return;
	}
	printf("%-4s %-14s %s\n", state, name, detail);
	if (todo)
		printf("     %-14s -> %s\n", "", todo);
}

static void row(bool ok, const char *name, const char *detail, const char *todo)
{
	say(ok ? "ok" : "no", name, detail, ok ? NULL : todo);
	problems += !ok;
}

/* Which engine this host gets, and why. One is enough. */
static void check_engines(void)
{
	char why_kvm[200], why_um[200];
	autoclose int kvm = kvm_open(why_kvm, sizeof(why_kvm));
	bool um = um_usable(why_um, sizeof(why_um)) == 0;

	say(kvm >= 0 ? "ok" : "--", "engine kvm", why_kvm, NULL);
	say(um ? "ok" : "--", "engine um", why_um, um ? NULL : "use Linux 6.7 or newer");
	row(kvm >= 0 || um, "engine", engine_auto(kvm >= 0, um),
	    "use a host with hardware virtualization, or Linux 6.7 or newer");
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

/* Machines work without a server, so a missing one is no problem of the host. */
static void check_server(struct cli *c)
{
	autojson json_t *version = NULL, *list = NULL;
	struct panda_error e;
	char detail[400];

	if (cli_open(c))
		return;
	panda_set_timeout(c->panda, 5000);
	if (panda_call(c->panda, "GET", "/version", NULL, &version, &e) < 0) {
		say("--", "server", e.text,
		    "make up starts a pandad; PANDASTACK_API names another");
		return;
	}
	snprintf(detail, sizeof(detail), "%s %s at %s, engine %s, isolation %s",
	         js(version, "service"), js(version, "semver"), panda_url(c->panda),
	         js(version, "engine"), js(version, "isolation"));
	say("ok", "server", detail, NULL);
	if (panda_list(c->panda, &list, &e) < 0) {
		say("--", "key", e.text,
		    "put the key that make up printed into PANDASTACK_API_KEY");
		return;
	}
	snprintf(detail, sizeof(detail), "%zu of ours", json_array_size(cli_list(list, "items")));
	say("ok", "sandboxes", detail, NULL);
}

static int run(struct cli *c)
{
	const char *run_dir = getenv("PANDA_RUN") ? getenv("PANDA_RUN") : "/run/panda";
	struct jail_part parts[JAIL_PARTS];
	struct jail *jail = NULL;
	struct err e;

	if (cli_args(c, 0, 0))
		return CLI_USAGE;
	if (c->json)
		rows = json_array();
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
	check_map_count();
	neighbours_look("/sys", "/proc", say);
	check_engines();
	check_server(c);
	if (rows)
		cli_json(rows);
	json_decref(rows);
	return problems ? CLI_FAILED : CLI_OK;
}

const struct cli_command command_doctor = {
    .name = "doctor",
    .args = "",
    .what = "say what this host can do, and what is missing",
    .about = "Says what this host can do for machines and what is missing, and whether a pandad\n"
	     "answers. Exit code 0: everything is there; 1: the host lacks something.",
    .examples = "  panda doctor\n  panda doctor && panda machine run -- uname -a\n",
    .misused = CLI_USAGE,
    .run = run,
};
