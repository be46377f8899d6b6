#include "http/parse.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/macro.h"

enum {
	METHOD_MAX = 32,
	LENGTH_DIGITS = 18, /* of Content-Length: below 2^60 */
	CHUNK_DIGITS = 15,  /* of a chunk's size, hexadecimal: below 2^60 */
	TRAILER_MAX = 4096,
};

/* What a byte may be part of. */
enum {
	TOKEN = 1,
	VALUE = 2,
	TARGET = 4,
};

static const uint8_t kind_of[256] = {
    ['\t'] = VALUE,
    [' '] = VALUE,
    ['!'] = 7,
    ['"'] = VALUE | TARGET,
    ['#'] = 7 & ~TARGET, /* a fragment is never sent */
    ['$' ... '\''] = 7,
    ['('] = VALUE | TARGET,
    [')'] = VALUE | TARGET,
    ['*'] = 7,
    ['+'] = 7,
    [','] = VALUE | TARGET,
    ['-'] = 7,
    ['.'] = 7,
    ['/'] = VALUE | TARGET,
    ['0' ... '9'] = 7,
    [':' ... '@'] = VALUE | TARGET,
    ['A' ... 'Z'] = 7,
    ['['] = VALUE | TARGET,
    ['\\'] = VALUE | TARGET,
    [']'] = VALUE | TARGET,
    ['^' ... 'z'] = 7,
    ['{'] = VALUE | TARGET,
    ['|'] = 7,
    ['}'] = VALUE | TARGET,
    ['~'] = 7,
    [0x80 ... 0xff] = VALUE,
};

static bool is(char c, int kind)
{
	return kind_of[(unsigned char)c] & kind;
}

bool http_is_token(unsigned char c)
{
	return is((char)c, TOKEN);
}

