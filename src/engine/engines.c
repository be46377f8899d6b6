#include "engine/engines.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"
#include "base/sock.h"
#include "engine/engines_internal.h"
#include "jail/cgroup.h"
#include "jail/jail.h"
#include "layers/layer.h"
#include "layers/map.h"
#include "layers/set.h"
#include "machine/engine.h"
#include "wire/control.h"

enum {
	STOP_TIMEOUT_MS = 10000,
	GONE_MS = 100, /* between the last word of a process and its end */
};

_Static_assert((int)CTL_VOLUMES_MAX == (int)ENGINE_VOLUMES_MAX &&
                   (int)CTL_DISKS_MAX == (int)ENGINE_DISKS_MAX,
               "machine/engine.h and wire/control.h disagree");

static const struct engine_program *program_of(const struct local_engines *local,
                                               const struct engine_image *i)
{
	return &local->programs[i->engine ? i->engine - local->list : 0];
}

int local_stop(struct engines *engines, const char *id, pid_t pid, struct err *e)
{
	struct local_engines *local = (struct local_engines *)engines;
	const struct cg_host *cg = jail_cgroups(local->jail);
	autoclose int pidfd = pid > 0 ? pidfd_open(pid, 0) : -1;
	siginfo_t si;
	int r;

	tenant_moves_forget(local, id);
	if (pidfd >= 0)
		pidfd_send_signal(pidfd, SIGKILL, NULL, 0);
	r = cg_kill(cg, id, STOP_TIMEOUT_MS);
	if (r == 0)
		r = cg_remove(cg, id, STOP_TIMEOUT_MS);
	if (r == 0 && pidfd >= 0)
		waitid(P_PIDFD, (id_t)pidfd, &si,
		       WEXITED); /* if it is our child, and not reaped yet */
	if (r < 0)
		return err_set(e, -r, "stop_failed", "machine %s does not end (%s)", id,
		               strerror(-r));
	return 0;
}

/* All that the machine may use, each fd with its place. */
static int hello(const struct engine_program *w, struct control_packet *p,
                 const struct engine_start *s, struct engine_machine *m, int agent, int pagemap,
                 const int *tops)
{
	const struct engine_image *image = s->image;
	int r = 0;

	p->msg = (struct ctl_msg){.magic = CTL_MAGIC, .type = CTL_HELLO};
	if (w->recipe->kvm && image->state < 0)
		control_packet_add(p, w->kernel_fd, CTL_FD_KERNEL);
	control_packet_add(p, agent, CTL_FD_AGENT);
	control_packet_add(p, pagemap, CTL_FD_PAGEMAP);
	control_packet_add(p, m->top, CTL_FD_TOP);
	if (image->state >= 0)
		control_packet_add(p, image->state, CTL_FD_STATE);
	if (s->net_fd > 0)
		control_packet_add(p, s->net_fd, CTL_FD_NET);
	for (size_t i = 0; r == 0 && i < image->memory.n; i++)
		r = control_packet_add(p, image->memory.at[i]->fd, CTL_FD_LAYER + (unsigned)i);
	p->msg.nr_disks = (uint32_t)image->ndisks;
	for (size_t d = 0; r == 0 && d < image->ndisks; d++) {
		const struct engine_disk *k = &image->disks[d];
		unsigned slot = CTL_FD_DISK + (unsigned)d * CTL_LAYERS_MAX;

		p->msg.disk[d] = (struct ctl_disk){.size = k->size, .read_only = k->read_only};
		for (size_t i = 0; r == 0 && i < k->layers.n; i++)
			r = control_packet_add(p, k->layers.at[i]->fd,
			                       slot + p->msg.disk[d].layers++);
		if (r == 0 && tops[d] >= 0)
			r = control_packet_add(p, tops[d], slot + p->msg.disk[d].layers++);
	}
	for (unsigned i = 0; r == 0 && i < ENGINE_VOLUMES_MAX; i++) {
		const struct engine_volume *v = &s->volumes[i];

		if (!v->size)
			continue;
		p->msg.volume[i] = (struct ctl_volume){.size = v->size, .read_only = v->read_only};
		r = control_packet_add(p, v->fd, CTL_FD_VOLUME + i);
	}
	return r;
}

