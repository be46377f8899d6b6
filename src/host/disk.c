#include "host/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/dict.h"
#include "base/err.h"
#include "base/io.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/macro.h"
#include "base/pool.h"
#include "host/disk_use.h"
#include "host/event.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/records.h"
#include "host/sandbox.h"
#include "machine/engine.h"
#include "machine/machine.h"

#define MIB ((uint64_t)1 << 20)

enum {
	LOOK_MS_MIN = 50,
	LOOK_MS_MAX = 1000,
	LOOK_SHARE = 20,       /* of the time at most one part in so many is spent on looking */
	OBEY_MS = 5000,        /* what a kernel gets to stand still */
	WRITES_MB_PER_MS = 4,  /* nobody writes faster than that */
	ROOM_MB = 64,          /* of a file system's journal, and the host's own tables */
	ROOM_SHARE = 32,       /* one of so many bytes is its tables */
	LATE_MB = 64,          /* what a machine that stands still may have had on its way */
	HARD_MB = 1024,        /* more than so much too much, and no question is asked */
	NOTABLE_MB = 1,        /* who writes less since the last look is left alone */
	RESUME_ROOM_MB = 1024, /* beyond the reserve, at most */
	RESUME_SHARE = 4,      /* of the reserve, that much of it at least */
	HOST_BLOCK_MAX = 4096, /* of file systems that count what was written, and no more */
};

uint64_t disk_limit(uint64_t size, unsigned disk_gb)
{
	uint64_t told = (uint64_t)disk_gb << 30, limit = size;

	if (told && told < size)
		limit = MIN(size, told + size / ROOM_SHARE);
	return limit + ROOM_MB * MIB;
}

const char *disk_hold_text(const struct sandbox *sb)
{
	switch (sb->hold) {
	case HOLD_RESERVE:
		return "the disk of the host is nearly full; it goes on by itself when there is "
		       "room";
	case HOLD_OVERRUN:
		return "it holds more of the host's disk than its disk has: something in it writes "
		       "to the device itself, or mounted it without 'discard'; delete it";
	default:
		return NULL;
	}
}

/* Free bytes with which sandboxes go on again: some more than with which they are paused. */
static uint64_t enough(const struct host *h)
{
	uint64_t reserve = h->config.disk_reserve;

	return reserve + MIN(reserve / RESUME_SHARE, RESUME_ROOM_MB * MIB);
}

int disk_may_resume(const struct sandbox *sb, struct err *e)
{
	const struct host *h = sb->host;

	if (sb->hold == HOLD_OVERRUN)
		return err_set(e, ENOSPC, "disk_full", "sandbox %s stays paused: %s", sb->id,
		               disk_hold_text(sb));
	if (sb->hold == HOLD_RESERVE && h->disk.free_bytes < enough(h))
		return err_set(
		    e, ENOSPC, "disk_full",
		    "sandbox %s stays paused: the disk of the host has %llu MiB left, and %llu are "
		    "needed; it goes on by itself then",
		    sb->id, (unsigned long long)(h->disk.free_bytes / MIB),
		    (unsigned long long)(enough(h) / MIB));
	return 0;
}

/* ---- on the thread ---- */

/* Free bytes of the data directory, and all there are. False: it does not say. */
static bool look_at_all(const struct host *h, uint64_t *ret, uint64_t *ret_total)
{
	struct statvfs vfs;

	if (statvfs(h->config.data_dir, &vfs) < 0)
		return false;
	*ret = (uint64_t)vfs.f_bavail * vfs.f_frsize;
	*ret_total = (uint64_t)vfs.f_blocks * vfs.f_frsize;
	return true;
}

/* What files of one machine take. */
struct look {
	char id[SANDBOX_ID + 1], machine[ENGINE_ID_MAX + 1]; /* id "": a build's */
	unsigned disk_gb;
	uint64_t size;  /* of its disk; 0: to be found out */
	uint64_t bytes; /* of all its files, but for those that a snapshot has, too */
	uint64_t over;  /* what it holds more than may be */
	bool longer;    /* a file has grown past its disk */
	bool seen;
};

struct round {
	struct disk_watch *watch;
	struct look *at;
	size_t n;
	uint64_t free_bytes, total_bytes, bytes;
	uint64_t left; /* of the disk that is most nearly full, the host's own too */
	uint64_t took_ms;
	bool free_known;
};

