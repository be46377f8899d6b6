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
#include "base/io.h"
#include "base/sock.h"
#include "engine/engines_internal.h"

enum {
	STOP_TIMEOUT_MS = 10000,
	GONE_MS = 100, /* between the last word of a process and its end */
};

_Static_assert((int)UM_VOLUMES_MAX == (int)ENGINE_VOLUMES_MAX &&
                   (int)UM_DISKS_MAX == (int)ENGINE_DISKS_MAX,
               "core and the kernel disagree");

static const struct um_runner *runner_of(const struct um *um, const struct engine_image *i)
{
	return &um->runners[i->kind ? i->kind - um->kinds : 0];
}

int um_stop(struct engine *engine, const char *id, pid_t pid, struct err *e)
{
	struct um *um = (struct um *)engine;
	const struct cg_host *cg = jail_cgroups(um->jail);
	autoclose int pidfd = pid > 0 ? pidfd_open(pid, 0) : -1;
	siginfo_t si;
	int r;

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
static int hello(const struct um_runner *w, struct um_packet *p, const struct engine_start *s,
                 struct engine_machine *m, int agent, int pagemap, const int *tops)
{
	const struct engine_image *image = s->image;
	int r = 0;

	p->msg = (struct um_msg){.magic = UM_MAGIC, .type = UM_HELLO};
	if (w->kind->kvm && image->state < 0)
		um_packet_add(p, w->kernel_fd, UM_FD_KERNEL);
	um_packet_add(p, agent, UM_FD_AGENT);
	um_packet_add(p, pagemap, UM_FD_PAGEMAP);
	um_packet_add(p, m->top, UM_FD_TOP);
	if (image->state >= 0)
		um_packet_add(p, image->state, UM_FD_STATE);
	if (s->net_fd > 0)
		um_packet_add(p, s->net_fd, UM_FD_NET);
	for (size_t i = 0; r == 0 && i < image->memory.n; i++)
		r = um_packet_add(p, image->memory.at[i]->fd, UM_FD_LAYER + (unsigned)i);
	p->msg.nr_disks = (uint32_t)image->ndisks;
	for (size_t d = 0; r == 0 && d < image->ndisks; d++) {
		const struct engine_disk *k = &image->disks[d];
		unsigned slot = UM_FD_DISK + (unsigned)d * UM_LAYERS_MAX;

		p->msg.disk[d] = (struct um_disk){.size = k->size, .read_only = k->read_only};
		for (size_t i = 0; r == 0 && i < k->layers.n; i++)
			r = um_packet_add(p, k->layers.at[i]->fd, slot + p->msg.disk[d].layers++);
		if (r == 0 && tops[d] >= 0)
			r = um_packet_add(p, tops[d], slot + p->msg.disk[d].layers++);
	}
	for (unsigned i = 0; r == 0 && i < ENGINE_VOLUMES_MAX; i++) {
		const struct engine_volume *v = &s->volumes[i];

		if (!v->size)
			continue;
		p->msg.volume[i] = (struct um_volume){.size = v->size, .read_only = v->read_only};
		r = um_packet_add(p, v->fd, UM_FD_VOLUME + i);
	}
	return r;
}

int um_check_volume(const struct engine_volume *v, unsigned slot, struct err *e)
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
			r = um_check_volume(&s->volumes[i], i, e);
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
	          i->ndisks >= 1 && i->ndisks <= UM_DISKS_MAX && i->memory.n < UM_LAYERS_MAX;

	for (size_t d = 0; ok && d < i->ndisks; d++)
		ok = i->disks[d].size % MAP_PAGE == 0 && i->disks[d].layers.n < UM_LAYERS_MAX;
	if (!ok)
		return err_set(
		    e, EINVAL, "image_unusable",
		    "a machine needs at least 64 MiB of memory, 1 to %d disks, whole pages and "
		    "fewer than %d layers",
		    UM_DISKS_MAX, UM_LAYERS_MAX);
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

static bool um_why_ended(struct engine *engine, const char *id, char *ret, size_t n)
{
	struct um *um = (struct um *)engine;
	struct cg_stats st;

	if (cg_stats(jail_cgroups(um->jail), id, &st) < 0 || st.oom_kills == 0)
		return false;
	snprintf(ret, n, "out of memory: it reached the limit the host gave it");
	return true;
}

/* How a kernel that did not answer is doing, in words: before it is stopped, and reaped. */
static void how_it_is(struct um *um, const char *id, int pidfd, int r, char *buf, size_t len)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};
	siginfo_t si = {0};

	if (um_why_ended(&um->engine, id, buf, len))
		return;
	poll(&p, 1, GONE_MS);
	if (waitid(P_PIDFD, (id_t)pidfd, &si, WEXITED | WNOHANG | WNOWAIT) < 0 || si.si_pid == 0)
		snprintf(buf, len, "%s",
		         r == -ESRCH ? "its kernel ended, nobody knows how" : strerror(-r));
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
		r = layer_create_memfd("panda-memory", um_pages(s->image->memory_size), &m->top);
	for (size_t d = 0; r == 0 && d < s->image->ndisks; d++) {
		if (s->image->disks[d].read_only)
			continue;
		um_disk_name(name, d, 0);
		r = layer_create_file(s->dirfd, name, um_pages(s->image->disks[d].size),
		                      &f->tops[d]);
	}
	return r;
}

