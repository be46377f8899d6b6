/*
 * net-bed - src/net without pandad and without machines, driven line by line over stdin
 * It does what the host would: takes slots, hands their taps to machines, listens to events. A
 * "machine" is a process of its own that carries frames between the slot's tap and a tap in some
 * other namespace, the guest; like a real one it outlives us.
 *
 *   take NAME open|off|default|list [ENTRY,...]     policy NAME open|off|list [ENTRY,...]
 *   limits NAME CONNS UP_KBIT DOWN_KBIT
 *   guest NAME NETNS-PATH      counters NAME        return NAME
 *   adopt NAME PID open|... [ENTRY,...]             flows NAME (connections the kernel tracks)
 *   ready N (answers when so many are)   stats      quit (lets go of slots in use)
 *   takes COUNT (takes so many, and returns them: how long)
 *   quiet (the kernel is not asked for ends of connections that have begun)
 * Every command is answered with one line, "ok ..." or "no KIND TEXT"; events are lines that begin
 * with "event".
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/io.h"
#include "base/macro.h"
#include "net/net_internal.h"
#include "net/nl.h"

enum {
	SLOTS = 1100,
	TAP_FD = 3, /* in the machine */
};

struct named {
	char name[32];
	struct net_slot *slot;
};

static struct loop *loop;
static struct net *net;
static struct named slots[SLOTS];
static struct loop_io in_io;
static char line[65536];
static size_t n_line;
static unsigned want_ready;
static struct loop_timer ready_timer;

static const char *const verdicts[] = {"allowed", "refused", "closed"};

static void on_event(void *arg, const struct net_event *ev)
{
	const struct named *n = ev->owner;

	printf("event %s %s %u %u.%u.%u.%u %u %s %s %llu %llu\n", n->name, verdicts[ev->verdict],
	       ev->proto, ev->addr[0], ev->addr[1], ev->addr[2], ev->addr[3], ev->port,
	       ev->name ? ev->name : "-", ev->why ? ev->why : "-", (unsigned long long)ev->bytes_up,
	       (unsigned long long)ev->bytes_down);
	fflush(stdout);
}

static struct named *find(const char *name)
{
	for (int i = 0; i < SLOTS; i++)
		if (slots[i].slot && strcmp(slots[i].name, name) == 0)
			return &slots[i];
	return NULL;
}

static struct named *fresh(const char *name)
{
	for (int i = 0; i < SLOTS; i++) {
		if (slots[i].slot)
			continue;
		snprintf(slots[i].name, sizeof(slots[i].name), "%s", name);
		return &slots[i];
	}
	return NULL;
}

static int no(const struct err *e)
{
	printf("no %s %s\n", e->kind, e->text);
	return -e->code;
}

static int parse_policy(const char *mode, char *entries, struct net_policy **ret, struct err *e)
{
	const char *list[NET_POLICY_ENTRIES_MAX + 1];
	char *save = NULL;
	size_t n = 0;

	*ret = NULL;
	if (strcmp(mode, "default") == 0)
		return 0;
	if (strcmp(mode, "open") == 0)
		return net_policy_new(NET_OPEN, NULL, 0, ret, e);
	if (strcmp(mode, "off") == 0)
		return net_policy_new(NET_OFF, NULL, 0, ret, e);
	for (char *p = strtok_r(entries, ",", &save); p && n < ARRAY_LEN(list);
	     p = strtok_r(NULL, ",", &save))
		list[n++] = p;
	return net_policy_new(NET_LIST, list, n, ret, e);
}

static void took(const struct named *n, uint64_t us)
{
	char addr[16];

	net_slot_addr(n->slot, addr);
	printf("ok %u %s %llu\n", n->slot->place, addr, (unsigned long long)us);
}