/* Those that are sealed, no process can write. */
static void look_at_file(struct look *l, const struct stat *st)
{
	uint64_t bytes = (uint64_t)st->st_blocks * 512, limit;

	if (st->st_nlink < 2)
		l->bytes += bytes;
	if (!(st->st_mode & 0222) || !l->size)
		return;
	l->longer |= (uint64_t)st->st_size > l->size;
	/* Where blocks are large, a file takes more than was written. */
	limit = disk_limit(l->size, st->st_blksize <= HOST_BLOCK_MAX ? l->disk_gb : 0);
	if (bytes > limit)
		l->over = MAX(l->over, bytes - limit);
}

static void look_at(struct host *h, struct look *l)
{
	autoclosedir DIR *d = io_opendir(h->machines.disks, l->machine, O_NOFOLLOW);
	struct machine_info info;
	struct dirent *de;
	struct stat st;

	l->seen = d != NULL;
	if (d && !l->size && machine_look(&h->machines, l->machine, &info, NULL) == 0)
		l->size = info.disk_size;
	while (d && (de = readdir(d)))
		if (de->d_name[0] != '.' &&
		    fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    S_ISREG(st.st_mode))
			look_at_file(l, &st);
}

/* Machines that are no sandbox's: of bakes and builds, or of a sandbox that is just made. */
static void look_at_others(struct round *r)
{
	struct host *h = r->watch->host;
	autoclosedir DIR *d = io_opendir(h->machines.disks, ".", 0);
	struct dict *known = NULL;
	struct dirent *de;
	int failed = !d || dict_new(&known) < 0;

	for (size_t i = 0; !failed && i < r->n; i++)
		failed = dict_put(known, r->at[i].machine, &r->at[i]) < 0;
	while (!failed && (de = readdir(d))) {
		struct look l = {.id = ""};
		struct machine_info info;

		if (de->d_name[0] == '.' || strlen(de->d_name) >= sizeof(l.machine) ||
		    dict_get(known, de->d_name))
			continue;
		snprintf(l.machine, sizeof(l.machine), "%s", de->d_name);
		look_at(h, &l);
		r->bytes += l.bytes;
		if ((!l.longer && l.over <= HARD_MB * MIB) ||
		    machine_look(&h->machines, l.machine, &info, NULL) < 0 || !info.alive)
			continue;
		log_warn("ended: its kernel writes more than its disk has machine=%s bytes=%llu",
		         l.machine, (unsigned long long)l.bytes);
		h->engines->stop(h->engines, l.machine, info.pid, NULL);
	}
	dict_free(known);
}

static void round_free(void *arg)
{
	struct round *r = arg;

	if (r)
		free(r->at);
	free(r);
}

static uint64_t room_of(const struct look *l)
{
	uint64_t limit = disk_limit(l->size, l->disk_gb);

	return l->bytes < limit ? limit - l->bytes : 0;
}

static void look_work(void *arg)
{
	struct round *r = arg;
	struct host *h = r->watch->host;
	uint64_t began = mono_ms();

	r->left = UINT64_MAX;
	for (size_t i = 0; i < r->n; i++) {
		look_at(h, &r->at[i]);
		r->bytes += r->at[i].bytes;
		if (r->at[i].size)
			r->left = MIN(r->left, room_of(&r->at[i]));
	}
	look_at_others(r);
	r->free_known = look_at_all(h, &r->free_bytes, &r->total_bytes);
	r->took_ms = mono_ms() - began;
}

/* ---- on the loop ---- */

struct ending {
	struct host *host;
	pid_t pid;
	char machine[ENGINE_ID_MAX + 1];
};

static void end_work(void *arg)
{
	struct ending *x = arg;
	struct engines *engines = x->host->engines;
	struct err e;

	if (engines->stop(engines, x->machine, x->pid, &e) < 0)
		log_error("cannot end a machine machine=%s why=\"%s\"", x->machine, e.text);
}

/* Its kernel does not do what it is told: its processes end, and the sandbox has failed. */
static void end_machine(struct host *h, struct sandbox *sb, const char *why)
{
	struct ending *x;

	if (sb->disk.end)
		return;
	x = calloc(1, sizeof(*x));
	if (!x)
		return; /* at the next look */
	*x = (struct ending){.host = h, .pid = sb->pid};
	snprintf(x->machine, sizeof(x->machine), "%s", sb->machine);
	if (pool_submit(h->pool, end_work, free, x) < 0) {
		free(x);
		return;
	}
	sb->disk.end = why;
	h->disk.ends++;
	log_warn("ended: its kernel writes more than it may sandbox=%s bytes=%llu why=\"%s\"",
	         sb->id, (unsigned long long)sb->disk.bytes, why);
	event_emit(&h->events, sb->tenant, sb->id, "sandbox.disk_overrun",
	           json_pack("{s:s, s:I, s:I}", "action", "ended", "held_bytes",
	                     (json_int_t)sb->disk.bytes, "disk_bytes",
	                     (json_int_t)disk_limit(sb->disk.size, sb->disk_gb)));
}

