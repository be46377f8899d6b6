/*
 * A panda-init of our own on a socket in a directory of our own, both gone at the end.
 */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include <cmocka.h>

#include "machine/guest.h"

struct box {
	char dir[64];
	char sock[96];
	pid_t pid;
	struct guest *g; /* a fresh connection per test */
};

struct text {
	char *p;
	size_t n;
};

struct result {
	struct text out, err;
	struct guest_exit exit;
};

enum {
	PATIENCE_MS = 60000,
};

extern const char *agent_path;
extern bool agent_is_small; /* built as the guest runs it: its memory says something */

int box_start(struct box *b, const char *option);
void box_stop(struct box *b);
struct guest *box_connect(struct box *b);
int box_raw(struct box *b); /* a plain connected socket */

/* cmocka fixtures around struct box, for a group and for each test */
int group_setup(void **state);
int group_setup_reborn(void **state);
int group_teardown(void **state);
int test_setup(void **state);
int test_teardown(void **state);

/* Turns the connection over, by way of a request that changes nothing. */
void turn(struct guest *g);

/* Runs it to its end; a failure to run it fails the test. */
struct result run_exec(struct guest *g, struct guest_exec x);
struct result run_sh(struct guest *g, const char *script);
void result_free(struct result *r);
void collect(void *arg, uint8_t chan, const void *p, size_t n); /* arg: struct result */

/* A helper of guest.h succeeds; it is given &why as its struct err. */
#define assert_ok(call)                                             \
	do {                                                        \
		int r_ = (call);                                    \
		if (r_ != 0)                                        \
			fail_msg("%s: %d %s", #call, r_, why.text); \
	} while (0)
extern struct err why;

/* Looks again and again until the condition holds; fails after a long while. */
#define assert_soon(cond)                                                 \
	do {                                                              \
		uint64_t end_ = soon_deadline();                          \
		while (!(cond)) {                                         \
			if (!soon_wait(end_))                             \
				fail_msg("never became true: %s", #cond); \
		}                                                         \
	} while (0)
uint64_t soon_deadline(void);
bool soon_wait(uint64_t deadline);

bool process_gone(pid_t pid);                   /* a zombie is gone */
char *path_in(struct box *b, const char *name); /* a few static buffers, in turn */
char *read_small(const char *path);             /* static buffer; "" when missing */

extern const struct CMUnitTest exec_tests[], file_tests[], reborn_tests[];
extern const size_t n_exec_tests, n_file_tests, n_reborn_tests;