static void do_take(const char *name, const char *mode, char *entries)
{
	struct net_policy *p;
	struct named *n = fresh(name);
	struct err e = {0};
	uint64_t start;

	if (!n || parse_policy(mode, entries, &p, &e) < 0) {
		no(&e);
		return;
	}
	start = mono_ns();
	if (net_take(net, p, n, &n->slot, &e) < 0)
		no(&e);
	else
		took(n, (mono_ns() - start) / 1000);
	net_policy_unref(p);
}

static void do_policy(struct named *n, const char *mode, char *entries)
{
	struct net_policy *p;
	struct err e = {0};
	uint64_t start;

	if (parse_policy(mode, entries, &p, &e) < 0) {
		no(&e);
		return;
	}
	start = mono_ns();
	if (net_set_policy(n->slot, p, &e) < 0)
		no(&e);
	else
		printf("ok %llu\n", (unsigned long long)(mono_ns() - start) / 1000);
	net_policy_unref(p);
}

/* Here the caller waits, which the host does not. */
static void do_limits(struct named *n, const char *conns, const char *up, const char *down)
{
	struct net_limits l = {.conns = (unsigned)atoi(conns),
	                       .up_kbit = strtoull(up, NULL, 10),
	                       .down_kbit = strtoull(down, NULL, 10)};
	struct net_shape sh;
	struct err e = {0};
	int r;

	if (net_set_limits(n->slot, &l, &sh, &e) < 0) {
		no(&e);
		return;
	}
	r = net_shape(&sh);
	if (r < 0)
		printf("no shape %s\n", strerror(-r));
	else
		printf("ok\n");
}

static void do_adopt(const char *name, pid_t pid, const char *mode, char *entries)
{
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0), tap;
	struct named *n = fresh(name);
	struct net_policy *p;
	struct err e = {0};

	tap = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, TAP_FD, 0);
	if (pidfd >= 0)
		close(pidfd);
	if (tap < 0 || parse_policy(mode, entries, &p, &e) < 0) {
		printf("no fd %s\n", strerror(errno));
		return;
	}
	if (net_adopt(net, tap, p, n, &n->slot, &e) < 0) {
		close(tap);
		no(&e);
	} else {
		took(n, 0);
	}
	net_policy_unref(p);
}

/* Frames both ways, as they are: both taps have the same header in front and the same offloads. */
static int machine(const char *ns)
{
	static uint8_t frame[NET_VNET_HDR_LEN + NET_FRAME_MAX + 1];
	struct ifreq ifr = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, .ifr_name = "eth0"};
	int nsfd = open(ns, O_RDONLY | O_CLOEXEC), fd, size = NET_VNET_HDR_LEN;
	struct pollfd p[2];

	if (nsfd < 0 || setns(nsfd, CLONE_NEWNET) < 0)
		return 1;
	fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || ioctl(fd, TUNSETIFF, &ifr) < 0 || ioctl(fd, TUNSETVNETHDRSZ, &size) < 0 ||
	    ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) < 0)
		return 1;
	p[0] = (struct pollfd){.fd = TAP_FD, .events = POLLIN};
	p[1] = (struct pollfd){.fd = fd, .events = POLLIN};
	if (write(1, "up\n", 3) != 3)
		return 1;
	close(1);
	while (poll(p, 2, -1) > 0) {
		for (int i = 0; i < 2; i++) {
			for (int k = 0; k < 64; k++) {
				ssize_t n = read(p[i].fd, frame, sizeof(frame));

				if (n <= 0)
					break;
				(void)!write(p[1 - i].fd, frame, (size_t)n);
			}
			if (p[i].revents & (POLLERR | POLLHUP | POLLNVAL))
				return 0;
		}
	}
	return 0;
}

