/*
 * vmm/seccomp.h - each thread shuts itself behind the few system calls it needs
 * The jail has a list for the whole process (engine/kvm.c); these are smaller. What is not
 * allowed is answered with ENOSYS.
 */
#pragma once

/* For the thread that calls. Needs no_new_privs, which the jail has set, or CAP_SYS_ADMIN. */
int seccomp_vcpu(void);
int seccomp_devices(void);