static void remove_files(const struct engine_start *s)
{
	char name[32];

	unlinkat(s->dirfd, "agent", 0);
	for (size_t d = 0; d < ENGINE_DISKS_MAX; d++) {
		um_disk_name(name, d, 0);
		unlinkat(s->dirfd, name, 0);
	}
}

/*
 * A process that waits becomes the machine. On failure it is gone, with all files of the machine;
 * -ESRCH: it has ended.
 */
static int become(struct um *um, const struct engine_start *s, struct um_process *process,
                  struct engine_machine *ret, struct err *e)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	AUTO(start_fds_fini) struct start_fds f = {.agent = -1};
	const struct um_runner *w = process->runner;
	struct um_packet p;
	struct um_msg answer;
	char how[96], why[160];
	int r;

	for (size_t d = 0; d < ENGINE_DISKS_MAX; d++)
		f.tops[d] = -1;
	snprintf(m.id, sizeof(m.id), "%s", s->id);
	r = make_files(s, &m, &f);
	if (r < 0) {
		remove_files(s);
		um_process_end(um, s->id, process);
		return err_set(e, -r, "machine_dir", "cannot prepare machine %s: %s", s->id,
		               strerror(-r));
	}
	closep(&m.image.state);
	m.image.state = -1;
	m.image.kind = &um->kinds[w - um->runners];
	m.pid = process->pid;
	m.pidfd = take_fd(&process->pidfd);
	m.control = take_fd(&process->control);
	r = hello(w, &p, s, &m, f.agent, process->pagemap, f.tops);
	if (r == 0)
		r = um_call(m.control, m.pidfd, &p, UM_START_TIMEOUT_MS, &answer);
	if (r == 0 && answer.type != UM_READY)
		r = -EPROTO;
	if (r < 0) {
		how_it_is(um, s->id, m.pidfd, r, how, sizeof(how));
		um_stop(&um->engine, s->id, m.pid, NULL);
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
	m.volumes_lost = answer.arg[UM_READY_LOST] & ((1u << ENGINE_VOLUMES_MAX) - 1);
	m.net = s->net_fd > 0;
	*ret = m;
	m = (struct engine_machine)ENGINE_MACHINE_EMPTY;
	return 0;
}

static int um_start(struct engine *engine, const struct engine_start *s, struct engine_machine *ret,
                    struct err *e)
{
	struct um *um = (struct um *)engine;
	const struct um_runner *w = runner_of(um, s->image);
	AUTO(um_process_fini) struct um_process process = UM_PROCESS_EMPTY;
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
	if (um_process_take(um, w, s, &process)) {
		r = become(um, s, &process, ret, e);
		um_process_fini(&process);
		process = (struct um_process)UM_PROCESS_EMPTY;
		if (r != -ESRCH)
			return r;
		/* It was about to end when it was taken; or the image is bad, and so it will be
		 * once more. */
	}
	r = um_process_start(um, w, s->id, s->dirfd, s, &process, e);
	return r < 0 ? r : become(um, s, &process, ret, e);
}

static int um_adopt(struct engine *engine, const char *id, int dirfd, pid_t pid,
                    const struct engine_image *image, struct engine_machine *ret, struct err *e)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	char path[64];
	int r;

	snprintf(m.id, sizeof(m.id), "%s", id);
	m.pid = pid;
	m.pidfd = pidfd_open(pid, 0);
	m.dirfd = fcntl(dirfd, F_DUPFD_CLOEXEC, 3);
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, UM_FD_TOP);
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

