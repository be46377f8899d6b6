/*
 * cli/carry.h - bytes between two fds of ours and a tunnel into a sandbox
 */
#pragma once

struct panda_error;
struct panda_pipe;

/*
 * Carries what comes from in to the tunnel and what comes from there to out (which may be the same
 * socket), at the pace of the slower side, until both directions have ended, each on its own.
 * Makes both fds non-blocking. 0, or a negative errno: the tunnel (e says why) or our side (e is
 * untouched) broke.
 */
int carry(struct panda_pipe *p, int in, int out, struct panda_error *e);