int check_volume(const struct engine_volume *v, unsigned slot, struct err *e)
{
	int mode = fcntl(v->fd, F_GETFL) & O_ACCMODE;
	struct stat st;

	if (fstat(v->fd, &st) < 0 || !S_ISREG(st.st_mode) || v->size % MAP_PAGE ||
	    (uint64_t)st.st_size < v->size || mode != (v->read_only ? O_RDONLY : O_RDWR))
		return err_set(e, EINVAL, "volume_unusable",
		               "volume %u is no file of whole 4096-byte blocks that is open %s",
		               slot, v->read_only ? "for reading only" : "for writing");
	return 0;
}

static int check_volumes(const struct engine_start *s, struct err *e)
{
	int r = 0;

	for (unsigned i = 0; r == 0 && i < ENGINE_VOLUMES_MAX; i++)
		if (s->volumes[i].size)
			r = check_volume(&s->volumes[i], i, e);
	return r;
}

/* The driver takes the header in front of each frame for granted, and may not ask. */
static int check_net(const struct engine_start *s, struct err *e)
{
	const short want = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
	struct ifreq ifr = {0};
	int header = 0;

	if (s->net_fd <= 0)
		return 0;
	if (ioctl(s->net_fd, TUNGETIFF, &ifr) < 0 ||
	    ioctl(s->net_fd, TUNGETVNETHDRSZ, &header) < 0 || (ifr.ifr_flags & want) != want ||
	    header != (int)sizeof(struct virtio_net_hdr))
		return err_set(e, EINVAL, "tap_unusable",
		               "fd %d is no tap with IFF_NO_PI and IFF_VNET_HDR (%zu bytes)",
		               s->net_fd, sizeof(struct virtio_net_hdr));
	return 0;
}

static int check_image(const struct engine_image *i, struct err *e)
{
	bool ok = i->memory_size >= (64u << 20) && i->memory_size % MAP_PAGE == 0 &&
	          i->ndisks >= 1 && i->ndisks <= CTL_DISKS_MAX && i->memory.n < CTL_LAYERS_MAX;

	for (size_t d = 0; ok && d < i->ndisks; d++)
		ok = i->disks[d].size % MAP_PAGE == 0 && i->disks[d].layers.n < CTL_LAYERS_MAX;
	if (!ok)
		return err_set(
		    e, EINVAL, "image_unusable",
		    "a machine needs at least 64 MiB of memory, 1 to %d disks, whole pages and "
		    "fewer than %d layers",
		    CTL_DISKS_MAX, CTL_LAYERS_MAX);
	return 0;
}

/* The last lines of the log say why a kernel died; the caller shows one of them. */
static void last_words(int dirfd, char *buf, size_t len)
{
	autofree char *text = NULL;
	size_t n = 0;
	char *line;

	snprintf(buf, len, "see console.log");
	if (io_read_file(dirfd, "console.log", 1 << 20, &text, &n) < 0)
		return;
	while (n && (text[n - 1] == '\n' || text[n - 1] == '\r'))
		text[--n] = 0;
	line = strrchr(text, '\n');
	line = line ? line + 1 : text;
	for (char *c = line; *c; c++)
		if ((unsigned char)*c < 32 || (unsigned char)*c > 126)
			*c = '?';
	if (*line)
		snprintf(buf, len, "%s", line);
}

static bool local_why_ended(struct engines *engines, const char *id, char *ret, size_t n)
{
	struct local_engines *local = (struct local_engines *)engines;
	struct cg_stats st;

	if (cg_stats(jail_cgroups(local->jail), id, &st) < 0 || st.oom_kills == 0)
		return false;
	snprintf(ret, n, "out of memory: it reached the limit the host gave it");
	return true;
}

