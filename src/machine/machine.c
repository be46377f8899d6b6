#include "machine/machine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/random.h"
#include "base/sock.h"
#include "machine/engine.h"
#include "machine/guest.h"
#include "machine/machine_internal.h"
#include "wire/guest.h"

enum {
	GUEST_ANSWER_MS = 60000,
	REHEARSED_MS = 200, /* until a guest's kernel has tidied up after a command */
};

int machines_open(struct machines *ms, struct engines *engines, const char *run_dir, struct err *e)
{
	char path[PATH_MAX];

	*ms = (struct machines){.engines = engines, .dir = -1, .disks = -1};
	snprintf(path, sizeof(path), "%s/machines", run_dir);
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return err_set(e, errno, "run_dir", "cannot make %s: %s", path, strerror(errno));
	ms->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (ms->dir < 0)
		return err_set(e, errno, "run_dir", "cannot open %s: %s", path, strerror(errno));
	return 0;
}

void machines_close(struct machines *ms)
{
	closep(&ms->dir);
	closep(&ms->disks);
	free(ms->disks_path);
	*ms = (struct machines){.engines = ms->engines, .dir = -1, .disks = -1};
}

void machine_new_id(char ret[ENGINE_ID_MAX + 1])
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";
	unsigned char r[10];

	random_fill(r, sizeof(r));
	for (size_t i = 0; i < sizeof(r); i++)
		ret[2 + i] = letters[r[i] % 32];
	memcpy(ret, "m_", 2);
	ret[2 + sizeof(r)] = 0;
}

/* --- the guest -------------------------------------------------------------------------------- */

static int connect_guest(int dir, const char *id, struct guest **ret, struct err *e)
{
	autoclose int fd = -1;
	int r;

	r = sock_connect(dir, "agent", SOCK_STREAM, &fd);
	if (r == 0)
		r = guest_new(fd, ret);
	if (r < 0)
		return err_set(e, -r, "guest_silent", "the agent of machine %s does not answer: %s",
		               id, strerror(-r));
	take_fd(&fd);
	return 0;
}

int machine_guest(struct machines *ms, const char *id, struct guest **ret, struct err *e)
{
	AUTO(json_decrefp) json_t *j = NULL;
	autoclose int dir = -1;
	struct machine_info info;
	int r;

	r = machine_read_book(ms, id, false, &dir, &j, e);
	if (r < 0)
		return r;
	machine_fill_info(ms, id, dir, j, &info);
	if (!info.alive)
		return err_set(e, ESRCH, "machine_gone", "machine %s has ended (%s)", id, info.end);
	return connect_guest(dir, id, ret, e);
}

struct books {
	int dir, r;
	const struct engine_machine *m;
	const struct machine_info *info;
};

static void keep_books(void *arg)
{
	struct books *b = arg;

	b->r = machine_write_book(b->dir, b->m, b->info);
}

/*
 * Tells a guest who it is from now on. Clock and entropy are the kernel's business. The books are
 * written while it thinks about that: it has a cpu of its own, mostly.
 */
