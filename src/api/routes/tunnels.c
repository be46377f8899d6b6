/*
 * api/routes/tunnels.c - a connection becomes a pipe of bytes into a sandbox: to one of its ports,
 * or to an sshd that is started for it
 * The upgrade is answered when the other end is there, so a client that reads 101 is connected, and
 * one that is not reads why. From then on both directions go at the pace of the slower side and end
 * each on its own.
 */
#include <ctype.h>
#include <string.h>

#include "api/api.h"
#include "api/routes/ports.h"
#include "api/routes/routes.h"
#include "api/streams/credit.h"
#include "api/streams/exec.h"
#include "api/streams/job.h"
#include "base/cleanup.h"
#include "base/err.h"
#include "base/macro.h"
#include "http/server.h"
#include "machine/guest.h"
#include "wire/guest.h"

enum {
	SAID_MAX = 200,     /* of what sshd complains about */
	SSH_KEY_MAX = 2048, /* an RSA key of 8192 bits has 1,400 */
};

struct tunnel {
	struct call *c;
	struct job *port;      /* one of these two, */
	struct exec_job *sshd; /* NULL once it has ended */
	unsigned number;
	bool open, piece_in;
	const char *p; /* of the client, and not taken by the guest yet */
	size_t n;
	struct credit credit;
	char said[SAID_MAX + 1];
	size_t said_len;
};

static void tunnel_free(struct tunnel *t)
{
	call_leave(t->c);
	free(t);
}

static void on_gone(void *arg)
{
	struct tunnel *t = arg;

	job_abandon(t->port);
	exec_abandon(t->sshd);
	tunnel_free(t);
}

/* ---- from the client ---- */

static void tunnel_push(struct tunnel *t)
{
	size_t n = t->port   ? job_send(t->port, t->p, t->n)
	           : t->sshd ? exec_send(t->sshd, t->p, t->n)
	                     : t->n; /* the client is gone */

	t->p += n;
	t->n -= n;
	if (t->n || !t->piece_in || !t->c->req)
		return;
	t->piece_in = false;
	http_pipe_more(t->c->req);
}

static void on_bytes(void *arg, struct http_req *r, const void *p, size_t n)
{
	struct tunnel *t = arg;

	t->p = p;
	t->n = n;
	t->piece_in = true;
	tunnel_push(t);
}

static void on_bytes_end(void *arg, struct http_req *r)
{
	struct tunnel *t = arg;

	if (t->port)
		job_send_eof(t->port);
	else if (t->sshd)
		exec_send_eof(t->sshd);
}

/* The other end is there. */
static void open_up(struct tunnel *t)
{
	static const struct http_body_ops ops = {.data = on_bytes, .end = on_bytes_end};

	if (t->open || !t->c->req)
		return;
	t->open = t->c->piped = true;
	if (http_upgrade(t->c->req, NULL, &ops, t) < 0)
		http_cut(t->c->req); /* gone() follows */
}

/* ---- from the guest ---- */

static void tunnel_give(void *arg, int chan, size_t n)
{
	struct tunnel *t = arg;

	credit_to_job(&t->port, chan, n);
	credit_to_exec(&t->sshd, chan, n);
}

static void tunnel_deliver(struct tunnel *t, const void *p, size_t n)
{
	if (!t->c->req)
		return; /* gone() is on its way */
	open_up(t);
	http_send(t->c->req, p, n);
	credit_owe(&t->credit, 0, n, call_room(t->c));
}

/* The other end is no more; e is NULL when it ended well. */
static void tunnel_ended(struct tunnel *t, const struct err *e)
{
	if (!t->open) {
		call_error(t->c, e);
		tunnel_free(t);
		return;
	}
	tunnel_push(t); /* what it has not heard is thrown away */
	if (t->c->req && e)
		http_cut(t->c->req);
	else if (t->c->req)
		http_finish(t->c->req); /* gone() when the client has ended, too */
}

static void port_data(void *arg, struct job *j, uint8_t chan, const void *p, size_t n)
{
	tunnel_deliver(arg, p, n);
}

static void port_eof(void *arg, struct job *j, uint8_t chan)
{
	struct tunnel *t = arg;

	if (t->c->req)
		http_finish(t->c->req); /* its half */
}

static void port_reply(void *arg, struct job *j, uint8_t type, uint8_t chan, const void *msg)
{
	if (type == WIRE_READY)
		open_up(arg);
}

static void port_writable(void *arg, struct job *j)
{
	tunnel_push(arg);
}

static void port_end(void *arg, struct job *j, const struct job_end *end)
{
	struct tunnel *t = arg;
	struct err e;

	t->port = NULL;
	if (!end->e && end->guest)
		err_set(&e, end->guest, "upstream", "upstream: port %u of the sandbox: %s",
		        t->number,
		        end->guest == ECONNREFUSED ? "nothing listens there"
		                                   : strerror(end->guest));
	tunnel_ended(t, end->e ? end->e : end->guest ? &e : NULL);
}

