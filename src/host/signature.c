#include "host/signature.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/log.h"
#include "base/random.h"
#include "db/db.h"
#include "db/settings.h"

enum {
	PUBLIC_LEN = 32,
	VALUE_LEN = 64,
};

static void pkey_freep(EVP_PKEY **k)
{
	EVP_PKEY_free(*k);
}

static void md_ctx_freep(EVP_MD_CTX **c)
{
	EVP_MD_CTX_free(*c);
}

static void to_hex(const unsigned char *p, size_t n, char *ret)
{
	for (size_t i = 0; i < n; i++)
		snprintf(ret + 2 * i, 3, "%02x", p[i]);
}

/* One key has one spelling. */
static bool from_hex(const char *hex, size_t n, unsigned char *ret)
{
	if (strlen(hex) != 2 * n || strspn(hex, "0123456789abcdef") != 2 * n)
		return false;
	for (size_t i = 0; i < n; i++) {
		char byte[3] = {hex[2 * i], hex[2 * i + 1], 0};

		ret[i] = (unsigned char)strtoul(byte, NULL, 16);
	}
	return true;
}

static bool public_parse(const char *text, unsigned char ret[PUBLIC_LEN])
{
	size_t n = strlen(SIGNATURE_KIND);

	return !strncmp(text, SIGNATURE_KIND, n) && from_hex(text + n, PUBLIC_LEN, ret);
}

static int public_of(struct signature_key *k)
{
	AUTO(pkey_freep)
	EVP_PKEY *key =
	    EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, k->secret, SIGNATURE_SECRET);
	unsigned char raw[PUBLIC_LEN];
	size_t n = sizeof(raw);

	if (!key || EVP_PKEY_get_raw_public_key(key, raw, &n) != 1 || n != sizeof(raw))
		return -EIO;
	memcpy(k->public, SIGNATURE_KIND, strlen(SIGNATURE_KIND));
	to_hex(raw, sizeof(raw), k->public + strlen(SIGNATURE_KIND));
	return 0;
}

static int key_load(struct db *db, struct signature_key *k, struct err *e)
{
	char hex[2 * SIGNATURE_SECRET + 1] = "";
	int r = db_setting_get(db, "archive_key", hex, sizeof(hex), e);

	if (r < 0 && r != -E2BIG)
		return r;
	if (r == 0 && from_hex(hex, SIGNATURE_SECRET, k->secret))
		return 0;
	if (r == -E2BIG || hex[0])
		log_warn("the key that signs archives was damaged, we made a new one: hosts that "
		         "know the old one need the new " SIGNATURE_FILE);
	random_fill(k->secret, sizeof(k->secret));
	to_hex(k->secret, sizeof(k->secret), hex);
	return db_setting_set(db, "archive_key", hex, e);
}

int signature_key_open(struct db *db, const char *data_dir, struct signature_key *ret,
                       struct err *e)
{
	autoclose int dir = open(data_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct signature_key k = {.public = ""};
	char line[SIGNATURE_KEY + 1];
	int r = key_load(db, &k, e);

	if (r < 0)
		return r;
	r = public_of(&k);
	if (r < 0)
		return err_set(e, -r, "internal", "OpenSSL makes no Ed25519 key");
	snprintf(line, sizeof(line), "%s\n", k.public);
	r = dir < 0 ? -ENOENT
	            : io_replace_file(dir, SIGNATURE_FILE, line, strlen(line), 0644, false);
	if (r < 0) /* a full disk is no reason not to start: the file says what we know */
		log_warn("cannot write %s/" SIGNATURE_FILE " why=\"%s\"", data_dir, strerror(-r));
	*ret = k;
	return 0;
}

int signature_make(const struct signature_key *k, const void *p, size_t n,
                   char ret[SIGNATURE_VALUE])
{
	AUTO(pkey_freep)
	EVP_PKEY *key =
	    EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, k->secret, SIGNATURE_SECRET);
	AUTO(md_ctx_freep) EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	unsigned char value[VALUE_LEN];
	size_t len = sizeof(value);

	if (!key || !ctx)
		return -ENOMEM;
	if (EVP_DigestSignInit(ctx, NULL, NULL, NULL, key) != 1 ||
	    EVP_DigestSign(ctx, value, &len, p, n) != 1 || len != sizeof(value))
		return -EIO;
	to_hex(value, sizeof(value), ret);
	return 0;
}

int signature_check(const char *public, const char *value, const void *p, size_t n)
{
	AUTO(pkey_freep) EVP_PKEY *key = NULL;
	AUTO(md_ctx_freep) EVP_MD_CTX *ctx = NULL;
	unsigned char raw[PUBLIC_LEN], bytes[VALUE_LEN];

	if (!public_parse(public, raw) || !from_hex(value, VALUE_LEN, bytes))
		return -EBADMSG;
	key = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, raw, sizeof(raw));
	ctx = EVP_MD_CTX_new();
	if (!ctx)
		return -ENOMEM;
	if (!key || EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, key) != 1 ||
	    EVP_DigestVerify(ctx, bytes, sizeof(bytes), p, n) != 1)
		return -EBADMSG;
	return 0;
}

int signature_known(const char *file, const char *public, bool *ret, struct err *e)
{
	autofree char *text = NULL;
	unsigned char raw[PUBLIC_LEN];
	unsigned number = 0;
	bool known = false;
	char *line, *next;
	int r = file ? io_read_file(AT_FDCWD, file, SIGNATURE_KEYS_MAX, &text, NULL) : 0;

	if (r < 0)
		return err_set(e, -r, "bad_config",
		               "import_keys: cannot read %.200s: %s; correct it, or leave the key "
		               "out of the configuration",
		               file, strerror(-r));
	for (line = text; line && *line && !known; line = next) {
		number++;
		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		line[strcspn(line, "#")] = 0;
		line += strspn(line, " \t\r");
		line[strcspn(line, " \t\r")] = 0;
		if (!*line)
			continue;
		if (!public_parse(line, raw))
			return err_set(e, EINVAL, "bad_config",
			               "import_keys: %.200s:%u: a line begins with a key, as in "
			               "the file " SIGNATURE_FILE " of the other host",
			               file, number);
		known = public && !strcmp(line, public);
	}
	*ret = known;
	return 0;
}
