/*
 * host/rewind.h - a sandbox is put back to one of its checkpoints
 * A rewind starts the checkpoint's image as another machine beside the one that runs, then writes
 * its name into the record, then removes the old one. A pandad that dies in between leaves a
 * sandbox that is before or after, and a machine without a record, which the next pandad removes:
 *
 *   old machine runs         old and new run             new machine runs
 *   record: old       --->   record: old        --->     record: new        --->  old one removed
 *              rewind.begun          rewind.started          rewind.recorded        rewind.cleaned
 *
 * Volumes do not go back: the sandbox keeps those it has now, with what is on them now. They are
 * mounted anew where they were written or changed since, and files that were open on them then give
 * I/O errors:
 *
 *   ... record: new,         old one frozen,         volumes attached
 *   volumes pending   --->   removed          --->   and mounted
 *               rewind.recorded         rewind.stopped          rewind.cleaned
 *
 * Kinds of errors: checkpoint_not_found, volume_busy, and those of host/host.h.
 */
#pragma once
#include "host/host.h"

/*
 * Puts the same sandbox back: id, metadata, links and lifetime stay, what runs and what is on its
 * own disk is as it was. Works for paused ones and for those that failed, too: they run then. Open
 * calls end. Checkpoints newer than the one it was put back to are gone, that one stays.
 */
void host_rewind(struct host *h, struct sandbox *sb, const char *to, unsigned steps,
                 host_done *done, void *arg);
