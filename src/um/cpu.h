/*
 * um/cpu.h - which cpu a machine runs on
 * A machine's kernel and its processes hand work to each other all the time and must share one
 * cpu. Which one is decided by load since the last decision, whoever took it.
 */
#pragma once

/* The least loaded cpu this process may use. Samples are kept in file "cpus" of run_dirfd. */
int cpu_choose(int run_dirfd);
