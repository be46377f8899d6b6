/*
 * engine/pages.h - which pages a machine says it has written
 * A snapshot's map file holds runs of pages, u64 first page and u64 number of pages each, in the
 * host's byte order: memory first, then the disks. A machine process fills it, so every number
 * in it is a stranger's.
 */
#pragma once
#include <sys/types.h>

#include "layers/map.h"

enum { RUN_LEN = 16 };

/*
 * Adds nr runs, RUN_LEN bytes each, behind those that m has. -EBADMSG: a run is empty, reaches past
 * pages, or starts before the end of the one before it. -EFBIG, -ENOMEM. No I/O.
 */
int runs_add(struct map *m, const void *bytes, size_t nr, uint64_t pages);

/*
 * Reads nr runs from *pos on and moves *pos behind them. Errors as above; -EBADMSG also when the
 * file ends early. Caller owns *ret.
 */
int runs_read(int fd, off_t *pos, uint64_t nr, uint64_t pages, struct map *ret);
