/*
 * guest/init/agent.h - panda-init from within: what its files share
 *
 * One thread, one epoll. A turn of the loop is: handle what epoll reports, run the queued work
 * (which fills the output buffers of connections), write each buffer once, then do what no client
 * waits for (reap the rest, prepare the next exec). Nothing ticks: without a pending exec timeout
 * the loop sleeps without one.
 *
 * Memory is bounded by the limits below. Output of an exec goes from its pipe straight into
 * the connection's buffer, when that has room and the host gave credit; else it stays in the pipe.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "guest/init/list.h"
#include "wire/guest.h"

enum {
	CONNS_MAX = 64,
	STREAMS_MAX = 1024,          /* per connection */
	OUT_CAP = 256 * 1024,        /* output buffer of a connection */
	IN_CAP = 4 * WIRE_FRAME_MAX, /* input buffer of a connection: much for one read */
	IN_TURNS = 4,                /* of those, before others have their turn */
	GATHER_MAX = 8,              /* frames that go to a file in one write */
	REPLY_ROOM = 16 * 1024,      /* of that, kept for direct answers */
	END_ROOM = 1024,             /* what any last words need */
	CHUNK = 32 * 1024,           /* one stream's share of a turn */
	EXECS_MAX = 512,             /* alive, or their output pipes still open */
	FINISHED_MAX = 32,           /* results of detached execs we remember */
	RING_MIN = 4 * 1024,         /* output kept per stream of a detached exec: at first, */
	RING_MAX = 256 * 1024,       /* at most, */
	RINGS_TOTAL = 16 << 20,      /* and by all of them together */
	WATCH_DIRS_MAX = 8192,       /* directories below one recursive watch */
	REBORN_ENV_MAX = 32 * 1024,
	EVENTS_MAX = 32,
	VICTIMS_MAX = 8,
};

struct agent;
struct conn;
struct exec;
struct stream;

/* Something epoll watches. Embedded; epoll's data points here. */
struct source {
	void (*ready)(struct source *s, uint32_t events);
	struct source *next_dead;
	void *owner;
};

/* Something to do in this turn. Queueing it twice is queueing it once. */
struct work {
	struct list node;
	void (*run)(struct work *w);
};

struct agent_listener {
	struct source src;
	struct agent *a;
	int fd;
	int (*accept)(int fd);   /* a non-blocking, close-on-exec byte stream, or -errno */
	bool reset_means_reborn; /* ECONNRESET: the machine was forked or restored */
};

struct agent {
	int epoll, sigfd, log;
	struct source sig;
	struct agent_listener listener;
	bool init;         /* we are PID 1 and the machine is ours */
	bool reap_rest;    /* a SIGCHLD is not yet used up */
	bool spare_wanted; /* an exec is done: prepare for the next one */
	bool stopping;
	uint32_t grace_ms; /* of the shutdown */
	uint64_t now_ns;   /* of this turn; 0: not asked yet */
	struct list conns, queue, dirty;
	struct list execs, finished, graves;
	struct source *dead;
	uint8_t *out_cache; /* an output buffer no connection uses now */
	uint8_t *in_cache;  /* and one for input */
	struct exec *spare; /* its pipes are made, and their write ends are our fds 1 and 2 */
	unsigned n_conns, n_execs, n_finished, n_timed;
	uint64_t next_id, nonce, generation;
	size_t rings_total;
	char *env_mem; /* what the last reborn brought */
	char **env;    /* defaults and env_mem, NULL-terminated */
	unsigned n_env;
	int random_fd, machine_id_fd, boot_id_fd, generation_fd; /* -1 when not PID 1 */
	int rw_fd, kmsg_fd;                                      /* as these */
	pid_t victims[VICTIMS_MAX]; /* killed for want of memory, and no client was told yet */
	unsigned n_victims;
};

