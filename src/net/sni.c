#include "net/sni.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/macro.h"

enum {
	RECORD_HEADER = 5,
	RECORD_MAX = 16384,
	RECORD_HANDSHAKE = 22,
	HANDSHAKE_HEADER = 4,
	HANDSHAKE_CLIENT_HELLO = 1,
	EXT_SERVER_NAME = 0,
	NAME_HOST = 0,
};

struct cut {
	const uint8_t *p;
	size_t n;
};

/* Takes n bytes off the front. */
static bool cut_bytes(struct cut *c, size_t n, struct cut *ret)
{
	if (c->n < n)
		return false;
	*ret = (struct cut){.p = c->p, .n = n};
	c->p += n;
	c->n -= n;
	return true;
}

static bool cut_number(struct cut *c, size_t bytes, size_t *ret)
{
	struct cut b;
	size_t v = 0;

	if (!cut_bytes(c, bytes, &b))
		return false;
	for (size_t i = 0; i < bytes; i++)
		v = v << 8 | b.p[i];
	*ret = v;
	return true;
}

/* A length of so many bytes, then that much. */
static bool cut_vector(struct cut *c, size_t bytes, struct cut *ret)
{
	size_t n;

	return cut_number(c, bytes, &n) && cut_bytes(c, n, ret);
}

static int read_name(struct cut ext, char ret[SNI_NAME_MAX + 1])
{
	struct cut list, name;
	size_t type, n;

	if (!cut_vector(&ext, 2, &list) || ext.n || !cut_number(&list, 1, &type) ||
	    type != NAME_HOST || !cut_vector(&list, 2, &name) || list.n)
		return -EPROTO;
	n = name.n;
	if (n && name.p[n - 1] == '.')
		n--;
	if (n == 0 || n > SNI_NAME_MAX)
		return -EPROTO;
	for (size_t i = 0; i < n; i++) {
		uint8_t c = name.p[i];

		if (c >= 'A' && c <= 'Z')
			c = (uint8_t)(c - 'A' + 'a');
		if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
		      c == '.'))
			return -EPROTO;
		ret[i] = (char)c;
	}
	ret[n] = '\0';
	return 0;
}

static int read_hello(struct cut c, char ret[SNI_NAME_MAX + 1])
{
	struct cut random, session, ciphers, compression, exts;
	bool found = false;
	size_t version;

	if (!cut_number(&c, 2, &version) || version >> 8 != 3 || !cut_bytes(&c, 32, &random) ||
	    !cut_vector(&c, 1, &session) || session.n > 32 || !cut_vector(&c, 2, &ciphers) ||
	    ciphers.n < 2 || ciphers.n % 2 || !cut_vector(&c, 1, &compression) || !compression.n)
		return -EPROTO;
	if (c.n == 0)
		return -ENOENT;
	if (!cut_vector(&c, 2, &exts) || c.n)
		return -EPROTO;
	while (exts.n) {
		struct cut ext;
		size_t type;

		if (!cut_number(&exts, 2, &type) || !cut_vector(&exts, 2, &ext))
			return -EPROTO;
		if (type != EXT_SERVER_NAME)
			continue;
		if (found || read_name(ext, ret) < 0)
			return -EPROTO;
		found = true;
	}
	return found ? 0 : -ENOENT;
}

int sni_parse(const uint8_t *buf, size_t n, char ret[SNI_NAME_MAX + 1])
{
	uint8_t hello[SNI_BYTES_MAX]; /* the handshake, without the records around it */
	char name[SNI_NAME_MAX + 1];
	struct cut c = {.p = buf, .n = n}, body;
	size_t have = 0, want = HANDSHAKE_HEADER;
	int r;

	while (have < want) {
		size_t type = 0, version = 0, len = 0, part;

		/* As far as it is there it must look right: we do not wait for more of something
		 * else. */
		if (c.n >= 1 && c.p[0] != RECORD_HANDSHAKE)
			return -EPROTO;
		if (c.n >= 2 && c.p[1] != 3)
			return -EPROTO;
		if (!cut_number(&c, 1, &type) || !cut_number(&c, 2, &version) ||
		    !cut_number(&c, 2, &len))
			return n < SNI_BYTES_MAX ? -EAGAIN : -EPROTO;
		if (len == 0 || len > RECORD_MAX)
			return -EPROTO;
		part = MIN(len, c.n);
		part = MIN(part, sizeof(hello) - have);
		memcpy(hello + have, c.p, part);
		have += part;
		if (have >= 1 && hello[0] != HANDSHAKE_CLIENT_HELLO)
			return -EPROTO;
		if (have >= HANDSHAKE_HEADER) {
			want = HANDSHAKE_HEADER +
			       ((size_t)hello[1] << 16 | (size_t)hello[2] << 8 | hello[3]);
			if (want > sizeof(hello))
				return -EPROTO;
		}
		if (have < want && part == c.n)
			return n < SNI_BYTES_MAX ? -EAGAIN : -EPROTO;
		cut_bytes(&c, len, &body);
	}
	r = read_hello((struct cut){.p = hello + HANDSHAKE_HEADER, .n = want - HANDSHAKE_HEADER},
	               name);
	if (r == 0)
		memcpy(ret, name, sizeof(name));
	return r;
}