static void ssh_data(void *arg, bool err, const void *p, size_t n)
{
	struct tunnel *t = arg;
	size_t take = err ? MIN(n, SAID_MAX - t->said_len) : 0;

	if (!err) {
		tunnel_deliver(t, p, n);
		return;
	}
	memcpy(t->said + t->said_len, p, take);
	t->said_len += take;
	exec_credit(t->sshd, true, n);
}

static void ssh_writable(void *arg)
{
	tunnel_push(arg);
}

static void ssh_end(void *arg, const struct err *e, const struct exec_exit *x)
{
	struct tunnel *t = arg;
	struct err quiet;

	t->sshd = NULL;
	for (size_t i = 0; i < t->said_len; i++)
		if (!isprint((unsigned char)t->said[i]))
			t->said[i] = ' ';
	if (!e && !t->open) {
		err_set(&quiet, ENOEXEC, "upstream",
		        "no sshd could be started: its template needs openssh-server and "
		        "/usr/lib/panda/ssh-serve (%s)",
		        t->said_len ? t->said : "it ended without a word");
		e = &quiet;
	}
	tunnel_ended(t, e);
}

/* ---- the ways in ---- */

/* NULL: answered. */
static struct tunnel *tunnel_begin(struct call *c)
{
	struct tunnel *t;

	if (!http_wants_upgrade(c->req, "tcp") || http_body_length(c->req) != 0) {
		call_fail(c, EPROTO, "bad_request",
		          "this is a tunnel: connect with 'Connection: Upgrade' and "
		          "'Upgrade: tcp', and without a body");
		return NULL;
	}
	t = calloc(1, sizeof(*t));
	if (!t) {
		call_nomem(c);
		return NULL;
	}
	t->c = call_hold(c);
	t->credit = (struct credit){.give = tunnel_give, .arg = t};
	return t;
}

static void tunnel_go(struct tunnel *t, const struct err *e)
{
	if (!t->port && !t->sshd) {
		call_error(t->c, e);
		tunnel_free(t);
		return;
	}
	call_on_room(t->c, credit_pay, &t->credit);
	call_on_gone(t->c, on_gone, t);
}

void tunnel_port(struct call *c)
{
	static const struct job_ops ops = {.data = port_data,
	                                   .eof = port_eof,
	                                   .reply = port_reply,
	                                   .writable = port_writable,
	                                   .end = port_end};
	struct tunnel *t;
	unsigned port;
	struct err e;

	if (!port_param(c, c->param[1], &port) || !(t = tunnel_begin(c)))
		return;
	t->number = port;
	t->port =
	    job_start(c->host, c->sb, WIRE_CONNECT,
	              &(struct wire_connect){.port = port, .window = GUEST_WINDOW}, &ops, t, &e);
	tunnel_go(t, &e);
}

/* An OpenSSH public key without options and comment. */
static bool ssh_key_valid(const char *text)
{
	static const char *const kinds[] = {"ssh-ed25519",
	                                    "ecdsa-sha2-nistp256",
	                                    "ecdsa-sha2-nistp384",
	                                    "ecdsa-sha2-nistp521",
	                                    "ssh-rsa",
	                                    "sk-ssh-ed25519@openssh.com",
	                                    "sk-ecdsa-sha2-nistp256@openssh.com"};
	size_t kind = strcspn(text, " "), n = strlen(text), at;
	bool known = false;

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		known |= strlen(kinds[i]) == kind && strncmp(text, kinds[i], kind) == 0;
	if (!known || n > SSH_KEY_MAX)
		return false;
	at = kind + 1;
	while (at < n && (isalnum((unsigned char)text[at]) || text[at] == '+' || text[at] == '/'))
		at++;
	if (at < kind + 1 + 40) /* no key is that short */
		return false;
	return strspn(text + at, "=") == n - at && n - at <= 2;
}

void tunnel_ssh(struct call *c)
{
	static const struct exec_ops ops = {.data = ssh_data,
	                                    .writable = ssh_writable,
	                                    .end = ssh_end};
	autofree char *key = call_query(c, "key");
	struct exec_spec s = {.keep_open = true, .hangup = true};
	json_t *argv;
	struct tunnel *t;
	struct err e;

	if (!key || !ssh_key_valid(key)) {
		call_fail(
		    c, EINVAL, "bad_request",
		    "key must be a public key, its kind and its base64: 'ssh-ed25519 AAAA...'");
		return;
	}
	t = tunnel_begin(c);
	if (!t)
		return;
	argv = json_pack("[s, s]", "/usr/lib/panda/ssh-serve", key);
	s.argv = argv;
	t->sshd = exec_begin(c->host, c->sb, &s, &ops, t, &e);
	json_decref(argv);
	tunnel_go(t, &e);
}
