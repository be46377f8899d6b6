/*
 * panda machine - machines without a daemon: how engines are developed, tested and measured
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"
#include "cli/cli.h"
#include "cli/machine/machine_internal.h"
#include "engine/engines.h"
#include "jail/jail.h"
#include "layers/set.h"
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "machine/machine.h"

static const char usage[] =
    "usage: panda machine VERB [OPTION]... [--] [ARG]...\n"
    "\n"
    "  boot [--id ID]                start a kernel from the image; prints the id\n"
    "  run [--] CMD...               boot, run one command, stop\n"
    "  exec ID [--] CMD...           run a command; its exit code is ours\n"
    "  fork ID [-n N]                make N running copies; prints their ids\n"
    "  snapshot ID NAME              save to disk under NAME; the machine goes on\n"
    "  restore NAME [-n N]           start machines from a snapshot; prints their ids\n"
    "  snapshots | delete NAME | gc  list, delete, and clear what crashes left\n"
    "  export ID DISK FILE           copy a disk (0, 1) into a new file, as of now\n"
    "  pause ID | resume ID | stats ID | stop ID... | ls\n"
    "\n"
    "  -m, --memory MIB   guest memory (boot; 512)     -i, --stdin   pass stdin on (exec)\n"
    "  -t, --tty          with a terminal (exec)       -e, --env K=V (exec, repeat)\n"
    "  -C, --cwd DIR      working directory (exec)     -u, --user U  user in the guest (exec)\n"
    "      --timeout S    kill the command after S seconds, exit code 124 (exec)\n"
    "      --image FILE   read-only root image         --kernel FILE the engine's kernel\n"
    "      --upper FILE   ext4 file, base of the writable disk\n"
    "  -n, --count N      how many machines (boot, fork, restore; 1)\n"
    "      --cpu N        cpu to run on                --cpu-max P   percent of one cpu\n"
    "      --engine E     kvm, um or auto (auto)       --cpus N      vcpus (boot; kvm: 1 to 8)\n"
    "      --id ID        name of the new machine      --verify      read every byte (restore)\n"
    "      --weak-jail    start even if this host lacks parts of the jail (panda doctor)\n"
    "      --timing       print milliseconds to stderr\n"
    "      --volume FILE[:ro]  attach a file as /dev/pvol0, 1... (boot, run, restore); or a new\n"
    "                     file for a copy of the machine's volume (fork, snapshot); repeat\n"
    "      --mount N:PATH where volume N, which holds ext4, is mounted; repeat\n"
    "      --tap-fd N     our fd N, a tap, is behind eth0 (boot, run, fork, restore of one)\n"
    "Environment: PANDA_RUN (/run/panda), PANDA_STORE (/var/lib/panda), PANDA_ENGINE,\n"
    "PANDA_KERNEL, PANDA_VMM, PANDA_VMLINUX, PANDA_IMAGE, PANDA_UPPER.\n"
    "\n"
    "Examples:\n"
    "  panda machine run -- python3 -c 'print(6 * 7)'\n"
    "  id=$(panda machine boot) && panda machine exec $id -- uname -a; panda machine stop $id\n";

/* What a verb wants: the name of a machine or snapshot, more words, the store, a new machine. */
enum { ID = 1, REST = 2, STORE = 4, STARTS = 8 };