/* loop.c */
int agent_setup(struct agent *a);
int agent_run(struct agent *a); /* until a shutdown is asked for */
void agent_log(struct agent *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
uint64_t agent_now(struct agent *a);
void agent_queue(struct agent *a, struct work *w);
int source_add(struct agent *a, struct source *s, int fd, uint32_t events);
int source_mod(struct agent *a, struct source *s, int fd, uint32_t events);
/*
 * Closes an fd that epoll watches. Closing alone is not enough: a child on its way through execve()
 * still holds a copy when vfork() lets us go on, and with it the file stays in epoll.
 */
void source_close(struct agent *a, int fd);
/* Frees owner after this turn: events already fetched may still point to s. */
void source_retire(struct agent *a, struct source *s, void *owner);

/* listen.c: each fills a->listener. */
int listen_chan(struct agent *a);
int listen_vsock(struct agent *a);
int listen_unix(struct agent *a, const char *path);

/* conn.c */
struct conn {
	struct source src;
	struct agent *a;
	int fd;
	bool paused, wants_out, starved, lost;
	int thaw_err; /* what the next THAW is told */
	struct list node, dirty, streams;
	unsigned n_streams;
	uint32_t events;
	uint8_t *in; /* a frame that has come in part, or cannot be answered yet */
	size_t in_len;
	struct stream *gathers; /* the one with bytes in there that it did not get yet: */
	struct iovec iov[GATHER_MAX];
	int n_iov;
	uint8_t *out;
	size_t out_head, out_len;
};

struct stream_ops {
	/* Sends what credit and room allow; queued again when either grows. */
	void (*pump)(struct stream *s);
	/* DATA and EOF on WIRE_IN. NULL: the stream takes none. */
	void (*data)(struct stream *s, const uint8_t *p, size_t n);
	/* Instead of data(): the bytes of several frames, for streams that may get many. */
	void (*datav)(struct stream *s, struct iovec *iov, int n);
	void (*eof)(struct stream *s);
	/* RESIZE and STREAM_SIGNAL */
	void (*control)(struct stream *s, uint8_t type, const void *p, size_t n);
	/* The stream is over, whatever the reason; s itself is freed by the caller. */
	void (*release)(struct stream *s, bool reborn);
};

struct stream {
	struct work work;
	struct source src; /* for the one fd a stream may watch */
	struct conn *c;
	const struct stream_ops *ops;
	struct list node;
	uint32_t id;
	uint32_t credit[2];         /* what the host takes on OUT and ERR */
	uint32_t in_left, in_taken; /* what it may send on IN; what we took since the last CREDIT */
};

void conn_accepted(struct agent *a, int fd);
void conn_flush(struct conn *c);
/* Writes now what can be written, in the middle of a turn; what goes wrong shows at its end. */
void conn_push(struct conn *c);

/* Bytes of output a pump may add now. */
size_t conn_room(const struct conn *c);
/* Space for n bytes at the end of the output; conn_commit() makes them part of it. */
uint8_t *conn_space(struct conn *c, size_t n);
void conn_commit(struct conn *c, size_t n);

/* Opens a stream of this size. NULL: refused, and the host was told. Owned by the connection. */
void *stream_new(struct conn *c, uint32_t id, const struct stream_ops *ops, size_t size,
                 uint32_t window);
void stream_queue(struct stream *s);
void stream_send(struct stream *s, uint8_t type, uint8_t chan, const void *msg);
/* How much DATA may go out on a channel now, header set aside. 0 also marks us as waiting. */
size_t stream_space(struct stream *s, uint8_t chan);
/* Sends n bytes that were put behind WIRE_HEADER bytes of conn_space(). */
void stream_commit_data(struct stream *s, uint8_t chan, size_t n);
/* Sends END and frees s. Needs END_ROOM. */
void stream_end(struct stream *s, int err, const char *text);
void stream_end_why(struct stream *s, int err, enum wire_reason reason, const char *text);
/* The answer to a request that needs no stream. */
void reply_end(struct conn *c, uint32_t id, int err, const char *text);
void reply(struct conn *c, uint32_t id, uint8_t type, const void *msg);

/* exec.c, spawn.c, kill.c */
void exec_request(struct conn *c, uint32_t id, const struct wire_exec *m);
void exec_attach(struct conn *c, uint32_t id, const struct wire_attach *m);
void exec_list(struct conn *c, uint32_t id, uint32_t window);
void exec_signal(struct conn *c, uint32_t id, const struct wire_signal *m);
void exec_prepare_spare(struct agent *a);
/* One child; returns false when there is none to reap. */
bool exec_reap(struct agent *a);
/* ms until the next exec times out, -1: never. */
int exec_timeout_ms(struct agent *a);
void exec_check_timeouts(struct agent *a);
void exec_kill_all(struct agent *a);
/* Frees execs that are gone; events of this turn must have been handled. */
void exec_bury(struct agent *a);

/* file.c, fileop.c */
void file_read(struct conn *c, uint32_t id, const struct wire_read *m);
void file_write(struct conn *c, uint32_t id, const struct wire_write *m);
void file_dir(struct conn *c, uint32_t id, const struct wire_path_flags *m);
void file_stat(struct conn *c, uint32_t id, const struct wire_path_flags *m);
void file_mkdir(struct conn *c, uint32_t id, const struct wire_mkdir *m);
void file_remove(struct conn *c, uint32_t id, const struct wire_path_flags *m);
void file_rename(struct conn *c, uint32_t id, const struct wire_two_paths *m);
void file_chmod(struct conn *c, uint32_t id, const struct wire_path_flags *m);
void file_symlink(struct conn *c, uint32_t id, const struct wire_two_paths *m);
void file_readlink(struct conn *c, uint32_t id, const struct wire_path *m);
struct stat;
void file_describe(const struct stat *st, struct wire_file *ret);
/* Both return 0, or -1 with errno. */
int file_make_parents(const char *path, mode_t mode);
int file_move(const char *from, const char *to, bool keep_existing);

/* watch.c, port.c */
void watch_request(struct conn *c, uint32_t id, const struct wire_watch *m);
void port_connect(struct conn *c, uint32_t id, const struct wire_connect *m);

/* sys.c */
void sys_stats(struct conn *c, uint32_t id);
/* To programs that watch the file: this machine was forked, woken, rewound, or restored. */
void sys_tell_generation(struct agent *a);
void sys_reborn(struct conn *c, uint32_t id, const struct wire_reborn *m);
int sys_default_env(struct agent *a);

/* oom.c */
void oom_watch(struct agent *a);
/* Did this process (or, if its status says so, one it had started) end for want of memory? */
bool oom_ended(struct agent *a, pid_t pid, int status);

/* mount.c */
void mount_volume(struct conn *c, uint32_t id, const struct wire_mount *m);
void mount_undo(struct conn *c, uint32_t id, const struct wire_path_flags *m);
void mount_grow(struct conn *c, uint32_t id, const struct wire_mount *m);
void mount_freeze(struct conn *c, uint32_t id, const struct wire_mount *m);
void mount_undo_all(void);

/* net.c: lo and eth0 */
void net_up(struct agent *a);

/* ssh.c: keys of an earlier life must not open this one, nor speak for it */
void ssh_forget(void);

/* boot.c: only as PID 1 */
int boot_mounts(struct agent *a);
void sysctl_set(const char *path, const char *value);
void boot_identity(struct agent *a);
void boot_power_off(struct agent *a) __attribute__((noreturn));
