/*
 * wire/guest.h - the guest protocol: what pandad and panda-init say to each other
 * Bytes in, structs out; no I/O, no allocation. Decoded strings, bytes and lists point into the
 * payload they came from. Whatever decodes, encodes again to exactly the same bytes.
 * docs/design/guest-protocol.md tells which message is answered by which.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	WIRE_VERSION = 0xa1, /* in every header: a peer of another age is refused at once */
	WIRE_HEADER = 12,
	WIRE_PAYLOAD_MAX = 65536,
	WIRE_FRAME_MAX = WIRE_HEADER + WIRE_PAYLOAD_MAX,
	WIRE_WINDOW = 65536,      /* credit every host-to-guest channel starts with */
	WIRE_WINDOW_MAX = 524288, /* and what it may grow to */
};

enum wire_chan {
	WIRE_IN = 0, /* host to guest: stdin, file content, tcp */
	WIRE_OUT = 1,
	WIRE_ERR = 2,
};

enum wire_type {
	/* on an open stream, either way */
	WIRE_DATA = 1, /* raw bytes on a channel */
	WIRE_EOF,      /* no more data on this channel */
	WIRE_CREDIT,   /* the receiver of a channel takes this much more */

	/* on an open stream, host to guest */
	WIRE_CANCEL,        /* stop; WIRE_END still follows */
	WIRE_RESIZE,        /* pty size */
	WIRE_STREAM_SIGNAL, /* signal the exec of this stream */

	/* on an open stream, guest to host */
	WIRE_END, /* the last frame of every stream */
	WIRE_READY,
	WIRE_STARTED,
	WIRE_EXITED,
	WIRE_ATTACHED,
	WIRE_GAP,
	WIRE_FILE,
	WIRE_PATH,
	WIRE_STATS_REPLY,

	/* requests: each opens the stream it names */
	WIRE_EXEC = 32,
	WIRE_ATTACH,
	WIRE_LIST,
	WIRE_SIGNAL,
	WIRE_READ,
	WIRE_WRITE,
	WIRE_DIR,
	WIRE_STAT,
	WIRE_MKDIR,
	WIRE_REMOVE,
	WIRE_RENAME,
	WIRE_CHMOD,
	WIRE_SYMLINK,
	WIRE_READLINK,
	WIRE_WATCH,
	WIRE_CONNECT,
	WIRE_STATS,
	WIRE_SYNC,
	WIRE_REBORN,
	WIRE_SHUTDOWN,
	WIRE_MOUNT,
	WIRE_UMOUNT,
	WIRE_GROW,
	WIRE_FREEZE,
	WIRE_THAW,
};

struct wire_header {
	uint32_t length; /* of the payload */
	uint8_t type;
	uint8_t chan;
	uint32_t stream;
};

struct wire_str {
	const char *p; /* p[len] is NUL and no other byte is */
	uint32_t len;
};

struct wire_bytes {
	const uint8_t *p;
	uint32_t len;
};

/* Strings one behind the other, already in wire form; see wire_list_next(). */
struct wire_list {
	const uint8_t *p;
	uint32_t len;
	uint32_t count;
};

enum {
	WIRE_EXEC_SHELL = 1,        /* argv is one script for /bin/sh -c */
	WIRE_EXEC_STDIN = 2,        /* stdin comes on the stream; otherwise it is /dev/null */
	WIRE_EXEC_PTY = 4,          /* implies STDIN; all output on WIRE_OUT */
	WIRE_EXEC_DETACH = 8,       /* the stream ends after STARTED, the exec goes on */
	WIRE_EXEC_STARTED = 16,     /* send STARTED; otherwise the id comes with EXITED only */
	WIRE_EXEC_WAIT_OUTPUT = 32, /* wait for the end of output, not only for the exit */
	WIRE_EXEC_HANGUP = 64, /* its stream lost or called off: stdin ends, nothing is killed */
	WIRE_EXEC_HOLD = 128,  /* with DETACH: all readers are as with WIRE_ATTACH_HOLD, and as long
	                          as there is none the program waits when its ring is full */
};

