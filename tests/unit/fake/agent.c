#include "agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"

enum { MUTE_LOOK_MS = 5 /* a silent one looks so often whether it may speak */ };

/* ---- small things ---- */

void buf_add(struct buf *b, const void *p, size_t n)
{
	if (b->n + n > b->cap) {
		b->cap = (b->n + n) * 2;
		b->p = realloc(b->p, b->cap);
		if (!b->p)
			abort();
	}
	if (n)
		memcpy(b->p + b->n, p, n);
	b->n += n;
}

void buf_free(struct buf *b)
{
	free(b->p);
	*b = (struct buf){0};
}

static void buf_cut(struct buf *b, size_t n)
{
	memmove(b->p, b->p + n, b->n - n);
	b->n -= n;
}

static uint64_t agent_now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void rules_read(struct fake_agent *a)
{
	json_decref(a->rules);
	a->rules = json_load_file(a->rules_path, 0, NULL);
}

/* What a test wants of this machine, or of all of them ("*"), under this heading. */
static const json_t *rule(const struct fake_agent *a, const char *heading)
{
	const json_t *list = json_object_get(a->rules, heading);
	const json_t *mine = json_object_get(list, a->id);

	return mine ? mine : json_object_get(list, "*");
}

static const char *mood(struct fake_agent *a)
{
	const char *s = json_string_value(rule(a, "mood"));

	return s ? s : "";
}

/* ---- frames out ---- */

static void frame_send(struct agent_conn *c, uint32_t stream, uint8_t type, uint8_t chan,
                       const void *msg)
{
	static uint8_t room[WIRE_FRAME_MAX];
	struct wire_header h = {.type = type, .chan = chan, .stream = stream};
	ssize_t n = wire_frame(&h, wire_desc_of(type), msg, room, sizeof(room));

	if (n < 0)
		abort();
	buf_add(&c->out, room, (size_t)n);
}

static void frame_data(struct agent_conn *c, uint32_t stream, uint8_t chan, const void *p, size_t n)
{
	struct wire_header h = {.length = (uint32_t)n,
	                        .type = WIRE_DATA,
	                        .chan = chan,
	                        .stream = stream};
	uint8_t head[WIRE_HEADER];

	wire_header_encode(&h, head);
	buf_add(&c->out, head, sizeof(head));
	buf_add(&c->out, p, n);
}

static void frame_end_why(struct agent_conn *c, uint32_t stream, int err, enum wire_reason reason,
                          const char *text)
{
	struct wire_end m = {.err = (uint32_t)err,
	                     .text = wire_str(text ? text : ""),
	                     .reason = reason};

	frame_send(c, stream, WIRE_END, 0, &m);
}

static void frame_end(struct agent_conn *c, uint32_t stream, int err, const char *text)
{
	frame_end_why(c, stream, err, WIRE_REASON_NONE, text);
}

/* ---- streams ---- */

static struct agent_stream *stream_new(struct agent_conn *c, const struct wire_header *h,
                                       uint32_t window)
{
	struct agent_stream *s = calloc(1, sizeof(*s));

	if (!s)
		abort();
	s->id = h->stream;
	s->type = h->type;
	s->credit[0] = s->credit[1] = window;
	s->next = c->streams;
	c->streams = s;
	return s;
}

static struct agent_stream *stream_find(struct agent_conn *c, uint32_t id)
{
	struct agent_stream *s = c->streams;

	while (s && s->id != id)
		s = s->next;
	return s;
}

static void exec_free(struct fake_agent *a, struct agent_exec *x)
{
	struct agent_exec **p = &a->execs;

	while (*p != x)
		p = &(*p)->next;
	*p = x->next;
	buf_free(&x->out[0]);
	buf_free(&x->out[1]);
	buf_free(&x->in);
	buf_free(&x->cells);
	free(x->env);
	free(x);
}

static bool exec_shown(const struct fake_agent *a, const struct agent_exec *x)
{
	for (size_t i = 0; i < AGENT_CONNS; i++)
		for (struct agent_stream *s = a->conns[i].streams; s; s = s->next)
			if (s->exec == x)
				return true;
	return false;
}

static void stream_free(struct fake_agent *a, struct agent_conn *c, struct agent_stream *s)
{
	struct agent_stream **p = &c->streams;
	struct agent_exec *x = s->exec;

	while (*p != s)
		p = &(*p)->next;
	*p = s->next;
	buf_free(&s->own[0]);
	buf_free(&s->own[1]);
	buf_free(&s->in);
	json_decref(s->service);
	free(s);
	if (x && !x->detached && !exec_shown(a, x))
		exec_free(a, x);
}

static void exec_exited(struct agent_conn *c, struct agent_stream *s)
{
	struct agent_exec *x = s->exec;
	struct wire_exited m = {.id = x->id,
	                        .how = x->how,
	                        .code = x->code,
	                        .flags = x->exited,
	                        .out_bytes = x->out[0].n,
	                        .err_bytes = x->out[1].n};

	frame_send(c, s->id, WIRE_EXITED, 0, &m);
}

/* A frame of records has whole ones: the most of n bytes that are. */
static size_t whole_records(const struct agent_stream *s, const void *p, size_t n)
{
	size_t whole = 0;

	for (;;) {
		const uint8_t *at = (const uint8_t *)p + whole;
		size_t rest = n - whole;
		ssize_t r;

		if (!rest)
			return n;
		if (s->type == WIRE_DIR)
			r = wire_file_take(at, rest, &(struct wire_file){0});
		else if (s->type == WIRE_LIST)
			r = wire_exec_info_take(at, rest, &(struct wire_exec_info){0});
		else if (s->type == WIRE_WATCH)
			r = wire_event_take(at, rest, &(struct wire_event){0});
		else
			return n;
		if (r <= 0)
			return whole;
		whole += (size_t)r;
	}
}

static bool stdin_taken(const struct fake_agent *a, const struct agent_exec *x)
{
	for (size_t i = 0; i < AGENT_CONNS; i++)
		for (struct agent_stream *s = a->conns[i].streams; s; s = s->next)
			if (s->exec == x && s->feeds)
				return x->running;
	return false;
}

