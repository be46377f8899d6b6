/*
 * fake/bed.h - a host to test on: real files, real loop, fake machines
 * One directory in /tmp, one template ("base"), one tenant ("t"). Every helper runs the loop until
 * its operation has answered, looks at all sandboxes (sandbox_check()), and fails the test aloud
 * after BED_PATIENCE_MS. What can go wrong returns 0 or a negative errno, its story in bed->err.
 */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine.h"
#include "host/host.h"
#include "machine/guest.h"

enum {
	BED_PATIENCE_MS = 30000,
	BED_MEMORY_MB = 16,
	BED_DISK_BYTES = 8 << 20,
};

struct bed {
	char dir[64];
	char rules[100]; /* see bed_rule() */
	char run_dir[80], data_dir[80], upper[100];
	struct host_config config; /* of the next bed_open_host() */
	struct engine engine;      /* likewise */
	struct loop *loop;
	struct fake_engine *fake;
	struct host *host; /* NULL: no pandad */
	struct err err;    /* of the last helper that failed */
	int lifeline[2];
	unsigned fds; /* how many this process had before */
	bool keep;    /* a child process: nothing is removed */
};

/* A bed without a host yet: config and engine may still be changed. */
void bed_make(struct bed *b);
/* The next pandad. The first one bakes the template when it is first needed. */
void bed_open_host(struct bed *b);
/* pandad ends well, or without a word to anyone (what it had in memory is gone). Machines live. */
void bed_close_host(struct bed *b);
void bed_reopen(struct bed *b);
/* Kills all sandboxes, closes the host, and asserts that no machine or hibernation is left. */
void bed_empty(struct bed *b);
/* Ends all machines and asserts that no process, no file in run_dir and no fd is left. */
void bed_free(struct bed *b);
/* Removes a second bed whose host is closed, while another one goes on. */
void bed_leave(struct bed *b);

/* cmocka fixtures: *state is a struct bed with an open host. */
int bed_setup(void **state);
int bed_teardown(void **state);
#define bed_test(f) cmocka_unit_test_setup_teardown(f, bed_setup, bed_teardown)

/*
 * fn(b, arg) in a process of its own, as a pandad that opens the host first, with PANDA_FAULT=fault
 * from then on (NULL: none). True: it was killed at the fault; false: fn returned. This process
 * must have no host open.
 */
bool bed_in_child(struct bed *b, const char *fault, void (*fn)(struct bed *b, void *arg),
                  void *arg);

/* ---- the loop ---- */