struct wire_exec {
	uint32_t flags;
	uint32_t window;     /* credit for each output channel */
	uint64_t timeout_ms; /* 0: none */
	uint32_t rows, cols;
	struct wire_str cwd;  /* empty: / */
	struct wire_str user; /* name, uid or uid:gid; empty: root */
	struct wire_list argv;
	struct wire_list env; /* "KEY=value", on top of the machine's own */
};

struct wire_started {
	uint64_t id;
	uint32_t pid;
};

enum {
	WIRE_HOW_EXIT = 0,
	WIRE_HOW_SIGNAL = 1,
};

enum {
	WIRE_EXITED_TIMEOUT = 1, /* its time was over, and we killed it */
	WIRE_EXITED_OOM = 2,     /* the kernel killed it, or one of its own: no memory */
};

struct wire_exited {
	uint64_t id;
	uint32_t how, code; /* exit code, or number of the signal */
	uint32_t flags;
	uint64_t out_bytes, err_bytes; /* all it ever wrote, seen by a reader or not */
	uint64_t cpu_us, max_rss_kib;
};

enum {
	WIRE_ATTACH_STDIN = 1, /* this stream feeds stdin; one stream at a time may */
	WIRE_ATTACH_HOLD = 2, /* nothing is lost to this reader: the program waits for it instead */
	/* With STDIN: ATTACHED comes when no other stream feeds the command and it has read what
	 * it got; what is sent before that is thrown away. A guest that was saved by 0.1.0 does
	 * not know it and answers EBUSY. */
	WIRE_ATTACH_WAIT = 4,
};

struct wire_attach {
	uint64_t id;
	uint64_t out_offset, err_offset;
	uint32_t window;
	uint32_t flags;
};

/* Where the replay really starts: later than asked when the ring has moved on. */
struct wire_attached {
	uint64_t id;
	uint32_t pid;
	uint64_t out_offset, err_offset;
};

/* The reader was too slow: the next byte on this channel has this offset. */
struct wire_gap {
	uint64_t offset;
};

struct wire_window {
	uint32_t window; /* of LIST and the payload of CREDIT */
};

enum {
	WIRE_INFO_RUNNING = 1,
	WIRE_INFO_DETACHED = 2,
	WIRE_INFO_PTY = 4,
	WIRE_INFO_TIMEOUT = 8,
	WIRE_INFO_OOM = 16,
};

/* LIST answers with data that is a row of these. */
struct wire_exec_info {
	uint64_t id;
	uint32_t pid, flags;
	uint32_t how, code;
	uint64_t out_from, out_to, err_from, err_to; /* what can be replayed */
	struct wire_str command;
};

enum {
	WIRE_SIGNAL_TREE = 1,   /* all it ever started, not only its process group */
	WIRE_SIGNAL_LEADER = 2, /* it alone */
};

struct wire_signal {
	uint64_t id; /* 0 in WIRE_STREAM_SIGNAL */
	uint32_t signo, flags;
};

struct wire_size {
	uint32_t rows, cols;
};

/* Why, for programs: text is for people, and may change. */
enum wire_reason {
	WIRE_REASON_NONE,      /* err says all there is; also what agents of 0.1.0 always mean */
	WIRE_REASON_DIRECTORY, /* of EXEC: cwd cannot be entered */
	WIRE_REASON_PROGRAM,   /* of EXEC: argv[0] cannot be started */
};

struct wire_end {
	uint32_t err; /* errno value, 0: all went well */
	struct wire_str text;
	uint32_t reason; /* on the wire only when it is not 0: agents of 0.1.0 have no such field */
};

struct wire_read {
	struct wire_str path;
	uint64_t offset, length; /* UINT64_MAX: to the end */
	uint32_t window;
};

enum {
	WIRE_WRITE_APPEND = 1, /* in place, at the end; otherwise the file is replaced as a whole */
	WIRE_WRITE_EXCL = 2,
	WIRE_WRITE_PARENTS = 4,
	WIRE_WRITE_SYNC = 8, /* on disk before END */
};

