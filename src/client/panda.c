/*
 * client/panda.c - the client: calls with JSON, and bodies as they come
 */
#include <ctype.h>
#include <errno.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/client_internal.h"
#include "client/panda.h"

static const char *process_env(const char *name)
{
	return getenv(name);
}

int panda_new(const struct panda_config *config, struct panda **ret, struct panda_error *e)
{
	struct settings s = {0};
	struct panda *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return perr_nomem(e);
	p->idle.fd = -1;
	p->timeout_ms = config && config->timeout_ms ? config->timeout_ms : CLIENT_REPLY_MS;
	r = settings_load(config, process_env, &s, e);
	if (r == 0)
		r = target_parse(s.url, &p->target, e);
	if (r == 0 && p->target.tls)
		r = conn_tls_new(config ? config->ca_file : NULL, &p->tls, e);
	p->key = take_ptr(s.key);
	settings_fini(&s);
	if (r < 0) {
		panda_free(p);
		return r;
	}
	*ret = p;
	return 0;
}

void panda_free(struct panda *p)
{
	if (!p)
		return;
	conn_close(&p->idle);
	SSL_CTX_free(p->tls); /* counted: connections that are still open hold it */
	target_fini(&p->target);
	free(p->key);
	free(p);
}

const char *panda_url(const struct panda *p)
{
	return p->target.url;
}

bool panda_has_key(const struct panda *p)
{
	return p->key;
}

void panda_set_timeout(struct panda *p, int timeout_ms)
{
	p->timeout_ms = timeout_ms ? timeout_ms : CLIENT_REPLY_MS;
}

/*
 * Nothing that has a meaning in a URL stays, '/' included: an id like "../x" must not lead to
 * another route (url_encode() is for whole paths).
 */
static void put_encoded(const char *s, FILE *to)
{
	for (; *s; s++)
		if (isalnum((unsigned char)*s) || strchr("-._~", *s))
			fputc(*s, to);
		else
			fprintf(to, "%%%02X", (unsigned char)*s);
}

char *panda_path(const char *fmt, ...)
{
	autofree char *text = NULL;
	size_t n = 0;
	va_list ap;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	va_start(ap, fmt);
	for (; *fmt; fmt++) {
		if (*fmt != '%') {
			fputc(*fmt, f);
			continue;
		}
		fmt++;
		if (*fmt == 's')
			put_encoded(va_arg(ap, const char *), f);
		else if (*fmt == 'd')
			fprintf(f, "%d", va_arg(ap, int));
		else
			fputc('%', f);
	}
	va_end(ap);
	return fclose(f) == 0 ? take_ptr(text) : NULL;
}

/* Whole body, bounded, with a NUL behind it. */
static int collect(struct reply *rp, size_t max, uint64_t deadline, char **ret, size_t *ret_len,
                   struct panda_error *e)
{
	size_t len = 0, cap = 4096;
	autofree char *buf = malloc(cap);
	char *more;
	ssize_t n;

	if (!buf)
		return perr_nomem(e);
	for (;;) {
		if (cap - len < 2) {
			if (cap > max)
				return perr_set(e, EFBIG, "too_large",
				                "the reply is larger than %zu bytes", max);
			more = realloc(buf, cap * 2);
			if (!more)
				return perr_nomem(e);
			buf = more;
			cap *= 2;
		}
		n = reply_read(rp, buf + len, cap - len - 1, deadline, e);
		if (n == -EAGAIN)
			return perr_set(e, ETIMEDOUT, "timeout",
			                "the server stopped in the middle of its reply");
		if (n < 0)
			return (int)n;
		if (n == 0)
			break;
		len += (size_t)n;
	}
	if (len > max)
		return perr_set(e, EFBIG, "too_large", "the reply is larger than %zu bytes", max);
	buf[len] = 0;
	*ret = take_ptr(buf);
	*ret_len = len;
	return 0;
}