/* Its output begins where it asked for, or at the end. */
static void stream_attach(struct agent_conn *c, struct agent_stream *s)
{
	struct agent_exec *x = s->exec;

	for (size_t i = 0; i < 2; i++)
		s->sent[i] = MIN(s->sent[i], x->out[i].n);
	frame_send(c, s->id, WIRE_ATTACHED, 0,
	           &(struct wire_attached){.id = x->id,
	                                   .pid = 1000 + (uint32_t)x->id,
	                                   .out_offset = s->sent[0],
	                                   .err_offset = s->sent[1]});
}

/* Sends what there is and what credit allows; ends it when nothing is left. */
static void stream_pump(struct fake_agent *a, struct agent_conn *c, struct agent_stream *s)
{
	struct buf *src = s->exec ? s->exec->out : s->own;
	bool drained = true;

	if (s->waits) {
		if (stdin_taken(a, s->exec))
			return;
		s->waits = false;
		s->feeds = true;
		stream_attach(c, s);
	}
	for (unsigned i = 0; i < 2; i++) {
		while (s->sent[i] < src[i].n && s->credit[i]) {
			size_t n = MIN(src[i].n - s->sent[i], (size_t)s->credit[i]);

			n = whole_records(s, src[i].p + s->sent[i], MIN(n, (size_t)32768));
			if (!n)
				break;
			frame_data(c, s->id, (uint8_t)(WIRE_OUT + i), src[i].p + s->sent[i], n);
			s->sent[i] += n;
			s->credit[i] -= (uint32_t)n;
		}
		drained = drained && s->sent[i] >= src[i].n;
	}
	if (!drained || !(s->exec ? !s->exec->running : s->over))
		return;
	if (s->exec && !s->failed)
		exec_exited(c, s);
	if (s->eof)
		frame_send(c, s->id, WIRE_EOF, WIRE_OUT, NULL);
	frame_end(c, s->id, s->err, s->text);
	stream_free(a, c, s);
}

static void pump_all(struct fake_agent *a)
{
	for (size_t i = 0; i < AGENT_CONNS; i++) {
		struct agent_stream *s, *next;

		for (s = a->conns[i].streams; s; s = next) {
			next = s->next;
			stream_pump(a, &a->conns[i], s);
		}
	}
}

/* ---- commands ---- */

void exec_output(struct agent_exec *x, unsigned chan, const void *p, size_t n)
{
	buf_add(&x->out[chan], p, n);
}

void exec_end(struct agent_exec *x, uint32_t how, uint32_t code)
{
	if (!x->running)
		return;
	x->running = false;
	x->how = how;
	x->code = code;
}

static struct agent_exec *exec_find(struct fake_agent *a, uint64_t id)
{
	struct agent_exec *x = a->execs;

	while (x && x->id != id)
		x = x->next;
	return x;
}

static struct agent_exec *exec_new(struct fake_agent *a, const struct wire_exec *m)
{
	struct agent_exec *x = calloc(1, sizeof(*x));
	const char *word;
	uint32_t pos = 0;
	size_t n = 0;
	struct buf env = {0};

	if (!x)
		abort();
	x->id = ++a->next_exec;
	x->flags = m->flags;
	x->running = true;
	x->detached = m->flags & WIRE_EXEC_DETACH;
	x->deadline_ms = m->timeout_ms ? agent_now_ms() + m->timeout_ms : 0;
	snprintf(x->cwd, sizeof(x->cwd), "%s", m->cwd.len ? m->cwd.p : "/");
	snprintf(x->user, sizeof(x->user), "%s", m->user.len ? m->user.p : "root");
	while ((word = wire_list_next(&m->argv, &pos)) && n < sizeof(x->text))
		n += (size_t)snprintf(x->text + n, sizeof(x->text) - n, "%s%s", n ? " " : "", word);
	pos = 0;
	while ((word = wire_list_next(&m->env, &pos))) {
		buf_add(&env, word, strlen(word));
		buf_add(&env, "\n", 1);
	}
	buf_add(&env, "", 1);
	x->env = env.p;
	x->next = a->execs;
	a->execs = x;
	return x;
}

/* As a rule says: {"out", "err", "code", "signal", "hang"}. False: no rule for this program. */
static bool exec_by_rule(struct fake_agent *a, struct agent_exec *x, const char *program)
{
	const json_t *r = json_object_get(json_object_get(a->rules, "exec"), program);
	const char *out = json_string_value(json_object_get(r, "out"));
	const char *err = json_string_value(json_object_get(r, "err"));
	const json_t *signo = json_object_get(r, "signal");

	if (!r)
		return false;
	exec_output(x, 0, out ? out : "", out ? strlen(out) : 0);
	exec_output(x, 1, err ? err : "", err ? strlen(err) : 0);
	if (json_is_true(json_object_get(r, "hang")))
		return true;
	exec_end(x, signo ? WIRE_HOW_SIGNAL : WIRE_HOW_EXIT,
	         (uint32_t)json_integer_value(signo ? signo : json_object_get(r, "code")));
	return true;
}

static int exec_run(struct fake_agent *a, struct agent_exec *x, const struct wire_exec *m)
{
	char *argv[256];
	uint32_t pos = 0, n = 0;
	const char *word, *slash;

	while (n < ARRAY_LEN(argv) - 1 && (word = wire_list_next(&m->argv, &pos)))
		argv[n++] = (char *)word;
	argv[n] = NULL;
	if (!n)
		return -EINVAL;
	slash = strrchr(argv[0], '/');
	if (exec_by_rule(a, x, argv[0]) || (slash && exec_by_rule(a, x, slash + 1)))
		return 0;
	return program_start(a, x, argv, m->flags & WIRE_EXEC_SHELL);
}

static void exec_request(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h,
                         const struct wire_exec *m)
{
	struct agent_exec *x = exec_new(a, m);
	struct wire_started started = {.id = x->id, .pid = 1000 + (uint32_t)x->id};
	struct agent_stream *s;
	const char *rest;
	struct tree *t = agent_resolve(a, x->cwd, &rest);
	int r = 0;

	if (!t || !tree_find(t, rest)) {
		frame_end_why(c, h->stream, ENOENT, WIRE_REASON_DIRECTORY,
		              "cannot enter directory");
		exec_free(a, x);
		return;
	}
	r = exec_run(a, x, m);
	if (r < 0) {
		frame_end_why(c, h->stream, -r, WIRE_REASON_PROGRAM, "cannot start program");
		exec_free(a, x);
		return;
	}
	if (m->flags & (WIRE_EXEC_STARTED | WIRE_EXEC_DETACH))
		frame_send(c, h->stream, WIRE_STARTED, 0, &started);
	if (x->detached) {
		frame_end(c, h->stream, 0, NULL);
		return;
	}
	s = stream_new(c, h, m->window);
	s->exec = x;
	if (!(m->flags & (WIRE_EXEC_STDIN | WIRE_EXEC_PTY)))
		program_eof(a, x);
}