static int introduce(int dir, const struct engine_machine *em, const struct machine_info *info,
                     const struct engine_start *s, struct guest **ret, struct err *e)
{
	struct books books = {.dir = dir, .m = em, .info = info};
	struct guest *g = NULL;
	unsigned char raw[16];
	char machine_id[33], host[ENGINE_ID_MAX + 1];
	struct wire_reborn m = {.generation = info->generation};
	struct wire_mount mounts[ENGINE_VOLUMES_MAX];
	size_t n = 0;
	int r;

	r = connect_guest(dir, info->id, &g, e);
	if (r < 0)
		return r;
	random_fill(raw, sizeof(raw));
	for (size_t i = 0; i < sizeof(raw); i++)
		snprintf(machine_id + 2 * i, 3, "%02x", raw[i]);
	snprintf(host, sizeof(host), "%s", s->hostname ? s->hostname : info->id);
	for (char *c = host; *c; c++)
		if (*c == '_')
			*c = '-'; /* as host names go */
	m.hostname = (struct wire_str){.p = host, .len = strlen(host)};
	m.machine_id = (struct wire_str){.p = machine_id, .len = strlen(machine_id)};
	guest_set_deadline(g, GUEST_ANSWER_MS);
	for (unsigned i = 0; i < ENGINE_VOLUMES_MAX; i++)
		if (s->volumes[i].size && s->volumes[i].mount)
			mounts[n++] =
			    (struct wire_mount){.volume = i,
			                        .flags =
			                            s->volumes[i].read_only ? WIRE_MOUNT_RO : 0,
			                        .path = wire_str(s->volumes[i].mount)};
	if (s->stop_fd > 0)
		guest_set_stop(g, s->stop_fd, 0);
	guest_set_meanwhile(g, keep_books, &books);
	r = guest_reborn_mount(g, &m, mounts, n, e);
	if (r == 0 && info->volumes_lost && s->umount_lost)
		r = guest_umount_lost(g, e);
	if (books.r < 0)
		r = err_set(e, -books.r, "machine_dir", "cannot write the books of %s: %s",
		            info->id, strerror(-books.r));
	guest_set_meanwhile(g, NULL, NULL);
	guest_set_deadline(g, 0);
	if (r < 0)
		guest_free(g);
	else
		*ret = g;
	return r;
}

/* --- life ------------------------------------------------------------------------------------- */

/* Files only. Removing what is not there is fine. */
static int empty_dir(int fd)
{
	autoclosedir DIR *d = io_opendir(fd, ".", 0);
	struct dirent *de;

	if (!d)
		return -errno;
	while ((de = readdir(d)))
		if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0 &&
		    unlinkat(fd, de->d_name, 0) < 0 && errno != ENOENT)
			return -errno;
	return 0;
}

