/*
 * core/machine_internal.h - between the files of core/machine.h
 */
#pragma once
#include "core/machine.h"

/* machine_adopt(), with what its books say. */
int machine_take_up(struct machines *ms, const char *id, struct engine_machine *ret,
                    struct machine_info *info, struct err *e);
/* What the machine has now, for whoever takes it up next. */
int machine_write_book(int dirfd, const struct engine_machine *m, const struct machine_info *info);
