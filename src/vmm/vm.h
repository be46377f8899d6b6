/*
 * vmm/vm.h - one KVM virtual machine: its memory, its interrupt controllers, its vcpus
 * A vcpu is a thread that runs until vm_pause(); the ioctls on a paused one are its owner's, the
 * thread of vm_pause(). Exits that mean a device go to vm_exit_fn on the vcpu's thread.
 */
#pragma once
#include <linux/kvm.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "vmm/mem.h"
#include "vmm/state.h"
#include "vmm/x86/cpuid.h"

enum {
	VM_CPUS_MAX = 8,
	VM_FIRST_FD = 400, /* own fds lie above all slots of control.h */
	VM_STACK = 128 << 10,
};

struct vm;

struct vcpu {
	struct vm *vm;
	unsigned i;
	int fd;
	struct kvm_run *run;
	size_t run_size;
	pthread_t thread;
	bool started;
	bool held; /* until vm_release() */
};

enum vm_end {
	VM_POWER_OFF = 0,
	VM_BAD_START = 2,
	VM_RESET = 3,
	VM_PANIC = 4,
	VM_ERROR = 5,
};

struct vm_calls {
	/* Port or memory access by a vcpu. Reads fill data. */
	void (*port)(void *arg, uint16_t port, bool write, void *data, unsigned len);
	void (*mmio)(void *arg, uint64_t gpa, bool write, void *data, unsigned len);
	/* The machine has ended by itself, from any thread. Does not return. */
	void (*ended)(void *arg, enum vm_end how, const char *why);
	/* First thing on a vcpu's thread. */
	void (*thread_begins)(void *arg);
	void *arg;
};

struct vm {
	int kvm, fd;
	bool made; /* fd is a VM */
	struct vm_calls calls;
	const struct mem *mem;
	unsigned cpus;
	struct vcpu cpu[VM_CPUS_MAX];
	struct cpuid cpuid;
	char baseline[16];
	uint32_t tsc_khz;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t changed;
	atomic_bool stop;
	unsigned parked;
};

/* What vcpus are: those of a saved machine, or new ones of a baseline (NULL: the highest). */
struct vm_spec {
	unsigned cpus;
	const char *baseline;
	const struct cpuid *saved;
};

/* Makes the VM and its interrupt controllers. kvm: /dev/kvm. *ret_what: what failed, a constant. */
int vm_create(struct vm *vm, int kvm, const char **ret_what);

/*
 * The same, unless it is made. KVM takes milliseconds for it and waits for most of them, so
 * meanwhile(arg) is called, on a thread; its error is ours. vm is zeroed, or made ahead.
 */
int vm_create_while(struct vm *vm, int kvm, int (*meanwhile)(void *arg, const char **ret_what),
                    void *arg, const char **ret_what);

/* Makes the rest, vcpus too, all at rest. After vm_create(). */
int vm_init(struct vm *vm, const struct mem *mem, const struct vm_spec *spec,
            const struct vm_calls *calls, const char **ret_what);

/* vcpu 0 will enter a Linux at this address (boot.h). */
int vm_set_entry(struct vm *vm, uint64_t entry);

/* Starts the threads, paused: vm_resume() lets them go. */
int vm_start(struct vm *vm);

/* Returns when no vcpu runs. Nested calls do not count. */
void vm_pause(struct vm *vm);
void vm_resume(struct vm *vm);

/*
 * All but the one that will get this interrupt stay where they are when the others go on, until
 * vm_release(). No thread is held when none is given. Before vm_start().
 */
void vm_hold_others(struct vm *vm, unsigned irq);
void vm_release(struct vm *vm); /* from any thread */

/*
 * The guest will not meet this memory, which is there, with faults. Linux has that since 6.11; a
 * negative errno where it has not. After vm_load().
 */
int vm_fault_ahead(struct vm *vm, uint64_t gpa, uint64_t len);

/* An edge on an interrupt line. */
void vm_interrupt(struct vm *vm, unsigned irq);
/* What is written to this address, 4 bytes, becomes a count of fd, and no exit. */
int vm_ioeventfd(struct vm *vm, uint64_t gpa, int fd);

/* How long the machine has run, in all its lives: kvm-clock. */
uint64_t vm_uptime_ns(struct vm *vm);

/* All of it, paused. Loading comes after vm_init() with the cpuid that was saved. */
int vm_save(struct vm *vm, struct state_out *s);
int vm_load(struct vm *vm, struct state_in *s);
void vm_save_cpuid(const struct vm *vm, struct state_out *s);
int vm_load_cpuid(struct state_in *s, struct cpuid *ret);

/* Moves an fd above all slots. Takes it; negative errno on failure, or fd when that is negative. */
int vm_high_fd(int fd);
