#include "wire/guest.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/macro.h"

enum wire_kind {
	U32 = 1,
	U64,
	STR,
	BYTES,
	LIST,
	OPT_U32, /* the last field, or not there at all when it is 0 */
};

struct wire_field {
	uint8_t kind, offset;
};

enum {
	FIELDS_MAX = 14,
	STRUCT_MAX = 128, /* no message struct is larger; desc_size is checked below */
};

struct wire_desc {
	uint8_t size;
	struct wire_field f[FIELDS_MAX]; /* ends with kind 0 */
};

#define F(kind, s, m)                                       \
	{                                                   \
		kind, (uint8_t)offsetof(struct wire_##s, m) \
	}
#define DESC(s, ...)                                                               \
	_Static_assert(sizeof(struct wire_##s) <= STRUCT_MAX, "raise STRUCT_MAX"); \
	const struct wire_desc wire_##s##_desc = {sizeof(struct wire_##s), {__VA_ARGS__}}

DESC(exec, F(U32, exec, flags), F(U32, exec, window), F(U64, exec, timeout_ms), F(U32, exec, rows),
     F(U32, exec, cols), F(STR, exec, cwd), F(STR, exec, user), F(LIST, exec, argv),
     F(LIST, exec, env));
DESC(started, F(U64, started, id), F(U32, started, pid));
DESC(exited, F(U64, exited, id), F(U32, exited, how), F(U32, exited, code), F(U32, exited, flags),
     F(U64, exited, out_bytes), F(U64, exited, err_bytes), F(U64, exited, cpu_us),
     F(U64, exited, max_rss_kib));
DESC(attach, F(U64, attach, id), F(U64, attach, out_offset), F(U64, attach, err_offset),
     F(U32, attach, window), F(U32, attach, flags));
DESC(attached, F(U64, attached, id), F(U32, attached, pid), F(U64, attached, out_offset),
     F(U64, attached, err_offset));
DESC(gap, F(U64, gap, offset));
DESC(window, F(U32, window, window));
DESC(exec_info, F(U64, exec_info, id), F(U32, exec_info, pid), F(U32, exec_info, flags),
     F(U32, exec_info, how), F(U32, exec_info, code), F(U64, exec_info, out_from),
     F(U64, exec_info, out_to), F(U64, exec_info, err_from), F(U64, exec_info, err_to),
     F(STR, exec_info, command));
DESC(signal, F(U64, signal, id), F(U32, signal, signo), F(U32, signal, flags));
DESC(size, F(U32, size, rows), F(U32, size, cols));
DESC(end, F(U32, end, err), F(STR, end, text), F(OPT_U32, end, reason));
DESC(read, F(STR, read, path), F(U64, read, offset), F(U64, read, length), F(U32, read, window));
DESC(write, F(STR, write, path), F(U32, write, flags), F(U32, write, mode));
DESC(file, F(STR, file, name), F(STR, file, target), F(U32, file, mode), F(U32, file, uid),
     F(U32, file, gid), F(U32, file, nlink), F(U64, file, size), F(U64, file, mtime_ns),
     F(U64, file, ino));
DESC(path_flags, F(STR, path_flags, path), F(U32, path_flags, flags));
DESC(mkdir, F(STR, mkdir, path), F(U32, mkdir, flags), F(U32, mkdir, mode));
DESC(two_paths, F(STR, two_paths, from), F(STR, two_paths, to), F(U32, two_paths, flags));
DESC(path, F(STR, path, path));
DESC(watch, F(STR, watch, path), F(U32, watch, flags), F(U32, watch, window));
DESC(event, F(U32, event, what), F(U32, event, cookie), F(STR, event, path));
DESC(connect, F(U32, connect, port), F(U32, connect, window));
DESC(stats, F(U64, stats, mem_total), F(U64, stats, mem_free), F(U64, stats, mem_available),
     F(U64, stats, cpu_busy_ms), F(U64, stats, cpu_idle_ms), F(U64, stats, load1_milli),
     F(U64, stats, load5_milli), F(U64, stats, load15_milli), F(U64, stats, disk_total),
     F(U64, stats, disk_free), F(U64, stats, processes), F(U64, stats, uptime_ms),
     F(U64, stats, generation));
DESC(reborn, F(U64, reborn, generation), F(U64, reborn, wall_ns), F(STR, reborn, hostname),
     F(STR, reborn, machine_id), F(LIST, reborn, env), F(BYTES, reborn, entropy));
DESC(shutdown, F(U32, shutdown, grace_ms));
DESC(mount, F(U32, mount, volume), F(U32, mount, flags), F(STR, mount, path),
     F(STR, mount, fstype));

static const struct wire_desc raw; /* bytes, or nothing at all */

static const struct wire_desc *const types[] = {
    [WIRE_DATA] = &raw,
    [WIRE_EOF] = &raw,
    [WIRE_CREDIT] = &wire_window_desc,
    [WIRE_CANCEL] = &raw,
    [WIRE_RESIZE] = &wire_size_desc,
    [WIRE_STREAM_SIGNAL] = &wire_signal_desc,
    [WIRE_END] = &wire_end_desc,
    [WIRE_READY] = &raw,
    [WIRE_STARTED] = &wire_started_desc,
    [WIRE_EXITED] = &wire_exited_desc,
    [WIRE_ATTACHED] = &wire_attached_desc,
    [WIRE_GAP] = &wire_gap_desc,
    [WIRE_FILE] = &wire_file_desc,
    [WIRE_PATH] = &wire_path_desc,
    [WIRE_STATS_REPLY] = &wire_stats_desc,
    [WIRE_EXEC] = &wire_exec_desc,
    [WIRE_ATTACH] = &wire_attach_desc,
    [WIRE_LIST] = &wire_window_desc,
    [WIRE_SIGNAL] = &wire_signal_desc,
    [WIRE_READ] = &wire_read_desc,
    [WIRE_WRITE] = &wire_write_desc,
    [WIRE_DIR] = &wire_path_flags_desc,
    [WIRE_STAT] = &wire_path_flags_desc,
    [WIRE_MKDIR] = &wire_mkdir_desc,
    [WIRE_REMOVE] = &wire_path_flags_desc,
    [WIRE_RENAME] = &wire_two_paths_desc,
    [WIRE_CHMOD] = &wire_path_flags_desc,
    [WIRE_SYMLINK] = &wire_two_paths_desc,
    [WIRE_READLINK] = &wire_path_desc,
    [WIRE_WATCH] = &wire_watch_desc,
    [WIRE_CONNECT] = &wire_connect_desc,
    [WIRE_STATS] = &raw,
    [WIRE_SYNC] = &raw,
    [WIRE_REBORN] = &wire_reborn_desc,
    [WIRE_SHUTDOWN] = &wire_shutdown_desc,
    [WIRE_MOUNT] = &wire_mount_desc,
    [WIRE_UMOUNT] = &wire_path_flags_desc,
    [WIRE_GROW] = &wire_mount_desc,
    [WIRE_FREEZE] = &wire_mount_desc,
    [WIRE_THAW] = &raw,
};

bool wire_type_known(uint8_t type)
{
	return type < ARRAY_LEN(types) && types[type];
}

const struct wire_desc *wire_desc_of(uint8_t type)
{
	return wire_type_known(type) && types[type] != &raw ? types[type] : NULL;
}

static uint32_t get32(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put32(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)v;
	p[1] = (uint8_t)(v >> 8);
	p[2] = (uint8_t)(v >> 16);
	p[3] = (uint8_t)(v >> 24);
}

int wire_header_decode(const uint8_t b[WIRE_HEADER], struct wire_header *ret)
{
	uint32_t length = get32(b);

	if (b[4] != WIRE_VERSION || b[7] || length > WIRE_PAYLOAD_MAX)
		return -EPROTO;
	*ret = (struct wire_header){.length = length,
	                            .type = b[5],
	                            .chan = b[6],
	                            .stream = get32(b + 8)};
	return 0;
}

void wire_header_encode(const struct wire_header *h, uint8_t b[WIRE_HEADER])
{
	put32(b, h->length);
	b[4] = WIRE_VERSION;
	b[5] = h->type;
	b[6] = h->chan;
	b[7] = 0;
	put32(b + 8, h->stream);
}

struct cursor {
	const uint8_t *p;
	size_t n;
};

static bool take32(struct cursor *c, uint32_t *ret)
{
	if (c->n < 4)
		return false;
	*ret = get32(c->p);
	c->p += 4;
	c->n -= 4;
	return true;
}

static bool take_str(struct cursor *c, struct wire_str *ret)
{
	uint32_t len;

	if (!take32(c, &len) || len >= c->n)
		return false;
	if (memchr(c->p, 0, (size_t)len + 1) != c->p + len)
		return false; /* not ended, or cut short by a NUL inside */
	*ret = (struct wire_str){.p = (const char *)c->p, .len = len};
	c->p += (size_t)len + 1;
	c->n -= (size_t)len + 1;
	return true;
}

static bool take_field(struct cursor *c, enum wire_kind kind, void *at)
{
	uint32_t lo, hi;

	switch (kind) {
	case U32:
		return take32(c, at);
	case OPT_U32: /* a 0 that is there would be a second way to say the same */
		*(uint32_t *)at = 0;
		return !c->n || (take32(c, at) && *(uint32_t *)at);
	case U64: {
		uint64_t v;

		if (!take32(c, &lo) || !take32(c, &hi))
			return false;
		v = lo | (uint64_t)hi << 32;
		memcpy(at, &v, sizeof(v));
		return true;
	}
	case STR:
		return take_str(c, at);
	case BYTES: {
		struct wire_bytes v;

		if (!take32(c, &v.len) || v.len > c->n)
			return false;
		v.p = c->p;
		c->p += v.len;
		c->n -= v.len;
		memcpy(at, &v, sizeof(v));
		return true;
	}
	case LIST: {
		struct wire_list v;
		struct cursor in;
		struct wire_str s;

		if (!take32(c, &v.count) || !take32(c, &v.len) || v.len > c->n)
			return false;
		v.p = c->p;
		in = (struct cursor){.p = c->p, .n = v.len};
		for (uint32_t i = 0; i < v.count; i++)
			if (!take_str(&in, &s))
				return false;
		if (in.n)
			return false;
		c->p += v.len;
		c->n -= v.len;
		memcpy(at, &v, sizeof(v));
		return true;
	}
	}
	return false;
}

ssize_t wire_take(const struct wire_desc *d, const void *p, size_t n, void *ret)
{
	/* Filled aside: *ret stays as it was when the bytes turn out to be nonsense. */
	uint8_t tmp[STRUCT_MAX] __attribute__((aligned(8)));
	struct cursor c = {.p = p, .n = n};

	for (const struct wire_field *f = d->f; f < d->f + FIELDS_MAX && f->kind; f++)
		if (!take_field(&c, f->kind, tmp + f->offset))
			return -EPROTO;
	memcpy(ret, tmp, d->size);
	return (ssize_t)(n - c.n);
}

int wire_decode(const struct wire_desc *d, const void *p, size_t n, void *ret)
{
	uint8_t tmp[STRUCT_MAX] __attribute__((aligned(8)));
	ssize_t r = wire_take(d, p, n, tmp);

	if (r < 0)
		return (int)r;
	if ((size_t)r != n)
		return -EPROTO;
	memcpy(ret, tmp, d->size);
	return 0;
}

struct out {
	uint8_t *p;
	size_t n; /* room left */
};

static bool put(struct out *o, const void *p, size_t n)
{
	if (o->n < n)
		return false;
	if (n)
		memcpy(o->p, p, n);
	o->p += n;
	o->n -= n;
	return true;
}

static bool put_u32(struct out *o, uint32_t v)
{
	uint8_t b[4];

	put32(b, v);
	return put(o, b, sizeof(b));
}

static bool put_field(struct out *o, enum wire_kind kind, const void *at)
{
	switch (kind) {
	case U32:
		return put_u32(o, *(const uint32_t *)at);
	case OPT_U32:
		return !*(const uint32_t *)at || put_u32(o, *(const uint32_t *)at);
	case U64: {
		uint64_t v;

		memcpy(&v, at, sizeof(v));
		return put_u32(o, (uint32_t)v) && put_u32(o, (uint32_t)(v >> 32));
	}
	case STR: {
		const struct wire_str *s = at;

		return put_u32(o, s->len) && put(o, s->p, s->len) && put(o, "", 1);
	}
	case BYTES: {
		const struct wire_bytes *b = at;

		return put_u32(o, b->len) && put(o, b->p, b->len);
	}
	case LIST: {
		const struct wire_list *l = at;

		return put_u32(o, l->count) && put_u32(o, l->len) && put(o, l->p, l->len);
	}
	}
	return false;
}

static size_t field_length(enum wire_kind kind, const void *at)
{
	switch (kind) {
	case U32:
		return 4;
	case OPT_U32:
		return *(const uint32_t *)at ? 4 : 0;
	case U64:
		return 8;
	case STR:
		return 4 + (size_t)((const struct wire_str *)at)->len + 1;
	case BYTES:
		return 4 + (size_t)((const struct wire_bytes *)at)->len;
	case LIST:
		return 8 + (size_t)((const struct wire_list *)at)->len;
	}
	return 0;
}

size_t wire_length(const struct wire_desc *d, const void *msg)
{
	size_t n = 0;

	for (const struct wire_field *f = d->f; f < d->f + FIELDS_MAX && f->kind; f++)
		n += field_length(f->kind, (const uint8_t *)msg + f->offset);
	return n;
}

ssize_t wire_encode(const struct wire_desc *d, const void *msg, void *buf, size_t cap)
{
	struct out o = {.p = buf, .n = MIN(cap, (size_t)WIRE_PAYLOAD_MAX)};

	for (const struct wire_field *f = d->f; f < d->f + FIELDS_MAX && f->kind; f++)
		if (!put_field(&o, f->kind, (const uint8_t *)msg + f->offset))
			return -EMSGSIZE;
	return o.p - (uint8_t *)buf;
}

ssize_t wire_frame(const struct wire_header *h, const struct wire_desc *d, const void *msg,
                   void *buf, size_t cap)
{
	struct wire_header filled = *h;
	ssize_t r = 0;

	if (cap < WIRE_HEADER)
		return -EMSGSIZE;
	if (d)
		r = wire_encode(d, msg, (uint8_t *)buf + WIRE_HEADER, cap - WIRE_HEADER);
	if (r < 0)
		return r;
	filled.length = (uint32_t)r;
	wire_header_encode(&filled, buf);
	return r + WIRE_HEADER;
}

int wire_list_build(char *const *strv, void *buf, size_t cap, struct wire_list *ret)
{
	struct wire_list l = {.p = buf};
	struct out o = {.p = buf, .n = MIN(cap, (size_t)WIRE_PAYLOAD_MAX)};

	for (; strv && *strv; strv++) {
		size_t n = strlen(*strv);

		if (n > WIRE_PAYLOAD_MAX || !put_u32(&o, (uint32_t)n) || !put(&o, *strv, n + 1))
			return -E2BIG;
		l.count++;
	}
	l.len = (uint32_t)(o.p - (uint8_t *)buf);
	*ret = l;
	return 0;
}

const char *wire_list_next(const struct wire_list *l, uint32_t *pos)
{
	const char *s;

	if (*pos >= l->len)
		return NULL;
	s = (const char *)l->p + *pos + 4;
	*pos += 4 + get32(l->p + *pos) + 1;
	return s;
}
