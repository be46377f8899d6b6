/*
 * machine/guest.h - the host's end of the guest protocol
 * Talks to panda-init over one connected byte stream. The first half never blocks and lives in
 * the caller's epoll loop; the second half are blocking helpers on top of it, for threads that may
 * wait. One thread at a time per struct guest. Nothing the guest sends is trusted: a frame that
 * breaks the protocol ends the connection, and so every call on it, with EPROTO. An answer that may
 * not come (wire/answers.h) ends its call with EPROTO, and a second one the connection.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "wire/guest.h"

enum {
	GUEST_CALLS_MAX = 1024,
	GUEST_WINDOW = 256 * 1024,  /* what a call takes before it must give credit */
	GUEST_OUT_MAX = 512 * 1024, /* output waiting for the guest */
	GUEST_ROWS_MAX = 1 << 20,   /* entries of a list we look at */
};

struct guest;
struct guest_call;

/* How a call ended. */
struct guest_end {
	int err;                 /* an errno value, of the guest or of the connection, or 0 */
	enum wire_reason reason; /* a number that is not in enum wire_reason may come, too */
	const char *text;        /* for people; may be "" */
};

/*
 * Callbacks of one call, run inside guest_dispatch() (or guest_free()). Each may be NULL. They may
 * start calls, send, give credit and cancel; they must not free the guest.
 */
struct guest_ops {
	/* Bytes of a channel. Give credit when you are done with them. */
	void (*data)(void *arg, struct guest_call *c, uint8_t chan, const void *p, size_t n);
	void (*eof)(void *arg, struct guest_call *c, uint8_t chan);
	/* READY (msg is NULL), STARTED, EXITED, ATTACHED, GAP, FILE, PATH, STATS_REPLY: the
	 * decoded struct, valid during the callback. What comes, how often and in which order is in
	 * the table of wire/answers.h. GAP costs no credit, so it is told with the next data of its
	 * channel, or before EXITED, and several in a row are one. */
	void (*reply)(void *arg, struct guest_call *c, uint8_t type, uint8_t chan, const void *msg);
	void (*writable)(void *arg, struct guest_call *c); /* guest_sendable() grew */
	/* Always the last one; c is gone afterwards. err 0: all came that the table asks for. */
	void (*end)(void *arg, struct guest_call *c, const struct guest_end *end);
};

/* Takes fd, which becomes non-blocking, when it succeeds. -ENOMEM, or what fcntl() said. */
int guest_new(int fd, struct guest **ret);

/* Ends open calls with ECANCELED, closes the connection. NULL is fine. */
void guest_free(struct guest *g);

int guest_fd(const struct guest *g);
uint32_t guest_events(const struct guest *g); /* what to poll for, in epoll's words */
/* 0, or an errno value once the connection is over: then a call did not end by the guest's word. */
int guest_dead(const struct guest *g);
bool guest_idle(const struct guest *g); /* no call is open */

/* Reads once, runs callbacks, writes what is pending. -errno once the connection is dead. */
int guest_dispatch(struct guest *g, uint32_t events);

/* Writes pending output now: several calls then travel in one write. */
int guest_flush(struct guest *g);

/* Ends every call with err; the connection is of no more use. Returns -err. */
int guest_fail(struct guest *g, int err, const char *text);

/*
 * Starts a request with the wire struct that belongs to type (NULL for STATS and SYNC). The frame
 * is queued, not yet written. ret may be NULL. -EAGAIN: too much output pending or too many
 * calls. -EMSGSIZE: does not fit into a frame.
 */
int guest_start(struct guest *g, uint8_t type, const void *msg, const struct guest_ops *ops,
                void *arg, struct guest_call **ret);

/* A request that is in wire form already: for those that had to wait for a guest. */
struct guest_request {
	uint8_t type;
	const void *p; /* what wire_encode() made of it */
	size_t n;
};

int guest_start_encoded(struct guest *g, const struct guest_request *rq,
                        const struct guest_ops *ops, void *arg, struct guest_call **ret);

/*
 * A caller that was told -EAGAIN, or could not send for want of room (and not of credit), waits for
 * room. fn is called once, inside guest_dispatch(), guest_flush(), guest_fail() or guest_free(),
 * when another try is worth it: output has been written, a call has ended, or the connection is
 * over. It may do what callbacks of calls may. Embedded by its owner; a zeroed one does not wait.
 */
struct guest_room {
	void (*fn)(void *arg);
	void *arg;
	struct guest_room *next, **prevp; /* prevp is NULL: does not wait */
};

/* False: there is room for a frame and a call, or the connection is over. */
bool guest_room_wait(struct guest *g, struct guest_room *w);
void guest_room_cancel(struct guest_room *w); /* also when it does not wait */

/* How many bytes guest_send() would take now. */
size_t guest_sendable(const struct guest_call *c);
/* Queues up to n bytes for the guest, returns how many. */
size_t guest_send(struct guest_call *c, const void *p, size_t n);
/* All -EAGAIN when too much output is pending. */
int guest_send_eof(struct guest_call *c);
int guest_resize(struct guest_call *c, unsigned rows, unsigned cols);
int guest_send_signal(struct guest_call *c, int signo, uint32_t flags); /* WIRE_SIGNAL_* */
/* An exec that is not detached dies. end() still comes. */
int guest_cancel(struct guest_call *c);
/* n bytes of the channel are dealt with. */
void guest_credit(struct guest_call *c, uint8_t chan, size_t n);