static void exec_attach(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h,
                        const struct wire_attach *m)
{
	struct agent_exec *x = exec_find(a, m->id);
	bool stdin_too = m->flags & WIRE_ATTACH_STDIN;
	bool waits = x && stdin_too && stdin_taken(a, x);
	struct agent_stream *s;

	if (!x || !x->detached) {
		frame_end(c, h->stream, ESRCH, "no such exec");
		return;
	}
	if (waits && !(m->flags & WIRE_ATTACH_WAIT)) {
		frame_end(c, h->stream, EBUSY, "stdin is fed by another stream");
		return;
	}
	s = stream_new(c, h, m->window);
	s->exec = x;
	s->waits = waits;
	s->feeds = stdin_too && !waits;
	s->sent[0] = (size_t)m->out_offset;
	s->sent[1] = (size_t)m->err_offset;
	if (!waits)
		stream_attach(c, s);
}

static void exec_list(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h,
                      uint32_t window)
{
	struct agent_stream *s = stream_new(c, h, window);
	uint8_t room[1024];

	for (struct agent_exec *x = a->execs; x; x = x->next) {
		struct wire_exec_info m = {.id = x->id,
		                           .pid = 1000 + (uint32_t)x->id,
		                           .flags =
		                               (x->running ? WIRE_INFO_RUNNING : 0) |
		                               (x->detached ? WIRE_INFO_DETACHED : 0) |
		                               (x->exited & WIRE_EXITED_TIMEOUT ? WIRE_INFO_TIMEOUT
		                                                                : 0),
		                           .how = x->how,
		                           .code = x->code,
		                           .out_to = x->out[0].n,
		                           .err_to = x->out[1].n,
		                           .command = wire_str(x->text)};
		ssize_t n = wire_exec_info_encode(&m, room, sizeof(room));

		if (n > 0)
			buf_add(&s->own[0], room, (size_t)n);
	}
	s->over = true;
}

/* Signal 0 asks whether it is there; what is blocked or handled is for real guests. */
static int exec_signal(struct fake_agent *a, uint64_t id, uint32_t signo)
{
	struct agent_exec *x = exec_find(a, id);

	if (!x || !x->running)
		return ESRCH;
	if (signo == SIGINT && x->repl)
		repl_interrupt(x);
	else if (signo && signo != SIGCONT && signo != SIGSTOP && signo != SIGWINCH)
		exec_end(x, WIRE_HOW_SIGNAL, signo);
	return 0;
}

/* ---- files ---- */

struct tree *agent_resolve(struct fake_agent *a, const char *path, const char **ret)
{
	static char clean[4][1024];
	static unsigned turn;
	char *p = clean[turn++ % 4];
	struct tree *t = &a->root;
	size_t best = 0, len;

	if (path[0] != '/')
		return NULL;
	snprintf(p, sizeof(clean[0]), "%s", path);
	while ((len = strlen(p)) > 0 && p[len - 1] == '/')
		p[len - 1] = 0;
	if (!strncmp(p, "/dev/shm", 8) && (!p[8] || p[8] == '/')) {
		t = &a->shm;
		best = 8;
	}
	for (size_t i = 0; i < FAKE_VOLUMES; i++) {
		struct agent_mount *m = &a->mounts[i];
		size_t n = strlen(m->path);

		if (m->there && n > best && !strncmp(p, m->path, n) && (!p[n] || p[n] == '/')) {
			t = &m->tree;
			best = n;
		}
	}
	*ret = p[best] == '/' ? p + best + 1 : p + best;
	return t;
}

static struct wire_file file_of(const struct node *n, const char *name)
{
	return (struct wire_file){.name = wire_str(name),
	                          .target = wire_str(S_ISLNK(n->mode) ? n->data : ""),
	                          .mode = n->mode,
	                          .nlink = 1,
	                          .size = n->n,
	                          .mtime_ns = n->mtime_ns,
	                          .ino = n->ino};
}

/* Through one link; a fake guest has no chains of them. */
static struct node *file_find(struct fake_agent *a, const char *path, bool follow)
{
	const char *rest;
	struct tree *t = agent_resolve(a, path, &rest);
	struct node *n = t ? tree_find(t, rest) : NULL;

	if (n && follow && S_ISLNK(n->mode) && n->data[0] == '/')
		n = file_find(a, n->data, false);
	return n;
}

static void file_read(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h,
                      const struct wire_read *m)
{
	struct node *n = file_find(a, m->path.p, true);
	struct agent_stream *s;
	struct wire_file f;
	size_t from;

	if (!n || !S_ISREG(n->mode)) {
		frame_end(c, h->stream, n ? EISDIR : ENOENT, n ? "is a directory" : "not found");
		return;
	}
	f = file_of(n, "");
	frame_send(c, h->stream, WIRE_FILE, 0, &f);
	s = stream_new(c, h, m->window);
	from = (size_t)MIN(m->offset, (uint64_t)n->n);
	buf_add(&s->own[0], n->data + from, (size_t)MIN(m->length, (uint64_t)(n->n - from)));
	s->over = true;
}

static void file_write(struct agent_conn *c, const struct wire_header *h,
                       const struct wire_write *m)
{
	struct agent_stream *s = stream_new(c, h, 0);
	struct wire_window more = {.window = WIRE_WINDOW_MAX - WIRE_WINDOW};

	snprintf(s->path, sizeof(s->path), "%s", m->path.p);
	s->flags = m->flags;
	s->mode = m->mode;
	frame_send(c, h->stream, WIRE_CREDIT, WIRE_IN, &more);
}