/* How a kernel that did not answer is doing, in words: before it is stopped, and reaped. */
static void how_it_is(struct local_engines *local, const char *id, int pidfd, int r, char *buf,
                      size_t len)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};
	siginfo_t si = {0};

	if (local_why_ended(&local->engines, id, buf, len))
		return;
	poll(&p, 1, GONE_MS);
	if (waitid(P_PIDFD, (id_t)pidfd, &si, WEXITED | WNOHANG | WNOWAIT) < 0 || si.si_pid == 0)
		snprintf(buf, len, "%s",
		         r == -ESRCH ? "its kernel ended and left no reason" : strerror(-r));
	else if (si.si_code == CLD_EXITED)
		snprintf(buf, len, "its kernel ended with status %d", si.si_status);
	else
		snprintf(buf, len, "its kernel was ended by signal %d, %s", si.si_status,
		         sigdescr_np(si.si_status));
}

/* What a start makes, and the host closes again when the machine has it. */
struct start_fds {
	int agent;
	int tops[ENGINE_DISKS_MAX];
};

static void start_fds_fini(struct start_fds *f)
{
	closep(&f->agent);
	for (size_t d = 0; d < ENGINE_DISKS_MAX; d++)
		closep(&f->tops[d]);
}

/* The agent's socket, and empty tops for memory and disks. */
static int make_files(const struct engine_start *s, struct engine_machine *m, struct start_fds *f)
{
	char name[32];
	int r;

	m->dirfd = fcntl(s->dirfd, F_DUPFD_CLOEXEC, 3);
	r = m->dirfd < 0 ? -errno : engine_image_copy(s->image, &m->image);
	if (r == 0)
		r = sock_listen(s->dirfd, "agent", SOCK_STREAM, &f->agent);
	if (r == 0)
		r = layer_create_memfd("panda-memory", pages_of(s->image->memory_size), &m->top);
	for (size_t d = 0; r == 0 && d < s->image->ndisks; d++) {
		if (s->image->disks[d].read_only)
			continue;
		layer_file_name(name, d, 0);
		r = layer_create_file(s->dirfd, name, pages_of(s->image->disks[d].size),
		                      &f->tops[d]);
	}
	return r;
}

static void remove_files(const struct engine_start *s)
{
	char name[32];

	unlinkat(s->dirfd, "agent", 0);
	for (size_t d = 0; d < ENGINE_DISKS_MAX; d++) {
		layer_file_name(name, d, 0);
		unlinkat(s->dirfd, name, 0);
	}
}

/*
 * A process that waits becomes the machine. On failure it is gone, with all files of the machine;
 * -ESRCH: it has ended.
 */
static int become(struct local_engines *local, const struct engine_start *s,
                  struct machine_process *process, struct engine_machine *ret, struct err *e)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	AUTO(start_fds_fini) struct start_fds f = {.agent = -1};
	const struct engine_program *w = process->program;
	struct control_packet p;
	struct ctl_msg answer;
	char how[96], why[160];
	int r;

	for (size_t d = 0; d < ENGINE_DISKS_MAX; d++)
		f.tops[d] = -1;
	snprintf(m.id, sizeof(m.id), "%s", s->id);
	r = make_files(s, &m, &f);
	if (r < 0) {
		remove_files(s);
		machine_process_end(local, s->id, process);
		return err_set(e, -r, "machine_dir", "cannot prepare machine %s: %s", s->id,
		               strerror(-r));
	}
	closep(&m.image.state);
	m.image.state = -1;
	m.image.engine = &local->list[w - local->programs];
	m.pid = process->pid;
	m.pidfd = take_fd(&process->pidfd);
	m.control = take_fd(&process->control);
	r = hello(w, &p, s, &m, f.agent, process->pagemap, f.tops);
	if (r == 0)
		r = control_call(m.control, m.pidfd, &p, START_TIMEOUT_MS, &answer);
	if (r == 0 && answer.type != CTL_READY)
		r = -EPROTO;
	if (r < 0) {
		how_it_is(local, s->id, m.pidfd, r, how, sizeof(how));
		local_stop(&local->engines, s->id, m.pid, NULL);
		last_words(s->dirfd, why, sizeof(why));
		remove_files(s);
		return err_set(e, -r, s->image->state < 0 ? "boot_failed" : "restore_failed",
		               "machine %s did not start (%s): %s", s->id, how, why);
	}
	for (size_t i = 0; i < ENGINE_VOLUMES_MAX; i++) {
		m.volumes[i] = s->volumes[i];
		m.volumes[i].fd = -1;
		m.volumes[i].mount = NULL;
	}
	m.volumes_lost = answer.arg[CTL_READY_LOST] & ((1u << ENGINE_VOLUMES_MAX) - 1);
	m.net = s->net_fd > 0;
	*ret = m;
	m = (struct engine_machine)ENGINE_MACHINE_EMPTY;
	return 0;
}

