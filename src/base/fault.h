/*
 * base/fault.h - places where tests let pandad die
 * Each step of an operation that changes what is on disk or which processes run has a name. A
 * process started with PANDA_FAULT=<name> kills itself with SIGKILL at that place; with
 * PANDA_FAULT=<name>:<n>, when it passes it for the n-th time. fault_names lists them all, so that
 * a test can walk through every one.
 */
#pragma once

extern const char *const fault_names[]; /* NULL at the end */

void fault_init(void); /* reads the environment, once, before threads */
void fault_at(const char *name);
