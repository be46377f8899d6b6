/*
 * engine/probe.h - which engines work on this host
 * A /dev/kvm that opens proves little: it may be a container's, a nested host's without
 * the cpu feature, or an emulation that runs a kernel too slowly to be of use. So the cpu must say
 * that it can (svm, vmx), and a tiny guest must do its sum and halt.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/*
 * An fd of /dev/kvm, or a negative errno, with a sentence about it in why either way. Takes a
 * millisecond, a second at most when something is wrong.
 */
int kvm_open(char *why, size_t n);

/* What was found out about it. An error is 0 or a negative errno; flag is svm, vmx or NULL. */
struct kvm_found {
	int open_error;
	const char *flag;
	int guest_error;
};

/* The sentence of kvm_open() about it. Is it to be used? 0 or a negative errno. */
int kvm_explain(const struct kvm_found *f, char *why, size_t n);

/*
 * Can machines of engine um run here? They find what they have written by an ioctl of Linux 6.7. 0
 * or -ENOTSUP, with a sentence about it in why either way.
 */
int um_usable(char *why, size_t n);

/* Which engine auto is on a host where these work, in a sentence. */
const char *engine_auto(bool kvm, bool um);

/* Does text, that of /proc/cpuinfo, list the flag svm or vmx? Which, or NULL. */
const char *kvm_cpu_flag(const char *text);