static int local_start(struct engines *engines, const struct engine_start *s,
                       struct engine_machine *ret, struct err *e)
{
	struct local_engines *local = (struct local_engines *)engines;
	const struct engine_program *w = program_of(local, s->image);
	AUTO(machine_process_fini) struct machine_process process = MACHINE_PROCESS_EMPTY;
	int r;

	r = check_image(s->image, e);
	if (r == 0)
		r = check_volumes(s, e);
	if (r == 0)
		r = check_net(s, e);
	if (r < 0)
		return r;
	if (strlen(s->id) > ENGINE_ID_MAX)
		return err_set(e, EINVAL, "bad_id", "machine ids have at most %d letters",
		               ENGINE_ID_MAX);
	if (machine_process_take(local, w, s, &process)) {
		r = become(local, s, &process, ret, e);
		machine_process_fini(&process);
		if (r == 0 && s->tenant)
			local_belongs(engines, s->id, s->tenant);
		process = (struct machine_process)MACHINE_PROCESS_EMPTY;
		if (r != -ESRCH)
			return r;
		/* It was about to end when it was taken; or the image is bad, and so it will be
		 * once more. */
	}
	r = machine_process_start(local, w, s->id, s->dirfd, s, &process, e);
	return r < 0 ? r : become(local, s, &process, ret, e);
}

static int local_adopt(struct engines *engines, const char *id, int dirfd, pid_t pid,
                       const struct engine_image *image, struct engine_machine *ret, struct err *e)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	char path[64];
	int r;

	snprintf(m.id, sizeof(m.id), "%s", id);
	m.pid = pid;
	m.pidfd = pidfd_open(pid, 0);
	m.dirfd = fcntl(dirfd, F_DUPFD_CLOEXEC, 3);
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, CTL_FD_TOP);
	m.top = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (m.pidfd < 0 || m.dirfd < 0 || m.top < 0)
		return err_set(e, errno, "machine_gone", "machine %s has ended", id);
	r = engine_image_copy(image, &m.image);
	if (r == 0)
		r = sock_connect(dirfd, "control", SOCK_SEQPACKET, &m.control);
	if (r < 0)
		return err_set(e, -r, "machine_gone", "machine %s does not answer: %s", id,
		               strerror(-r));
	*ret = m;
	m = (struct engine_machine)ENGINE_MACHINE_EMPTY;
	return 0;
}

static int local_pause(struct engines *engines, struct engine_machine *m, struct err *e)
{
	struct ctl_msg a;

	return control_ask(m, CTL_PAUSE, &a, e);
}

static int local_resume(struct engines *engines, struct engine_machine *m, struct err *e)
{
	struct ctl_msg a;

	return control_ask(m, CTL_RESUME, &a, e);
}

static int local_stats(struct engines *engines, struct engine_machine *m, struct engine_stats *ret,
                       struct err *e)
{
	struct ctl_msg a;
	int r = control_ask(m, CTL_STATS, &a, e);

	if (r < 0)
		return r;
	*ret = (struct engine_stats){.memory_bytes = a.arg[1],
	                             .memory_free_bytes = a.arg[2],
	                             .uptime_ns = a.arg[3],
	                             .lives = a.arg[4]};
	return 0;
}