int reply_error(struct reply *rp, struct panda *p, struct panda_error *e)
{
	autofree char *text = NULL;
	int status = rp->status, r;
	char id[sizeof(rp->request_id)];
	size_t n = 0;

	snprintf(id, sizeof(id), "%s", rp->request_id);
	/* Whatever happens to the body, the status is the news. */
	(void)collect(rp, 1 << 20, conn_deadline(CLIENT_CONNECT_MS), &text, &n, NULL);
	reply_close(rp, text ? p : NULL);
	r = perr_reply(e, status, text, n);
	if (e && !e->request_id[0])
		snprintf(e->request_id, sizeof(e->request_id), "%s", id);
	return r;
}

/* The JSON of a reply whose head is there; ends the reply. */
static int finish_json(struct panda *p, struct reply *rp, json_t **ret, struct panda_error *e)
{
	autofree char *text = NULL;
	json_error_t why;
	json_t *j;
	size_t n = 0;
	int r;

	if (rp->status >= 400)
		return reply_error(rp, p, e);
	r = collect(rp, PANDA_JSON_MAX, conn_deadline(p->timeout_ms), &text, &n, e);
	reply_close(rp, r == 0 ? p : NULL);
	if (r < 0 || !ret)
		return r;
	if (!n) {
		*ret = json_null();
		return 0;
	}
	j = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
	if (!j)
		return perr_set(e, EPROTO, "protocol",
		                "%s answered what is not JSON (%s): is that really a pandad?",
		                p->target.url, why.text);
	*ret = j;
	return 0;
}

int request_json(struct request *q, const json_t *body, char **text, struct panda_error *e)
{
	if (!body)
		return 0;
	*text = json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY);
	if (!*text)
		return perr_set(e, EINVAL, "bad_argument",
		                "the body of %s cannot be written as JSON", q->path);
	q->type = "application/json";
	q->body = *text;
	q->length = (int64_t)strlen(*text);
	return 0;
}

int panda_call(struct panda *p, const char *method, const char *path, json_t *body, json_t **ret,
               struct panda_error *e)
{
	autofree char *text = NULL;
	struct request q = {.method = method, .path = path, .accept = "application/json"};
	struct reply rp;
	int r;

	r = request_json(&q, body, &text, e);
	if (r < 0)
		return r;
	r = reply_open(p, &q, &rp, e);
	return r < 0 ? r : finish_json(p, &rp, ret, e);
}

int panda_upload_as(struct panda *p, const char *method, const char *path, const char *type,
                    int64_t length, panda_source source, void *arg, json_t **ret,
                    struct panda_error *e)
{
	struct request q = {.method = method,
	                    .path = path,
	                    .accept = "application/json",
	                    .type = type,
	                    .length = length,
	                    .source = source,
	                    .arg = arg};
	struct reply rp;
	int r = reply_open(p, &q, &rp, e);

	return r < 0 ? r : finish_json(p, &rp, ret, e);
}

int panda_upload(struct panda *p, const char *method, const char *path, int64_t length,
                 panda_source source, void *arg, json_t **ret, struct panda_error *e)
{
	return panda_upload_as(p, method, path, "application/octet-stream", length, source, arg,
	                       ret, e);
}

int panda_download(struct panda *p, const char *path, panda_sink sink, void *arg,
                   struct panda_error *e)
{
	autofree char *buf = malloc(CLIENT_BUF);
	struct request q = {.method = "GET", .path = path, .accept = "*/*"};
	struct reply rp;
	ssize_t n;
	int r;

	if (!buf)
		return perr_nomem(e);
	r = reply_open(p, &q, &rp, e);
	if (r < 0)
		return r;
	if (rp.status >= 400)
		return reply_error(&rp, p, e);
	for (;;) {
		n = reply_read(&rp, buf, CLIENT_BUF, conn_deadline(p->timeout_ms), e);
		if (n == -EAGAIN)
			n = conn_errno(e, -EAGAIN, "in the middle of a download", p->target.url);
		if (n <= 0)
			break;
		r = sink(arg, buf, (size_t)n);
		if (r) {
			reply_close(&rp, NULL);
			perr_set(e, ECANCELED, "stopped", "the caller wanted no more of it");
			return r;
		}
	}
	reply_close(&rp, n == 0 ? p : NULL);
	return (int)n;
}
