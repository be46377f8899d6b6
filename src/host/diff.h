/*
 * host/diff.h - which files are different between two machines, and bringing some over
 * Each side is asked for what it has written over its template (host/upper.h): no tree is walked as
 * a whole. A checkpoint or snapshot is started as a machine for a moment, without a record, to be
 * asked. What is in volumes and in memory file systems (/dev, /run) does not count. Loop thread
 * only; the work is done on the pool.
 *
 * Kinds of errors: bad_request, conflict (other templates, no parent), checkpoint_not_found,
 * snapshot_not_found, diff_failed (the guest does not answer as it should), and those of
 * host/host.h.
 */
#pragma once
#include "host/host.h"

enum {
	DIFF_CHANGES_MAX = 10000,    /* in one answer */
	DIFF_TEXTS_MAX = 200,        /* files with a unified diff */
	DIFF_TEXT_BYTES = 256 << 10, /* of such a file */
	DIFF_HASH_MAX = 20000,       /* files whose content is compared */
	DIFFS_AT_ONCE = 8,           /* of one sandbox, merges counted */
	MERGE_FILES_MAX = 1000,
	MERGE_FILE_BYTES = 64 << 20,
};

struct diff_options {
	const char *other; /* sandbox, snapshot or checkpoint; NULL: the template */
	bool to_other;     /* else from the other one to this sandbox */
	bool unified;      /* texts, too */
};

/* result as the API shows it; done takes the reference. NULL after an error. */
typedef void diff_done(void *arg, const struct err *e, json_t *result);

void host_diff(struct host *h, struct sandbox *sb, const struct diff_options *o, diff_done *done,
               void *arg);

/*
 * Brings what a child has changed since it was forked into its parent. Files that both have changed
 * are conflicts: with none, or with theirs, all is applied (the child's wins), else nothing is.
 * Not atomic: a pandad that dies in the middle leaves some files done, and the client can ask
 * again.
 */
void host_merge(struct host *h, struct sandbox *parent, const char *child, bool theirs, bool dry,
                diff_done *done, void *arg);