static void local_free(struct engines *engines)
{
	struct local_engines *local = (struct local_engines *)engines;

	while (local->prepared) {
		char id[ENGINE_ID_MAX + 1]; /* a copy: its entry goes first */

		snprintf(id, sizeof(id), "%s", local->prepared->id);
		local_forget(engines, id);
	}
	tenant_moves_fini(&local->moves);
	pthread_mutex_destroy(&local->lock);
	for (size_t i = 0; i < ARRAY_LEN(local->programs); i++)
		engine_program_fini(&local->programs[i]);
	jail_free(local->jail);
	closep(&local->run_dirfd);
	free(local);
}

/* The default first; the other one, if it works here, behind it. */
static int find_kinds(struct local_engines *local, const struct engines_config *cfg, struct err *e)
{
	const struct engine_recipe *recipes[] = {&kvm_recipe, &um_recipe};
	const char *want = cfg->engine ? cfg->engine : "auto";
	bool any = !strcmp(want, "auto");
	size_t n = 0;
	int r = 0;

	if (!any && strcmp(want, um_recipe.name) != 0 && strcmp(want, kvm_recipe.name) != 0)
		return err_set(e, EINVAL, "bad_engine", "engine is auto, kvm or um, not '%.20s'",
		               want);
	if (!strcmp(want, um_recipe.name)) {
		recipes[0] = &um_recipe;
		recipes[1] = &kvm_recipe;
	}
	for (size_t i = 0; i < ARRAY_LEN(recipes); i++) {
		struct engine_program *w = &local->programs[n];

		r = engine_program_init(w, recipes[i], cfg, e);
		if (r < 0 && n == 0 && !any)
			return r; /* the one that was asked for */
		if (r < 0)
			continue;
		local->list[n++] = (struct engine){.name = recipes[i]->name,
		                                   .isolation = recipes[i]->isolation,
		                                   .kernel = w->build,
		                                   .host_cpu = !recipes[i]->kvm,
		                                   .copies_ahead = recipes[i]->kvm};
	}
	local->engines.count = n;
	return n ? 0 : r;
}

int engines_new(const struct engines_config *cfg, struct engines **ret, struct err *e)
{
	struct local_engines *local = calloc(1, sizeof(*local));
	int r;

	if (!local)
		return err_nomem(e);
	local->engines = (struct engines){
	    .list = local->list,
	    .memory_slot = CTL_FD_LAYER,
	    .disk_slot = CTL_FD_DISK,
	    .volume_slot = CTL_FD_VOLUME,
	    .net_slot = CTL_FD_NET,
	    .prepare = local_prepare,
	    .forget = local_forget,
	    .belongs = local_belongs,
	    .start = local_start,
	    .unbooked = local_unbooked,
	    .adopt = local_adopt,
	    .snapshot = local_snapshot,
	    .snapshot_hold = local_snapshot_hold,
	    .go_on = local_go_on,
	    .volume_attach = local_volume_attach,
	    .volume_detach = local_volume_detach,
	    .volume_grow = local_volume_grow,
	    .volume_copy = local_volume_copy,
	    .volume_copied = local_volume_copied,
	    .pause = local_pause,
	    .resume = local_resume,
	    .stats = local_stats,
	    .why_ended = local_why_ended,
	    .stop = local_stop,
	    .free = local_free,
	};
	pthread_mutex_init(&local->lock, NULL);
	tenant_moves_init(&local->moves);
	local->shared = cfg->shared;
	local->want = cfg->jail_want;
	local->run_dirfd = open(cfg->run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = find_kinds(local, cfg, e);
	if (r == 0)
		r = jail_new(&(struct jail_config){.run_dir = cfg->run_dir,
		                                   .cgroup_parent = cfg->cgroup_parent,
		                                   .share = cfg->shared ? &cfg->share : NULL,
		                                   .no_spawns = cfg->no_starts},
		             &local->jail, e);
	if (r < 0) {
		local_free(&local->engines);
		return r;
	}
	*ret = &local->engines;
	return 0;
}
