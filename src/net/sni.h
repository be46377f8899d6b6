/*
 * net/sni.h - the server name in the first bytes of a TLS connection
 * Pure. The bytes come from the guest: lengths are checked, and what is not exactly one ClientHello
 * with at most one name is refused rather than guessed.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum {
	SNI_NAME_MAX = 253,
	SNI_BYTES_MAX = 16384, /* a hello that is longer is refused */
};

/*
 * 0 and the name, lower case. -EAGAIN: so far it could become one, more bytes are needed; -ENOENT:
 * a ClientHello without a name; -EPROTO: no ClientHello, malformed, too long, or a name that is
 * none.
 */
int sni_parse(const uint8_t *buf, size_t n, char ret[SNI_NAME_MAX + 1]);
