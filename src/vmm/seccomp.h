/*
 * vmm/seccomp.h - each thread shuts itself behind the few system calls it needs
 * The jail has a list for the whole process (engine/kvm.c); these are smaller. What is not
 * allowed is answered with ENOSYS.
 */
#pragma once

/*
 * For the thread that calls, and those that it makes. Each sets no_new_privs. One comes on top of
 * another: what is allowed then is what both allow.
 */
int seccomp_vcpu(void);
int seccomp_devices(void);
/*
 * What seccomp_devices() allows, and what makes vcpus and their threads of what a state file says.
 * The VM, the devices and their bells are there before, and no byte of that file was looked at.
 */
int seccomp_restore(void);