static void held(void *arg, const struct err *e, struct sandbox *sb)
{
	if (e)
		log_warn("a machine that shall not write cannot be paused why=\"%s\"", e->text);
}

static void hold(struct host *h, struct sandbox *sb, enum sandbox_hold why)
{
	if (sb->disk.asked_ms || sb->hold == why || sb->disk.end)
		return;
	sb->disk.asked_ms = mono_ms();
	sb->disk.held_bytes = 0;
	if (why == HOLD_OVERRUN) {
		h->disk.overruns++;
		event_emit(&h->events, sb->tenant, sb->id, "sandbox.disk_overrun",
		           json_pack("{s:s, s:I, s:I}", "action", "paused", "held_bytes",
		                     (json_int_t)sb->disk.bytes, "disk_bytes",
		                     (json_int_t)disk_limit(sb->disk.size, sb->disk_gb)));
	} else {
		h->disk.holds++;
	}
	log_warn("paused sandbox=%s why=%s held_bytes=%llu written_bytes=%llu host_free_bytes=%llu",
	         sb->id, sandbox_hold_name(why), (unsigned long long)sb->disk.bytes,
	         (unsigned long long)sb->disk.grown, (unsigned long long)h->disk.free_bytes);
	host_hold(h, sb, why, held, NULL);
}

/* One that was told to stand still: does it? */
static void look_whether_still(struct host *h, struct sandbox *sb)
{
	uint64_t now = mono_ms();

	if (sb->hold && !sb->disk.asked_ms) /* by the last pandad */
		sb->disk.asked_ms = now;
	if (!sb->disk.asked_ms)
		return;
	if (sb->state == SANDBOX_RUNNING && !sb->ops) {
		sb->disk.asked_ms = 0; /* it could not be paused, or goes on again */
		return;
	}
	if ((sb->state != SANDBOX_PAUSED || sb->ops) && now - sb->disk.asked_ms < OBEY_MS)
		return;
	if (!sb->disk.held_bytes)
		sb->disk.held_bytes = sb->disk.bytes;
	else if (sb->disk.bytes > sb->disk.held_bytes + LATE_MB * MIB)
		end_machine(h, sb, "its kernel went on writing when it was paused");
}

static void judge(struct host *h, struct sandbox *sb, const struct look *l)
{
	bool same = !strcmp(sb->disk.machine, l->machine);

	sb->disk.grown = same && l->bytes > sb->disk.bytes ? l->bytes - sb->disk.bytes : 0;
	sb->disk.bytes = l->bytes;
	sb->disk.size = l->size;
	if (!same)
		sb->disk.asked_ms = 0;
	memcpy(sb->disk.machine, sb->machine, sizeof(sb->disk.machine));
	if (l->longer)
		end_machine(h, sb, "its kernel has made its disk longer than it is");
	else if (l->over > HARD_MB * MIB)
		end_machine(h, sb, "it wrote far more than its disk has");
	else if (l->over && (sb->state == SANDBOX_RUNNING || sb->state == SANDBOX_PAUSED))
		hold(h, sb, HOLD_OVERRUN);
	look_whether_still(h, sb);
}

/* The fastest first; all that write, when half of the reserve is gone. */
static void hold_writers(struct host *h)
{
	bool all = h->disk.free_bytes < h->config.disk_reserve / 2;
	struct sandbox *fastest = NULL;

	for (struct sandbox *sb = h->newest; sb; sb = sb->next) {
		if (sb->state != SANDBOX_RUNNING || sb->disk.asked_ms ||
		    sb->disk.grown < NOTABLE_MB * MIB)
			continue;
		if (all)
			hold(h, sb, HOLD_RESERVE);
		else if (!fastest || sb->disk.grown > fastest->disk.grown)
			fastest = sb;
	}
	if (fastest)
		hold(h, fastest, HOLD_RESERVE);
}

/* One at a time: it may write as fast as before. */
static void let_one_go_on(struct host *h)
{
	struct sandbox *first = NULL;

	for (struct sandbox *sb = h->newest; sb; sb = sb->next)
		if (sb->state == SANDBOX_PAUSED && sb->hold == HOLD_RESERVE && !sb->ops &&
		    !sb->disk.end && (!first || sb->disk.asked_ms < first->disk.asked_ms))
			first = sb;
	if (first)
		host_resume(h, first, NULL, NULL);
}