/* ---- blocking helpers: 0 or -errno, and the story in *e ---- */

/* From now on helpers give up (and the connection with them) ms from now. 0: wait forever. */
void guest_set_deadline(struct guest *g, uint64_t ms);

/*
 * Whatever the deadline, helpers also give up, and the connection with them, when fd can be read
 * (-1: none), and at that time (mono_ms(); 0: never). The fd is borrowed.
 */
void guest_set_stop(struct guest *g, int fd, uint64_t until_ms);

/* Called once, by the next helper that waits, when its request is on the way. Not to use g. */
void guest_set_meanwhile(struct guest *g, void (*fn)(void *arg), void *arg);

/* A request (as for guest_start()) that is answered by its end alone. what: the story's subject. */
int guest_ask(struct guest *g, uint8_t type, const void *msg, const char *what, struct err *e);

struct guest_exec {
	char *const *argv;  /* this, */
	const char *script; /* or this for /bin/sh -c */
	char *const *env;   /* NULL: only the machine's own */
	const char *cwd;    /* NULL: / */
	const char *user;   /* NULL: root */
	uint64_t timeout_ms;
	bool pty;
	unsigned rows, cols;
	bool wait_output; /* also for background processes to close their output */
	bool feed_stdin;  /* from stdin_fd, until its end */
	int stdin_fd;
	/* chan is WIRE_OUT or WIRE_ERR. NULL: thrown away. */
	void (*output)(void *arg, uint8_t chan, const void *p, size_t n);
	/* Called when wake_fd (if wakeable) can be read: for window sizes and signals. */
	bool wakeable;
	int wake_fd;
	void (*wake)(void *arg, struct guest_call *c);
	void *arg;
};

struct guest_exit {
	uint64_t id;
	bool signaled, timed_out;
	int code; /* exit code or number of the signal */
	uint64_t out_bytes, err_bytes, cpu_us, max_rss_kib;
};

int guest_exec_wait(struct guest *g, const struct guest_exec *x, struct guest_exit *ret,
                    struct err *e);
/* Detached: it runs on without us. */
int guest_exec_start(struct guest *g, const struct guest_exec *x, uint64_t *ret_id, struct err *e);

struct guest_attach {
	uint64_t id;
	uint64_t out_offset, err_offset; /* in: from where; out: from where it really was */
	uint64_t lost;                   /* out: bytes that fell out of the ring while we read */
};

/* Replays and follows a detached exec to its end. Of x, output, stdin and wake count. */
int guest_exec_attach(struct guest *g, struct guest_attach *at, const struct guest_exec *x,
                      struct guest_exit *ret, struct err *e);
int guest_exec_signal(struct guest *g, uint64_t id, int signo, uint32_t flags, struct err *e);

/* each() once per command; strings are valid during the callback. */
int guest_exec_list(struct guest *g, void (*each)(void *arg, const struct wire_exec_info *m),
                    void *arg, struct err *e);

/* Whole file into memory, NUL behind it; EFBIG past max. Caller frees *ret. */
int guest_read_file(struct guest *g, const char *path, size_t max, char **ret, size_t *ret_n,
                    struct err *e);
/* The same into a file: a guest sends as much as it likes, whatever size it told before. */
int guest_read_to_fd(struct guest *g, const char *path, int fd, size_t max, struct err *e);
/* flags: WIRE_WRITE_*; mode 0: as it was, or 0644. */
int guest_write_file(struct guest *g, const char *path, const void *p, size_t n, uint32_t flags,
                     mode_t mode, struct err *e);
int guest_write_from_fd(struct guest *g, const char *path, int fd, uint32_t flags, mode_t mode,
                        struct err *e);

int guest_stat(struct guest *g, const char *path, bool follow, struct wire_file *ret,
               struct err *e); /* name and target of *ret are empty */
int guest_mkdir(struct guest *g, const char *path, mode_t mode, bool parents, struct err *e);
int guest_remove(struct guest *g, const char *path, bool recursive, struct err *e);
int guest_symlink(struct guest *g, const char *target, const char *path, struct err *e);
int guest_readlink(struct guest *g, const char *path, char **ret, struct err *e); /* caller frees */

int guest_stats(struct guest *g, struct wire_stats *ret, struct err *e);
int guest_sync(struct guest *g, struct err *e);

/* The file system (ext4) of a volume at path, which is made when it is missing. */
int guest_mount(struct guest *g, unsigned volume, const char *path, bool read_only, struct err *e);
/* Tells the machine who it is now, and then the mounts, all in one write. */
int guest_reborn_mount(struct guest *g, const struct wire_reborn *m,
                       const struct wire_mount *mounts, size_t n, struct err *e);
/* All of it is on the volume afterwards. force: also when it is in use; then it may not be. */
int guest_umount(struct guest *g, const char *path, bool force, struct err *e);
/* Whatever is mounted from a volume that this life was not given, by force. */
int guest_umount_lost(struct guest *g, struct err *e);
/* The volume is larger now: its file system, mounted at path, takes what there is. */
int guest_grow(struct guest *g, unsigned volume, const char *path, struct err *e);
/*
 * Nothing of the volume is changed, and the agent serves no client, until guest_thaw() on the same
 * guest, or until that is freed. guest_thaw() fails when that was WIRE_FREEZE_MS later.
 */
int guest_freeze(struct guest *g, unsigned volume, const char *path, struct err *e);
int guest_thaw(struct guest *g, struct err *e);
