/*
 * machine/machine.h - machines by name, without a daemon
 * Each running machine has a directory <run>/machines/<id>. Its sealed layers are held by the
 * machine process itself; machine.json and the map files beside it say what they are, so any
 * process may take the machine up again. Nothing is left when a machine is removed.
 *
 * Kinds of errors beside those of engines: bad_id, machine_exists, machine_not_found,
 * machine_gone, guest_silent.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>

#include "layers/snapshot.h"
#include "machine/engine.h"

struct guest;

struct machines {
	struct engines *engines; /* borrowed */
	int dir;                 /* <run>/machines */
	int disks;               /* a directory for their disks; -1: each has them in its own */
	char *disks_path;        /* the same, by name */
};

/* Makes the directory when it is missing. */
int machines_open(struct machines *ms, struct engines *engines, const char *run_dir, struct err *e);
/*
 * Disks of machines are made there from now on, in a directory each: what a guest writes belongs on
 * a disk, while the run directory may be in memory. Clears what machines left that are no more.
 */
int machines_disks(struct machines *ms, const char *path, struct err *e);
void machines_close(struct machines *ms);

enum {
	CONSOLE_MAX = 1 << 20,    /* bytes of a console.log that is left as it is */
	CONSOLE_KEPT = 256 << 10, /* of a longer one */
};
/*
 * A guest may write to its console as fast as it likes, and that file is the host's: the caller of
 * this again and again bounds them all. Any thread.
 */
void machines_trim_consoles(const struct machines *ms);

/* "m_" and ten letters that no other machine has. */
void machine_new_id(char ret[ENGINE_ID_MAX + 1]);

struct machine_info {
	char id[ENGINE_ID_MAX + 1];
	char parent[ENGINE_ID_MAX + 1]; /* "" when booted */
	pid_t pid;
	uint64_t memory_size;
	uint64_t disk_size; /* of the largest disk that it writes */
	uint64_t created_at_ms;
	uint64_t generation; /* 1 for a booted machine; one more than its parent's when restored */
	bool alive;
	const struct engine *engine; /* NULL: one that this host does not have now */
	char end[120];               /* why it is not alive */
	bool oom_killed;             /* because it reached the limit of its memory */
	uint32_t volumes_lost;       /* by machine_start() only, see struct engine_machine */
};

/*
 * Makes ahead what is slow about a start: its directory, and its process. machine_start() with
 * s->prepared uses it; machine_remove() undoes it, in any later process too.
 */
int machine_prepare(struct machines *ms, const char *id, struct err *e);

/*
 * Starts a machine from an image and, when it is a restored one, tells its guest who it is now.
 * s->dirfd is not used. Returns once the agent has answered and mounted the volumes that have a
 * place to be mounted; the caller keeps its fds of them, and should close them: as long as it has
 * them open, they are in use. info (may be NULL) is filled in.
 */
int machine_start(struct machines *ms, struct engine_start *s, const char *parent,
                  uint64_t generation, struct machine_info *info, struct err *e);
/* The same, and the connection to its agent is the caller's. */
int machine_start_guest(struct machines *ms, struct engine_start *s, const char *parent,
                        uint64_t generation, struct machine_info *info, struct guest **ret,
                        struct err *e);

/* It uses this tenant's share of the host from some ms later on. Returns at once. */
void machine_belongs(struct machines *ms, const char *id, const char *tenant);

/* Looks without touching. */
int machine_look(struct machines *ms, const char *id, struct machine_info *ret, struct err *e);
/* Calls fn for each machine, dead ones too. */
int machine_each(struct machines *ms, void (*fn)(const struct machine_info *m, void *arg),
                 void *arg, struct err *e);

/* Connects to the guest's agent. Caller frees *ret. */
int machine_guest(struct machines *ms, const char *id, struct guest **ret, struct err *e);

/* Takes up the machine to control it. Release with engine_machine_fini(). */
int machine_adopt(struct machines *ms, const char *id, struct engine_machine *ret, struct err *e);

/* Seals and goes on, and keeps the books; *ret is the caller's. */
int machine_snapshot(struct machines *ms, const char *id, struct engine_image *ret,
                     struct engine_snapshot_info *info, struct err *e);

