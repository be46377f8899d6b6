#include "net/leash.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/macro.h"
#include "http/parse.h"
#include "net/net.h"
#include "net/policy.h"
#include "net/sni.h"

enum {
	TLS_HANDSHAKE = 22,
	TLS_MAJOR = 3,
};

void leash_init(struct leash *l, uint16_t port)
{
	*l = (struct leash){.port = port, .chunks.no_trailers = true};
}

static int refuse(struct leash *l, const char *why)
{
	l->over = true;
	l->why = why;
	return -EPERM;
}

/* text: as the guest wrote it. -EPERM: not on the list for this port. */
static int name_judge(struct leash *l, const struct net_policy *policy, const char *text,
                      const char *why, bool *told)
{
	char clean[POLICY_NAME_MAX + 1];
	bool other;

	if (policy_clean_name(text, clean) < 0)
		return refuse(l, why);
	if (!policy_allows_name(policy, clean, l->port)) {
		memcpy(l->refused, clean, sizeof(clean));
		return refuse(l, why);
	}
	other = strcmp(l->name, clean) != 0;
	memcpy(l->name, clean, sizeof(clean));
	l->mixed |= other && l->asked;
	*told |= other;
	return 0;
}

/* ---- TLS ---- */

static ssize_t hello_judge(struct leash *l, const struct net_policy *policy, const uint8_t *p,
                           size_t n, bool *told)
{
	char name[SNI_NAME_MAX + 1];
	int r = sni_parse(p, MIN(n, (size_t)SNI_BYTES_MAX), name);

	if (r == -EAGAIN)
		return 0;
	if (r < 0)
		return refuse(l, "sni");
	r = name_judge(l, policy, name, "sni", told);
	if (r < 0)
		return r;
	l->free = true;
	return (ssize_t)n;
}

/* A port of its own: SSH, a database, or TLS. */
static ssize_t first_judge(struct leash *l, const struct net_policy *policy, const uint8_t *p,
                           size_t n, bool *told)
{
	if (p[0] == TLS_HANDSHAKE && (n < 2 || p[1] == TLS_MAJOR))
		return hello_judge(l, policy, p, n, told);
	l->free = true;
	return (ssize_t)n;
}

/* ---- HTTP ---- */

/* "name" or "name:80". */
static int host_judge(struct leash *l, const struct net_policy *policy, const char *host,
                      bool *told)
{
	char text[POLICY_NAME_MAX + 2];
	size_t n = strlen(host);

	if (n > 3 && strcmp(host + n - 3, ":80") == 0)
		n -= 3;
	if (n >= sizeof(text))
		return refuse(l, "host");
	memcpy(text, host, n);
	text[n] = '\0';
	return name_judge(l, policy, text, "host", told);
}

/*
 * After an upgrade the guest may say what it likes. So the one to a WebSocket goes out, from a
 * connection that asked for nothing else and in a request without a body: its answer is then the
 * first one that the server gives.
 */
static bool upgrade_is_good(const struct leash *l, const struct http_head *h)
{
	unsigned count = 0;

	for (size_t i = 0; i < h->n; i++)
		count += strcasecmp(h->field[i].name, "upgrade") == 0;
	return count == 1 && !l->asked && h->upgrade && h->body == HTTP_BODY_NONE &&
	       strcmp(h->method, "GET") == 0 &&
	       strcasecmp(http_head_field(h, "upgrade"), "websocket") == 0;
}

/* The other upgrades (to HTTP/2, as some clients offer in every request) are taken out: the server
 * then answers as if it had not been asked. Returns how long the head is now. */
static size_t upgrades_drop(const struct http_head *h, const char *copy, uint8_t *p, size_t len,
                            size_t *n)
{
	for (size_t i = h->n; i--;) {
		size_t at, line;

		if (strcasecmp(h->field[i].name, "upgrade") != 0)
			continue;
		at = (size_t)(h->field[i].name - copy);
		line = (size_t)((uint8_t *)memchr(p + at, '\n', len - at) - p) + 1 - at;
		memmove(p + at, p + at + line, *n - at - line);
		*n -= line;
		len -= line;
	}
	return len;
}

static ssize_t head_judge(struct leash *l, const struct net_policy *policy, uint8_t *p, size_t *n,
                          bool *told)
{
	char copy[HTTP_HEAD_MAX]; /* the parser writes into what it reads */
	const char *why, *host;
	struct http_head h;
	ssize_t end = http_head_end((char *)p, *n, &l->scanned);
	size_t len = (size_t)end;
	int r;

	if (end == 0 && *n < LEASH_BYTES_MAX)
		return 0;
	l->scanned = 0;
	if (end <= 0 || len > sizeof(copy))
		return refuse(l, "http");
	memcpy(copy, p, len);
	if (http_parse_request(copy, len, &h, &why) != 0 || strcmp(h.method, "CONNECT") == 0)
		return refuse(l, "http");
	host = http_head_field(&h, "host");
	if (!host)
		return refuse(l, "http"); /* HTTP/1.0 needs none, but we do */
	r = host_judge(l, policy, host, told);
	if (r < 0)
		return r;
	if (upgrade_is_good(l, &h))
		l->http = LEASH_SWITCHING;
	else
		len = upgrades_drop(&h, copy, p, len, n);
	l->asked = true;
	if (h.body == HTTP_BODY_LENGTH) {
		l->http = LEASH_BODY;
		l->left = h.length;
	} else if (h.body == HTTP_BODY_CHUNKED) {
		l->http = LEASH_CHUNKS;
		l->chunks = (struct http_chunked){.no_trailers = true};
	}
	return (ssize_t)len;
}

static ssize_t body_judge(struct leash *l, const uint8_t *p, size_t n)
{
	size_t at = 0;

	if (l->http == LEASH_BODY) {
		at = (size_t)MIN(l->left, (uint64_t)n);
		l->left -= at;
		if (l->left == 0)
			l->http = LEASH_HEAD;
		return (ssize_t)at;
	}
	while (at < n && !l->chunks.done) {
		const char *data;
		size_t len;
		ssize_t eaten =
		    http_chunked_eat(&l->chunks, (const char *)p + at, n - at, &data, &len);

		if (eaten < 0)
			return refuse(l, "http");
		at += (size_t)eaten;
	}
	if (l->chunks.done)
		l->http = LEASH_HEAD;
	return (ssize_t)at;
}

static ssize_t http_judge(struct leash *l, const struct net_policy *policy, uint8_t *p, size_t *n,
                          bool *told)
{
	switch (l->http) {
	case LEASH_HEAD:
		return head_judge(l, policy, p, n, told);
	case LEASH_SWITCHING:
		return 0;
	default:
		return body_judge(l, p, *n);
	}
}

void leash_answer(struct leash *l, const uint8_t *answer)
{
	if (memcmp(answer, "HTTP/1.1 101", LEASH_ANSWER) == 0)
		l->free = true;
	l->http = LEASH_HEAD;
}

ssize_t leash_judge(struct leash *l, const struct net_policy *policy, uint8_t *p, size_t *n,
                    bool *told)
{
	*told = false;
	if (l->over)
		return -EPERM;
	if (l->free || *n == 0)
		return (ssize_t)*n;
	if (l->port == POLICY_HTTP)
		return http_judge(l, policy, p, n, told);
	if (l->port == POLICY_TLS)
		return hello_judge(l, policy, p, *n, told);
	return first_judge(l, policy, p, *n, told);
}

bool leash_holds(const struct leash *l, const struct net_policy *policy)
{
	return policy->mode == NET_OPEN ||
	       (!l->mixed && policy_allows_name(policy, l->name, l->port));
}
