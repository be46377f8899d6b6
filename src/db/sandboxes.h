/*
 * db/sandboxes.h - sandboxes on record
 *
 * A row is there before anything of its sandbox is, and it goes after everything else has gone: the
 * next pandad undoes or finishes by its state what this one left (host/recover.c). A create inserts
 * one row, a fork one for each child between db_begin() and db_commit(): all children are on record
 * or none is. Id, tenant and time of creation never change. State and doc change in one statement,
 * so no reader gets the one of today with the other of yesterday; each change of state is one
 * db_sandbox_update().
 *
 * What the words of state and the keys of doc mean is host/sandbox.h's.
 */
#pragma once
#include "db/db.h"

struct db_sandbox {
	const char *id, *tenant;
	const char *state;
	const char *doc; /* JSON: what it was asked to be, and what became of it */
	uint64_t created_ms;
};

int db_sandbox_insert(struct db *d, const struct db_sandbox *row, struct err *e);
int db_sandbox_update(struct db *d, const char *id, const char *state, const char *doc,
                      struct err *e);
int db_sandbox_delete(struct db *d, const char *id, struct err *e);

/* Is there a row of that id? */
int db_sandbox_known(struct db *d, const char *id, bool *ret, struct err *e);

/* The oldest first; fn returns false to stop. */
int db_sandboxes_each(struct db *d, bool (*fn)(void *arg, const struct db_sandbox *row), void *arg,
                      struct err *e);
