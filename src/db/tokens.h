/*
 * db/tokens.h - API tokens, on record
 *
 * The text of a token is never on record, only its SHA-256. Rows are written once, never changed,
 * and deleted when the token is revoked. The API reads all of them when it starts and answers
 * requests from memory (api/auth.c).
 */
#pragma once
#include "db/db.h"

struct db_token {
	const char *hash;   /* of its text, in hex: the key */
	const char *prefix; /* the first characters of its text, by which users name it: unique */
	const char *tenant, *label;
	const char *scopes; /* words, divided by commas: "sandbox", "admin,sandbox" */
	const char *quota;  /* JSON */
	uint64_t created_ms;
};

/* -EEXIST: that hash or that prefix is taken. */
int db_token_insert(struct db *d, const struct db_token *row, struct err *e);
int db_token_delete(struct db *d, const char *hash, struct err *e);

/* All of them; fn returns false to stop. */
int db_tokens_each(struct db *d, bool (*fn)(void *arg, const struct db_token *row), void *arg,
                   struct err *e);
