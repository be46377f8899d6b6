/*
 * engine/um.c - the engine um: a machine is panda-um, a Linux kernel that is a host process
 * What it asks of the host, and nothing else; and how it is booted. Kernel process and stubs share
 * the list of system calls: a stub starts life as a copy of the kernel process and then shuts
 * itself behind a much smaller filter of its own.
 */
#include "base/macro.h"
#include "engine/engines_internal.h"
#include "jail/filter.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/ioctl.h>

/* linux/fs.h has it since 6.7: size of struct pm_scan_arg is 96. */
#define SCAN_PAGEMAP _IOC(_IOC_READ | _IOC_WRITE, 'f', 16, 96)

static const struct jail_rule rules[] = {
    /* memory: layers, promotion, snapshots, pages shared with the stubs */
    {"mmap", {{0}}},
    {"munmap", {{0}}},
    {"mprotect", {{0}}},
    {"madvise", {{0}}},
    {"brk", {{0}}},
    {"memfd_create", {{0}}},
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
    {"fcntl", {{0}}},
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
    {"clone", {{0}}},
    {"futex", {{0}}},
    {"wait4", {{0}}},
    {"kill", {{0}}}, /* in its own pid namespace */
    {"prctl", {{0}}},
    {"seccomp", {{0}}},
    {"arch_prctl", {{0}}},
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
    {"prlimit64", {{0}}},
    {"getrlimit", {{0}}},
    {"uname", {{0}}},
    {"getpid", {{0}}},
    {"gettid", {{0}}},
    {"personality", {{JAIL_EQ, 0, 0xffffffff, 0}}},
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