static void look_free(struct disk_watch *d, uint64_t free_bytes)
{
	struct host *h = d->host;
	bool low = free_bytes < h->config.disk_reserve, was = d->low;

	d->free_bytes = free_bytes;
	d->low = low;
	if (low && !was) {
		log_warn("the disk of the data directory is nearly full, who writes is paused "
		         "free_bytes=%llu reserve_bytes=%llu",
		         (unsigned long long)free_bytes,
		         (unsigned long long)h->config.disk_reserve);
		records_hurry(&h->records);
	} else if (!low && was) {
		log_info("the disk of the data directory has room again free_bytes=%llu",
		         (unsigned long long)free_bytes);
	}
	if (low)
		hold_writers(h);
	else if (free_bytes >= enough(h))
		let_one_go_on(h);
}

/*
 * Before the fastest writer can have filled what is left. But a disk that is nearly full must not
 * make the host look at thousands of others all the time.
 */
static uint64_t next_ms(const struct round *r)
{
	const struct host *h = r->watch->host;
	uint64_t left = r->left, reserve = h->config.disk_reserve;
	uint64_t least = MAX((uint64_t)LOOK_MS_MIN, r->took_ms * (LOOK_SHARE - 1));

	if (r->n == 0)
		return LOOK_MS_MAX;
	if (r->free_known)
		left = MIN(left, r->free_bytes > reserve ? r->free_bytes - reserve : 0);
	left /= WRITES_MB_PER_MS * MIB;
	left = MIN(left, (uint64_t)LOOK_MS_MAX);
	return MAX(least, left);
}

static void look_done(void *arg)
{
	struct round *r = arg;
	struct disk_watch *d = r->watch;
	struct host *h = d->host;

	d->busy = false;
	d->used_bytes = r->bytes;
	for (size_t i = 0; i < r->n; i++) {
		struct sandbox *sb = dict_get(h->by_id, r->at[i].id);

		if (sb && r->at[i].seen && sb->pid > 0 && !strcmp(sb->machine, r->at[i].machine))
			judge(h, sb, &r->at[i]);
	}
	if (r->free_known)
		d->total_bytes = r->total_bytes;
	if (r->free_known)
		look_free(d, r->free_bytes);
	if (!d->closing)
		disk_use_look(h);
	if (!d->closing)
		loop_timer_set(h->loop, &d->timer, mono_ms() + next_ms(r));
	round_free(r);
}

static struct round *round_new(struct disk_watch *d)
{
	struct round *r = calloc(1, sizeof(*r));
	size_t n = 0;

	for (struct sandbox *sb = d->host->newest; sb; sb = sb->next)
		n += sb->pid > 0;
	if (r && n)
		r->at = calloc(n, sizeof(*r->at));
	if (!r || (n && !r->at)) {
		free(r);
		return NULL;
	}
	r->watch = d;
	for (struct sandbox *sb = d->host->newest; sb; sb = sb->next) {
		struct look *l = &r->at[r->n];

		if (sb->pid <= 0)
			continue;
		r->n++;
		memcpy(l->id, sb->id, sizeof(l->id));
		snprintf(l->machine, sizeof(l->machine), "%s", sb->machine);
		l->disk_gb = sb->disk_gb;
		if (!strcmp(sb->disk.machine, sb->machine))
			l->size = sb->disk.size;
	}
	return r;
}

static void look_start(void *arg)
{
	struct disk_watch *d = arg;
	struct round *r = round_new(d);

	if (r && pool_submit(d->pool, look_work, look_done, r) == 0) {
		d->busy = true;
		return;
	}
	round_free(r);
	loop_timer_set(d->host->loop, &d->timer, mono_ms() + LOOK_MS_MAX);
}

int disk_open(struct disk_watch *d, struct host *h, struct err *e)
{
	*d = (struct disk_watch){.host = h, .free_bytes = UINT64_MAX};
	if (pool_new(h->loop, 1, &d->pool) < 0)
		return err_set(e, EAGAIN, "no_memory", "cannot start threads");
	if (look_at_all(h, &d->free_bytes, &d->total_bytes))
		d->low = d->free_bytes < h->config.disk_reserve;
	return 0;
}

void disk_begin(struct disk_watch *d)
{
	pool_on_drop(d->pool, round_free);
	d->timer = (struct loop_timer){.fn = look_start, .arg = d};
	loop_timer_set(d->host->loop, &d->timer, mono_ms());
}

bool disk_drain(struct disk_watch *d)
{
	d->closing = true;
	loop_timer_clear(d->host->loop, &d->timer);
	return !d->busy;
}

void disk_close(struct disk_watch *d)
{
	if (!d->host)
		return;
	d->closing = true;
	loop_timer_clear(d->host->loop, &d->timer);
	if (d->pool)
		pool_free(d->pool);
	d->pool = NULL;
	disk_use_fini(d->host);
}