static int ctx_open(struct ctx *c, unsigned wants, struct err *e)
{
	struct engines_config cfg = {.engine = c->o.engine,
	                             .kernel = c->o.kernel,
	                             .vmm = c->o.vmm,
	                             .vmlinux = c->o.vmlinux,
	                             .run_dir = c->o.run_dir,
	                             .jail_want = c->o.keep_jail_optional ? 0 : JAIL_ALL,
	                             .no_starts = !(wants & STARTS)};
	autoclose int dir = -1;
	int r;

	if (mkdir(c->o.run_dir, 0700) < 0 && errno != EEXIST)
		return err_set(e, errno, "run_dir", "cannot make %s: %s", c->o.run_dir,
		               strerror(errno));
	r = engines_new(&cfg, &c->engines, e);
	if (r < 0)
		return r;
	r = machines_open(&c->ms, c->engines, c->o.run_dir, e);
	if (r < 0 || !(wants & STORE))
		return r;
	if (mkdir(c->o.store, 0700) < 0 && errno != EEXIST)
		return err_set(e, errno, "store", "cannot make %s: %s", c->o.store,
		               strerror(errno));
	dir = open(c->o.store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = dir < 0 ? -errno : snapshot_store_open(dir, &c->store);
	if (r < 0)
		return err_set(e, -r, "store", "cannot open the store %s: %s", c->o.store,
		               strerror(-r));
	c->store_open = true;
	return 0;
}

static void ctx_close(struct ctx *c)
{
	if (c->store_open)
		snapshot_store_close(&c->store);
	if (c->ms.engines)
		machines_close(&c->ms);
	if (c->engines)
		c->engines->free(c->engines);
}

void machine_timing(const struct opts *o, const char *what, uint64_t since_ns)
{
	if (o->timing)
		fprintf(stderr, "%s %.2f ms\n", what, (double)(mono_ns() - since_ns) / 1e6);
}

static void close_volumes(struct engine_start *s)
{
	for (unsigned i = 0; i < ENGINE_VOLUMES_MAX; i++)
		engine_volume_close(&s->volumes[i]);
}

static int open_volumes(const struct opts *o, struct engine_start *s, struct err *e)
{
	for (unsigned i = 0; i < ENGINE_VOLUMES_MAX; i++) {
		int r;

		if (o->volumes[i].mount && !o->volumes[i].path)
			return err_set(e, EINVAL, "bad_volume",
			               "--mount %u: name a file for it with --volume", i);
		if (!o->volumes[i].path)
			continue;
		if (o->count > 1 && !o->volumes[i].read_only)
			return err_set(e, EINVAL, "bad_volume",
			               "only one machine can write %s: leave out -n, or add ':ro'",
			               o->volumes[i].path);
		r = engine_volume_open(o->volumes[i].path, o->volumes[i].read_only, &s->volumes[i],
		                       e);
		if (r < 0)
			return r;
		s->volumes[i].mount = o->volumes[i].mount;
	}
	return 0;
}

/* Each volume named on the command line becomes a copy of the machine's: see --volume. */
static int copy_volumes(void *arg, const struct engine_machine *m, struct err *e)
{
	struct ctx *c = arg;

	for (unsigned i = 0; i < c->o.nvolumes; i++) {
		const char *path = c->o.volumes[i].path;
		autoclose int from = -1, to = -1;
		int r;

		r = machine_volume_file(&c->ms, m, i, &from, e);
		if (r < 0)
			return r;
		to = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		r = to < 0 ? -errno : engine_volume_clone(from, to);
		if (r < 0) {
			if (to >= 0)
				unlink(path);
			return err_set(e, -r, "output", "cannot copy volume %u to %s: %s", i, path,
			               strerror(-r));
		}
	}
	return 0;
}

static int take_snapshot(struct ctx *c, struct engine_image *ret, struct engine_snapshot_info *info,
                         struct err *e)
{
	return c->o.nvolumes
	           ? machine_snapshot_with(&c->ms, c->o.parent, copy_volumes, c, ret, info, e)
	           : machine_snapshot(&c->ms, c->o.parent, ret, info, e);
}

static void tell_lost(const struct machine_info *info)
{
	for (unsigned i = 0; i < ENGINE_VOLUMES_MAX; i++)
		if (info->volumes_lost >> i & 1)
			fprintf(stderr,
			        "panda machine: %s was saved with a volume %u and has none now: "
			        "what is mounted from it gives I/O errors (--volume)\n",
			        info->id, i);
}

/* Starts n machines from an image and prints their ids; what was started is ended on failure. */
static int start_some(struct ctx *c, const struct engine_image *image, const char *parent,
                      uint64_t generation, struct err *e)
{
	char ids[FORKS_MAX][ENGINE_ID_MAX + 2]; /* one too long stays too long, and is refused */
	struct engine_start s = {.image = image,
	                         .cpu = c->o.cpu,
	                         .cpus = c->o.cpus,
	                         .cpu_max_percent = c->o.cpu_percent,
	                         .net_fd = c->o.tap_fd};
	struct machine_info info;
	unsigned n;
	int r;

	if (s.net_fd > 0 && c->o.count > 1)
		return err_set(e, EINVAL, "tap_unusable",
		               "a tap belongs to one machine: leave out -n");
	r = open_volumes(&c->o, &s, e);
	for (n = 0; r == 0 && n < c->o.count; n++) {
		uint64_t t = mono_ns();

		if (c->o.id && c->o.count == 1)
			snprintf(ids[n], sizeof(ids[n]), "%s", c->o.id);
		else
			machine_new_id(ids[n]);
		s.id = ids[n];
		r = machine_start(&c->ms, &s, parent, generation, &info, e);
		machine_timing(&c->o, "start", t);
		if (r == 0)
			tell_lost(&info);
	}
	close_volumes(&s);
	if (r < 0) {
		while (n > 1)
			machine_remove(&c->ms, ids[--n - 1], NULL);
		return r;
	}
	for (unsigned i = 0; i < n; i++)
		printf("%s\n", ids[i]);
	return 0;
}

/* --- verbs: each returns an exit code or, with *e set, a negative errno ----------------------- */

static int verb_boot(struct ctx *c, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	int r = engine_image_cold((uint64_t)c->o.memory_mib << 20, c->o.image, c->o.upper, &i, e);

	return r < 0 ? r : start_some(c, &i, NULL, 1, e);
}

static int verb_run(struct ctx *c, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	char id[ENGINE_ID_MAX + 2]; /* one too long stays too long, and is refused */
	struct engine_start s = {.id = id,
	                         .image = &i,
	                         .cpu = c->o.cpu,
	                         .cpus = c->o.cpus,
	                         .cpu_max_percent = c->o.cpu_percent,
	                         .net_fd = c->o.tap_fd};
	int r, r2;

	r = engine_image_cold((uint64_t)c->o.memory_mib << 20, c->o.image, c->o.upper, &i, e);
	if (r < 0)
		return r;
	machine_new_id(id);
	if (c->o.id)
		snprintf(id, sizeof(id), "%s", c->o.id);
	r = open_volumes(&c->o, &s, e);
	if (r == 0)
		r = machine_start(&c->ms, &s, NULL, 1, NULL, e);
	close_volumes(&s);
	if (r < 0)
		return r;
	r = machine_exec(c, id, e);
	r2 = machine_remove(&c->ms, id, r < 0 ? NULL : e);
	return r < 0 ? r : r2 < 0 ? r2 : r;
}

static int verb_exec(struct ctx *c, struct err *e)
{
	return machine_exec(c, c->o.parent, e);
}

static int verb_fork(struct ctx *c, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	struct engine_snapshot_info info;
	struct machine_info parent;
	uint64_t t = mono_ns();
	int r;

	r = machine_look(&c->ms, c->o.parent, &parent, e);
	if (r == 0 && c->o.nvolumes && c->o.count > 1)
		return cli_usage("machine", "fork --volume makes one copy: leave out -n");
	if (r == 0)
		r = take_snapshot(c, &i, &info, e);
	if (r < 0)
		return r;
	machine_timing(&c->o, "snapshot", t);
	if (c->o.timing)
		fprintf(stderr, "stop %.2f ms\n", (double)info.stop_ns / 1e6);
	return start_some(c, &i, c->o.parent, parent.generation + 1, e);
}

static int verb_snapshot(struct ctx *c, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	uint64_t t = mono_ns();
	int r;

	r = take_snapshot(c, &i, NULL, e);
	if (r == 0)
		r = machine_save(&i, &c->store, c->o.rest[0], c->o.parent, e);
	if (r == 0)
		machine_saved(&c->ms, c->o.parent, &i);
	machine_timing(&c->o, "snapshot", t);
	return r;
}

/* The disk as the guest's kernel has written it: what a power cut would have left. */
static int verb_export(struct ctx *c, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	autoclose int fd = -1;
	const char *path = c->o.nrest == 2 ? c->o.rest[1] : NULL;
	uint64_t disk;
	int r;

	if (!path || !machine_number(c->o.rest[0], ENGINE_DISKS_MAX - 1, &disk))
		return cli_usage("machine", "export takes a machine, the number of a disk, a file");
	r = machine_snapshot(&c->ms, c->o.parent, &i, NULL, e);
	if (r < 0)
		return r;
	if (disk >= i.ndisks)
		return err_set(e, ENOENT, "no_disk", "machine %s has disks 0 to %zu", c->o.parent,
		               i.ndisks - 1);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	r = fd < 0 ? -errno : set_export(&i.disks[disk].layers, fd);
	if (r < 0) {
		if (fd >= 0)
			unlink(path);
		return err_set(e, -r, "output", "cannot write %s: %s", path, strerror(-r));
	}
	return 0;
}

static int verb_restore(struct ctx *c, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	int r = machine_load(&c->ms, &c->store, c->o.parent, c->o.verify, &i, e);

	return r < 0 ? r : start_some(c, &i, NULL, 2, e);
}

static int verb_snapshots(struct ctx *c, struct err *e)
{
	autoclosedir DIR *d = io_opendir(c->store.snapshots, ".", 0);
	struct dirent *de;

	if (!d)
		return err_set(e, errno, "store", "cannot list snapshots: %s", strerror(errno));
	while ((de = readdir(d)))
		if (de->d_name[0] != '.')
			printf("%s\n", de->d_name);
	return 0;
}

static int verb_delete(struct ctx *c, struct err *e)
{
	return snapshot_delete(&c->store, c->o.parent, e);
}

static int verb_gc(struct ctx *c, struct err *e)
{
	unsigned dirs = 0, layers = 0;
	int r = snapshot_gc(&c->store, &dirs, &layers);

	printf("removed %u unfinished snapshots, %u unused layers\n", dirs, layers);
	return r < 0 ? err_set(e, -r, "store", "could not clear all of the store: %s", strerror(-r))
	             : 0;
}

static int with_machine(struct ctx *c, struct err *e,
                        int (*fn)(struct ctx *c, struct engine_machine *m, struct err *e))
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	int r = machine_adopt(&c->ms, c->o.parent, &m, e);

	return r < 0 ? r : fn(c, &m, e);
}

