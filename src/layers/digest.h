/*
 * layers/digest.h - SHA-256, in pieces or at once, and as text
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum {
	DIGEST_LEN = 32,
	DIGEST_TEXT = 2 * DIGEST_LEN + 1 /* lower-case hex and a NUL */
};

struct digest {
	unsigned char b[DIGEST_LEN];
};

/* One running hash; used again after sha_done(). -ENOMEM, or -EIO when OpenSSL refuses. */
struct sha;
int sha_new(struct sha **ret);
void sha_free(struct sha *s);
void sha_freep(struct sha **s);
int sha_add(struct sha *s, const void *buf, size_t n);
int sha_done(struct sha *s, struct digest *ret);

int digest_bytes(const void *buf, size_t n, struct digest *ret);
bool digest_equal(const struct digest *a, const struct digest *b);
void digest_text(const struct digest *d, char ret[DIGEST_TEXT]);

/* Exactly 64 lower-case hex digits, or -EBADMSG: one digest has one spelling. */
int digest_parse(const char *text, struct digest *ret);
