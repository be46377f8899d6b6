#include "http/multipart.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "base/utf8.h"
#include "http/parse.h"

enum {
	FIRST, /* the first boundary, to which the CR LF is not sent */
	DATA,
	AFTER, /* behind a boundary: "--" or CR LF */
	AFTER_LF,
	AFTER_DASH,
	HEAD,
	ENDED,
};

/* ---- "value; key=text; key="text"" ---- */

/*
 * The next parameter at *p, unquoted in place. 1, 0 at the end, -EBADMSG. Of backslashes only \"
 * and
 * \\ mean something: browsers send those of Windows paths as they are.
 */
static int next_param(char **p, char **key, char **value)
{
	char *s = *p + strspn(*p, " \t"), *end;

	if (!*s)
		return 0;
	*key = s;
	while (http_is_token((unsigned char)*s))
		s++;
	if (s == *key || *s != '=')
		return -EBADMSG;
	*s++ = 0;
	*value = end = s;
	if (*s == '"') {
		for (s++; *s != '"'; *end++ = *s++) {
			if (s[0] == '\\' && (s[1] == '"' || s[1] == '\\'))
				s++;
			if (!*s)
				return -EBADMSG;
		}
		s++;
	} else {
		while (http_is_token((unsigned char)*s))
			s++;
		end = s;
		if (s == *value)
			return -EBADMSG;
	}
	s += strspn(s, " \t");
	if (*s && *s != ';')
		return -EBADMSG;
	*p = s + (*s == ';');
	*end = 0; /* perhaps where the ';' was */
	return 1;
}

/* Behind the first word of a value: where its parameters begin, or NULL. */
static char *params_of(char *p)
{
	p += strspn(p, " \t");
	return !*p ? p : *p == ';' ? p + 1 : NULL;
}

/* ---- start ---- */

static bool boundary_is_good(const char *b)
{
	size_t n = strlen(b);

	if (!n || n > MULTIPART_BOUNDARY_MAX || b[n - 1] == ' ')
		return false;
	for (; *b; b++)
		if (!((*b >= '0' && *b <= '9') || (*b >= 'A' && *b <= 'Z') ||
		      (*b >= 'a' && *b <= 'z') || strchr("'()+_,-./:=? ", *b)))
			return false;
	return true;
}

int multipart_init(struct multipart *m, const char *content_type)
{
	char text[256], *p, *key, *value;
	size_t n = strcspn(content_type, "; \t");
	int r;

	memset(m, 0, sizeof(*m));
	if (n != strlen("multipart/form-data") ||
	    strncasecmp(content_type, "multipart/form-data", n) != 0 ||
	    (size_t)snprintf(text, sizeof(text), "%s", content_type + n) >= sizeof(text))
		return -EINVAL;
	p = params_of(text);
	if (!p)
		return -EINVAL;
	while ((r = next_param(&p, &key, &value)) > 0) {
		if (strcasecmp(key, "boundary") != 0)
			continue;
		if (m->delim_len || !boundary_is_good(value))
			return -EINVAL;
		m->delim_len = (size_t)snprintf(m->delim, sizeof(m->delim), "\r\n--%s", value);
	}
	if (r < 0 || !m->delim_len)
		return -EINVAL;
	m->matched = 2;
	return 0;
}

/* ---- the head of a part ---- */