static int do_pause(struct ctx *c, struct engine_machine *m, struct err *e)
{
	return c->engines->pause(c->engines, m, e);
}

static int do_resume(struct ctx *c, struct engine_machine *m, struct err *e)
{
	return c->engines->resume(c->engines, m, e);
}

static int do_stats(struct ctx *c, struct engine_machine *m, struct err *e)
{
	struct engine_stats s;
	int r = c->engines->stats(c->engines, m, &s, e);

	if (r < 0)
		return r;
	printf("memory_bytes %" PRIu64 "\nmemory_free_bytes %" PRIu64 "\nuptime_ms %" PRIu64
	       "\nlives %" PRIu64 "\nlayers %zu\n",
	       s.memory_bytes, s.memory_free_bytes, s.uptime_ns / 1000000, s.lives,
	       m->image.memory.n);
	return 0;
}

static int verb_pause(struct ctx *c, struct err *e)
{
	return with_machine(c, e, do_pause);
}

static int verb_resume(struct ctx *c, struct err *e)
{
	return with_machine(c, e, do_resume);
}

static int verb_stats(struct ctx *c, struct err *e)
{
	return with_machine(c, e, do_stats);
}

static int verb_stop(struct ctx *c, struct err *e)
{
	int r = machine_remove(&c->ms, c->o.parent, e);

	for (int i = 0; i < c->o.nrest; i++) {
		int one = machine_remove(&c->ms, c->o.rest[i], r < 0 ? NULL : e);

		r = r < 0 ? r : one;
	}
	return r;
}