static int file_written(struct fake_agent *a, struct agent_stream *s)
{
	const char *rest;
	struct tree *t = agent_resolve(a, s->path, &rest);
	struct node *n = t ? tree_find(t, rest) : NULL;
	uint32_t mode = s->mode ? s->mode : n ? n->mode & 07777 : 0644;

	if (!t)
		return -EINVAL;
	if (!strncmp(s->path, "/sys/", 5))
		return tree_put(t, rest, S_IFREG | 0644, s->in.p, s->in.n, true); /* a kernel's */
	if (n && s->flags & WIRE_WRITE_EXCL)
		return -EEXIST;
	if (s->flags & WIRE_WRITE_APPEND)
		return tree_append(t, rest, s->in.p, s->in.n);
	return tree_put(t, rest, S_IFREG | mode, s->in.p, s->in.n, s->flags & WIRE_WRITE_PARENTS);
}

static void file_dir(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h,
                     const struct wire_path_flags *m)
{
	const char *rest;
	struct tree *t = agent_resolve(a, m->path.p, &rest);
	struct node *dir = t ? tree_find(t, rest) : NULL;
	const json_t *many = json_object_get(json_object_get(a->rules, "dir"), m->path.p);
	uint8_t room[2048];
	struct agent_stream *s;

	if (!dir || !S_ISDIR(dir->mode)) {
		frame_end(c, h->stream, dir ? ENOTDIR : ENOENT, "no directory");
		return;
	}
	s = stream_new(c, h, m->flags);
	for (json_int_t i = 0; i < json_integer_value(many); i++) {
		struct wire_file f = {.mode = S_IFREG | 0644, .nlink = 1};
		char name[32];
		ssize_t len;

		snprintf(name, sizeof(name), "f%lld", (long long)i);
		f.name = wire_str(name);
		len = wire_file_encode(&f, room, sizeof(room));
		if (len > 0)
			buf_add(&s->own[0], room, (size_t)len);
	}
	for (struct node *n = t->nodes; n; n = n->next) {
		const char *name = tree_child(n, rest);
		struct wire_file f;
		ssize_t len;

		if (!name)
			continue;
		f = file_of(n, name);
		len = wire_file_encode(&f, room, sizeof(room));
		if (len > 0)
			buf_add(&s->own[0], room, (size_t)len);
	}
	s->over = true;
}

static void file_stat(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h,
                      const struct wire_path_flags *m)
{
	struct node *n = file_find(a, m->path.p, !(m->flags & WIRE_STAT_NOFOLLOW));
	struct wire_file f;

	if (n) {
		f = file_of(n, "");
		frame_send(c, h->stream, WIRE_FILE, 0, &f);
	}
	frame_end(c, h->stream, n ? 0 : ENOENT, n ? NULL : "not found");
}

static void file_readlink(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h,
                          const struct wire_path *m)
{
	struct node *n = file_find(a, m->path.p, false);
	struct wire_path p;

	if (n && S_ISLNK(n->mode)) {
		p.path = wire_str(n->data);
		frame_send(c, h->stream, WIRE_PATH, 0, &p);
	}
	frame_end(c, h->stream, !n ? ENOENT : S_ISLNK(n->mode) ? 0 : EINVAL, NULL);
}

static int file_rename(struct fake_agent *a, const struct wire_two_paths *m)
{
	const char *from, *to;
	struct tree *t = agent_resolve(a, m->from.p, &from), *t2 = agent_resolve(a, m->to.p, &to);

	if (!t || t != t2)
		return -EXDEV;
	return tree_rename(t, from, to, !(m->flags & WIRE_RENAME_NOREPLACE));
}

/* MKDIR, REMOVE, RENAME, CHMOD, SYMLINK: what is answered by its end alone. */
static int file_change(struct fake_agent *a, uint8_t type, const union wire_request *m)
{
	const char *path = type == WIRE_RENAME    ? m->two_paths.from.p
	                   : type == WIRE_SYMLINK ? m->two_paths.to.p
	                   : type == WIRE_MKDIR   ? m->mkdir.path.p
	                                          : m->path_flags.path.p;
	const char *rest;
	struct tree *t = agent_resolve(a, path, &rest);
	int r;

	if (!t)
		return -EINVAL;
	switch (type) {
	case WIRE_MKDIR:
		r = tree_put(t, rest, S_IFDIR | (m->mkdir.mode ? m->mkdir.mode : 0755), NULL, 0,
		             m->mkdir.flags & WIRE_MKDIR_PARENTS);
		return r == -EEXIST && m->mkdir.flags & WIRE_MKDIR_PARENTS ? 0 : r;
	case WIRE_REMOVE:
		return tree_remove(t, rest, m->path_flags.flags & WIRE_REMOVE_RECURSIVE);
	case WIRE_RENAME:
		return file_rename(a, &m->two_paths);
	case WIRE_CHMOD:
		return tree_chmod(t, rest, m->path_flags.flags);
	default:
		return tree_put(t, rest, S_IFLNK | 0777, m->two_paths.from.p,
		                strlen(m->two_paths.from.p), false);
	}
}

/* A change of this path, for whoever watches the directory that it is in, or one above. */
static void watch_tell(struct fake_agent *a, const char *path, uint32_t what)
{
	uint8_t room[1024];

	for (size_t i = 0; i < AGENT_CONNS; i++)
		for (struct agent_stream *s = a->conns[i].streams; s; s = s->next) {
			size_t n = strlen(s->path);
			struct wire_event m = {.what = what};
			ssize_t len;

			if (s->type != WIRE_WATCH || strncmp(path, s->path, n) != 0 ||
			    (n > 1 && path[n] != '/'))
				continue;
			m.path = wire_str(path + n + (n > 1));
			if (strchr(m.path.p, '/') && !(s->flags & WIRE_WATCH_RECURSIVE))
				continue;
			len = wire_event_encode(&m, room, sizeof(room));
			if (len > 0)
				buf_add(&s->own[0], room, (size_t)len);
		}
}

static void watch_change(struct fake_agent *a, uint8_t type, const union wire_request *m)
{
	switch (type) {
	case WIRE_MKDIR:
		watch_tell(a, m->mkdir.path.p, WIRE_EV_CREATE | WIRE_EV_DIR);
		break;
	case WIRE_REMOVE:
		watch_tell(a, m->path_flags.path.p, WIRE_EV_DELETE);
		break;
	case WIRE_RENAME:
		watch_tell(a, m->two_paths.from.p, WIRE_EV_MOVED_FROM);
		watch_tell(a, m->two_paths.to.p, WIRE_EV_MOVED_TO);
		break;
	case WIRE_SYMLINK:
		watch_tell(a, m->two_paths.to.p, WIRE_EV_CREATE);
		break;
	case WIRE_CHMOD:
		watch_tell(a, m->path_flags.path.p, WIRE_EV_ATTRIB);
		break;
	}
}