static bool text_is_good(const char *s)
{
	for (const char *p = s; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			return false;
	return utf8_is_good(s, strlen(s));
}

static int parse_disposition(struct multipart *m, char *value)
{
	char *p, *key, *text;
	int r;

	if (m->name || strncasecmp(value, "form-data", 9) != 0)
		return -EBADMSG;
	p = params_of(value + 9);
	if (!p)
		return -EBADMSG;
	while ((r = next_param(&p, &key, &text)) > 0) {
		const char **to = strcasecmp(key, "name") == 0       ? &m->name
		                  : strcasecmp(key, "filename") == 0 ? &m->filename
		                                                     : NULL;

		if (!text_is_good(text) || (to && *to))
			return -EBADMSG;
		if (to)
			*to = text;
	}
	return r < 0 || !m->name ? -EBADMSG : 0;
}

/* m->head is whole, with the empty line. */
static int parse_head(struct multipart *m)
{
	char *p = m->head, *end = p + m->head_len - 2;

	m->name = m->filename = NULL;
	m->type = "text/plain";
	while (p < end) {
		char *eol = memmem(p, (size_t)(end - p), "\r\n", 2), *name = p, *value;
		int r = 0;

		if (!eol || memchr(p, 0, (size_t)(eol - p)))
			return -EBADMSG;
		*eol = 0;
		while (http_is_token((unsigned char)*p))
			p++;
		if (p == name || *p != ':')
			return -EBADMSG;
		*p++ = 0;
		value = p + strspn(p, " \t");
		for (p = eol; p > value && (p[-1] == ' ' || p[-1] == '\t'); *--p = 0)
			;
		if (strcasecmp(name, "content-disposition") == 0)
			r = parse_disposition(m, value);
		else if (!text_is_good(value))
			r = -EBADMSG;
		else if (strcasecmp(name, "content-type") == 0)
			m->type = value;
		if (r < 0)
			return r;
		p = eol + 2;
	}
	return m->name ? 0 : -EBADMSG;
}

/* One byte more of the head. 1 when it is whole. */
static int head_byte(struct multipart *m, char c)
{
	if (m->head_len == MULTIPART_HEAD_MAX)
		return -EMSGSIZE;
	m->head[m->head_len++] = c;
	m->head[m->head_len] = 0;
	if (c != '\n')
		return 0;
	if (m->head_len < 2 || m->head[m->head_len - 2] != '\r')
		return -EBADMSG;
	if (m->head_len == 2)
		return -EBADMSG; /* no headers: no name */
	return m->head[m->head_len - 3] == '\n';
}

/* ---- eating ---- */

/*
 * In data. The delimiter has its only CR in front, so when it breaks off, what matched is data and
 * the search begins anew with the byte that did not fit.
 */
static size_t eat_data(struct multipart *m, const char *p, size_t n, const char **data, size_t *len)
{
	const char *cr;
	size_t i = 0;

	if (!m->matched) {
		cr = memchr(p, '\r', n);
		if (cr != p) {
			*data = p;
			*len = cr ? (size_t)(cr - p) : n;
			return *len;
		}
	}
	while (i < n && m->matched < m->delim_len && p[i] == m->delim[m->matched]) {
		i++;
		m->matched++;
	}
	if (m->matched < m->delim_len && i < n) {
		*data = m->delim; /* the same bytes, wherever their first half came in */
		*len = m->matched;
		m->matched = 0;
	}
	return i;
}

static int eat_after(struct multipart *m, char c)
{
	switch (m->state) {
	case AFTER:
		if (c == '-')
			return AFTER_DASH;
		return c == '\r' ? AFTER_LF : -EBADMSG;
	case AFTER_LF:
		m->head_len = 0;
		return c == '\n' ? HEAD : -EBADMSG;
	default:
		return c == '-' ? ENDED : -EBADMSG;
	}
}

ssize_t multipart_eat(struct multipart *m, const char *p, size_t n, enum multipart_event *ev,
                      const char **data, size_t *len)
{
	size_t i = 0;
	int r;

	*ev = MULTIPART_MORE;
	*data = NULL;
	*len = 0;
	while (i < n) {
		switch (m->state) {
		case FIRST:
			if (p[i++] != m->delim[m->matched++])
				return -EBADMSG;
			if (m->matched == m->delim_len)
				m->state = AFTER;
			break;
		case DATA:
			i += eat_data(m, p + i, n - i, data, len);
			if (*len) {
				*ev = MULTIPART_DATA;
				return (ssize_t)i;
			}
			if (m->matched == m->delim_len) {
				m->state = AFTER;
				*ev = MULTIPART_PART_END;
				return (ssize_t)i;
			}
			break;
		case HEAD:
			r = head_byte(m, p[i++]);
			if (r > 0 && ++m->parts > MULTIPART_PARTS_MAX)
				r = -EMSGSIZE;
			if (r > 0)
				r = parse_head(m) < 0 ? -EBADMSG : 1;
			if (r < 0)
				return r;
			if (r > 0) {
				m->state = DATA;
				m->matched = 0;
				*ev = MULTIPART_PART;
				return (ssize_t)i;
			}
			break;
		case ENDED:
			*ev = MULTIPART_END;
			return (ssize_t)n;
		default:
			r = eat_after(m, p[i++]);
			if (r < 0)
				return r;
			m->state = (uint8_t)r;
			if (r == ENDED) {
				*ev = MULTIPART_END;
				return (ssize_t)i;
			}
		}
	}
	return (ssize_t)i;
}
