/*
 * machine/machine_internal.h - between the files of machine/machine.h
 */
#pragma once
#include <jansson.h>

#include "machine/machine.h"

bool machine_id_valid(const char *id);

/* machine_adopt(), with what its books say. */
int machine_take_up(struct machines *ms, const char *id, struct engine_machine *ret,
                    struct machine_info *info, struct err *e);

/* What the machine has now, for the process that takes it up next. */
int machine_write_book(int dirfd, const struct engine_machine *m, const struct machine_info *info);
/*
 * The directory of a machine, and its machine.json: NULL when it never started, or it cannot be
 * read it. With lock, no other process controls the machine as long as *ret_dir or a copy of it is
 * open: what the books say and what the machine holds must change together. The caller owns both.
 */
int machine_read_book(struct machines *ms, const char *id, bool lock, int *ret_dir, json_t **ret,
                      struct err *e);
/* What the books (may be NULL) in directory dir say, and whether the machine is alive now. */
void machine_fill_info(struct machines *ms, const char *id, int dir, const json_t *book,
                       struct machine_info *ret);
/* A number of the books; 0 for what is none, or negative. */
uint64_t book_int(const json_t *j, const char *key);
/* A text of the books, cut to n; "" for what is none. */
void book_text(const json_t *j, const char *key, char *buf, size_t n);
/* The name of the map file of the layer in fd. */
int machine_map_name(char buf[64], int fd);
