/*
 * host/signature.h - which host wrote an archive, and which hosts this one believes
 * Each host has an Ed25519 key pair. Its secret half is in the records (db/settings.h); its public
 * half is in the file SIGNATURE_FILE of the data directory, so that an operator can tell it to
 * other hosts. Those that this host knows stand in the file that the config key import_keys names,
 * each in a line: the key as it is spelled in SIGNATURE_FILE, and any words behind it. '#' begins a
 * comment.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define SIGNATURE_FILE "archive_key.pub"
#define SIGNATURE_KIND "ed25519:"

enum {
	SIGNATURE_SECRET = 32,
	SIGNATURE_KEY = sizeof(SIGNATURE_KIND) - 1 + 2 * 32 + 1, /* "ed25519:", hex, a NUL */
	SIGNATURE_VALUE = 2 * 64 + 1,
	SIGNATURE_KEYS_MAX = 1 << 20, /* bytes of the file of known keys */
};

struct db;

struct signature_key {
	unsigned char secret[SIGNATURE_SECRET];
	char public[SIGNATURE_KEY];
};

/*
 * The key of this host, from its records; a new one where there is none. Writes SIGNATURE_FILE.
 * Blocks.
 */
int signature_key_open(struct db *db, const char *data_dir, struct signature_key *ret,
                       struct err *e);

/* Any thread. -EIO: OpenSSL refuses, -ENOMEM. */
int signature_make(const struct signature_key *k, const void *p, size_t n,
                   char ret[SIGNATURE_VALUE]);
/* Did the host of this key sign these bytes? -EBADMSG: no, or one of the texts is no such thing. */
int signature_check(const char *public, const char *value, const void *p, size_t n);

/*
 * Does the file (NULL: there is none) name this key? Blocks. Kind: bad_config, which names the line
 * that is none; nothing behind it is read. public NULL: only looks whether all of the file is good.
 */
int signature_known(const char *file, const char *public, bool *ret, struct err *e);