/*
 * A snapshot that many will start from. Where the engine copies_ahead, it is one of a machine that
 * was itself started from such a snapshot and has run a command, as each of them will: what is
 * written first in such a life is a layer of its own then. That this failed is no harm.
 */
int machine_bake(struct machines *ms, const char *id, struct engine_image *ret, struct err *e);

/*
 * The same as machine_snapshot(); at_rest is called while the machine stands still: what its
 * volumes hold at that time is what belongs to *ret. It must not talk to the guest, which cannot
 * answer, and should be quick. Should this process end there, the machine goes on by itself.
 */
int machine_snapshot_with(struct machines *ms, const char *id,
                          int (*at_rest)(void *arg, const struct engine_machine *m, struct err *e),
                          void *arg, struct engine_image *ret, struct engine_snapshot_info *info,
                          struct err *e);

/* The file of a volume, for reading, without its lock. Caller owns *ret. */
int machine_volume_file(struct machines *ms, const struct engine_machine *m, unsigned slot,
                        int *ret, struct err *e);

/* What a machine that runs shall have in one of its slots. */
struct machine_volume {
	unsigned slot;    /* it is there now, or shall be; another one where that is taken */
	const char *file; /* absolute */
	uint64_t size;    /* what the guest may use of it; a longer file is cut when written */
	bool read_only;
	const char *mount; /* where the agent mounts it */
};

/*
 * Gives it those files it does not have yet, mounted, and tells it of those that have grown. With
 * all, what it has already is mounted too, unless it is. Should one fail, those before it stay and
 * that one is taken back. Kinds: volume_busy, volume_missing, volume_unusable, guest_refused,
 * not_supported.
 */
int machine_volumes_settle(struct machines *ms, const char *id, struct machine_volume *v, size_t n,
                           bool all, struct err *e);

/*
 * Unmounts it and takes the file away. volume_busy: processes use it, and nothing was changed; with
 * force they get I/O errors from now on, and what they have written so far is on the volume, if the
 * guest can be asked. The file is not locked afterwards (volume_busy says when it is: the
 * machine holds on to it, and only its end helps).
 */
int machine_volume_take(struct machines *ms, const char *id, const struct machine_volume *v,
                        bool force, struct err *e);

/*
 * The content of a volume that the machine writes, as of one moment, in the empty file `to`. The
 * guest writes nothing for a few ms; what it writes from then on is not in it. Not synced. *stop
 * (may be NULL) ends it with -ECANCELED.
 */
int machine_volume_copy(struct machines *ms, const char *id, const struct machine_volume *v, int to,
                        const atomic_bool *stop, struct err *e);

/*
 * In two steps, for the process that has the machine: from the first one on it is copied as it is
 * then, and the second one, which frees it, takes the time. A machine that stands still goes on
 * with the first. No other process may take the machine up in between. `to` is empty and borrowed.
 */
struct machine_copy;
int machine_copy_begin(struct machines *ms, const struct engine_machine *m, unsigned slot,
                       uint64_t size, int to, struct machine_copy **ret, struct err *e);
int machine_copy_finish(struct machine_copy *c, const atomic_bool *stop, struct err *e);
void machine_copy_free(struct machine_copy *c);

/* The tap it was given, for net_adopt(). -ENOENT: none. Caller owns *ret. */
int machine_net_fd(struct machines *ms, const struct engine_machine *m, int *ret, struct err *e);

/* Ends it, if it is alive, and removes its directory. */
int machine_remove(struct machines *ms, const char *id, struct err *e);

/* The image as a snapshot on disk, and back. */
int machine_save(const struct engine_image *i, const struct snapshot_store *st,
                 const char *snapshot_id, const char *parent, struct err *e);
/*
 * The machine that this image is of goes on: its books get the digests that saving has found, so
 * that the next save finds these layers in the store instead of writing them again. No harm
 * without.
 */
void machine_saved(struct machines *ms, const char *id, const struct engine_image *i);
/* Only its disks, whatever kernel and cpu it was saved with: to be booted from. Its engine is not
 * set. */
int machine_load_disks(const struct snapshot_store *st, const char *snapshot_id,
                       struct engine_image *ret, struct err *e);
int machine_load(struct machines *ms, const struct snapshot_store *st, const char *snapshot_id,
                 bool verify, struct engine_image *ret, struct err *e);