static void print_machine(const struct machine_info *m, void *arg)
{
	printf("%-20s %-8s %6" PRIu64 " MiB  pid %-8d gen %-4" PRIu64 " %s%s\n", m->id,
	       m->alive ? "running" : "ended", m->memory_size >> 20, (int)m->pid, m->generation,
	       m->alive ? (m->parent[0] ? "from " : "") : m->end, m->alive ? m->parent : "");
}

static int verb_ls(struct ctx *c, struct err *e)
{
	return machine_each(&c->ms, print_machine, NULL, e);
}

static const struct verb {
	const char *name;
	int (*run)(struct ctx *c, struct err *e);
	unsigned wants;
	const char *rest; /* what must follow */
} verbs[] = {
    {"boot", verb_boot, STARTS, NULL},
    {"run", verb_run, REST | STARTS, "a command"},
    {"exec", verb_exec, ID | REST, "a command"},
    {"fork", verb_fork, ID | STARTS, NULL},
    {"snapshot", verb_snapshot, ID | REST | STORE, "a name for the snapshot"},
    {"export", verb_export, ID | REST, "the number of a disk and a file"},
    {"restore", verb_restore, ID | STORE | STARTS, NULL},
    {"snapshots", verb_snapshots, STORE, NULL},
    {"delete", verb_delete, ID | STORE, NULL},
    {"gc", verb_gc, STORE, NULL},
    {"pause", verb_pause, ID, NULL},
    {"resume", verb_resume, ID, NULL},
    {"stats", verb_stats, ID, NULL},
    {"stop", verb_stop, ID | REST, NULL},
    {"ls", verb_ls, 0, NULL},
};

