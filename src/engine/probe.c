#include "engine/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"

enum {
	PAGE = 4096,
	CODE = 0x1000, /* where the guest's page is */
	STEPS_MAX = 16,
};

const char *kvm_cpu_flag(const char *text)
{
	const char *line = strstr(text, "\nflags"), *end;

	line = line ? strchr(line, ':') : NULL;
	if (!line)
		return NULL;
	end = strchrnul(line, '\n');
	for (const char *p = line; p < end;) {
		size_t n;

		p += strspn(p, ": \t");
		n = strcspn(p, " \t\n");
		if (n == 3 && !strncmp(p, "svm", 3))
			return "svm";
		if (n == 3 && !strncmp(p, "vmx", 3))
			return "vmx";
		p += n;
	}
	return NULL;
}

static const char *cpu_flag(void)
{
	autofree char *text = NULL;

	if (io_read_file(AT_FDCWD, "/proc/cpuinfo", 16 << 20, &text, NULL) < 0)
		return NULL;
	return kvm_cpu_flag(text);
}

/* 16-bit code: mov ax, 6; mov bl, 7; mul bl; hlt. */
static const uint8_t sum[] = {0xb8, 0x06, 0x00, 0xb3, 0x07, 0xf6, 0xe3, 0xf4};

static int run_sum(int vcpu, struct kvm_run *run)
{
	struct kvm_regs regs = {.rip = CODE, .rflags = 2};
	struct kvm_sregs sregs;

	if (ioctl(vcpu, KVM_GET_SREGS, &sregs) < 0)
		return -errno;
	sregs.cs.base = 0;
	sregs.cs.selector = 0;
	if (ioctl(vcpu, KVM_SET_SREGS, &sregs) < 0 || ioctl(vcpu, KVM_SET_REGS, &regs) < 0)
		return -errno;
	for (int step = 0; step < STEPS_MAX; step++) {
		if (ioctl(vcpu, KVM_RUN, 0) < 0) {
			if (errno == EINTR || errno == EAGAIN)
				continue;
			return -errno;
		}
		if (run->exit_reason != KVM_EXIT_HLT)
			return -EIO;
		if (ioctl(vcpu, KVM_GET_REGS, &regs) < 0)
			return -errno;
		return (regs.rax & 0xffff) == 42 ? 0 : -EIO;
	}
	return -ETIMEDOUT;
}

static int probe_guest(int kvm)
{
	autoclose int vm = -1, vcpu = -1;
	struct kvm_run *run;
	uint8_t *page;
	int size, r;

	if (ioctl(kvm, KVM_GET_API_VERSION, 0) != KVM_API_VERSION)
		return -ENOTSUP;
	size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	if (size < (int)sizeof(*run) || vm < 0)
		return vm < 0 ? -errno : -ENOTSUP;
	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return -errno;
	memcpy(page, sum, sizeof(sum));
	r = ioctl(vm, KVM_SET_USER_MEMORY_REGION,
	          &(struct kvm_userspace_memory_region){.guest_phys_addr = CODE,
	                                                .memory_size = PAGE,
	                                                .userspace_addr = (uintptr_t)page});
	if (r == 0)
		vcpu = ioctl(vm, KVM_CREATE_VCPU, 0);
	run = vcpu < 0 ? MAP_FAILED
	               : mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	r = run == MAP_FAILED ? -errno : run_sum(vcpu, run);
	if (run != MAP_FAILED)
		munmap(run, (size_t)size);
	munmap(page, PAGE);
	return r;
}

int kvm_explain(const struct kvm_found *f, char *why, size_t n)
{
	int r = f->open_error;

	if (r == -ENOENT && f->flag) {
		snprintf(why, n,
		         "the cpu could (%s), but there is no /dev/kvm: load the module kvm_amd or "
		         "kvm_intel",
		         f->flag);
	} else if (r == -ENOENT) {
		snprintf(why, n, "no hardware virtualization: the cpu has neither svm nor vmx");
	} else if (r == -EACCES || r == -EPERM) {
		snprintf(why, n, "/dev/kvm is there, but this user may not open it");
	} else if (r < 0) {
		snprintf(why, n, "/dev/kvm does not open (%s)", strerror(-r));
	} else if (!f->flag) {
		snprintf(why, n,
		         "/dev/kvm opens, but the cpu has neither svm nor vmx: what is behind it "
		         "is no hardware");
		r = -ENODEV;
	} else if (f->guest_error < 0) {
		snprintf(why, n, "/dev/kvm opens, but a tiny guest does not run on it (%s)",
		         strerror(-f->guest_error));
		r = f->guest_error;
	} else {
		snprintf(why, n, "hardware virtualization works (%s)", f->flag);
	}
	return r;
}

int kvm_open(char *why, size_t n)
{
	autoclose int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	struct kvm_found f = {.open_error = fd < 0 ? -errno : 0, .flag = cpu_flag()};
	int r;

	if (fd >= 0 && f.flag) /* without, it is not worth a try: an emulation may take minutes */
		f.guest_error = probe_guest(fd);
	r = kvm_explain(&f, why, n);
	return r < 0 ? r : take_fd(&fd);
}

int um_usable(char *why, size_t n)
{
	autoclose int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	unsigned long long arg[12] = {sizeof(arg)}; /* a scan of nothing */

	if (fd >= 0 && ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 'f', 16, sizeof(arg)), arg) >= 0) {
		snprintf(why, n, "needs no hardware: PAGEMAP_SCAN works");
		return 0;
	}
	snprintf(why, n, "this kernel has no PAGEMAP_SCAN, which Linux has since 6.7");
	return -ENOTSUP;
}

const char *engine_auto(bool kvm, bool um)
{
	return kvm  ? "auto is kvm: a guest stays behind hardware virtualization"
	       : um ? "auto is um: a guest's kernel is a jailed process of this host"
	            : "neither kvm nor um works";
}
