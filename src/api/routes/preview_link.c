#include "api/routes/preview_link.h"

#include <ctype.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "host/sandbox.h"
#include "template/depot.h"

enum {
	PAYLOAD_MAX = SANDBOX_ID + TENANT_MAX + PREVIEW_PATHS_MAX + 64,
	MAC = 32,
};

/* ---- base64url, no padding ---- */

static size_t encode(const void *p, size_t n, char *out)
{
	size_t len = (size_t)EVP_EncodeBlock((unsigned char *)out, p, (int)n);

	while (len && out[len - 1] == '=')
		len--;
	out[len] = 0;
	for (size_t i = 0; i < len; i++)
		out[i] = out[i] == '+' ? '-' : out[i] == '/' ? '_' : out[i];
	return len;
}

static int letter(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '-' ? 62 : c == '_' ? 63 : -1;
}

/* One spelling only: no padding, and the bits behind the last byte are 0. */
static ssize_t decode(const char *p, size_t n, unsigned char *out, size_t cap)
{
	uint32_t bits = 0;
	unsigned have = 0;
	size_t len = 0;

	for (size_t i = 0; i < n; i++) {
		int v = letter(p[i]);

		if (v < 0)
			return -EBADMSG;
		bits = bits << 6 | (uint32_t)v;
		have += 6;
		if (have >= 8) {
			have -= 8;
			if (len == cap)
				return -EBADMSG;
			out[len++] = (unsigned char)(bits >> have);
			bits &= (1u << have) - 1;
		}
	}
	return have >= 6 || bits ? -EBADMSG : (ssize_t)len;
}

static void sign(const unsigned char *key, const void *p, size_t n, unsigned char mac[MAC])
{
	unsigned len = MAC;

	HMAC(EVP_sha256(), key, PREVIEW_KEY, p, n, mac, &len);
}

int preview_sign(const unsigned char key[PREVIEW_KEY], const struct preview *p,
                 char ret[PREVIEW_TOKEN_MAX])
{
	char payload[PAYLOAD_MAX];
	unsigned char mac[MAC];
	size_t n, len;

	if (strchr(p->sandbox, '|') || strchr(p->tenant, '|') || strchr(p->paths, '|'))
		return -EINVAL;
	n = (size_t)snprintf(payload, sizeof(payload), "%s|%u|%llu|%s%s%s", p->sandbox, p->port,
	                     (unsigned long long)p->expires_s, p->tenant,
	                     *p->paths || p->epoch ? "|" : "", p->paths);
	if (p->epoch)
		n += (size_t)snprintf(payload + n, sizeof(payload) - n, "|%llu",
		                      (unsigned long long)p->epoch);
	sign(key, payload, n, mac);
	_Static_assert((PAYLOAD_MAX + 2) / 3 * 4 + 1 + 44 + 1 <= PREVIEW_TOKEN_MAX, "fits");
	len = encode(payload, n, ret);
	ret[len++] = '.';
	encode(mac, sizeof(mac), ret + len);
	return 0;
}

/* Copies up to the next bar (or the end) and goes behind it. */
static bool field(char **at, char *ret, size_t cap)
{
	size_t n = strcspn(*at, "|");

	if (n >= cap)
		return false;
	memcpy(ret, *at, n);
	ret[n] = 0;
	*at += n + ((*at)[n] == '|');
	return true;
}

static bool number(const char *text, uint64_t max, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	return isdigit((unsigned char)*text) && !*end && !errno && *ret && *ret <= max;
}

int preview_check(const unsigned char key[PREVIEW_KEY], const char *token, uint64_t now_s,
                  struct preview *ret, struct err *e)
{
	const char *dot = strchr(token, '.');
	char payload[PAYLOAD_MAX + 1], port[8], expires[24], epoch[24], *at = payload;
	unsigned char mac[MAC], theirs[MAC];
	struct preview p = {0};
	uint64_t v;
	ssize_t n;

	n = dot ? decode(token, (size_t)(dot - token), (unsigned char *)payload, PAYLOAD_MAX) : -1;
	if (n < 0 || decode(dot + 1, strlen(dot + 1), theirs, MAC) != MAC)
		goto forged;
	sign(key, payload, (size_t)n, mac);
	if (CRYPTO_memcmp(mac, theirs, MAC) != 0)
		goto forged;
	payload[n] = 0;
	if (!field(&at, p.sandbox, sizeof(p.sandbox)) || !field(&at, port, sizeof(port)) ||
	    !field(&at, expires, sizeof(expires)) || !field(&at, p.tenant, sizeof(p.tenant)) ||
	    !field(&at, p.paths, sizeof(p.paths)) || !field(&at, epoch, sizeof(epoch)) || *at ||
	    !number(port, 65535, &v) || (*epoch && !number(epoch, UINT64_MAX, &p.epoch)))
		goto forged;
	p.port = (unsigned)v;
	if (!number(expires, UINT64_MAX, &p.expires_s))
		goto forged;
	if (now_s >= p.expires_s)
		return err_set(e, EKEYEXPIRED, "unauthorized",
		               "this link has expired: ask its owner for a new one");
	*ret = p;
	return 0;
forged:
	return err_set(e, EKEYREJECTED, "unauthorized",
	               "this link is not one of ours: it is cut or changed");
}

bool preview_allows(const struct preview *p, const char *path)
{
	if (!*p->paths)
		return true;
	/* A guest may understand these as a way out of the prefix. */
	if (strstr(path, "..") || strstr(path, "//") || strcasestr(path, "%2e") ||
	    strcasestr(path, "%2f") || strchr(path, '\\'))
		return false;
	for (const char *at = p->paths; *at;) {
		size_t n = strcspn(at, ",");

		if (n && strncmp(path, at, n) == 0 &&
		    (at[n - 1] == '/' || path[n] == 0 || path[n] == '/'))
			return true;
		at += n + (at[n] == ',');
	}
	return false;
}

bool preview_host(const char *host, const char *suffix, unsigned *port, char id[SANDBOX_ID + 1])
{
	size_t digits = strspn(host, "0123456789"), n, rest = strlen(suffix);
	unsigned long v;

	if (*suffix == '.') {
		suffix++;
		rest--;
	}
	if (!digits || digits > 5 || host[digits] != '-')
		return false;
	v = strtoul(host, NULL, 10);
	host += digits + 1;
	n = strcspn(host, ".");
	if (!v || v > 65535 || !n || n > SANDBOX_ID || host[n] != '.' || !rest ||
	    strncasecmp(host + n + 1, suffix, rest) != 0 ||
	    (host[n + 1 + rest] != 0 && host[n + 1 + rest] != ':'))
		return false;
	for (size_t i = 0; i < n; i++) {
		if (!isalnum((unsigned char)host[i]) && host[i] != '-')
			return false;
		id[i] = (char)tolower((unsigned char)host[i]);
	}
	id[n] = 0;
	*port = (unsigned)v;
	return true;
}
