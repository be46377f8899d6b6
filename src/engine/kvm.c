/*
 * engine/kvm.c - the engine kvm: a machine is panda-vmm and a guest behind the hardware
 * What the monitor asks of the host, and nothing else; and how its guest is booted. The list is for
 * the whole process, from its start on: src/vmm/seccomp.c has a smaller one for each of its
 * threads. The monitor can open no path and start no program.
 */
#include "base/macro.h"
#include "engine/engines_internal.h"
#include "jail/filter.h"

#include <asm/prctl.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/kvm.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>

/* linux/fs.h has it since 6.7: size of struct pm_scan_arg is 96. */
#define SCAN_PAGEMAP _IOC(_IOC_READ | _IOC_WRITE, 'f', 16, 96)
/* linux/kvm.h has it since 6.11, as KVM_PRE_FAULT_MEMORY. */
#define PRE_FAULT_MEMORY _IOC(_IOC_READ | _IOC_WRITE, KVMIO, 0xd5, 64)

#define IOCTL(request) JAIL_OPTION("ioctl", 1, request)

/* What pthread_create() asks for. */
#define THREAD                                                                              \
	(CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | \
	 CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID)

static const struct jail_rule rules[] = {
    /* the machine: made once, run, saved, loaded */
    IOCTL(KVM_GET_API_VERSION),
    IOCTL(KVM_CREATE_VM),
    IOCTL(KVM_GET_SUPPORTED_CPUID),
    IOCTL(KVM_GET_VCPU_MMAP_SIZE),
    IOCTL(KVM_SET_IDENTITY_MAP_ADDR),
    IOCTL(KVM_SET_TSS_ADDR),
    IOCTL(KVM_CREATE_IRQCHIP),
    IOCTL(KVM_SET_USER_MEMORY_REGION),
    IOCTL(KVM_CREATE_VCPU),
    IOCTL(KVM_SET_CPUID2),
    IOCTL(KVM_GET_TSC_KHZ),
    IOCTL(KVM_SET_TSC_KHZ),
    IOCTL(KVM_IOEVENTFD),
    IOCTL(KVM_IRQ_LINE),
    IOCTL(KVM_KVMCLOCK_CTRL),
    IOCTL(PRE_FAULT_MEMORY),
    IOCTL(KVM_RUN),
    IOCTL(KVM_GET_IRQCHIP),
    IOCTL(KVM_SET_IRQCHIP),
    IOCTL(KVM_GET_CLOCK),
    IOCTL(KVM_SET_CLOCK),
    IOCTL(KVM_GET_MP_STATE),
    IOCTL(KVM_SET_MP_STATE),
    IOCTL(KVM_GET_REGS),
    IOCTL(KVM_SET_REGS),
    IOCTL(KVM_GET_SREGS),
    IOCTL(KVM_SET_SREGS),
    IOCTL(KVM_GET_XSAVE),
    IOCTL(KVM_SET_XSAVE),
    IOCTL(KVM_GET_XCRS),
    IOCTL(KVM_SET_XCRS),
    IOCTL(KVM_GET_DEBUGREGS),
    IOCTL(KVM_SET_DEBUGREGS),
    IOCTL(KVM_GET_LAPIC),
    IOCTL(KVM_SET_LAPIC),
    IOCTL(KVM_GET_VCPU_EVENTS),
    IOCTL(KVM_SET_VCPU_EVENTS),
    IOCTL(KVM_GET_MSRS),
    IOCTL(KVM_SET_MSRS),
    /* memory and disks */
    IOCTL(SCAN_PAGEMAP),
    {"mmap", {{JAIL_SET, 3, 0, MAP_HUGETLB | MAP_LOCKED}}},
    {"munmap", {{0}}},
    {"mprotect", {{0}}},
    {"mremap", {{0}}},
    {"madvise", {{0}}},
    {"brk", {{0}}},
    JAIL_OPTION("fallocate", 1, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE),
    {"pread64", {{0}}},
    {"pwrite64", {{0}}},
    {"preadv", {{0}}},
    {"pwritev", {{0}}},
    {"fdatasync", {{0}}}, /* of volumes */
    {"lseek", {{0}}},
    {"fstat", {{0}}},
    {"newfstatat", {{0}}},
    /* fds: the control socket, agent streams, the tap, bells, the log */
    {"read", {{0}}},
    {"write", {{0}}},
    {"readv", {{0}}},
    {"writev", {{0}}},
    {"recvmsg", {{0}}},
    {"sendmsg", {{0}}},
    {"sendto", {{0}}},
    {"accept4", {{0}}},
    {"shutdown", {{0}}},
    JAIL_OPTION("fcntl", 1, F_DUPFD_CLOEXEC),
    JAIL_OPTION("fcntl", 1, F_GETFD),
    JAIL_OPTION("fcntl", 1, F_SETFD),
    JAIL_OPTION("fcntl", 1, F_GETFL),
    JAIL_OPTION("fcntl", 1, F_SETFL),
    {"dup3", {{0}}},
    {"close", {{0}}},
    {"eventfd2", {{0}}},
    {"epoll_create1", {{0}}},
    {"epoll_ctl", {{0}}},
    {"epoll_wait", {{0}}},
    /* threads: start, kick, filter */
    JAIL_OPTION("clone", 0,
                THREAD), /* clone3 hides its flags from a filter; libc tries this then */
    {"futex", {{JAIL_SET, 1, FUTEX_WAIT, ~(uint64_t)(FUTEX_PRIVATE_FLAG | FUTEX_WAKE)}}},
    {"futex",
     {{JAIL_SET, 1, FUTEX_WAIT_BITSET, ~(uint64_t)(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME)}}},
    {"tgkill", {{0}}}, /* in its own pid namespace */
    {"getpid", {{0}}},
    {"gettid", {{0}}},
    JAIL_OPTION("prctl", 0, PR_SET_NO_NEW_PRIVS),
    {"prctl", {{JAIL_EQ, 0, PR_SET_SECCOMP, 0}, {JAIL_EQ, 1, SECCOMP_MODE_FILTER, 0}}},
    {"set_robust_list", {{0}}},
    {"set_tid_address", {{0}}},
    {"rseq", {{0}}},
    JAIL_OPTION("arch_prctl", 0, ARCH_SET_FS),
    {"sched_getaffinity", {{0}}},
    {"rt_sigaction", {{0}}},
    {"rt_sigprocmask", {{0}}},
    {"rt_sigreturn", {{0}}},
    /* time, chance, libc's start */
    {"clock_gettime", {{0}}},
    {"getrandom", {{0}}},
    JAIL_OPTION("prlimit64", 0, 0), /* its own */
    {"readlinkat", {{0}}},
    {"readlink", {{0}}},
};

static const struct jail_rules kvm_rules = {rules, ARRAY_LEN(rules)};

/*
 * No timer but those of kvm-clock and the local APIC, and no watchdog that compares clocks twice a
 * second; a reset is a write to port 0x64.
 */
static const char *const kvm_boot[] = {
    "root=/dev/vda",
    "ro",
    "init=/sbin/panda-init",
    "console=ttyS0",
    "quiet",
    "no_timer_check",
    "tsc=nowatchdog",
    "reboot=k",
    "panic=-1",
    NULL,
};

const struct engine_recipe kvm_recipe = {
    .name = "kvm",
    .isolation = "kvm",
    .program = "panda-vmm",
    .rules = &kvm_rules,
    .boot = kvm_boot,
    .kvm = true,
};
