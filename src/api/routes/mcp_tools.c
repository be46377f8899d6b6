/*
 * api/routes/mcp_tools.c - what agents can do through MCP
 */
#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/files.h"
#include "api/routes/mcp.h"
#include "api/streams/exec.h"
#include "api/streams/job.h"
#include "api/streams/sse.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/macro.h"
#include "base/utf8.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "wire/guest.h"

enum {
	FILE_MAX = 4 << 20, /* read in one answer */
	ENTRIES_MAX = 10000,
	OUTPUT_MAX = 1 << 20,
	SHELL_MS = 30000,
	COMMAND_S = 60,
	COMMAND_S_MAX = 300,
	READ_WINDOW = 256 * 1024,
	PATH_MAX_BYTES = 4096,
};

/* ---- arguments ---- */

static const char *text_arg(const struct mcp *m, const char *key)
{
	return json_string_value(json_object_get(m->args, key));
}

static void refuse(struct mcp *m, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void refuse(struct mcp *m, const char *kind, const char *fmt, ...)
{
	struct err e = {.code = EINVAL, .kind = kind};
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(e.text, sizeof(e.text), fmt, ap);
	va_end(ap);
	mcp_failed(m, &e);
}

/* The sandbox this is about. NULL: answered. */
static struct sandbox *target(struct mcp *m)
{
	const char *id = m->workspace ? text_arg(m, "sandbox_id") : m->call->param[0];
	struct sandbox *sb = id ? host_find(m->call->host, m->call->tenant, id) : NULL;

	if (!id)
		refuse(m, "bad_request", "argument 'sandbox_id' is missing");
	else if (!sb)
		refuse(m, "sandbox_not_found", "sandbox not found: %.64s", id);
	else
		host_touch(m->call->host, sb);
	return sb;
}

/* NULL: answered. */
static const char *path_arg(struct mcp *m, const char *otherwise)
{
	const char *path = text_arg(m, "path");

	if (!path)
		path = otherwise;
	if (path && path[0] == '/' && strlen(path) < PATH_MAX_BYTES)
		return path;
	refuse(m, "bad_path", "argument 'path' must be an absolute path");
	return NULL;
}

/* ---- commands ---- */

struct command {
	struct mcp *m;
	struct exec_collect *x;
};

static void command_gone(void *arg)
{
	struct command *k = arg;

	exec_collect_abandon(k->x);
	mcp_result(k->m, json_string(""), true); /* goes nowhere, and frees */
	free(k);
}

static json_t *plain_text(const struct exec_result *r)
{
	size_t room = r->out_len + r->err_len + 96, n = r->out_len;
	autofree char *all = malloc(room);

	if (!all)
		return NULL;
	memcpy(all, r->out, r->out_len);
	if (r->err_len) {
		n += (size_t)snprintf(all + n, room - n, "\n[stderr]\n");
		memcpy(all + n, r->err, r->err_len);
		n += r->err_len;
	}
	if (r->exit.exit_code)
		n += (size_t)snprintf(all + n, room - n, "\n[exit code: %d%s]", r->exit.exit_code,
		                      r->exit.timed_out ? ", timed out" : "");
	return json_text(all, n);
}

static json_t *as_text(json_t *j)
{
	autofree char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;

	json_decref(j);
	return text ? json_string(text) : NULL;
}

static void command_done(void *arg, const struct err *e, const struct exec_result *r)
{
	struct command *k = arg;
	struct mcp *m = k->m;

	free(k);
	if (e)
		mcp_failed(m, e);
	else if (m->workspace)
		mcp_result(m, as_text(exec_result_json(r)), false);
	else
		mcp_result(m, plain_text(r), r->exit.exit_code != 0);
}

static void command(struct mcp *m)
{
	struct sandbox *sb = target(m);
	struct exec_spec spec = {.output_max = OUTPUT_MAX};
	const json_t *s, *ms;
	struct command *k;
	double timeout_ms;
	struct err e;

	if (!sb)
		return; /* answered: m is gone */
	s = json_object_get(m->args, "timeout_seconds");
	ms = json_object_get(m->args, "timeout_ms");
	spec.cmd = text_arg(m, "command") ? text_arg(m, "command") : text_arg(m, "cmd");
	if (!spec.cmd || !*spec.cmd) {
		refuse(m, "bad_request", "argument 'command' is missing");
		return;
	}
	if ((s && !json_is_null(s) && !json_is_number(s)) ||
	    (ms && !json_is_null(ms) && !json_is_number(ms))) {
		refuse(m, "bad_request", "the timeout must be a number");
		return;
	}
	timeout_ms = m->workspace ? COMMAND_S * 1000.0 : SHELL_MS;
	if (json_is_number(s))
		timeout_ms = json_number_value(s) * 1000;
	else if (json_is_number(ms))
		timeout_ms = json_number_value(ms);
	if (!(timeout_ms >= 1 && timeout_ms <= COMMAND_S_MAX * 1000.0)) {
		refuse(m, "bad_request", "the timeout must be up to %d seconds", COMMAND_S_MAX);
		return;
	}
	spec.timeout_ms = (uint64_t)timeout_ms;
	spec.account = m->call->account;
	k = calloc(1, sizeof(*k));
	if (k) {
		k->m = m;
		k->x = exec_collect(m->call->host, sb, &spec, command_done, k, &e);
	} else {
		err_nomem(&e);
	}
	if (!k || !k->x) {
		free(k);
		mcp_failed(m, &e);
		return;
	}
	call_on_gone(m->call, command_gone, k);
}

/* ---- files ---- */

struct file_job {
	struct mcp *m;
	struct job *j;
	char *path;
	char *buf; /* what was read, or is to be written */
	size_t n, at;
	json_t *entries;
	bool too_much;
};

static void file_job_free(struct file_job *f)
{
	json_decref(f->entries);
	free(f->path);
	free(f->buf);
	free(f);
}

static void file_job_gone(void *arg)
{
	struct file_job *f = arg;

	job_abandon(f->j);
	mcp_result(f->m, json_string(""), true); /* goes nowhere, and frees */
	file_job_free(f);
}

/* True: the guest did it. Else it was told why not. f is still there. */
static bool file_job_over(struct file_job *f, const struct job_end *end, const char *verb)
{
	char what[160];
	struct err e;

	f->j = NULL;
	if (!end->e && !end->guest)
		return true;
	if (f->too_much)
		err_set(&e, EFBIG, "too_large",
		        "'%.100s' is too large for one answer: read it in parts", f->path);
	else {
		snprintf(what, sizeof(what), "cannot %s '%.110s'", verb, f->path);
		job_error(end, what, &e);
	}
	mcp_failed(f->m, &e);
	return false;
}

static struct file_job *file_job_new(struct mcp *m, const char *path)
{
	struct file_job *f = calloc(1, sizeof(*f));

	if (f && !(f->path = strdup(path))) {
		free(f);
		f = NULL;
	}
	if (f)
		f->m = m;
	else
		refuse(m, "no_memory", "no memory");
	return f;
}

/* False: answered, and f is gone. */
static bool file_job_begin(struct file_job *f, struct sandbox *sb, uint8_t type, const void *msg,
                           const struct job_ops *ops)
{
	struct call *c = f->m->call;
	struct err e;

	f->j = job_start(c->host, sb, type, msg, ops, f, &e);
	if (!f->j) {
		mcp_failed(f->m, &e);
		file_job_free(f);
		return false;
	}
	call_on_gone(c, file_job_gone, f);
	return true;
}

static void read_data(void *arg, struct job *j, uint8_t chan, const void *p, size_t n)
{
	struct file_job *f = arg;
	char *bigger = f->n + n <= FILE_MAX ? realloc(f->buf, f->n + n) : NULL;

	if (!bigger) {
		f->too_much = true;
		job_cancel(j);
		return;
	}
	f->buf = bigger;
	memcpy(f->buf + f->n, p, n);
	f->n += n;
	job_credit(j, chan, n);
}

static json_t *binary(const void *p, size_t n)
{
	json_t *b64 = json_base64(p, n), *j;

	j = json_sprintf("[binary file, %zu bytes, base64]\n%s", n,
	                 b64 ? json_string_value(b64) : "");
	json_decref(b64);
	return j;
}

static void read_end(void *arg, struct job *j, const struct job_end *end)
{
	struct file_job *f = arg;
	struct job_end failed = *end;

	(void)j;
	if (f->too_much && !end->e && !end->guest)
		failed.guest = EFBIG;
	if (file_job_over(f, &failed, "read")) {
		bool text = utf8_is_good(f->buf, f->n) && (!f->n || !memchr(f->buf, 0, f->n));

		mcp_result(f->m,
		           text ? json_stringn(f->n ? f->buf : "", f->n) : binary(f->buf, f->n),
		           false);
	}
	file_job_free(f);
}

static void read_file(struct mcp *m)
{
	static const struct job_ops ops = {.data = read_data, .end = read_end};
	struct sandbox *sb = target(m);
	const char *path = sb ? path_arg(m, NULL) : NULL;
	struct file_job *f = path ? file_job_new(m, path) : NULL;

	if (f)
		file_job_begin(f, sb, WIRE_READ,
		               &(struct wire_read){.path = wire_str(f->path),
		                                   .length = UINT64_MAX,
		                                   .window = READ_WINDOW},
		               &ops);
}

static void write_more(void *arg, struct job *j)
{
	struct file_job *f = arg;

	if (f->at == SIZE_MAX)
		return;
	f->at += job_send(j, f->buf + f->at, f->n - f->at);
	if (f->at == f->n) {
		f->at = SIZE_MAX; /* all is on its way */
		job_send_eof(j);
	}
}

static void write_end(void *arg, struct job *j, const struct job_end *end)
{
	struct file_job *f = arg;

	(void)j;
	if (file_job_over(f, end, "write"))
		mcp_result(f->m,
		           as_text(
			       json_pack("{s:s, s:I}", "path", f->path, "bytes", (json_int_t)f->n)),
		           false);
	file_job_free(f);
}

static void write_file(struct mcp *m)
{
	static const struct job_ops ops = {.writable = write_more, .end = write_end};
	struct sandbox *sb = target(m);
	const char *path = sb ? path_arg(m, NULL) : NULL;
	const json_t *content;
	struct file_job *f;

	if (!path)
		return; /* answered: m is gone */
	content = json_object_get(m->args, "content");
	if (!json_is_string(content)) {
		refuse(m, "bad_request", "argument 'content' must be a string");
		return;
	}
	f = file_job_new(m, path);
	if (!f)
		return;
	f->n = json_string_length(content);
	f->buf = malloc(f->n + 1);
	if (!f->buf) {
		refuse(m, "no_memory", "no memory");
		file_job_free(f);
		return;
	}
	memcpy(f->buf, json_string_value(content), f->n);
	if (file_job_begin(f, sb, WIRE_WRITE,
	                   &(struct wire_write){.path = wire_str(f->path),
	                                        .flags = WIRE_WRITE_PARENTS},
	                   &ops))
		write_more(f, f->j);
}

static void dir_data(void *arg, struct job *j, uint8_t chan, const void *p, size_t n)
{
	struct file_job *f = arg;

	for (size_t at = 0; at < n && !f->too_much;) {
		struct wire_file w;
		ssize_t r = wire_file_take((const uint8_t *)p + at, n - at, &w);
		autofree char *full = NULL;

		if (r < 0 || !wire_is_name(&w.name) || json_array_size(f->entries) >= ENTRIES_MAX ||
		    asprintf(&full, "%s%s%s", f->path, strcmp(f->path, "/") ? "/" : "", w.name.p) <
		        0) {
			full = NULL;
			f->too_much = true;
			job_cancel(j);
			return;
		}
		json_array_append_new(f->entries, show_file(&w, w.name.p, w.name.len, full));
		at += (size_t)r;
	}
	job_credit(j, chan, n);
}

static void dir_end(void *arg, struct job *j, const struct job_end *end)
{
	struct file_job *f = arg;
	struct job_end failed = *end;

	(void)j;
	if (f->too_much && !end->e && !end->guest)
		failed.guest = EFBIG;
	if (file_job_over(f, &failed, "list"))
		mcp_result(f->m,
		           as_text(json_pack("{s:s, s:O}", "path", f->path, "entries", f->entries)),
		           false);
	file_job_free(f);
}

static void list_dir(struct mcp *m)
{
	static const struct job_ops ops = {.data = dir_data, .end = dir_end};
	struct sandbox *sb = target(m);
	const char *path = sb ? path_arg(m, "/workspace") : NULL;
	struct file_job *f = path ? file_job_new(m, path) : NULL;

	if (!f)
		return;
	f->entries = json_array();
	file_job_begin(f, sb, WIRE_DIR,
	               &(struct wire_path_flags){.path = wire_str(f->path), .flags = READ_WINDOW},
	               &ops);
}

/* ---- sandboxes ---- */

static void created(void *arg, const struct err *e, struct sandbox *sb)
{
	struct mcp *m = arg;

	if (!e && !m->call->req) {
		host_kill(m->call->host, sb, "its client went away", NULL, NULL);
		mcp_result(m, json_string(""), true); /* goes nowhere, and frees */
	} else if (e) {
		mcp_failed(m, e);
	} else {
		mcp_result(m, as_text(show_sandbox(m->call->host, sb)), false);
	}
}

static void create_sandbox(struct mcp *m)
{
	struct sandbox_spec spec;
	struct err e;

	if (!json_object_get(m->args, "template"))
		json_object_set_new(m->args, "template", json_string("code-interpreter"));
	if (!spec_parse(m->args, &spec, &e)) {
		mcp_failed(m, &e);
		return;
	}
	host_create(m->call->host, m->call->tenant, &spec, &m->call->quota, created, m);
	spec_fini(&spec);
}

static void list_sandboxes(struct mcp *m)
{
	mcp_result(m, as_text(sandboxes_json(m->call, "")), false);
}

static void deleted(void *arg, const struct err *e, struct sandbox *sb)
{
	(void)sb;
	if (e)
		mcp_failed(arg, e);
	else
		mcp_result(arg, json_string("deleted"), false);
}

static void delete_sandbox(struct mcp *m)
{
	struct sandbox *sb = target(m);

	if (sb)
		host_kill(m->call->host, sb, "killed by request", deleted, m);
}

static void list_templates(struct mcp *m)
{
	mcp_result(m, as_text(templates_json(m->call)), false);
}

/* ---- the table ---- */

static const struct tool {
	const char *name, *what;
	bool workspace, sandbox; /* where it is offered */
	void (*run)(struct mcp *m);
	/* name:type:what, name* is required */
	const char *args[5];
} tools[] = {
    {"shell",
     "Run a shell command in the sandbox",
     false,
     true,
     command,
     {"command*:string:the command, for sh -c", "timeout_ms:integer:30000 when absent"}},
    {"create_sandbox",
     "Create a sandbox",
     true,
     false,
     create_sandbox,
     {"template:string:code-interpreter when absent", "ttl_seconds:integer:it ends after so long",
      "metadata:object:tags, strings"}},
    {"list_sandboxes", "List sandboxes", true, false, list_sandboxes, {NULL}},
    {"delete_sandbox",
     "Kill a sandbox",
     true,
     false,
     delete_sandbox,
     {"sandbox_id*:string:its id"}},
    {"run_command",
     "Run a shell command in a sandbox",
     true,
     false,
     command,
     {"sandbox_id*:string:its id", "command*:string:the command, for sh -c",
      "timeout_seconds:integer:60 when absent, at most 300"}},
    {"read_file",
     "Read a file",
     true,
     true,
     read_file,
     {"sandbox_id*:string:its id", "path*:string:absolute path"}},
    {"write_file",
     "Write a file; directories on the way are made",
     true,
     true,
     write_file,
     {"sandbox_id*:string:its id", "path*:string:absolute path", "content*:string:all of it"}},
    {"list_dir",
     "List a directory",
     true,
     true,
     list_dir,
     {"sandbox_id*:string:its id", "path:string:absolute path; /workspace when absent"}},
    {"list_templates", "List templates", true, false, list_templates, {NULL}},
};

static json_t *schema(const struct tool *t, bool workspace)
{
	json_t *properties = json_object(), *required = json_array();

	for (size_t i = 0; i < ARRAY_LEN(t->args) && t->args[i]; i++) {
		char name[32], type[16];
		const char *colon = strchr(t->args[i], ':'), *what = strrchr(t->args[i], ':') + 1;
		size_t n = (size_t)(colon - t->args[i]);
		bool must = t->args[i][n - 1] == '*';

		snprintf(name, sizeof(name), "%.*s", (int)(n - must), t->args[i]);
		snprintf(type, sizeof(type), "%.*s", (int)(what - colon - 2), colon + 1);
		if (!workspace && strcmp(name, "sandbox_id") == 0)
			continue;
		json_object_set_new(properties, name,
		                    json_pack("{s:s, s:s}", "type", type, "description", what));
		if (must)
			json_array_append_new(required, json_string(name));
	}
	return json_pack("{s:s, s:o, s:o}", "type", "object", "properties", properties, "required",
	                 required);
}

json_t *mcp_tools(bool workspace)
{
	json_t *list = json_array();

	for (size_t i = 0; i < ARRAY_LEN(tools); i++)
		if (workspace ? tools[i].workspace : tools[i].sandbox)
			json_array_append_new(list,
			                      json_pack("{s:s, s:s, s:o}", "name", tools[i].name,
			                                "description", tools[i].what, "inputSchema",
			                                schema(&tools[i], workspace)));
	return list;
}

bool mcp_tool_run(struct mcp *m, const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(tools); i++)
		if (strcmp(tools[i].name, name) == 0 &&
		    (m->workspace ? tools[i].workspace : tools[i].sandbox)) {
			tools[i].run(m);
			return true;
		}
	return false;
}
