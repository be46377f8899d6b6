/*
 * cli/neighbours.h - what sandboxes on one host can learn from each other through its hardware
 * docs/guide/side-channels.md says what each row means, and which of them matters to whom.
 */
#pragma once

/* Of one thing: state is "ok", or "--" for a choice of the operator. todo may be NULL. */
typedef void neighbour_row(const char *state, const char *name, const char *detail,
                           const char *todo);

/* Looks at sys (/sys) and proc (/proc), calls row for each thing found. */
void neighbours_look(const char *sys, const char *proc, neighbour_row *row);
