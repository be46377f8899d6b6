/*
 * panda-vmm - one virtual machine: KVM, a Linux in it, and the devices it needs
 *
 *   panda-vmm mem=<KiB>K cpus=<1..8> [cpu=<baseline>] WORD...
 *                 boots; the words are the kernel's command line, the baseline one of x86/cpuid.c
 *   panda-vmm [ahead]
 *                 goes on from a state that the first message brings; ahead: which will come later
 *
 * Everything it uses comes as an fd: 1 and 2 are its log, 3 is the control socket it listens on, 9
 * is /dev/kvm, and the first message brings the rest (wire/control.h). It opens nothing. Ends with
 * 0 after a power-off, 3 after a reset, 4 after a panic; 2: it could not start, 5: something broke.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/loop.h"
#include "base/macro.h"
#include "vmm/control.h"
#include "vmm/machine.h"
#include "vmm/mem.h"
#include "vmm/seccomp.h"
#include "vmm/vm.h"
#include "vmm/x86/boot.h"
#include "wire/control.h"

static struct machine machine;

static bool parse_number(const char *text, const char *suffix, uint64_t max, uint64_t *ret)
{
	char *end;
	unsigned long long v;

	if (*text < '0' || *text > '9')
		return false;
	v = strtoull(text, &end, 10);
	*ret = v;
	return strcmp(end, suffix) == 0 && v > 0 && v <= max;
}

static bool parse_args(int argc, char **argv, struct machine_spec *s, char *cmdline, size_t n)
{
	uint64_t kib, cpus;
	size_t at = 0;
	int first = 3;

	if (argc < 3 || strncmp(argv[1], "mem=", 4) != 0 || strncmp(argv[2], "cpus=", 5) != 0 ||
	    !parse_number(argv[1] + 4, "K", MEM_LIMIT >> 10, &kib) ||
	    !parse_number(argv[2] + 5, "", VM_CPUS_MAX, &cpus))
		return false;
	if (argc > first && strncmp(argv[first], "cpu=", 4) == 0)
		s->baseline = argv[first++] + 4;
	cmdline[0] = 0;
	for (int i = first; i < argc && at < n; i++)
		at += (size_t)snprintf(cmdline + at, n - at, "%s%s", i > first ? " " : "", argv[i]);
	s->memory = kib << 10;
	s->cpus = (unsigned)cpus;
	s->cmdline = cmdline;
	return at < n;
}

/* On any thread, in the middle of anything: takes no lock, and calls only what a filter allows. */
static void hit(int sig)
{
	char text[] = "panda-vmm: ended by signal 00\n";

	text[sizeof(text) - 4] += (char)(sig / 10);
	text[sizeof(text) - 3] += (char)(sig % 10);
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(VM_ERROR);
}

/*
 * We are the first process of a pid namespace: signals that would end any other do nothing to us
 * unless they have a handler, not even when they come from the host.
 */
static void be_mortal(void)
{
	static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGILL, SIGABRT,
	                              SIGBUS, SIGFPE, SIGSEGV, SIGTERM};
	struct sigaction sa = {.sa_handler = hit, .sa_flags = SA_RESETHAND};

	for (size_t i = 0; i < ARRAY_LEN(signals); i++)
		sigaction(signals[i], &sa, NULL);
}

int main(int argc, char **argv)
{
	struct machine *m = &machine;
	char cmdline[BOOT_CMDLINE_MAX];
	struct machine_spec spec = {0};
	const char *what =
	    "usage: panda-vmm [ahead | mem=<KiB>K cpus=<1..8> [cpu=<baseline>] WORD...]";
	bool ahead = argc == 2 && !strcmp(argv[1], "ahead");
	struct control *control;
	struct ctl_msg hello;
	uint64_t lost = 0;
	char why[256];
	int conn, r;

	be_mortal();
	if (argc > 1 && !ahead && !parse_args(argc, argv, &spec, cmdline, sizeof(cmdline)))
		machine_end(m, VM_BAD_START, what);
	if (ahead) {
		r = vm_create(&m->vm, CTL_FD_KVM, &what);
		if (r < 0)
			goto fail;
	}
	what = "no greeting on the control socket";
	r = control_hello(CTL_FD_CTL, &hello, &conn);
	if (r < 0)
		goto fail;
	spec.hello = &hello;
	spec.agent = control_has(&hello, CTL_FD_AGENT);
	spec.net = control_has(&hello, CTL_FD_NET);
	while (spec.layers < CTL_LAYERS_MAX && control_has(&hello, CTL_FD_LAYER + spec.layers))
		spec.layers++;
	/* After the greeting: what the loop opens takes numbers that no slot will have. */
	what = "cannot make the loop";
	r = loop_new(&m->loop);
	if (r < 0)
		goto fail;
	if (control_has(&hello, CTL_FD_STATE))
		r = machine_restore(m, &spec, &lost, &what);
	else if (spec.cpus)
		r = machine_boot(m, &spec, &what);
	else
		r = -EINVAL, what = "neither a state nor a command line";
	if (r < 0)
		goto fail;
	what = "cannot shut itself behind a filter";
	r = seccomp_devices();
	if (r < 0)
		goto fail;
	what = "cannot serve the control socket";
	r = control_start(m, CTL_FD_CTL, conn, lost, &control);
	if (r < 0)
		goto fail;
	machine_go(m);
	r = loop_run(m->loop);
	what = "the loop ended";
fail:
	snprintf(why, sizeof(why), "%s: %s", what, strerror(-r));
	machine_end(m, VM_BAD_START, why);
}