static void watch_request(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h,
                          const struct wire_watch *m)
{
	struct node *n = file_find(a, m->path.p, true);
	struct agent_stream *s;

	if (!n) {
		frame_end(c, h->stream, ENOENT, "not found");
		return;
	}
	s = stream_new(c, h, m->window);
	snprintf(s->path, sizeof(s->path), "%s", m->path.p);
	s->flags = m->flags;
	frame_send(c, h->stream, WIRE_READY, 0, NULL);
}

/* ---- ports ---- */

static void port_connect(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h,
                         const struct wire_connect *m)
{
	struct agent_stream *s;
	char port[16];
	json_t *service;

	snprintf(port, sizeof(port), "%u", m->port);
	service = json_object_get(json_object_get(a->rules, "ports"), port);
	if (!service) {
		frame_end(c, h->stream, ECONNREFUSED, "nothing listens there");
		return;
	}
	s = stream_new(c, h, m->window);
	s->service = json_incref(service);
	frame_send(c, h->stream, WIRE_READY, 0, NULL);
}

/* A service of words: what it answers each time that it has heard all of "on" (or anything). */
static void port_input(struct agent_stream *s, const void *p, size_t n)
{
	const char *on = json_string_value(json_object_get(s->service, "on"));
	const char *say = json_string_value(json_object_get(s->service, "say"));
	const char *greet = json_string_value(json_object_get(s->service, "greet"));
	char *at;

	if (greet) {
		if (!s->own[0].n)
			buf_add(&s->own[0], greet, strlen(greet));
		buf_add(&s->own[0], p, n);
		buf_add(&s->in, p, n);
		s->eof = s->over = on && memmem(s->in.p, s->in.n, on, strlen(on));
		return;
	}

	if (!say) { /* an echo */
		buf_add(&s->own[0], p, n);
		return;
	}
	buf_add(&s->in, p, n);
	do {
		at = on && s->in.n ? memmem(s->in.p, s->in.n, on, strlen(on)) : NULL;
		if (on && !at)
			return;
		buf_cut(&s->in, on ? (size_t)(at - s->in.p) + strlen(on) : s->in.n);
		buf_add(&s->own[0], say, strlen(say));
		if (json_is_true(json_object_get(s->service, "close")))
			s->eof = s->over = true;
	} while (on && s->in.n);
}

/* ---- the machine ---- */

struct device agent_volume(const struct fake_agent *a, unsigned slot)
{
	struct device d = {.fd = FAKE_VOLUME + (int)slot, .top = -1, .at = 4 << 20};
	struct stat st;