struct wire_write {
	struct wire_str path;
	uint32_t flags;
	uint32_t mode; /* 0: as the file it replaces, or 0644 */
};

/* FILE, and what the data of DIR is a row of. */
struct wire_file {
	struct wire_str name, target; /* target: of a symbolic link */
	uint32_t mode, uid, gid, nlink;
	uint64_t size, mtime_ns, ino;
};

enum {
	WIRE_STAT_NOFOLLOW = 1,
	WIRE_MKDIR_PARENTS = 1,
	WIRE_REMOVE_RECURSIVE = 1,
	WIRE_RENAME_NOREPLACE = 1,
	WIRE_WATCH_RECURSIVE = 1,
};

/* DIR (flags is window), STAT, REMOVE and CHMOD (flags is mode) */
struct wire_path_flags {
	struct wire_str path;
	uint32_t flags;
};

struct wire_mkdir {
	struct wire_str path;
	uint32_t flags, mode;
};

/* RENAME: from and to. SYMLINK: target and path; no flags */
struct wire_two_paths {
	struct wire_str from, to;
	uint32_t flags;
};

struct wire_path {
	struct wire_str path;
};

struct wire_watch {
	struct wire_str path;
	uint32_t flags, window;
};

enum {
	WIRE_EV_CREATE = 1,
	WIRE_EV_MODIFY = 2,
	WIRE_EV_DELETE = 4,
	WIRE_EV_MOVED_FROM = 8,
	WIRE_EV_MOVED_TO = 16,
	WIRE_EV_ATTRIB = 32,
	WIRE_EV_OVERFLOW = 64, /* events were lost: look again */
	WIRE_EV_GONE = 128,    /* the watched path itself is no more */
	WIRE_EV_WRITTEN = 256, /* a writer closed it */
	WIRE_EV_DIR = 512,     /* it happened to a directory */
};

/* WATCH answers with data that is a row of these. */
struct wire_event {
	uint32_t what, cookie; /* equal cookies tie MOVED_FROM and MOVED_TO together */
	struct wire_str path;  /* below the watched path */
};

struct wire_connect {
	uint32_t port, window;
};

struct wire_stats {
	uint64_t mem_total, mem_free, mem_available; /* bytes */
	uint64_t cpu_busy_ms, cpu_idle_ms;
	uint64_t load1_milli, load5_milli, load15_milli;
	uint64_t disk_total, disk_free; /* bytes, of / */
	uint64_t processes, uptime_ms, generation;
};

struct wire_reborn {
	uint64_t generation, wall_ns; /* wall_ns 0: the kernel has set the clock already */
	struct wire_str hostname, machine_id;
	struct wire_list env;
	struct wire_bytes entropy;
};

struct wire_shutdown {
	uint32_t grace_ms; /* between SIGTERM and SIGKILL */
};

enum {
	WIRE_MOUNT_RO = 1,
	WIRE_UMOUNT_FORCE = 1, /* busy or not: the path is free at once, the rest follows */
	WIRE_UMOUNT_LOST = 2,  /* by force, and all whose device has no file any more; "/" */
};

/*
 * UMOUNT is a wire_path_flags. GROW and FREEZE are about what MOUNT has put there: GROW lets the
 * file system have all of its device. After FREEZE nothing is written until the next frame of this
 * connection, or its end, or WIRE_FREEZE_MS later, and no other client is served; THAW (no payload)
 * says whether it lasted that long: ETIMEDOUT.
 */
enum { WIRE_FREEZE_MS = 5000 };

struct wire_mount {
	uint32_t volume; /* which of the machine's volumes, from 0 on */
	uint32_t flags;
	struct wire_str path;   /* absolute; made when it is missing */
	struct wire_str fstype; /* empty: ext4 */
};

/* Whatever a request carries: room to decode it into. */
union wire_request {
	struct wire_exec exec;
	struct wire_attach attach;
	struct wire_window window;
	struct wire_signal signal;
	struct wire_read read;
	struct wire_write write;
	struct wire_path_flags path_flags;
	struct wire_mkdir mkdir;
	struct wire_two_paths two_paths;
	struct wire_path path;
	struct wire_watch watch;
	struct wire_connect connect;
	struct wire_reborn reborn;
	struct wire_shutdown shutdown;
	struct wire_mount mount;
};

