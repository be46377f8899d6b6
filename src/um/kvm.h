/*
 * um/kvm.h - is there hardware virtualization behind /dev/kvm?
 * A /dev/kvm that opens proves little: it may be a container's, a nested host's without the cpu
 * feature, or an emulation that runs a kernel too slowly to be of use. So the cpu must say that it
 * can (svm, vmx), and a tiny guest must do its sum and halt.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/*
 * An fd of /dev/kvm, or a negative errno, with a sentence about it in why either way. Takes a
 * millisecond, a second at most when something is wrong.
 */
int kvm_open(char *why, size_t n);

/* Does text, that of /proc/cpuinfo, list the flag svm or vmx? Which, or NULL. */
const char *kvm_cpu_flag(const char *text);
