#include "vmm/seccomp.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/kvm.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/macro.h"

enum { RULES_MAX = 96 };

#define SCAN_PAGEMAP     _IOC(_IOC_READ | _IOC_WRITE, 'f', 16, 96)     /* of ram.c */
#define PRE_FAULT_MEMORY _IOC(_IOC_READ | _IOC_WRITE, KVMIO, 0xd5, 64) /* of vm.c */

#define LOAD(field)   BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)

struct allowed {
	const unsigned *requests; /* of ioctl() */
	size_t nr_requests;
	const unsigned *calls;
	size_t nr_calls;
};

/* ioctl() only with the requests of these lists; then any of their system calls. */
static int install(const struct allowed *lists, size_t n)
{
	struct sock_filter f[2 * RULES_MAX + 16];
	struct sock_fprog prog = {.filter = f};
	size_t nr_requests = 0, nr_calls = 0;
	unsigned short k = 0;

	for (size_t i = 0; i < n; i++) {
		nr_requests += lists[i].nr_requests;
		nr_calls += lists[i].nr_calls;
	}
	if (nr_requests + nr_calls > RULES_MAX)
		return -E2BIG;
	f[k++] = (struct sock_filter)LOAD(arch);
	f[k++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
	f[k++] = (struct sock_filter)RETURN(SECCOMP_RET_KILL_PROCESS);
	f[k++] = (struct sock_filter)LOAD(nr);
	f[k++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0,
	                                      (uint8_t)(2 * nr_requests + 2));
	f[k++] = (struct sock_filter)LOAD(args[1]);
	for (size_t l = 0; l < n; l++)
		for (size_t i = 0; i < lists[l].nr_requests; i++) {
			f[k++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
			                                      lists[l].requests[i], 0, 1);
			f[k++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
		}
	f[k++] = (struct sock_filter)RETURN(SECCOMP_RET_ERRNO | ENOSYS);
	for (size_t l = 0; l < n; l++)
		for (size_t i = 0; i < lists[l].nr_calls; i++) {
			f[k++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
			                                      lists[l].calls[i], 0, 1);
			f[k++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
		}
	f[k++] = (struct sock_filter)RETURN(SECCOMP_RET_ERRNO | ENOSYS);
	prog.len = k;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
		return -errno;
	return 0;
}

#define ALLOWED(r, c)                            \
	{                                        \
		r, ARRAY_LEN(r), c, ARRAY_LEN(c) \
	}

static const unsigned vcpu_requests[] = {KVM_RUN, KVM_IRQ_LINE};
static const unsigned vcpu_calls[] = {
    SYS_write, /* bells, the console log */
    SYS_futex, SYS_rt_sigreturn, SYS_clock_gettime, SYS_exit_group,
};

static const unsigned device_requests[] = {
    KVM_IRQ_LINE,
    KVM_KVMCLOCK_CTRL,
    /* a snapshot, and a pause */
    KVM_GET_IRQCHIP,
    KVM_GET_CLOCK,
    KVM_GET_MP_STATE,
    KVM_GET_REGS,
    KVM_GET_SREGS,
    KVM_GET_XSAVE,
    KVM_GET_XCRS,
    KVM_GET_DEBUGREGS,
    KVM_GET_LAPIC,
    KVM_GET_VCPU_EVENTS,
    KVM_GET_MSRS,
    KVM_SET_IRQCHIP,
    KVM_SET_CLOCK,
    KVM_SET_MP_STATE,
    KVM_SET_REGS,
    KVM_SET_SREGS,
    KVM_SET_XSAVE,
    KVM_SET_XCRS,
    KVM_SET_DEBUGREGS,
    KVM_SET_LAPIC,
    KVM_SET_VCPU_EVENTS,
    KVM_SET_MSRS,
    SCAN_PAGEMAP,
    KVM_SET_TSC_KHZ,
};
static const unsigned device_calls[] = {
    /* the loop, bells, the log */
    SYS_epoll_wait,
    SYS_epoll_ctl,
    SYS_read,
    SYS_write,
    SYS_futex,
    SYS_clock_gettime,
    /* control: messages with fds, agent streams, kicking a vcpu */
    SYS_accept4,
    SYS_recvmsg,
    SYS_sendmsg,
    SYS_sendto,
    SYS_shutdown,
    SYS_fcntl,
    SYS_dup3,
    SYS_close,
    SYS_tgkill,
    SYS_getpid,
    SYS_gettid,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_exit_group,
    /* disks, frames, memory */
    SYS_preadv,
    SYS_pwritev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_fallocate,
    SYS_fdatasync,
    SYS_lseek,
    SYS_readv,
    SYS_writev,
    SYS_mmap,
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_getrandom,
};

static const unsigned restore_requests[] = {
    KVM_RUN, /* of the vcpus' threads, which begin behind this, and have it first in the list */
    KVM_SET_USER_MEMORY_REGION,
    KVM_GET_SUPPORTED_CPUID,
    KVM_GET_VCPU_MMAP_SIZE,
    KVM_CREATE_VCPU,
    KVM_SET_CPUID2,
    KVM_GET_TSC_KHZ,
    PRE_FAULT_MEMORY,
};
static const unsigned restore_calls[] = {
    /* the size of the state file */
    SYS_fstat,
    SYS_newfstatat,
    /* threads: start, kick, filter */
    SYS_clone,
    SYS_mprotect,
    SYS_set_robust_list,
    SYS_rseq,
    SYS_sched_getaffinity,
    SYS_rt_sigaction,
    SYS_prctl,
};

static const struct allowed vcpu = ALLOWED(vcpu_requests, vcpu_calls);
static const struct allowed devices = ALLOWED(device_requests, device_calls);
static const struct allowed restore[] = {ALLOWED(restore_requests, restore_calls),
                                         ALLOWED(device_requests, device_calls)};

int seccomp_vcpu(void)
{
	return install(&vcpu, 1);
}

int seccomp_devices(void)
{
	return install(&devices, 1);
}

int seccomp_restore(void)
{
	return install(restore, ARRAY_LEN(restore));
}