static int remove_flat(int parent, const char *name)
{
	autoclose int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int r;

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	r = empty_dir(fd);
	if (r == 0 && unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		r = -errno;
	return r;
}

/*
 * Its disks first: when they are gone and it is not, the next caller tries again. On a disk that
 * can be written no more they stay, and machines_disks() clears them one day.
 */
static int remove_dir(struct machines *ms, const char *id)
{
	autoclose int fd = openat(ms->dir, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int r = 0;

	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (ms->disks >= 0)
		r = remove_flat(ms->disks, id);
	if (r == -EROFS || r == -EIO)
		r = 0;
	if (r == 0 && unlinkat(fd, ENGINE_DISKS, 0) < 0) /* a link */
		r = errno == ENOENT ? 0 : remove_flat(fd, ENGINE_DISKS);
	return r < 0 ? r : remove_flat(ms->dir, id);
}

int machines_disks(struct machines *ms, const char *path, struct err *e)
{
	autoclosedir DIR *d = NULL;
	struct dirent *de;
	char real[PATH_MAX];

	if ((mkdir(path, 0700) < 0 && errno != EEXIST) || !realpath(path, real) ||
	    (ms->disks = open(real, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 ||
	    !(ms->disks_path = strdup(real)) || !(d = opendir(real)))
		return err_set(e, errno, "data_dir", "cannot use %s: %s", path, strerror(errno));
	while ((de = readdir(d)))
		if (machine_id_valid(de->d_name) && faccessat(ms->dir, de->d_name, F_OK, 0) < 0)
			remove_flat(ms->disks, de->d_name);
	return 0;
}

static int make_disks(struct machines *ms, const char *id)
{
	autoclose int fd = openat(ms->dir, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char path[PATH_MAX];

	if (fd < 0)
		return -errno;
	if (ms->disks < 0)
		return mkdirat(fd, ENGINE_DISKS, 0700) < 0 ? -errno : 0;
	snprintf(path, sizeof(path), "%s/%s", ms->disks_path, id);
	return mkdirat(ms->disks, id, 0700) < 0 || symlinkat(path, fd, ENGINE_DISKS) < 0 ? -errno
	                                                                                 : 0;
}

static int make_dir(struct machines *ms, const char *id, struct err *e)
{
	int r;

	if (!machine_id_valid(id))
		return err_set(
		    e, EINVAL, "bad_id",
		    "'%.40s' is no machine id: letters a-z, digits, '_' and '-' make one", id);
	if (mkdirat(ms->dir, id, 0700) < 0)
		return errno == EEXIST
		           ? err_set(e, EEXIST, "machine_exists", "there is a machine %s already",
		                     id)
		           : err_set(e, errno, "machine_dir", "cannot make a directory for %s: %s",
		                     id, strerror(errno));
	r = make_disks(ms, id);
	if (r == 0)
		return 0;
	remove_dir(ms, id);
	return err_set(e, -r, "machine_dir", "cannot make a directory for the disks of %s: %s", id,
	               strerror(-r));
}

int machine_prepare(struct machines *ms, const char *id, struct err *e)
{
	autoclose int dir = -1;
	int r = make_dir(ms, id, e);

	if (r < 0)
		return r;
	dir = openat(ms->dir, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = dir < 0 ? err_set(e, errno, "machine_dir", "cannot open the directory of %s", id)
	            : ms->engines->prepare(ms->engines, id, dir, e);
	if (r < 0)
		remove_dir(ms, id);
	return r;
}

int machine_start(struct machines *ms, struct engine_start *s, const char *parent,
                  uint64_t generation, struct machine_info *info, struct err *e)
{
	struct guest *g = NULL;
	int r = machine_start_guest(ms, s, parent, generation, info, &g, e);

	guest_free(g);
	return r;
}

int machine_start_guest(struct machines *ms, struct engine_start *s, const char *parent,
                        uint64_t generation, struct machine_info *info, struct guest **ret,
                        struct err *e)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	struct machine_info mine = {.generation = generation,
	                            .memory_size = s->image->memory_size,
	                            .created_at_ms = wall_ms(),
	                            .alive = true};
	autoclose int dir = -1;
	int r;

	if (!s->prepared) {
		r = make_dir(ms, s->id, e);
		if (r < 0)
			return r;
	}
	dir = openat(ms->dir, s->id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	snprintf(mine.id, sizeof(mine.id), "%s", s->id);
	snprintf(mine.parent, sizeof(mine.parent), "%s", parent ? parent : "");
	s->dirfd = dir;
	r = dir < 0 ? err_set(e, errno, "machine_dir", "cannot open the directory of %s", s->id)
	            : ms->engines->start(ms->engines, s, &m, e);
	if (r < 0) {
		ms->engines->forget(ms->engines, s->id);
		remove_dir(ms, s->id);
		return r;
	}
	mine.pid = m.pid;
	mine.engine = m.image.engine;
	mine.volumes_lost = m.volumes_lost;
	r = introduce(dir, &m, &mine, s, ret, e);
	if (r < 0) {
		machine_look(ms, s->id, &mine, NULL);
		if (mine.end[0])
			err_prefix(e, "machine %s %s", s->id, mine.end);
		machine_remove(ms, s->id, NULL);
		return r;
	}
	if (info)
		*info = mine;
	return 0;
}

void machine_belongs(struct machines *ms, const char *id, const char *tenant)
{
	if (ms->engines->belongs)
		ms->engines->belongs(ms->engines, id, tenant);
}

int machine_snapshot(struct machines *ms, const char *id, struct engine_image *ret,
                     struct engine_snapshot_info *info, struct err *e)
{
	return machine_snapshot_with(ms, id, NULL, NULL, ret, info, e);
}

/* Starts one from the image, has it do what each will do first, and seals it. */
static int rehearse(struct machines *ms, const struct engine_image *image, struct engine_image *ret)
{
	char *const argv[] = {"/bin/sh", "-c", "/bin/true", NULL};
	struct guest_exec x = {.argv = argv};
	struct engine_start s = {.image = image, .cpu = -1};
	char id[ENGINE_ID_MAX + 1];
	struct guest_exit done;
	struct guest *g = NULL;
	int r;

	machine_new_id(id);
	s.id = id;
	r = machine_start_guest(ms, &s, NULL, 2, NULL, &g, NULL);
	if (r < 0)
		return r;
	guest_set_deadline(g, GUEST_ANSWER_MS);
	r = guest_exec_wait(g, &x, &done, NULL);
	guest_free(g);
	usleep(REHEARSED_MS * 1000);
	if (r == 0)
		r = machine_snapshot(ms, id, ret, NULL, NULL);
	machine_remove(ms, id, NULL);
	return r;
}

int machine_bake(struct machines *ms, const char *id, struct engine_image *ret, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image image = ENGINE_IMAGE_EMPTY;
	int r = machine_snapshot(ms, id, &image, NULL, e);

	if (r < 0)
		return r;
	if (image.engine->copies_ahead && rehearse(ms, &image, ret) == 0)
		return 0;
	*ret = image;
	image = (struct engine_image)ENGINE_IMAGE_EMPTY;
	return 0;
}

/* Seals and, while the machine stands still, lets the caller look after its volumes. */
static int snapshot_at_rest(struct machines *ms, struct engine_machine *m,
                            int (*at_rest)(void *arg, const struct engine_machine *m,
                                           struct err *e),
                            void *arg, struct engine_image *ret, struct engine_snapshot_info *info,
                            struct err *e)
{
	uint64_t since = mono_ns();
	int r = ms->engines->snapshot_hold(ms->engines, m, ret, info, e), r2;

	if (r < 0)
		return r;
	r = at_rest(arg, m, e);
	r2 = ms->engines->go_on(ms->engines, m, r < 0 ? NULL : e);
	if (info)
		info->stop_ns = mono_ns() - since;
	return r < 0 ? r : r2;
}

int machine_snapshot_with(struct machines *ms, const char *id,
                          int (*at_rest)(void *arg, const struct engine_machine *m, struct err *e),
                          void *arg, struct engine_image *ret, struct engine_snapshot_info *info,
                          struct err *e)
{
	AUTO(engine_machine_fini) struct engine_machine m = ENGINE_MACHINE_EMPTY;
	AUTO(engine_image_fini) struct engine_image image = ENGINE_IMAGE_EMPTY;
	struct machine_info mi;
	int r;

	r = machine_take_up(ms, id, &m, &mi, e);
	if (r < 0)
		return r;
	r = at_rest ? snapshot_at_rest(ms, &m, at_rest, arg, &image, info, e)
	            : ms->engines->snapshot(ms->engines, &m, &image, info, e);
	if (r == -EBUSY)
		return r; /* done, but not sealed: the next to adopt it books what the machine
		             says */
	if (r < 0) {
		machine_write_book(m.dirfd, &m, &mi); /* it may have dropped layers */
		unlinkat(m.dirfd, ENGINE_UNBOOKED, 0);
		return r;
	}
	r = machine_write_book(m.dirfd, &m, &mi);
	unlinkat(m.dirfd, ENGINE_UNBOOKED, 0);
	if (r < 0)
		return err_set(e, -r, "machine_dir", "cannot write the books of %s: %s", id,
		               strerror(-r));
	*ret = image;
	image = (struct engine_image)ENGINE_IMAGE_EMPTY;
	return 0;
}

int machine_remove(struct machines *ms, const char *id, struct err *e)
{
	struct machine_info info;
	int r;

	r = machine_look(ms, id, &info, e);
	if (r < 0)
		return r;
	ms->engines->forget(ms->engines, id);
	r = ms->engines->stop(ms->engines, id, info.alive ? info.pid : -1, e);
	if (r < 0)
		return r;
	r = remove_dir(ms, id);
	if (r < 0)
		return err_set(e, -r, "machine_dir", "cannot remove the directory of %s: %s", id,
		               strerror(-r));
	return 0;
}