	if (fstat(d.fd, &st) < 0) {
		d.fd = -1;
		return d;
	}
	d.end = st.st_size;
	d.read_only = (fcntl(d.fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
	return d;
}

/* Of commands that run: one is in a directory of the volume. */
bool agent_uses(const struct fake_agent *a, unsigned slot)
{
	const struct agent_mount *m = &a->mounts[slot];
	size_t n = strlen(m->path);

	for (struct agent_exec *x = a->execs; m->there && x; x = x->next)
		if (x->running && !strncmp(x->cwd, m->path, n) && (!x->cwd[n] || x->cwd[n] == '/'))
			return true;
	return false;
}

static void mount_put(struct fake_agent *a, unsigned slot, const char *path, bool read_only)
{
	struct agent_mount *m = &a->mounts[slot];
	struct device d = agent_volume(a, slot);

	d.before = volume_before;
	d.arg = (void *)(uintptr_t)slot;
	d.read_only = d.read_only || read_only;
	*m = (struct agent_mount){.there = true, .read_only = read_only};
	snprintf(m->path, sizeof(m->path), "%s", path);
	tree_load(&m->tree, &d);
}

static void mount_drop(struct agent_mount *m)
{
	tree_fini(&m->tree);
	*m = (struct agent_mount){0};
}

static int mount_request(struct fake_agent *a, const struct wire_mount *m)
{
	const char *rest;
	struct tree *t = agent_resolve(a, m->path.p, &rest);

	if (m->volume >= FAKE_VOLUMES || !t || agent_volume(a, m->volume).fd < 0)
		return -ENXIO;
	if (a->mounts[m->volume].there)
		return -EBUSY;
	if (!tree_find(t, rest))
		tree_put(t, rest, S_IFDIR | 0755, NULL, 0, true);
	mount_put(a, m->volume, m->path.p, m->flags & WIRE_MOUNT_RO);
	return 0;
}

static int umount_request(struct fake_agent *a, const struct wire_path_flags *m)
{
	for (unsigned i = 0; i < FAKE_VOLUMES; i++) {
		struct agent_mount *k = &a->mounts[i];

		if (m->flags & WIRE_UMOUNT_LOST) {
			if (k->there && agent_volume(a, i).fd < 0)
				mount_drop(k);
		} else if (k->there && !strcmp(k->path, m->path.p)) {
			if (agent_uses(a, i) && !(m->flags & WIRE_UMOUNT_FORCE))
				return -EBUSY;
			mount_drop(k);
			return 0;
		}
	}
	return m->flags & WIRE_UMOUNT_LOST ? 0 : -EINVAL;
}

static int mounted(struct fake_agent *a, const struct wire_mount *m)
{
	if (m->volume >= FAKE_VOLUMES || !a->mounts[m->volume].there ||
	    strcmp(a->mounts[m->volume].path, m->path.p) != 0)
		return -EINVAL;
	a->mounts[m->volume].tree.dev.end = agent_volume(a, m->volume).end;
	return 0;
}

static void stats_request(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h)
{
	struct stat st = {0};
	const json_t *total = rule(a, "disk_total");
	struct wire_stats m = {.mem_total = 1 << 24,
	                       .mem_free = 1 << 23,
	                       .mem_available = 1 << 23,
	                       .processes = 1,
	                       .generation = a->generation};

	fstat(FAKE_FLAT_DISK + 1, &st);
	m.disk_total = total ? (uint64_t)json_integer_value(total) : (uint64_t)st.st_size;
	m.disk_free = m.disk_total / 2;
	frame_send(c, h->stream, WIRE_STATS_REPLY, 0, &m);
	frame_end(c, h->stream, 0, NULL);
}

/* ---- requests ---- */

const char *const agent_dirs[] = {"dev", "etc", "root", "run", "tmp", NULL};

static const char *const request_names[] = {
    "exec",   "attach",   "list",  "signal",  "read",     "write",  "dir",     "stat",  "mkdir",
    "remove", "rename",   "chmod", "symlink", "readlink", "watch",  "connect", "stats", "sync",
    "reborn", "shutdown", "mount", "umount",  "grow",     "freeze", "thaw",
};

/* {"refuse": {"mount": {"err": 5, "text": "..."}}} */
static bool refused(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h)
{
	const json_t *r = json_object_get(json_object_get(a->rules, "refuse"),
	                                  request_names[h->type - WIRE_EXEC]);
	const char *text = json_string_value(json_object_get(r, "text"));

	if (!r)
		return false;
	frame_end(c, h->stream, (int)json_integer_value(json_object_get(r, "err")), text);
	return true;
}

static void request_simple(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h,
                           const union wire_request *m)
{
	int r = 0;

	switch (h->type) {
	case WIRE_SIGNAL:
		r = -exec_signal(a, m->signal.id, m->signal.signo);
		break;
	case WIRE_REBORN:
		a->generation = m->reborn.generation;
		snprintf(a->hostname, sizeof(a->hostname), "%s", m->reborn.hostname.p);
		break;
	case WIRE_MOUNT:
		r = mount_request(a, &m->mount);
		break;
	case WIRE_UMOUNT:
		r = umount_request(a, &m->path_flags);
		break;
	case WIRE_GROW:
		r = mounted(a, &m->mount);
		break;
	case WIRE_FREEZE:
		r = mounted(a, &m->mount);
		if (r == 0)
			a->freezer = c;
		break;
	case WIRE_SHUTDOWN:
		machine_exit(a, "reboot: Power down\n");
	case WIRE_SYNC:
	case WIRE_THAW:
		break;
	default:
		r = file_change(a, h->type, m);
		if (r == 0)
			watch_change(a, h->type, m);
	}
	frame_end(c, h->stream, -r, r < 0 ? strerror(-r) : NULL);
}

static void request(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h,
                    const union wire_request *m)
{
	if (refused(a, c, h))
		return;
	switch (h->type) {
	case WIRE_EXEC:
		exec_request(a, c, h, &m->exec);
		break;
	case WIRE_ATTACH:
		exec_attach(a, c, h, &m->attach);
		break;
	case WIRE_LIST:
		exec_list(a, c, h, m->window.window);
		break;
	case WIRE_READ:
		file_read(a, c, h, &m->read);
		break;
	case WIRE_WRITE:
		file_write(c, h, &m->write);
		break;
	case WIRE_DIR:
		file_dir(a, c, h, &m->path_flags);
		break;
	case WIRE_STAT:
		file_stat(a, c, h, &m->path_flags);
		break;
	case WIRE_READLINK:
		file_readlink(a, c, h, &m->path);
		break;
	case WIRE_WATCH:
		watch_request(a, c, h, &m->watch);
		break;
	case WIRE_CONNECT:
		port_connect(a, c, h, &m->connect);
		break;
	case WIRE_STATS:
		stats_request(a, c, h);
		break;
	default:
		request_simple(a, c, h, m);
	}
}

static void stream_input(struct agent_conn *c, struct agent_stream *s, const uint8_t *p, size_t n)
{
	struct wire_window more = {.window = (uint32_t)n};

	if (s->exec)
		program_input(s->exec, p, n);
	else if (s->type == WIRE_CONNECT)
		port_input(s, p, n);
	else
		buf_add(&s->in, p, n);
	if (n)
		frame_send(c, s->id, WIRE_CREDIT, WIRE_IN, &more);
}

static void stream_eof(struct fake_agent *a, struct agent_stream *s)
{
	int r;

	if (s->exec) {
		program_eof(a, s->exec);
	} else if (s->type == WIRE_CONNECT) {
		s->eof = s->over = true;
	} else if (s->type == WIRE_WRITE) {
		r = file_written(a, s);
		if (r == 0)
			watch_tell(a, s->path, WIRE_EV_WRITTEN);
		s->err = -r;
		snprintf(s->text, sizeof(s->text), "%s", r < 0 ? strerror(-r) : "");
		s->over = true;
	}
}

static void stream_cancel(struct fake_agent *a, struct agent_conn *c, struct agent_stream *s)
{
	if (s->exec && !s->exec->detached && !(s->exec->flags & WIRE_EXEC_HANGUP))
		exec_end(s->exec, WIRE_HOW_SIGNAL, SIGKILL);
	frame_end(c, s->id, ECANCELED, NULL);
	stream_free(a, c, s);
}

static void stream_frame(struct fake_agent *a, struct agent_conn *c, struct agent_stream *s,
                         const struct wire_header *h, const uint8_t *p)
{
	struct wire_window m;
	struct wire_signal sig;

	switch (h->type) {
	case WIRE_DATA:
		stream_input(c, s, p, h->length);
		break;
	case WIRE_EOF:
		stream_eof(a, s);
		break;
	case WIRE_CREDIT:
		if (wire_window_decode(p, h->length, &m) == 0)
			s->credit[h->chan - WIRE_OUT] += m.window;
		break;
	case WIRE_CANCEL:
		stream_cancel(a, c, s);
		break;
	case WIRE_STREAM_SIGNAL:
		if (s->exec && wire_signal_decode(p, h->length, &sig) == 0)
			exec_signal(a, s->exec->id, sig.signo);
		break;
	}
}

/* ---- misbehaviour ---- */

/* One frame of this type, as an agent might send it; the i'th of its kind. */
static void frame_any(struct agent_conn *c, uint32_t stream, const char *type, uint64_t i)
{
	uint8_t row[128];

	if (!strcmp(type, "data")) {
		frame_data(c, stream, WIRE_OUT, "x", 1);
	} else if (!strcmp(type, "eof")) {
		frame_send(c, stream, WIRE_EOF, WIRE_OUT, NULL);
	} else if (!strcmp(type, "ready")) {
		frame_send(c, stream, WIRE_READY, 0, NULL);
	} else if (!strcmp(type, "started")) {
		frame_send(c, stream, WIRE_STARTED, 0, &(struct wire_started){.id = 1, .pid = 2});
	} else if (!strcmp(type, "attached")) {
		frame_send(c, stream, WIRE_ATTACHED, 0, &(struct wire_attached){.id = 1, .pid = 2});
	} else if (!strcmp(type, "gap")) {
		frame_send(c, stream, WIRE_GAP, WIRE_OUT, &(struct wire_gap){.offset = i + 1});
	} else if (!strcmp(type, "exited")) {
		frame_send(c, stream, WIRE_EXITED, 0,
		           &(struct wire_exited){.id = 1,
		                                 .how = WIRE_HOW_SIGNAL,
		                                 .code = SIGKILL,
		                                 .flags = WIRE_EXITED_OOM});
	} else if (!strcmp(type, "file")) {
		struct wire_file m = {.name = wire_str("f"), .target = wire_str("")};

		m.mode = S_IFREG | 0644;
		m.size = 1 << 20;
		frame_send(c, stream, WIRE_FILE, 0, &m);
	} else if (!strcmp(type, "event")) {
		struct wire_event m = {.what = WIRE_EV_CREATE, .path = wire_str("")};

		frame_data(c, stream, WIRE_OUT, row,
		           (size_t)wire_event_encode(&m, row, sizeof(row)));
	} else if (!strcmp(type, "entry")) {
		struct wire_file m = {.name = wire_str("f"), .target = wire_str("")};

		frame_data(c, stream, WIRE_OUT, row,
		           (size_t)wire_file_encode(&m, row, sizeof(row)));
	} else if (!strcmp(type, "end")) {
		frame_end(c, stream, 0, NULL);
	} else {
		abort();
	}
}

/* {"answers": {"exec": [["started", 1], ["exited", 1000]]}}: that, and nothing else. */
static bool answer_by_rule(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h)
{
	const json_t *list = json_object_get(json_object_get(a->rules, "answers"),
	                                     request_names[h->type - WIRE_EXEC]);
	const json_t *row;
	size_t k;

	json_array_foreach(list, k, row) {
		json_int_t times = json_integer_value(json_array_get(row, 1));

		for (json_int_t i = 0; i < times; i++)
			frame_any(c, h->stream, json_string_value(json_array_get(row, 0)),
			          (uint64_t)i);
	}
	return list;
}

/* What a guest that lies says instead of an answer. True: it did. */
static bool misbehave(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h)
{
	const char *m = mood(a);
	uint8_t head[WIRE_HEADER];
	struct wire_header lie = {.type = WIRE_END, .stream = h->stream};

	if (!strcmp(m, "garbage")) {
		for (unsigned i = 0; i < 4096; i++)
			buf_add(&c->out, &(uint8_t){(uint8_t)(i * 37 + 11)}, 1);
	} else if (!strcmp(m, "length")) { /* a header that promises more than a frame has */
		wire_header_encode(&lie, head);
		memset(head, 0xff, 4);
		buf_add(&c->out, head, sizeof(head));
	} else if (!strcmp(m, "stranger")) { /* a stream that nobody has opened */
		frame_end(c, h->stream + 500, 0, NULL);
	} else if (!strcmp(m, "flood")) { /* more data than there is credit for */
		static const char zeros[WIRE_PAYLOAD_MAX];

		if (h->type == WIRE_EXEC)
			frame_send(c, h->stream, WIRE_STARTED, 0, &(struct wire_started){.id = 1});
		for (unsigned i = 0; i < 8; i++)
			frame_data(c, h->stream, WIRE_OUT, zeros, sizeof(zeros));
	} else if (!strcmp(m, "half")) { /* the first bytes of an answer, and no more */
		wire_header_encode(&lie, head);
		buf_add(&c->out, head, 7);
	} else if (!strcmp(m, "hangup")) {
		shutdown(c->fd, SHUT_RDWR);
	} else if (!strcmp(m, "die")) {
		kill(getpid(), SIGKILL);
	} else {
		return false;
	}
	return true;
}

/* ---- connections ---- */

static void conn_drop(struct fake_agent *a, struct agent_conn *c)
{
	while (c->streams) {
		struct agent_stream *s = c->streams;

		if (s->exec && !s->exec->detached && !(s->exec->flags & WIRE_EXEC_HANGUP))
			exec_end(s->exec, WIRE_HOW_SIGNAL, SIGKILL);
		stream_free(a, c, s);
	}
	if (a->freezer == c)
		a->freezer = NULL;
	buf_free(&c->in);
	buf_free(&c->out);
	close(c->fd);
	c->fd = -1;
}

static bool conn_frame(struct fake_agent *a, struct agent_conn *c, const struct wire_header *h,
                       const uint8_t *p)
{
	struct agent_stream *s = stream_find(c, h->stream);
	const struct wire_desc *d = wire_desc_of(h->type);
	union wire_request m;

	if (a->freezer == c)
		a->freezer = NULL;
	if (s) {
		stream_frame(a, c, s, h, p);
		return true;
	}
	if (h->type < WIRE_EXEC)
		return true; /* it crossed an END on the way */
	if (!wire_type_known(h->type) || (d && wire_decode(d, p, h->length, &m) < 0))
		return false;
	if (!misbehave(a, c, h) && !answer_by_rule(a, c, h))
		request(a, c, h, &m);
	return true;
}

static bool conn_parse(struct fake_agent *a, struct agent_conn *c)
{
	struct wire_header h;
	autofree uint8_t *copy = NULL;

	while (c->in.n >= WIRE_HEADER) {
		if (wire_header_decode((uint8_t *)c->in.p, &h) < 0)
			return false;
		if (c->in.n < WIRE_HEADER + h.length)
			break;
		free(copy);
		copy = malloc(h.length + 1u);
		if (!copy)
			abort();
		memcpy(copy, c->in.p + WIRE_HEADER, h.length);
		buf_cut(&c->in, WIRE_HEADER + h.length);
		if (!conn_frame(a, c, &h, copy))
			return false;
		if (a->freezer && a->freezer != c)
			break;
	}
	return true;
}

static bool conn_read(struct fake_agent *a, struct agent_conn *c)
{
	static char room[65536];
	ssize_t n = read(c->fd, room, sizeof(room));

	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	if (n == 0)
		return false;
	rules_read(a);
	buf_add(&c->in, room, (size_t)n);
	return conn_parse(a, c);
}

static bool conn_write(struct agent_conn *c)
{
	ssize_t n = c->out.n ? send(c->fd, c->out.p, c->out.n, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;

	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	if (n > 0)
		buf_cut(&c->out, (size_t)n);
	return true;
}

static void conn_accept(struct fake_agent *a)
{
	int fd = accept4(a->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	for (size_t i = 0; fd >= 0 && i < AGENT_CONNS; i++)
		if (a->conns[i].fd < 0) {
			a->conns[i] = (struct agent_conn){.fd = fd};
			return;
		}
	if (fd >= 0)
		close(fd);
}

/* ---- its turn ---- */

/* Silence: nothing is read until a test says otherwise. */
static bool silent(struct fake_agent *a)
{
	rules_read(a);
	return !strcmp(mood(a), "silent");
}

size_t agent_poll(struct fake_agent *a, struct pollfd *p, size_t max)
{
	size_t n = 0;

	if (a->asleep)
		return 0;
	a->mute = silent(a);
	p[n++] = (struct pollfd){.fd = a->listener, .events = POLLIN};
	for (size_t i = 0; i < AGENT_CONNS && n < max; i++) {
		struct agent_conn *c = &a->conns[i];

		if (c->fd < 0 || (a->freezer && a->freezer != c))
			continue;
		p[n++] = (struct pollfd){.fd = c->fd,
		                         .events = (short)((a->mute ? 0 : POLLIN) |
		                                           (c->out.n ? POLLOUT : 0))};
	}
	return n;
}

void agent_ready(struct fake_agent *a, const struct pollfd *p, size_t n)
{
	a->mute = silent(a); /* it may have been told so while it waited */
	for (size_t k = 0; k < n; k++) {
		if (!p[k].revents)
			continue;
		if (p[k].fd == a->listener) {
			conn_accept(a);
			continue;
		}
		for (size_t i = 0; i < AGENT_CONNS; i++)
			if (a->conns[i].fd == p[k].fd && (p[k].revents & ~POLLOUT) && !a->mute &&
			    !conn_read(a, &a->conns[i])) {
				conn_drop(a, &a->conns[i]);
				break;
			}
	}
	pump_all(a);
	for (size_t i = 0; i < AGENT_CONNS; i++)
		if (a->conns[i].fd >= 0 && !conn_write(&a->conns[i]))
			conn_drop(a, &a->conns[i]);
}

int agent_timeout_ms(const struct fake_agent *a)
{
	uint64_t at = a->mute ? agent_now_ms() + MUTE_LOOK_MS : UINT64_MAX, now = agent_now_ms();

	for (struct agent_exec *x = a->execs; x; x = x->next)
		if (x->running && x->deadline_ms)
			at = MIN(at, x->deadline_ms);
	return at == UINT64_MAX ? -1 : at <= now ? 0 : (int)MIN(at - now, (uint64_t)60000);
}

void agent_tick(struct fake_agent *a)
{
	uint64_t now = agent_now_ms();

	for (struct agent_exec *x = a->execs; x; x = x->next)
		if (x->running && x->deadline_ms && x->deadline_ms <= now) {
			x->exited |= WIRE_EXITED_TIMEOUT;
			exec_end(x, WIRE_HOW_SIGNAL, SIGKILL);
		}
}

/* ---- what survives in an image ---- */

uint32_t agent_state_volumes(const json_t *state)
{
	return (uint32_t)json_integer_value(json_object_get(state, "held"));
}

json_t *agent_state(const struct fake_agent *a)
{
	json_t *mounts = json_array(), *execs = json_array();

	for (int i = 0; i < FAKE_VOLUMES; i++)
		if (a->mounts[i].there)
			json_array_append_new(mounts, json_pack("{s:i, s:s, s:b}", "slot", i,
			                                        "path", a->mounts[i].path, "ro",
			                                        a->mounts[i].read_only));
	for (struct agent_exec *x = a->execs; x; x = x->next)
		json_array_append_new(execs,
		                      json_pack("{s:I, s:s, s:s, s:b, s:i, s:s%}", "id",
		                                (json_int_t)x->id, "text", x->text, "cwd", x->cwd,
		                                "running", x->running, "code", (int)x->code, "out",
		                                x->out[0].p ? x->out[0].p : "", x->out[0].n));
	return json_pack("{s:i, s:I, s:I, s:o, s:o}", "held", (int)a->held, "generation",
	                 (json_int_t)a->generation, "next_exec", (json_int_t)a->next_exec, "mounts",
	                 mounts, "execs", execs);
}

static void execs_from(struct fake_agent *a, const json_t *list)
{
	const json_t *j;
	size_t i;

	json_array_foreach(list, i, j) {
		struct agent_exec *x = calloc(1, sizeof(*x));
		const json_t *out = json_object_get(j, "out");

		if (!x)
			abort();
		x->id = (uint64_t)json_integer_value(json_object_get(j, "id"));
		x->running = json_is_true(json_object_get(j, "running"));
		x->detached = true; /* its stream was of another life */
		x->code = (uint32_t)json_integer_value(json_object_get(j, "code"));
		snprintf(x->text, sizeof(x->text), "%s",
		         json_string_value(json_object_get(j, "text")));
		snprintf(x->cwd, sizeof(x->cwd), "%s",
		         json_string_value(json_object_get(j, "cwd")));
		buf_add(&x->out[0], json_string_value(out), json_string_length(out));
		x->next = a->execs;
		a->execs = x;
	}
}

void agent_start(struct fake_agent *a, const struct device *root, const struct device *memory,
                 const json_t *state)
{
	const json_t *m;
	size_t i;

	a->freezer = NULL;
	for (i = 0; i < AGENT_CONNS; i++)
		a->conns[i].fd = -1;
	tree_load(&a->root, root);
	tree_load(&a->shm, memory);
	for (i = 0; agent_dirs[i]; i++)
		if (!tree_find(&a->root, agent_dirs[i]))
			tree_put(&a->root, agent_dirs[i], S_IFDIR | 0755, NULL, 0, false);
	a->generation = (uint64_t)json_integer_value(json_object_get(state, "generation"));
	a->next_exec = (uint64_t)json_integer_value(json_object_get(state, "next_exec"));
	json_array_foreach(json_object_get(state, "mounts"), i, m)
		mount_put(a, (unsigned)json_integer_value(json_object_get(m, "slot")),
		          json_string_value(json_object_get(m, "path")),
		          json_is_true(json_object_get(m, "ro")));
	execs_from(a, json_object_get(state, "execs"));
}
