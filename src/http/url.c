#include "http/url.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/utf8.h"

static int hex_of(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int url_decode(const char *p, size_t n, int plus, char **ret)
{
	autofree char *out = malloc(n + 1);
	size_t len = 0;

	if (!out)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		char c = p[i];

		if (c == '%') {
			int hi = n - i > 2 ? hex_of(p[i + 1]) : -1;
			int lo = hi < 0 ? -1 : hex_of(p[i + 2]);

			if (lo < 0)
				return -EBADMSG;
			c = (char)(hi * 16 + lo);
			i += 2;
		} else if (c == '+' && plus) {
			c = ' ';
		}
		if (!c)
			return -EBADMSG;
		out[len++] = c;
	}
	out[len] = 0;
	if (!utf8_is_good(out, len))
		return -EBADMSG;
	*ret = take_ptr(out);
	return 0;
}

int url_query(const char *query, const char *key, char **ret)
{
	while (*query) {
		size_t n = strcspn(query, "&"), k = strcspn(query, "=&");
		autofree char *name = NULL;
		int r = url_decode(query, k, 1, &name);

		if (r == -ENOMEM)
			return r;
		if (r == 0 && strcmp(name, key) == 0) {
			if (k < n)
				k++;
			return url_decode(query + k, n - k, 1, ret);
		}
		query += n + (query[n] == '&');
	}
	return -ENOENT;
}

int url_encode(const char *p, char **ret)
{
	static const char digits[] = "0123456789ABCDEF";
	size_t n = strlen(p), len = 0;
	char *out;

	if (n > SIZE_MAX / 3 - 1)
		return -ENOMEM;
	out = malloc(3 * n + 1);
	if (!out)
		return -ENOMEM;
	for (; *p; p++) {
		unsigned char c = (unsigned char)*p;
		bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
		             (c >= '0' && c <= '9') || strchr("-._~/", c);

		if (plain) {
			out[len++] = (char)c;
			continue;
		}
		out[len++] = '%';
		out[len++] = digits[c >> 4];
		out[len++] = digits[c & 15];
	}
	out[len] = 0;
	*ret = out;
	return 0;
}