static int hex_of(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

ssize_t http_head_end(const char *p, size_t n, size_t *scanned)
{
	size_t i = *scanned;

	while (i < n) {
		const char *lf = memchr(p + i, '\n', n - i);

		if (!lf)
			break;
		i = (size_t)(lf - p) + 1;
		if (i < 2 || p[i - 2] != '\r')
			return -EBADMSG;
		if (i == 2 || (i >= 4 && p[i - 3] == '\n'))
			return (ssize_t)i;
		*scanned = i;
	}
	*scanned = n;
	return 0;
}

/* ---- lists of words ---- */

bool http_list_has(const char *list, const char *word)
{
	size_t n = strlen(word);

	while (list && *list) {
		size_t k;

		list += strspn(list, " \t,");
		k = strcspn(list, ",");
		while (k && (list[k - 1] == ' ' || list[k - 1] == '\t'))
			k--;
		if (k == n && strncasecmp(list, word, n) == 0)
			return true;
		list += strcspn(list, ",");
	}
	return false;
}

const char *http_head_field(const struct http_head *h, const char *name)
{
	for (size_t i = 0; i < h->n; i++)
		if (strcasecmp(h->field[i].name, name) == 0)
			return h->field[i].value;
	return NULL;
}

/* ---- fields ---- */

/* What the fields say together about the message; texts stay where they are. */
struct framing {
	const char *length, *coding, *host;
	unsigned lengths, codings, hosts;
	bool tab; /* beside one of the first two; other readers do not skip it */
};

static int fail(const char **why, int status, const char *text)
{
	*why = text;
	return status;
}

/* [p, end) are the lines behind the first one, each with its CRLF, without the empty one. */
static int parse_fields(char *p, const char *end, struct http_head *h, struct framing *f,
                        const char **why)
{
	while (p < end) {
		char *line_end = memchr(p, '\r', (size_t)(end - p));
		char *name = p, *value, *tail;
		bool tab;

		if (!line_end || line_end[1] != '\n')
			return fail(why, 400, "a header has a bare CR");
		while (is(*p, TOKEN))
			p++;
		if (p == name || *p != ':')
			return fail(why, 400, "a header name is not a name");
		*p++ = 0;
		tab = memchr(p, '\t', (size_t)(line_end - p));
		while (*p == ' ' || *p == '\t')
			p++;
		value = p;
		while (is(*p, VALUE))
			p++;
		if (p != line_end)
			return fail(why, 400, "a header value has a control character");
		for (tail = p; tail > value && (tail[-1] == ' ' || tail[-1] == '\t');)
			tail--;
		*tail = 0;
		p = line_end + 2;

		if (h->n == HTTP_HEADERS_MAX)
			return fail(why, 431, "too many headers");
		h->field[h->n++] = (struct http_field){.name = name, .value = value};
		switch (*name | 0x20) {
		case 'c':
			if (strcasecmp(name, "content-length") == 0) {
				f->length = value;
				f->lengths++;
				f->tab |= tab;
			}
			break;
		case 'h':
			if (strcasecmp(name, "host") == 0) {
				f->host = value;
				f->hosts++;
			}
			break;
		case 't':
			if (strcasecmp(name, "transfer-encoding") == 0) {
				f->coding = value;
				f->codings++;
				f->tab |= tab;
			}
			break;
		}
	}
	return 0;
}

static bool parse_length(const char *text, uint64_t *ret)
{
	uint64_t v = 0;
	size_t n = 0;

	for (; text[n]; n++) {
		if (text[n] < '0' || text[n] > '9' || n == LENGTH_DIGITS)
			return false;
		v = v * 10 + (uint64_t)(text[n] - '0');
	}
	*ret = v;
	return n > 0;
}

/* A body is announced in one way, once, or there is none. 0 or a status. */
static int parse_framing(const struct framing *f, struct http_head *h, const char **why)
{
	if (f->codings && f->lengths)
		return fail(why, 400, "Transfer-Encoding together with Content-Length");
	if (f->tab)
		return fail(why, 400, "a tab beside the length of the body");
	if (f->codings > 1 || f->lengths > 1)
		return fail(why, 400, "the length of the body is given twice");
	if (f->codings) {
		if (h->minor == 0)
			return fail(why, 400, "HTTP/1.0 knows no Transfer-Encoding");
		if (strcasecmp(f->coding, "chunked") != 0)
			return fail(why, 501, "the only Transfer-Encoding known here is chunked");
		h->body = HTTP_BODY_CHUNKED;
	}
	if (f->lengths) {
		if (!parse_length(f->length, &h->length))
			return fail(why, 400, "Content-Length is not a number");
		if (h->length)
			h->body = HTTP_BODY_LENGTH;
	}
	return 0;
}

/* Connection may come several times; every one counts. */
static void parse_connection(struct http_head *h)
{
	bool close = false, keep = false;

	for (size_t i = 0; i < h->n; i++) {
		if (strcasecmp(h->field[i].name, "connection") != 0)
			continue;
		close |= http_list_has(h->field[i].value, "close");
		keep |= http_list_has(h->field[i].value, "keep-alive");
		h->upgrade |= http_list_has(h->field[i].value, "upgrade");
	}
	h->keep_alive = !close && (h->minor == 1 || keep);
}

/* "HTTP/1.1" at p, n bytes. 0 or a status. */
static int parse_version(const char *p, size_t n, int *minor, const char **why)
{
	if (n != 8 || memcmp(p, "HTTP/", 5) != 0 || p[5] < '0' || p[5] > '9' || p[6] != '.' ||
	    p[7] < '0' || p[7] > '9')
		return fail(why, 400, "the first line does not end in an HTTP version");
	if (p[5] != '1' || p[7] > '1')
		return fail(why, 505, "this server speaks HTTP/1.1");
	*minor = p[7] - '0';
	return 0;
}

/* ---- requests ---- */

static bool host_is_good(const char *host)
{
	for (; *host; host++)
		if (!is(*host, TARGET) || strchr("/?@,\\\"<>^`{|}", *host))
			return false;
	return true;
}

/* Percent signs in a path are whole triplets, and never a NUL. */
static bool path_is_good(const char *path)
{
	while ((path = strchr(path, '%'))) {
		int hi = hex_of(path[1]), lo = hi < 0 ? -1 : hex_of(path[2]);

		if (lo < 0 || (hi == 0 && lo == 0))
			return false;
		path += 3;
	}
	return true;
}

/*
 * The target is a path, or, as proxies send it, a URL; then its host must be the one in Host, as
 * otherwise those before us and we could mean different sites. target ends in a NUL.
 */
static int parse_target(char *target, const struct framing *f, struct http_head *h,
                        const char **why)
{
	char *query;

	if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
		char *host = strchr(target, ':') + 3;
		size_t n = strcspn(host, "/?");

		if (!n || !f->host || strlen(f->host) != n || strncasecmp(host, f->host, n) != 0)
			return fail(why, 400,
			            "the host in the request line is not the one in Host");
		if (host[n] != '/')
			return fail(why, 400, "the URL in the request line has no path");
		target = host + n;
	}
	if (target[0] != '/')
		return fail(why, 400, "the request line must name a path that begins with '/'");
	query = strchr(target, '?');
	if (query)
		*query++ = 0;
	if (!path_is_good(target))
		return fail(why, 400, "the path has a bad percent escape");
	h->path = target;
	h->query = query ? query : target + strlen(target);
	return 0;
}

int http_parse_request(char *p, size_t n, struct http_head *ret, const char **why)
{
	struct framing f = {0};
	char *end = p + n, *line_end = memchr(p, '\r', n);
	const char *expect;
	char *target;
	size_t k;
	int r;

	assert(n >= 2);
	*ret = (struct http_head){.n = 0};
	if (!line_end || line_end[1] != '\n')
		return fail(why, 400, "the first line has a bare CR");

	ret->method = p;
	for (k = 0; is(p[k], TOKEN); k++)
		;
	if (k == 0 || k > METHOD_MAX || p[k] != ' ')
		return fail(why, 400, "the first line does not begin with a method");
	p[k] = 0;
	target = p + k + 1;
	for (p = target; is(*p, TARGET); p++)
		;
	if (p == target || *p != ' ')
		return fail(why, 400, "the first line is not a method, a path and a version");
	*p++ = 0;
	r = parse_version(p, (size_t)(line_end - p), &ret->minor, why);
	if (r)
		return r;

	r = parse_fields(line_end + 2, end - 2, ret, &f, why);
	if (!r)
		r = parse_framing(&f, ret, why);
	if (r)
		return r;
	if (f.hosts > 1 || (f.hosts == 0 && ret->minor == 1))
		return fail(why, 400, "a request has exactly one Host header");
	if (f.hosts && !host_is_good(f.host))
		return fail(why, 400, "the Host header is not a host name");
	r = parse_target(target, &f, ret, why);
	if (r)
		return r;
	parse_connection(ret);

	expect = http_head_field(ret, "expect");
	if (expect && strcasecmp(expect, "100-continue") != 0)
		return fail(why, 417, "the only expectation known here is 100-continue");
	ret->expect_continue = expect && ret->minor == 1 && ret->body != HTTP_BODY_NONE;
	return 0;
}