static void do_guest(struct named *n, const char *ns)
{
	int up[2];
	char word[4];
	pid_t pid;

	if (pipe2(up, O_CLOEXEC) < 0)
		abort();
	pid = fork();
	if (pid == 0) {
		/* Like a machine it has its tap and nothing else of ours. */
		int tap = net_slot_tap(n->slot), out = up[1], null = open("/dev/null", O_RDWR);

		setsid();
		tap = fcntl(tap, F_DUPFD, 100);
		out = fcntl(out, F_DUPFD, 100);
		dup2(null, 0);
		dup2(out, 1);
		dup2(tap, TAP_FD);
		close_range(TAP_FD + 1, ~0u, 0);
		_exit(machine(ns));
	}
	close(up[1]);
	if (read(up[0], word, sizeof(word)) <= 0)
		printf("no guest cannot start one in %s\n", ns);
	else
		printf("ok %d\n", (int)pid);
	close(up[0]);
}

static void do_counters(struct named *n)
{
	struct net_counters c;
	int r = net_slot_counters(n->slot, &c);

	if (r < 0)
		printf("no counters %s\n", strerror(-r));
	else
		printf("ok up=%llu down=%llu refused=%llu odd=%llu names=%llu names_refused=%llu "
		       "names_limited=%llu lost=%llu\n",
		       (unsigned long long)c.up_bytes, (unsigned long long)c.down_bytes,
		       (unsigned long long)c.refused, (unsigned long long)c.odd,
		       (unsigned long long)c.names, (unsigned long long)c.names_refused,
		       (unsigned long long)c.names_limited, (unsigned long long)c.events_lost);
}

static void count_flow(void *arg, const struct nl_flow *f)
{
	++*(unsigned *)arg;
}

static void do_flows(struct named *n)
{
	unsigned count = 0;
	int r = nl_flow_each(n->slot->kit.nf, count_flow, &count);

	if (r < 0)
		printf("no flows %s\n", strerror(-r));
	else
		printf("ok %u\n", count);
}

static void do_takes(unsigned count)
{
	uint64_t take = 0, give = 0, worst = 0;

	count = MIN(count, net->n_ready);
	for (unsigned i = 0; i < count; i++) {
		struct net_slot *s;
		uint64_t a = mono_ns(), b, c;
		int r = net_take(net, NULL, &slots[0], &s, NULL);

		b = mono_ns();
		if (r < 0)
			break;
		net_return(s);
		c = mono_ns();
		take += b - a;
		give += c - b;
		worst = MAX(worst, b - a);
	}
	printf("ok n=%u take_us=%.1f worst_us=%.1f return_us=%.1f\n", count, take / 1e3 / count,
	       worst / 1e3, give / 1e3 / count);
}

static void do_stats(void)
{
	unsigned used = 0;

	for (struct net_slot *s = net->used; s; s = s->next)
		used++;
	printf("ok total=%u ready=%u used=%u making=%u error=%d\n", range_total(net->range),
	       net->n_ready, used, net->n_making, net->last_error);
}

static void look_ready(void *arg)
{
	if (!want_ready)
		return;
	if (net->n_ready >= want_ready) {
		want_ready = 0;
		printf("ok %u\n", net->n_ready);
	} else if (net->last_error) {
		want_ready = 0;
		printf("no making %s\n", net->last_why);
	} else {
		loop_timer_set(loop, &ready_timer, loop_now_ms(loop) + 2);
	}
	fflush(stdout);
}

