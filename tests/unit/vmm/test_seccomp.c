/*
 * What is left of the system while a state file is read, and what after that. Each test is a
 * process of its own: no filter can be taken away again.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "vmm/seccomp.h"

/*
 * In a child; what fails there is the line it ended with. Not by _exit(): before a call that does
 * not return, AddressSanitizer makes one of its own, which the filters do not let through.
 */
#define LINES       200
#define leave(code) syscall(SYS_exit_group, (code))
#define need(cond)                                   \
	do {                                         \
		if (!(cond))                         \
			leave(__LINE__ % LINES + 1); \
	} while (0)
/* It does not reach the kernel: with no such fd, what is allowed says EBADF. */
#define refused(call) (((call) == -1) && errno == ENOSYS)
#define passes(call)  (((call) == -1) && errno == EBADF)

static void in_child(void (*fn)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		fn();
		leave(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("ended with %#x; lines are counted modulo %d, from 1", (unsigned)status,
		         LINES);
}

static void opens_nothing(void)
{
	need(refused(syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY)));
	need(refused(syscall(SYS_execve, "/bin/true", NULL, NULL)));
	need(refused(syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0)));
	need(refused(syscall(SYS_eventfd2, 0, 0)));
	need(refused(syscall(SYS_epoll_create1, 0)));
	need(refused(ioctl(-1, KVM_CREATE_VM, 0)));
	need(refused(ioctl(-1, KVM_CREATE_IRQCHIP, 0)));
	need(refused(ioctl(-1, KVM_IOEVENTFD, NULL)));
	need(refused(ioctl(-1, KVM_SET_GSI_ROUTING, NULL)));
	need(refused(ioctl(-1, KVM_CREATE_DEVICE, NULL)));
}

static void restores(void)
{
	struct stat st;
	void *p;

	need(seccomp_restore() == 0);
	opens_nothing();
	/* what reading and loading a state needs */
	need(passes(syscall(SYS_pread64, -1, &st, 1, 0)));
	need(fstat(0, &st) == 0 || errno == EBADF);
	p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(p != MAP_FAILED && mprotect(p, 4096, PROT_READ | PROT_WRITE) == 0);
	need(passes(ioctl(-1, KVM_SET_USER_MEMORY_REGION, NULL)));
	need(passes(ioctl(-1, KVM_CREATE_VCPU, 0)));
	need(passes(ioctl(-1, KVM_SET_CPUID2, NULL)));
	need(passes(ioctl(-1, KVM_SET_SREGS, NULL)));
	need(passes(ioctl(-1, KVM_SET_MSRS, NULL)));
	need(passes(ioctl(-1, KVM_RUN, 0)));
}

static void goes_on(void)
{
	need(seccomp_restore() == 0);
	need(seccomp_devices() == 0);
	opens_nothing();
	need(refused(ioctl(-1, KVM_SET_USER_MEMORY_REGION, NULL)));
	need(refused(ioctl(-1, KVM_CREATE_VCPU, 0)));
	need(refused(ioctl(-1, KVM_RUN, 0)));
	need(refused(syscall(SYS_clone, 0, NULL, NULL, NULL, 0)));
	need(refused(syscall(SYS_mprotect, NULL, 0, 0)));
	need(passes(ioctl(-1, KVM_GET_REGS, NULL)));
	need(passes(ioctl(-1, KVM_SET_REGS, NULL)));
	need(passes(syscall(SYS_close, -1)));
}

static void runs(void)
{
	need(seccomp_restore() == 0);
	need(seccomp_vcpu() == 0);
	opens_nothing();
	need(passes(ioctl(-1, KVM_RUN, 0)));
	need(passes(ioctl(-1, KVM_IRQ_LINE, NULL)));
	need(refused(ioctl(-1, KVM_SET_REGS, NULL)));
	need(refused(syscall(SYS_close, -1)));
	need(refused(syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)));
}

static void what_reads_a_state_opens_nothing_and_makes_no_device(void **state)
{
	in_child(restores);
}

static void what_only_a_restore_needs_is_gone_after_it(void **state)
{
	in_child(goes_on);
}

static void a_vcpu_that_begins_behind_it_can_run(void **state)
{
	in_child(runs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_reads_a_state_opens_nothing_and_makes_no_device),
	    cmocka_unit_test(what_only_a_restore_needs_is_gone_after_it),
	    cmocka_unit_test(a_vcpu_that_begins_behind_it_can_run),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