/* -EPROTO: wrong version, oversized, or a reserved byte is set. */
int wire_header_decode(const uint8_t b[WIRE_HEADER], struct wire_header *ret);
void wire_header_encode(const struct wire_header *h, uint8_t b[WIRE_HEADER]);

struct wire_desc; /* the fields of one message */

/* The whole payload is one message. -EPROTO for anything else; *ret untouched then. */
int wire_decode(const struct wire_desc *d, const void *p, size_t n, void *ret);

/* The first message of a row; returns its length. -EPROTO. */
ssize_t wire_take(const struct wire_desc *d, const void *p, size_t n, void *ret);

/* How long a message is in wire form; more than WIRE_PAYLOAD_MAX: it fits into no frame. */
size_t wire_length(const struct wire_desc *d, const void *msg);

/* Returns the length. -EMSGSIZE when it does not fit into cap or into a frame. */
ssize_t wire_encode(const struct wire_desc *d, const void *msg, void *buf, size_t cap);

/* The same with a header in front. */
ssize_t wire_frame(const struct wire_header *h, const struct wire_desc *d, const void *msg,
                   void *buf, size_t cap);

/* The message a frame type carries. NULL: raw bytes or nothing (see wire_type_known()). */
const struct wire_desc *wire_desc_of(uint8_t type);
bool wire_type_known(uint8_t type);

static inline struct wire_str wire_str(const char *s)
{
	return (struct wire_str){.p = s, .len = (uint32_t)__builtin_strlen(s)};
}

/* Is it what a directory calls one of its files? A guest that lies may say "../../etc" or "/x". */
static inline bool wire_is_name(const struct wire_str *s)
{
	return s->len && !__builtin_memchr(s->p, '/', s->len) && __builtin_strcmp(s->p, ".") != 0 &&
	       __builtin_strcmp(s->p, "..") != 0;
}

/* Lays out a NULL-terminated array (NULL: empty) in buf, which *ret points into. -E2BIG. */
int wire_list_build(char *const *strv, void *buf, size_t cap, struct wire_list *ret);

/* Steps through a decoded list: *pos starts as 0. NULL at the end. */
const char *wire_list_next(const struct wire_list *l, uint32_t *pos);

#define WIRE_CODEC(name)                                                                           \
	extern const struct wire_desc wire_##name##_desc;                                          \
	static inline int wire_##name##_decode(const void *p, size_t n, struct wire_##name *ret)   \
	{                                                                                          \
		return wire_decode(&wire_##name##_desc, p, n, ret);                                \
	}                                                                                          \
	static inline ssize_t wire_##name##_take(const void *p, size_t n, struct wire_##name *ret) \
	{                                                                                          \
		return wire_take(&wire_##name##_desc, p, n, ret);                                  \
	}                                                                                          \
	static inline ssize_t wire_##name##_encode(const struct wire_##name *m, void *b, size_t n) \
	{                                                                                          \
		return wire_encode(&wire_##name##_desc, m, b, n);                                  \
	}
WIRE_CODEC(exec)
WIRE_CODEC(started)
WIRE_CODEC(exited)
WIRE_CODEC(attach)
WIRE_CODEC(attached)
WIRE_CODEC(gap)
WIRE_CODEC(window)
WIRE_CODEC(exec_info)
WIRE_CODEC(signal)
WIRE_CODEC(size)
WIRE_CODEC(end)
WIRE_CODEC(read)
WIRE_CODEC(write)
WIRE_CODEC(file)
WIRE_CODEC(path_flags)
WIRE_CODEC(mkdir)
WIRE_CODEC(two_paths)
WIRE_CODEC(path)
WIRE_CODEC(watch)
WIRE_CODEC(event)
WIRE_CODEC(connect)
WIRE_CODEC(stats)
WIRE_CODEC(reborn)
WIRE_CODEC(shutdown)
WIRE_CODEC(mount)
#undef WIRE_CODEC
