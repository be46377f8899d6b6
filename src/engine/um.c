/*
 * engine/um.c - the engine um: a machine is panda-um, a Linux kernel that is a host process
 * What it asks of the host, and nothing else; and how it is booted. Kernel process and stubs share
 * the list of system calls: a stub starts life as a copy of the kernel process and then shuts
 * itself behind a much smaller filter of its own.
 *
 * Of calls that do many things the list names those things: panda-um may have lost its mind to its
 * guest, and what it never asks for is a way out that needs no bug of ours. No flag of clone makes
 * a namespace, no lease or lock of fcntl holds up who else uses the file.
 */
#include "base/macro.h"
#include "engine/engines_internal.h"
#include "jail/filter.h"

#include <asm/prctl.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>

/* linux/fs.h has it since 6.7: size of struct pm_scan_arg is 96. */
#define SCAN_PAGEMAP _IOC(_IOC_READ | _IOC_WRITE, 'f', 16, 96)

/* The kernel's for a stub's program, which panda-um itself writes and seals: not of the host. */
enum { FD_STUB_EXE = 10 };

static const struct jail_rule rules[] = {
    /* memory: layers, promotion, snapshots, pages shared with the stubs; no huge pages of the host,
       which no control group counts */
    {"mmap", {{JAIL_SET, 3, 0, MAP_HUGETLB | MAP_LOCKED}}},
    {"munmap", {{0}}},
    {"mprotect", {{0}}},
    {"madvise", {{0}}},
    {"brk", {{0}}},
    {"memfd_create", {{JAIL_SET, 1, 0, MFD_HUGETLB}}},
    {"ftruncate", {{0}}},
    {"fallocate", {{JAIL_EQ, 1, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0}}},
    {"pread64", {{0}}},
    {"pwrite64", {{0}}},
    {"pwritev", {{0}}},
    {"fdatasync", {{0}}}, /* of volumes */
    {"lseek", {{0}}},
    {"ioctl", {{JAIL_EQ, 1, SCAN_PAGEMAP, 0}}},
    /* fds: the control socket, agent streams, what it was handed */
    {"read", {{0}}},
    {"write", {{0}}},
    {"readv", {{0}}}, /* frames of the tap; no ioctl() of it */
    {"writev", {{0}}},
    {"recvmsg", {{0}}},
    {"recvfrom", {{0}}},
    {"sendto", {{0}}},
    {"accept4", {{0}}},
    {"poll", {{0}}},
    {"ppoll", {{0}}},
    {"restart_syscall", {{0}}},
    JAIL_OPTION("fcntl", 1, F_DUPFD),
    JAIL_OPTION("fcntl", 1, F_DUPFD_CLOEXEC),
    JAIL_OPTION("fcntl", 1, F_GETFD),
    JAIL_OPTION("fcntl", 1, F_SETFD),
    JAIL_OPTION("fcntl", 1, F_GETFL),
    JAIL_OPTION("fcntl", 1, F_SETFL),
    JAIL_OPTION("fcntl", 1, F_SETOWN),
    JAIL_OPTION("fcntl", 1, F_SETSIG),
    JAIL_OPTION("fcntl", 1, F_ADD_SEALS),
    {"dup3", {{0}}},
    {"close", {{0}}},
    {"close_range", {{0}}},
    {"fstat", {{0}}},
    {"newfstatat", {{0}}},
    {"epoll_create1", {{0}}},
    {"epoll_ctl", {{0}}},
    {"epoll_wait", {{0}}},
    {"signalfd4", {{0}}},
    /* stubs: start, hand over, end */
    JAIL_OPTION("clone", 0, CLONE_VM | CLONE_VFORK | SIGCHLD),
    JAIL_OPTION("clone", 0, CLONE_VM | CLONE_VFORK), /* at boot: can a filter be had? */
    {"execveat",
     {{JAIL_EQ, 0, FD_STUB_EXE, 0}, {JAIL_EQ, 3, 0, 0}, {JAIL_EQ, 4, AT_EMPTY_PATH, 0}}},
    {"futex", {{JAIL_SET, 1, FUTEX_WAIT, ~(uint64_t)(FUTEX_PRIVATE_FLAG | FUTEX_WAKE)}}},
    {"wait4", {{0}}},
    {"kill", {{0}}}, /* in its own pid namespace */
    JAIL_OPTION("prctl", 0, PR_SET_NAME),
    JAIL_OPTION("prctl", 0, PR_SET_PDEATHSIG),
    JAIL_OPTION("prctl", 0, PR_SET_NO_NEW_PRIVS),
    {"seccomp",
     {{JAIL_EQ, 0, SECCOMP_SET_MODE_FILTER, 0}, {JAIL_EQ, 1, SECCOMP_FILTER_FLAG_TSYNC, 0}}},
    JAIL_OPTION("arch_prctl", 0, ARCH_GET_FS),
    JAIL_OPTION("arch_prctl", 0, ARCH_SET_FS),
    JAIL_OPTION("arch_prctl", 0, ARCH_GET_GS),
    JAIL_OPTION("arch_prctl", 0, ARCH_SET_GS),
    /* signals and time */
    {"rt_sigaction", {{0}}},
    {"rt_sigprocmask", {{0}}},
    {"rt_sigreturn", {{0}}},
    {"sigaltstack", {{0}}},
    {"timer_create", {{0}}},
    {"timer_settime", {{0}}},
    {"timer_delete", {{0}}},
    {"clock_gettime", {{0}}},
    {"clock_nanosleep", {{0}}},
    {"getrandom", {{0}}},
    /* libc's start and what the kernel asks at boot */
    {"set_tid_address", {{0}}},
    {"set_robust_list", {{0}}},
    {"rseq", {{0}}},
    JAIL_OPTION("prlimit64", 0, 0), /* its own */
    {"getrlimit", {{0}}},
    {"uname", {{0}}},
    {"getpid", {{0}}},
    {"gettid", {{0}}},
    JAIL_OPTION("personality", 0, 0xffffffff),
};

static const struct jail_rules um_rules = {rules, ARRAY_LEN(rules)};

static const char *const um_boot[] = {
    "root=/dev/pblk0", "ro", "init=/sbin/panda-init", "seccomp=on", "quiet", NULL,
};

const struct engine_recipe um_recipe = {
    .name = "um",
    .isolation = "user-mode-kernel",
    .program = "panda-um",
    .rules = &um_rules,
    .boot = um_boot,
    .one_cpu = true,
    .no_aslr = true,
};