/* Runs the loop until cond holds. */
#define bed_until(b, cond)                                              \
	do {                                                            \
		uint64_t until_ = bed_deadline();                       \
		while (!(cond))                                         \
			bed_turn(b, until_, #cond, __FILE__, __LINE__); \
	} while (0)
uint64_t bed_deadline(void);
void bed_turn(struct bed *b, uint64_t deadline, const char *what, const char *file, int line);
void bed_wake(struct bed *b); /* from a callback: the condition may hold now */
/*
 * The rules of each state machine: op_check() and history_check() of all sandboxes, sandbox_check()
 * of those that no operation works on; and that all are counted.
 */
void bed_check(struct bed *b);

/* ---- operations ---- */

struct sandbox_spec bed_spec(void); /* of template base, without limits */
/* NULL: it failed, b->err says why. */
struct sandbox *bed_create(struct bed *b, const struct sandbox_spec *spec);
struct sandbox *bed_create_plain(struct bed *b); /* which must not fail */
int bed_pause(struct bed *b, struct sandbox *sb);
int bed_resume(struct bed *b, struct sandbox *sb);
int bed_hibernate(struct bed *b, struct sandbox *sb);
int bed_wake_up(struct bed *b, struct sandbox *sb);
int bed_kill(struct bed *b, struct sandbox *sb);
/* How many children came to be; those that did not are NULL. */
size_t bed_fork(struct bed *b, struct sandbox *sb, size_t count, struct sandbox **ret);
int bed_snapshot(struct bed *b, struct sandbox *sb, const char *name, struct host_snapshot *ret);
int bed_snapshot_delete(struct bed *b, const char *id);
struct sandbox *bed_find(struct bed *b, const char *id); /* which must be there */
/* name "": without one. ret_id may be NULL. */
int bed_checkpoint(struct bed *b, struct sandbox *sb, const char *name, char ret_id[37]);
/* To that checkpoint, or (NULL) so many steps back. */
int bed_rewind(struct bed *b, struct sandbox *sb, const char *to, unsigned steps);
int bed_template_save(struct bed *b, struct sandbox *sb, const char *name, bool replace);

int bed_volume_create(struct bed *b, const char *name, uint64_t size_mb);
int bed_volume_copy(struct bed *b, const char *from, const char *name, bool snapshot);
int bed_volume_resize(struct bed *b, const char *name, uint64_t size_mb);
int bed_volume_delete(struct bed *b, const char *name);
int bed_volume_attach(struct bed *b, struct sandbox *sb, const char *name, const char *path,
                      bool read_only);
int bed_volume_detach(struct bed *b, struct sandbox *sb, const char *name, bool force);

/* For operations without a helper here: pass bed_answered and a zeroed struct bed_answer. */
struct bed_answer {
	struct bed *bed;
	bool done;
	int r;
	struct sandbox *sb;
};
void bed_answered(void *arg, const struct err *e, struct sandbox *sb);
int bed_wait_answer(struct bed *b, struct bed_answer *a);

/* The same for host_snapshot(). */
struct bed_snapped {
	struct bed *bed;
	bool done;
	int r;
	struct host_snapshot *ret; /* NULL: not wanted */
};
void bed_snapped(void *arg, const struct err *e, const struct host_snapshot *s);

/* ---- what is inside ---- */

/* A few words in a sandbox's memory (slot 0 to 100), as a program there would keep them. */
void bed_remember(struct sandbox *sb, unsigned slot, const char *text);
void bed_recall(struct sandbox *sb, unsigned slot, char ret[64]);
#define assert_recalls(sb, slot, text)                \
	do {                                          \
		char recalled_[64];                   \
		bed_recall(sb, slot, recalled_);      \
		assert_string_equal(recalled_, text); \
	} while (0)

/* On a connection of their own to the guest: they block, the loop does not run meanwhile. */
int bed_write(struct bed *b, struct sandbox *sb, const char *path, const char *text);
/* The content, "" for an empty file, NULL when there is none. Valid until the next call. */
const char *bed_read(struct bed *b, struct sandbox *sb, const char *path);
/* Exit code; 1000 + signal; or a negative errno. Output as of bed_read(). */
int bed_exec(struct bed *b, struct sandbox *sb, const char *script, const char **ret_out);

/* ---- its guests ---- */

/*
 * What guests do from now on, from JSON:
 *   exec    {"NAME": {"out": "..", "err": "..", "code": 3, "signal": 9, "hang": true}}
 *   refuse  {"mount": {"err": 5, "text": ".."}}      any request, by its name in lower case
 *   answers {"exec": [["started", 1], ["exited", 1000]]}  these replies, so often, and no other;
 *           also data (a byte), event (a row of WATCH), entry (a row of DIR), eof, ready,
 *           attached, gap, file, end (with 0)
 *   mood    {"*": "silent"} or {"<machine id>": ..}  silent, garbage, length, stranger, flood,
 *           half, hangup, die; "" again: well
 *   dir     {"/path": 5000}                          so many entries more than there are
 *   ports   {"80": {}} an echo; {"80": {"on": "\r\n\r\n", "say": "..", "close": true}};
 *           {"80": {"greet": "..", "on": ".."}} says that first, then all it hears, up to "on"
 * Replaces what was said under this heading; NULL: nothing special any more.
 */
void bed_rule(struct bed *b, const char *heading, const char *json);

/* Its machine ends by itself, and the host has seen it. */
void bed_crash_machine(struct bed *b, struct sandbox *sb);

/* ---- what is on disk ---- */

unsigned bed_machines(struct bed *b); /* directories of machines */
unsigned bed_processes(void);         /* machines that run, those made ahead too */
bool bed_stored(struct bed *b, const char *snapshot_id);
unsigned bed_snapshots(struct bed *b, const char *prefix); /* in the store, whose ids begin so */
/*
 * What is on disk, in the records and in processes is of the same sandboxes, snapshots, volumes and
 * templates; nothing else is there. For a host that is at peace.
 */
void bed_check_leftovers(struct bed *b);