static int um_pause(struct engine *engine, struct engine_machine *m, struct err *e)
{
	struct um_msg a;

	return um_ask(m, UM_PAUSE, &a, e);
}

static int um_resume(struct engine *engine, struct engine_machine *m, struct err *e)
{
	struct um_msg a;

	return um_ask(m, UM_RESUME, &a, e);
}

static int um_stats(struct engine *engine, struct engine_machine *m, struct engine_stats *ret,
                    struct err *e)
{
	struct um_msg a;
	int r = um_ask(m, UM_STATS, &a, e);

	if (r < 0)
		return r;
	*ret = (struct engine_stats){.memory_bytes = a.arg[1],
	                             .memory_free_bytes = a.arg[2],
	                             .uptime_ns = a.arg[3],
	                             .lives = a.arg[4]};
	return 0;
}

static void um_free(struct engine *engine)
{
	struct um *um = (struct um *)engine;

	while (um->prepared) {
		char id[ENGINE_ID_MAX + 1]; /* a copy: its entry goes first */

		snprintf(id, sizeof(id), "%s", um->prepared->id);
		um_forget(engine, id);
	}
	pthread_mutex_destroy(&um->lock);
	for (size_t i = 0; i < ARRAY_LEN(um->runners); i++)
		um_runner_fini(&um->runners[i]);
	jail_free(um->jail);
	closep(&um->run_dirfd);
	free(um);
}

/* The default first; the other one, if it works here, behind it. */
static int find_kinds(struct um *um, const struct um_config *cfg, struct err *e)
{
	const struct um_kind *kinds[] = {&kvm_kind, &um_kind};
	const char *want = cfg->engine ? cfg->engine : "auto";
	bool any = !strcmp(want, "auto");
	size_t n = 0;
	int r = 0;

	if (!any && strcmp(want, um_kind.name) != 0 && strcmp(want, kvm_kind.name) != 0)
		return err_set(e, EINVAL, "bad_engine", "engine is auto, kvm or um, not '%.20s'",
		               want);
	if (!strcmp(want, um_kind.name)) {
		kinds[0] = &um_kind;
		kinds[1] = &kvm_kind;
	}
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		struct um_runner *w = &um->runners[n];

		r = um_runner_init(w, kinds[i], cfg, e);
		if (r < 0 && n == 0 && !any)
			return r; /* the one that was asked for */
		if (r < 0)
			continue;
		um->kinds[n++] = (struct engine_kind){.name = kinds[i]->name,
		                                      .isolation = kinds[i]->isolation,
		                                      .kernel = w->build,
		                                      .host_cpu = !kinds[i]->kvm,
		                                      .copies_ahead = kinds[i]->kvm};
	}
	um->engine.nkinds = n;
	return n ? 0 : r;
}

int um_engine_new(const struct um_config *cfg, struct engine **ret, struct err *e)
{
	struct um *um = calloc(1, sizeof(*um));
	int r;

	if (!um)
		return err_set(e, ENOMEM, "no_memory", "no memory");
	um->engine = (struct engine){
	    .kinds = um->kinds,
	    .memory_slot = UM_FD_LAYER,
	    .disk_slot = UM_FD_DISK,
	    .volume_slot = UM_FD_VOLUME,
	    .net_slot = UM_FD_NET,
	    .prepare = um_prepare,
	    .forget = um_forget,
	    .start = um_start,
	    .unbooked = um_unbooked,
	    .adopt = um_adopt,
	    .snapshot = um_snapshot,
	    .snapshot_hold = um_snapshot_hold,
	    .go_on = um_go_on,
	    .volume_attach = um_volume_attach,
	    .volume_detach = um_volume_detach,
	    .volume_grow = um_volume_grow,
	    .volume_copy = um_volume_copy,
	    .volume_copied = um_volume_copied,
	    .pause = um_pause,
	    .resume = um_resume,
	    .stats = um_stats,
	    .why_ended = um_why_ended,
	    .stop = um_stop,
	    .free = um_free,
	};
	pthread_mutex_init(&um->lock, NULL);
	um->want = cfg->jail_want;
	um->run_dirfd = open(cfg->run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = find_kinds(um, cfg, e);
	if (r == 0)
		r = jail_new(&(struct jail_config){.run_dir = cfg->run_dir,
		                                   .cgroup_parent = cfg->cgroup_parent,
		                                   .no_spawns = cfg->no_starts},
		             &um->jail, e);
	if (r < 0) {
		um_free(&um->engine);
		return r;
	}
	*ret = &um->engine;
	return 0;
}