int cmd_machine(int argc, char **argv)
{
	struct ctx c = {0};
	const struct verb *v = NULL;
	struct err e = {0};
	int r;

	if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
		fputs(usage, argc < 2 ? stderr : stdout);
		return argc < 2 ? CLI_USAGE : CLI_OK;
	}
	for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
		if (!strcmp(argv[1], verbs[i].name))
			v = &verbs[i];
	if (!v)
		return cli_usage("machine", "there is no verb '%.40s'", argv[1]);
	machine_defaults(&c.o);
	/* Options may stand before and behind the id. */
	for (int pass = 0; pass < 2; pass++) {
		argc--;
		argv++;
		optind = 0;
		r = machine_options(argc, argv, &c.o);
		if (r < 0)
			fputs(usage, stdout);
		if (r)
			return r < 0 ? CLI_OK : r;
		argc -= optind - 1;
		argv += optind - 1;
		if (!(v->wants & ID) || pass == 1)
			break;
		if (argc < 2 || !strcmp(argv[0], "--"))
			return cli_usage("machine", "%s needs the name of a machine or snapshot",
			                 v->name);
		c.o.parent = argv[1];
	}
	c.o.rest = argv + 1;
	c.o.nrest = argc - 1;
	if (v->rest && c.o.nrest < 1)
		return cli_usage("machine", "%s needs %s", v->name, v->rest);
	if (!(v->wants & REST) && c.o.nrest > 0)
		return cli_usage("machine", "%s: what is '%.40s'?", v->name, c.o.rest[0]);
	signal(SIGPIPE, SIG_IGN);
	r = ctx_open(&c, v->wants, &e);
	if (r == 0)
		r = v->run(&c, &e);
	ctx_close(&c);
	return r < 0 ? cli_fail(&e) : r;
}