static void command(char *text)
{
	char *save = NULL, *word[5];
	struct named *n;
	size_t count = 0;

	for (char *p = strtok_r(text, " ", &save); p && count < ARRAY_LEN(word);
	     p = strtok_r(NULL, " ", &save))
		word[count++] = p;
	for (size_t i = count; i < ARRAY_LEN(word); i++)
		word[i] = "";
	n = find(word[1]);
	if (strcmp(word[0], "take") == 0)
		do_take(word[1], word[2], word[3]);
	else if (strcmp(word[0], "adopt") == 0)
		do_adopt(word[1], atoi(word[2]), word[3], word[4]);
	else if (strcmp(word[0], "takes") == 0)
		do_takes((unsigned)atoi(word[1]));
	else if (strcmp(word[0], "ready") == 0) {
		want_ready = (unsigned)atoi(word[1]);
		look_ready(NULL);
	} else if (strcmp(word[0], "stats") == 0)
		do_stats();
	else if (strcmp(word[0], "quiet") == 0) {
		net->sweeps = 0;
		loop_timer_clear(loop, &net->sweep);
		printf("ok\n");
	} else if (strcmp(word[0], "quit") == 0)
		loop_stop(loop);
	else if (!n)
		printf("no slot nobody is called %s\n", word[1]);
	else if (strcmp(word[0], "policy") == 0)
		do_policy(n, word[2], word[3]);
	else if (strcmp(word[0], "limits") == 0)
		do_limits(n, word[2], word[3], word[4]);
	else if (strcmp(word[0], "guest") == 0)
		do_guest(n, word[2]);
	else if (strcmp(word[0], "counters") == 0)
		do_counters(n);
	else if (strcmp(word[0], "flows") == 0)
		do_flows(n);
	else if (strcmp(word[0], "return") == 0) {
		net_return(n->slot);
		n->slot = NULL;
		printf("ok\n");
	} else
		printf("no command %s\n", word[0]);
	fflush(stdout);
}

static void on_in(void *arg, uint32_t events)
{
	ssize_t n = read(0, line + n_line, sizeof(line) - n_line - 1);
	char *end;

	if (n <= 0) {
		loop_stop(loop);
		return;
	}
	n_line += (size_t)n;
	line[n_line] = '\0';
	while ((end = strchr(line, '\n'))) {
		*end = '\0';
		command(line);
		n_line -= (size_t)(end + 1 - line);
		memmove(line, end + 1, n_line + 1);
	}
}

static void stop(void *arg)
{
	loop_stop(loop);
}

/* net-bed READY RESOLVER [POOL [default-mode [UP_KBIT DOWN_KBIT [CONNS [OPEN_S [EGRESS_MAX
 * [EGRESS_CLOSED]]]]]]] */
int main(int argc, char **argv)
{
	struct net_config c = {
	    .ready = argc > 1 ? (unsigned)atoi(argv[1]) : 2,
	    .resolvers = argc > 2 ? argv[2] : "127.0.0.1",
	    .pool = argc > 3 ? argv[3] : NULL,
	    .egress_deny = argc > 4 && strcmp(argv[4], "off") == 0,
	    .up_kbit = argc > 5 ? strtoull(argv[5], NULL, 10) : 0,
	    .down_kbit = argc > 6 ? strtoull(argv[6], NULL, 10) : 0,
	    .conns_max = argc > 7 && atoi(argv[7]) ? (unsigned)atoi(argv[7]) : 512,
	    .open_s = argc > 8 ? (unsigned)atoi(argv[8]) : 0,
	    .egress_max = argc > 9 ? argv[9] : NULL,
	    .egress_closed = argc > 10 ? argv[10] : NULL,
	    .event = on_event,
	};
	struct rlimit files;
	struct err e = {0};

	signal(SIGCHLD, SIG_DFL);
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max; /* seven fds a slot */
	setrlimit(RLIMIT_NOFILE, &files);
	if (loop_new(&loop) < 0)
		return 1;
	c.loop = loop;
	if (net_new(&c, &net, &e) < 0) {
		printf("no %s %s\n", e.kind, e.text);
		return 1;
	}
	printf("ok\n");
	fflush(stdout);
	ready_timer.fn = look_ready;
	in_io.fn = on_in;
	if (loop_io_add(loop, &in_io, 0, EPOLLIN) < 0)
		return 1;
	loop_run(loop);
	loop_io_del(loop, &in_io);
	net_free(net);
	if (loop_post(loop, stop, NULL) == 0)
		loop_run(loop); /* what our threads posted meanwhile */
	loop_free(loop);
	return 0;
}
