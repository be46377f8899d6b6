/*
 * A machine process for the tests of the jail: says on fd 1 what it can see and do from inside.
 * argv[1] chooses. Static; there is nothing around it to load from.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "calls.h"

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *fmt, ...)
{
	char line[512];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (write(1, line, (size_t)n) != n)
		_exit(3);
}

/* "ok", or the name of the error. */
static const char *outcome(long r)
{
	return r < 0 ? strerrorname_np(errno) : "ok";
}

static void say_caps(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct d[2] = {0};
	int bounding = 0, ambient = 0;

	if (syscall(SYS_capget, &head, d) < 0)
		say("capget=%s\n", outcome(-1));
	for (int cap = 0; cap < 64; cap++) {
		bounding += prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1;
		ambient += prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, cap, 0, 0) == 1;
	}
	say("caps=%x\n", d[0].effective | d[1].effective | d[0].permitted | d[1].permitted |
	                     d[0].inheritable | d[1].inheritable);
	say("bounding=%d\nambient=%d\n", bounding, ambient);
}

static void say_fds(void)
{
	say("fds=");
	for (int fd = 0; fd < 4096; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			say("%d,", fd);
	say("\n");
}

static void say_files(void)
{
	struct stat st;

	say("open_root=%s\n", outcome(open("/", O_RDONLY | O_DIRECTORY)));
	say("open_proc=%s\n", outcome(open("/proc/self/status", O_RDONLY)));
	say("open_passwd=%s\n", outcome(open("/etc/passwd", O_RDONLY)));
	say("open_dotdot=%s\n", outcome(open("../../..", O_RDONLY)));
	say("create=%s\n", outcome(open("/x", O_WRONLY | O_CREAT, 0600)));
	say("mkdir=%s\n", outcome(mkdir("/x", 0700)));
	if (stat("/", &st) == 0)
		say("root_mode=%o\nroot_nlink=%lu\n", st.st_mode & 07777, st.st_nlink);
	else
		say("root_mode=%s\n", outcome(-1));
}

/* The first interface is lo and there is no second. */
static void say_net(void)
{
	struct ifreq ifr = {.ifr_ifindex = 1};
	int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int others = 0;

	if (ioctl(s, SIOCGIFNAME, &ifr) < 0)
		say("net=%s\n", outcome(-1));
	else
		say("net=%s\n", ifr.ifr_name);
	for (int i = 2; i < 64; i++) {
		ifr.ifr_ifindex = i;
		others += ioctl(s, SIOCGIFNAME, &ifr) == 0;
	}
	say("net_others=%d\n", others);
	close(s);
}

static void say_limit(const char *name, int what)
{
	struct rlimit l;

	getrlimit(what, &l);
	say("%s=%lu,%lu\n", name, l.rlim_cur, l.rlim_max);
}

static void report(void)
{
	gid_t groups[64];
	sigset_t mask;
	int blocked = 0, ignored = 0;
	cpu_set_t cpus;

	say_fds(); /* first: the others open some */
	say("pid=%d\nppid=%d\nsid=%d\n", getpid(), getppid(), getsid(0));
	say("uid=%u\neuid=%u\ngid=%u\ngroups=%d\n", getuid(), geteuid(), getgid(),
	    getgroups(64, groups));
	say_caps();
	say("no_new_privs=%d\n", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
	say("seccomp=%d\n", prctl(PR_GET_SECCOMP));
	say("dumpable=%d\n", prctl(PR_GET_DUMPABLE));
	say("securebits=%x\n", (unsigned)prctl(PR_GET_SECUREBITS));
	say("no_aslr=%d\n", (personality(0xffffffff) & ADDR_NO_RANDOMIZE) != 0);
	sigprocmask(SIG_BLOCK, NULL, &mask);
	for (int sig = 1; sig < NSIG; sig++) {
		struct sigaction sa = {0};

		blocked += sigismember(&mask, sig) == 1;
		ignored += sigaction(sig, NULL, &sa) == 0 && sa.sa_handler == SIG_IGN;
	}
	say("blocked=%d\nignored=%d\n", blocked, ignored);
	CPU_ZERO(&cpus);
	sched_getaffinity(0, sizeof(cpus), &cpus);
	say("cpus=%d\ncpu0=%d\n", CPU_COUNT(&cpus), CPU_ISSET(0, &cpus));
	say_limit("core", RLIMIT_CORE);
	say_limit("nofile", RLIMIT_NOFILE);
	say_limit("fsize", RLIMIT_FSIZE);
	say_files();
	say_net();
}

static void forbidden(void)
{
	say("ptrace=%s\n", outcome(syscall(SYS_ptrace, 0, 0, 0, 0)));
	say("bpf=%s\n", outcome(syscall(SYS_bpf, 0, 0, 0)));
	say("unshare=%s\n", outcome(unshare(CLONE_NEWUSER)));
	say("mount=%s\n", outcome(mount("x", "/", "tmpfs", 0, NULL)));
	say("setuid=%s\n", outcome(syscall(SYS_setuid, 0)));
	say("kexec=%s\n", outcome(syscall(SYS_kexec_load, 0, 0, 0, 0)));
	say("nosuch=%s\n", outcome(syscall(9999)));
	/* allowed in the filter, so what refuses is another wall */
	say("open=%s\n", outcome(open("/etc/passwd", O_RDONLY)));
	/* a rule with an argument: PF_UNIX yes, others no */
	say("socket_unix=%s\n", outcome(socket(AF_UNIX, SOCK_STREAM, 0)));
	say("socket_inet=%s\n", outcome(socket(AF_INET, SOCK_STREAM, 0)));
}

/* A directory of the host sits on fd 5. */
static void dir(void)
{
	struct stat st;

	say("stat_handed=%s\n", outcome(fstatat(5, "passwd", &st, 0)));
	say("open_handed=%s\n", outcome(openat(5, "passwd", O_RDONLY)));
}

/* Touches memory until stopped. */
static void eat(void)
{
	enum { STEP = 1 << 20 };

	say("ready\n");
	for (;;) {
		char *p =
		    mmap(NULL, STEP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (p == MAP_FAILED)
			_exit(4);
		memset(p, 1, STEP);
	}
}

/* Children that wait for ever; says how many there are and why there are no more. */
static void tree(long most)
{
	long n;

	for (n = 0; n < most; n++) {
		pid_t pid = fork();

		if (pid < 0)
			break;
		if (pid == 0)
			for (;;)
				pause();
	}
	say("forked=%ld\nlast=%s\n", n, n < most ? outcome(-1) : "ok");
	for (;;)
		pause();
}

/* Raw: libc wraps some calls, and sets errno for none of them. */
static long call_raw(const struct call *c)
{
	register uint64_t r10 __asm__("r10") = c->args[3];
	register uint64_t r8 __asm__("r8") = c->args[4];
	register uint64_t r9 __asm__("r9") = c->args[5];
	long r = (long)c->nr;

	if (c->by_int80)
		__asm__ volatile("int $0x80" : "+a"(r) : "b"(-1), "c"(-1), "d"(-1) : "memory");
	else
		__asm__ volatile("syscall"
		                 : "+a"(r)
		                 : "D"(c->args[0]), "S"(c->args[1]), "d"(c->args[2]), "r"(r10),
		                   "r"(r8), "r"(r9)
		                 : "rcx", "r11", "memory");
	return r;
}

/* Those of the list on CALLS_FD from number `from` on. What ends us shows in the list. */
static void calls(size_t from, size_t n)
{
	struct call *v =
	    mmap(NULL, n * sizeof(*v), PROT_READ | PROT_WRITE, MAP_SHARED, CALLS_FD, 0);

	if (v == MAP_FAILED)
		_exit(4);
	for (size_t i = from; i < n; i++) {
		v[i].state = CALL_BEGUN;
		__asm__ volatile("" ::: "memory");
		v[i].result = call_raw(&v[i]);
		__asm__ volatile("" ::: "memory");
		v[i].state = CALL_DONE;
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (strcmp(what, "report") == 0)
		report();
	else if (strcmp(what, "forbidden") == 0)
		forbidden();
	else if (strcmp(what, "dir") == 0)
		dir();
	else if (strcmp(what, "eat") == 0)
		eat();
	else if (strcmp(what, "tree") == 0)
		tree(argc > 2 ? atol(argv[2]) : 0);
	else if (strcmp(what, "calls") == 0 && argc > 3)
		calls(strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10));
	else if (strcmp(what, "wait") == 0)
		tree(0);
	else if (strcmp(what, "exit") != 0)
		return 2;
	return 0;
}
