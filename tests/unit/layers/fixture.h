/*
 * A small machine with everything a snapshot can have, and a store for it.
 * Memory has 75 pages in three layers, listed as A B B C, one of them twice; disk "data" has one
 * layer that is a file; disk "root" is an image.
 */
#pragma once
#include "testlib.h"

#include "layers/snapshot.h"

enum {
	FIX_PAGES = 75,
	FIX_DISK_PAGES = 40,
};

struct fixture {
	char path[64];
	int dir;
	struct snapshot_store store;
	struct manifest manifest;
	struct set memory;
	struct set disks[2];
	int state;
	struct manifest_host host;
	unsigned char *expect_memory; /* resolved content */
};

void fixture_init(struct fixture *f);
void fixture_fini(struct fixture *f);

/* A test that gets a fixture of its own as *state. */
int fixture_setup(void **state);
int fixture_teardown(void **state);
#define with_fixture(test) cmocka_unit_test_setup_teardown(test, fixture_setup, fixture_teardown)

/* As a fresh machine would: nothing of it is in the store, no digest is known. */
void fixture_forget_digests(struct fixture *f);

/* Both succeed or the test fails, with the text of the error. */
void fixture_write(struct fixture *f, const char *id);
void fixture_check(struct fixture *f, const char *id);

/* This is what was written. */
void fixture_same(struct fixture *f, const struct snapshot *s);

/* The load must fail, with this kind. */
void fixture_refused(struct fixture *f, const char *id, enum snapshot_check check, const char *kind,
                     struct err *ret);

/* How many entries a directory has. */
unsigned count_entries(int dirfd);
