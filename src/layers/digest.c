#include "layers/digest.h"

#include <openssl/evp.h>

#include "base/cleanup.h"

struct sha {
	EVP_MD_CTX *ctx;
};

void sha_free(struct sha *s)
{
	if (!s)
		return;
	EVP_MD_CTX_free(s->ctx);
	free(s);
}

void sha_freep(struct sha **s)
{
	sha_free(*s);
}

int sha_new(struct sha **ret)
{
	AUTO(sha_freep) struct sha *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->ctx = EVP_MD_CTX_new();
	if (!s->ctx)
		return -ENOMEM;
	if (EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) != 1)
		return -EIO;
	*ret = take_ptr(s);
	return 0;
}

int sha_add(struct sha *s, const void *buf, size_t n)
{
	return EVP_DigestUpdate(s->ctx, buf, n) == 1 ? 0 : -EIO;
}

int sha_done(struct sha *s, struct digest *ret)
{
	/* A NULL type starts over with the algorithm the context already has. */
	if (EVP_DigestFinal_ex(s->ctx, ret->b, NULL) != 1 ||
	    EVP_DigestInit_ex(s->ctx, NULL, NULL) != 1)
		return -EIO;
	return 0;
}

int digest_bytes(const void *buf, size_t n, struct digest *ret)
{
	return EVP_Digest(buf, n, ret->b, NULL, EVP_sha256(), NULL) == 1 ? 0 : -EIO;
}

bool digest_equal(const struct digest *a, const struct digest *b)
{
	return memcmp(a->b, b->b, DIGEST_LEN) == 0;
}

void digest_text(const struct digest *d, char ret[DIGEST_TEXT])
{
	static const char hex[] = "0123456789abcdef";

	for (int i = 0; i < DIGEST_LEN; i++) {
		ret[2 * i] = hex[d->b[i] >> 4];
		ret[2 * i + 1] = hex[d->b[i] & 15];
	}
	ret[DIGEST_TEXT - 1] = 0;
}

static int nibble(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

int digest_parse(const char *text, struct digest *ret)
{
	struct digest d;

	if (strlen(text) != DIGEST_TEXT - 1)
		return -EBADMSG;
	for (int i = 0; i < DIGEST_LEN; i++) {
		int hi = nibble(text[2 * i]), lo = nibble(text[2 * i + 1]);

		if (hi < 0 || lo < 0)
			return -EBADMSG;
		d.b[i] = (unsigned char)(hi << 4 | lo);
	}
	*ret = d;
	return 0;
}
