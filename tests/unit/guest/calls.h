/*
 * Requests that only the loop of pandad makes, and so has no blocking helper in guest.h: made over
 * the half of it that never blocks, and waited for here. 0 or a negative errno.
 */
#pragma once
#include "machine/guest.h"

int call_dir(struct guest *g, const char *path, void (*each)(void *arg, const struct wire_file *m),
             void *arg);
/* Until each() returns false; ready() (may be NULL) once watching. */
int call_watch(struct guest *g, const char *path, void (*ready)(void *arg),
               bool (*each)(void *arg, const struct wire_event *m), void *arg);
/* Carries bytes between two files and a tcp port of the guest until both sides are done. */
int call_connect(struct guest *g, unsigned port, int in_fd, int out_fd);