/* ---- responses ---- */

int http_parse_response(char *p, size_t n, const char *method, struct http_head *ret,
                        const char **why)
{
	struct framing f = {0};
	char *end = p + n, *line_end = memchr(p, '\r', n);
	int r;

	assert(n >= 2);
	*ret = (struct http_head){.method = method};
	if (!line_end || line_end[1] != '\n' || line_end - p < 12 || p[8] != ' ')
		return fail(why, -EBADMSG, "the answer has no status line");
	r = parse_version(p, 8, &ret->minor, why);
	if (r)
		return -EBADMSG;
	for (int i = 9; i < 12; i++) {
		if (p[i] < '0' || p[i] > '9')
			return fail(why, -EBADMSG, "the answer has no status");
		ret->status = ret->status * 10 + p[i] - '0';
	}
	if (ret->status < 100 || ret->status > 599 || (line_end - p > 12 && p[12] != ' '))
		return fail(why, -EBADMSG, "the answer has no status");
	for (const char *c = p + 12; c < line_end; c++)
		if (!is(*c, VALUE))
			return fail(why, -EBADMSG, "the status line has a control character");
	*line_end = 0;
	ret->reason = line_end - p > 13 ? p + 13 : "";

	r = parse_fields(line_end + 2, end - 2, ret, &f, why);
	if (!r)
		r = parse_framing(&f, ret, why);
	if (r)
		return -EBADMSG;
	parse_connection(ret);
	if (strcmp(method, "HEAD") == 0 || ret->status < 200 || ret->status == 204 ||
	    ret->status == 304) {
		ret->body = HTTP_BODY_NONE;
	} else if (ret->body == HTTP_BODY_NONE && !f.lengths) {
		ret->body = HTTP_BODY_EOF;
		ret->keep_alive = false;
	}
	return 0;
}

/* ---- chunks ---- */

enum {
	SIZE,    /* digits */
	SIZE_LF, /* CR seen */
	DATA,
	DATA_CR,
	DATA_LF,
	LINE, /* begin of a trailer line, or the end */
	LAST_LF,
	NAME,
	TEXT,
	TEXT_LF,
};

static int eat_size(struct http_chunked *c, char b)
{
	int digit = hex_of(b);

	if (digit >= 0 && c->extra < CHUNK_DIGITS) {
		c->left = c->left * 16 + (unsigned)digit;
		c->extra++;
		return SIZE;
	}
	return b == '\r' && c->extra ? SIZE_LF : -1;
}

/* One byte that is not data; the next state or -1. */
static int eat_byte(struct http_chunked *c, char b)
{
	if (c->state >= LINE && ++c->extra > TRAILER_MAX)
		return -1;
	switch (c->state) {
	case SIZE:
		return eat_size(c, b);
	case SIZE_LF:
		c->extra = 0;
		if (b != '\n')
			return -1;
		return c->left ? DATA : LINE;
	case DATA_CR:
		return b == '\r' ? DATA_LF : -1;
	case DATA_LF:
		c->extra = 0;
		return b == '\n' ? SIZE : -1;
	case LINE:
		if (b == '\r')
			return LAST_LF;
		return is(b, TOKEN) && !c->no_trailers ? NAME : -1;
	case LAST_LF:
		c->done = b == '\n';
		return b == '\n' ? LAST_LF : -1;
	case NAME:
		if (b == ':')
			return TEXT;
		return is(b, TOKEN) ? NAME : -1;
	case TEXT:
		if (b == '\r')
			return TEXT_LF;
		return is(b, VALUE) ? TEXT : -1;
	case TEXT_LF:
		return b == '\n' ? LINE : -1;
	}
	return -1;
}

ssize_t http_chunked_eat(struct http_chunked *c, const char *p, size_t n, const char **data,
                         size_t *len)
{
	size_t i = 0;

	*data = NULL;
	*len = 0;
	while (i < n && !c->done) {
		int next;

		if (c->state == DATA) {
			*data = p + i;
			*len = (size_t)MIN(c->left, (uint64_t)(n - i));
			c->left -= *len;
			if (!c->left)
				c->state = DATA_CR;
			return (ssize_t)(i + *len);
		}
		next = eat_byte(c, p[i++]);
		if (next < 0)
			return -EBADMSG;
		c->state = (uint8_t)next;
	}
	return (ssize_t)i;
}
