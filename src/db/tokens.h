/*
 * db/tokens.h - API tokens, on record
 *
 * The text of a token is never on record, only its SHA-256. Rows are written once and deleted
 * when the token is revoked; in between only a rotation changes them. The API reads all of them
 * when it starts and answers requests from memory (api/auth.c).
 */
#pragma once
#include "db/db.h"

struct db_token {
	const char *hash;   /* of its text, in hex: the key */
	const char *prefix; /* the first characters of its text, by which users name it: unique */
	const char *tenant, *label;
	const char *scopes; /* words, divided by commas: "sandbox", "read,sandbox:<id>" */
	const char *quota;  /* JSON */
	const char
	    *maker; /* prefix of the token it was made with; "" or NULL: none, or not known */
	uint64_t created_ms;
	uint64_t expires_ms; /* 0: never */
};

/* -EEXIST: that hash or that prefix is taken. */
int db_token_insert(struct db *d, const struct db_token *row, struct err *e);
int db_token_delete(struct db *d, const char *hash, struct err *e);
/* Another text for the same token; those that it made know it by its new prefix. -EEXIST as
 * above. */
int db_token_rotate(struct db *d, const char *hash, const char *prefix, const char *new_hash,
                    const char *new_prefix, struct err *e);
/* What the token of this prefix made is made by none from now on. */
int db_token_orphan(struct db *d, const char *prefix, struct err *e);

/* All of them; fn returns false to stop. */
int db_tokens_each(struct db *d, bool (*fn)(void *arg, const struct db_token *row), void *arg,
                   struct err *e);
