#include "common/request.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

size_t request_head(const char *p, size_t n)
{
	const char *end = memmem(p, n, "\r\n\r\n", 4);

	return end ? (size_t)(end + 4 - p) : 0;
}

void request_field(const char *p, size_t n, const char *name, char *buf, size_t size)
{
	size_t head = request_head(p, n), len = strlen(name);
	const char *at = p, *end = p + head;

	*buf = 0;
	while (at < end) {
		const char *line = at, *eol = memmem(at, (size_t)(end - at), "\r\n", 2);

		at = eol + 2;
		if ((size_t)(eol - line) > len + 1 && !strncasecmp(line, name, len) &&
		    line[len] == ':') {
			line += len + 1;
			line += *line == ' ';
			snprintf(buf, size, "%.*s", (int)(eol - line), line);
			return;
		}
	}
}

/*
 * Walks over chunks. Bytes up to the end of the last one, 0: it is not there. Data goes to out,
 * when out is given, and its length to *len.
 */
static size_t chunks(const char *p, size_t n, char *out, size_t *len)
{
	size_t at = 0;

	*len = 0;
	for (;;) {
		const char *eol = memmem(p + at, n - at, "\r\n", 2);
		size_t size;

		if (!eol)
			return 0;
		size = strtoul(p + at, NULL, 16);
		at = (size_t)(eol + 2 - p);
		if (n - at < size + 2)
			return 0;
		if (out)
			memcpy(out + *len, p + at, size);
		*len += size;
		at += size + 2;
		if (!size)
			return at;
	}
}

static bool chunked(const char *p, size_t n)
{
	char text[32];

	request_field(p, n, "transfer-encoding", text, sizeof(text));
	return !strcasecmp(text, "chunked");
}

static size_t announced(const char *p, size_t n)
{
	char text[32];

	request_field(p, n, "content-length", text, sizeof(text));
	return strtoul(text, NULL, 10);
}

size_t request_whole(const char *p, size_t n)
{
	size_t head = request_head(p, n), body, len;

	if (!head)
		return 0;
	if (chunked(p, n)) {
		body = chunks(p + head, n - head, NULL, &len);
		return body ? head + body : 0;
	}
	body = announced(p, n);
	return n - head >= body ? head + body : 0;
}

char *request_body(const char *p, size_t n, size_t *ret_len)
{
	size_t head = request_head(p, n), len = n - head;
	char *body = malloc(len + 1);

	if (!body)
		abort();
	if (chunked(p, n))
		chunks(p + head, n - head, body, &len);
	else if (len)
		memcpy(body, p + head, len);
	body[len] = 0;
	*ret_len = len;
	return body;
}

void request_ws_accept(const char *p, size_t n, char *buf, size_t size)
{
	unsigned char sha[EVP_MAX_MD_SIZE], out[64];
	char key[64], text[128];
	unsigned len;

	request_field(p, n, "sec-websocket-key", key, sizeof(key));
	snprintf(text, sizeof(text), "%s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key);
	EVP_Digest(text, strlen(text), sha, &len, EVP_sha1(), NULL);
	EVP_EncodeBlock(out, sha, (int)len);
	snprintf(buf, size, "%s", (char *)out);
}
