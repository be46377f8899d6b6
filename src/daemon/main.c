/*
 * pandad - the server: config, wiring, signals
 * Runs in the foreground. Machines outlive it: the next pandad takes them up again.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <malloc.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/api.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/macro.h"
#include "daemon/config.h"
#include "engine/engines.h"
#include "host/host.h"
#include "http/server.h"
#include "jail/cgroup.h"
#include "jail/jail.h"
#include "machine/engine.h"
#include "template/depot.h"
#include "template/template.h"

enum {
	DRAIN_MS = 3000, /* requests that are open when we are asked to end */
	LOCK_MS = 3000,
	GIVE_BACK = 8 << 20,
	GIVE_BACK_MS = 5000,
};

struct daemon {
	struct config config;
	struct loop *loop;
	struct engines *engines;
	struct host *host;
	struct api *api;
	struct http_server *server;
	struct loop_io signals;
	struct loop_timer deadline, rest;
	size_t unused; /* bytes of the heap that are no use to give back again */
	int signal_fd, lock_fd;
	bool ending;
};

static const char usage[] =
    "usage: pandad [OPTION]...\n"
    "\n"
    "  -c, --config FILE      read lines of 'key = value' (/etc/pandad.conf when it is there)\n"
    "  -s, --set KEY=VALUE    the same as a line of the file; repeat for more\n"
    "      --print-config     print all keys with their meaning and value, and exit\n"
    "      --list-faults      print places where tests let it die (PANDA_FAULT=NAME), and exit\n"
    "  -V, --version          print the version, and exit\n"
    "  -h, --help             print this text, and exit\n"
    "\n"
    "Ends cleanly on SIGTERM and SIGINT; machines go on running and are taken up again by the\n"
    "next pandad with the same run_dir. The first start leaves an API key in data_dir/admin.key.\n"
    "\n"
    "PANDA_LOG=WORDS sets the key log. PANDA_LOG=debug adds requests and operations to the log, "
    "and\n"
    "PANDA_LOG=debug,sandbox=ID shows those of one sandbox.\n"
    "\n"
    "Examples:\n"
    "  pandad --set listen=127.0.0.1:9090 --set data_dir=/srv/panda\n"
    "  pandad --print-config > /etc/pandad.conf\n";

/* --- listening -------------------------------------------------------------------------------- */

static int listen_unix(const char *path, int *ret, struct err *e)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	autoclose int fd = -1;

	if (strlen(path) >= sizeof(a.sun_path))
		return err_set(e, ENAMETOOLONG, "bad_config", "listen: %s is too long for a socket",
		               path);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	unlink(path); /* left by a crash; run_dir's lock says no other pandad uses it */
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 1024) < 0)
		return err_set(e, errno, "bad_config", "cannot listen on %s: %s", path,
		               strerror(errno));
	*ret = take_fd(&fd);
	return 0;
}

static bool is_loopback(const struct sockaddr *a)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;

	if (a->sa_family == AF_INET)
		return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

/* private: who else reaches the host must not reach us. */
static int listen_tcp(const char *where, bool private, int *ret, struct err *e)
{
	struct addrinfo hint = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV,
	                        .ai_socktype = SOCK_STREAM};
	struct addrinfo *ai = NULL;
	autoclose int fd = -1;
	autofree char *host = strdup(where);
	char *port = host ? strrchr(host, ':') : NULL, *name = host;
	int r, on = 1;

	if (!port)
		return err_set(e, EINVAL, "bad_config",
		               "listen: '%.60s' is neither address:port nor unix:/path", where);
	*port++ = 0;
	if (name[0] == '[' && port - 2 > name && port[-2] == ']') {
		port[-2] = 0;
		name++;
	}
	r = getaddrinfo(name[0] ? name : NULL, port, &hint, &ai);
	if (r != 0)
		return err_set(e, EINVAL, "bad_config", "listen: '%.60s': %s", where,
		               gai_strerror(r));
	if (private && !is_loopback(ai->ai_addr)) {
		freeaddrinfo(ai);
		return err_set(e, EINVAL, "bad_config",
		               "listen: with stub_auth everyone who reaches %s is an admin: listen "
		               "on 127.0.0.1 or unix:/path, or set stub_auth = no",
		               where);
	}
	fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	r = fd < 0 || bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 || listen(fd, 1024) < 0 ? -errno
	                                                                                : 0;
	freeaddrinfo(ai);
	if (r < 0)
		return err_set(e, -r, "bad_config", "cannot listen on %s: %s%s", where,
		               strerror(-r),
		               r == -EADDRINUSE ? " (choose another with --set listen=ADDRESS:PORT)"
		                                : "");
	*ret = take_fd(&fd);
	return 0;
}

static int listen_all(struct daemon *d, struct err *e)
{
	const char *standard[] = {"127.0.0.1:8080"};
	const char **list = d->config.nlisten ? d->config.listen : standard;
	size_t n = d->config.nlisten ? d->config.nlisten : 1;

	for (size_t i = 0; i < n; i++) {
		int fd = -1, r;

		r = !strncmp(list[i], "unix:", 5)
		        ? listen_unix(list[i] + 5, &fd, e)
		        : listen_tcp(list[i], d->config.api.stub_auth, &fd, e);
		if (r == 0 && http_server_listen(d->server, fd) < 0)
			r = err_nomem(e);
		if (r < 0)
			return r;
		log_info("listening address=%s", list[i]);
	}
	if (d->config.api.stub_auth)
		log_warn("stub_auth is on: every program of this host is an admin without a token");
	return 0;
}

/* --- beginning and end ------------------------------------------------------------------------ */

/* Tells systemd, or the service manager that set NOTIFY_SOCKET. */
static void notify(const char *what)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	autoclose int fd = -1;

	if (!path || !path[0] || strlen(path) >= sizeof(a.sun_path))
		return;
	memcpy(a.sun_path, path, strlen(path));
	if (a.sun_path[0] == '@')
		a.sun_path[0] = 0;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0)
		sendto(fd, what, strlen(what), MSG_NOSIGNAL, (struct sockaddr *)&a,
		       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)));
}

static void host_drained(void *arg)
{
	struct daemon *d = arg;

	loop_stop(d->loop);
}

static void server_drained(void *arg)
{
	struct daemon *d = arg;

	loop_timer_clear(d->loop, &d->deadline);
	host_drain(d->host, host_drained, d);
}

static void drain_late(void *arg)
{
	struct daemon *d = arg;

	log_warn("requests are still open, they are cut connections=%u",
	         http_server_conns(d->server));
	http_server_free(d->server);
	d->server = NULL;
	host_drain(d->host, host_drained, d);
}

static void on_signal(void *arg, uint32_t events)
{
	struct daemon *d = arg;
	struct signalfd_siginfo si;

	if (read(d->signal_fd, &si, sizeof(si)) != sizeof(si))
		return;
	if (si.ssi_signo == SIGHUP) {
		struct err e;

		if (templates_reload(d->host->depot.templates, &e) < 0)
			log_warn("cannot reload templates, the old ones stay why=\"%s\"", e.text);
		return;
	}
	if (d->ending) {
		log_warn("asked twice, ending now");
		loop_stop(d->loop);
		return;
	}
	log_info("ending, machines go on signal=%u", si.ssi_signo);
	notify("STOPPING=1");
	d->ending = true;
	d->deadline = (struct loop_timer){.fn = drain_late, .arg = d};
	loop_timer_set(d->loop, &d->deadline, mono_ms() + DRAIN_MS);
	api_drain(d->api);
	http_server_drain(d->server, server_drained, d);
}

static int watch_signals(struct daemon *d, struct err *e)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL); /* before threads: they inherit it */
	signal(SIGPIPE, SIG_IGN);
	d->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	d->signals = (struct loop_io){.fn = on_signal, .arg = d};
	if (d->signal_fd < 0 || loop_io_add(d->loop, &d->signals, d->signal_fd, EPOLLIN) < 0)
		return err_set(e, errno, "no_memory", "cannot watch signals");
	return 0;
}

/* Two of us with one set of records would fight. */
static int lock_run_dir(struct daemon *d, struct err *e)
{
	uint64_t deadline = mono_ms() + LOCK_MS;
	char path[4096];
	int r;

	if (mkdir(d->config.host.run_dir, 0700) < 0 && errno != EEXIST)
		return err_set(e, errno, "run_dir", "cannot make %s: %s (it needs root)",
		               d->config.host.run_dir, strerror(errno));
	if (mkdir(d->config.host.data_dir, 0700) < 0 && errno != EEXIST)
		return err_set(e, errno, "data_dir", "cannot make %s: %s", d->config.host.data_dir,
		               strerror(errno));
	snprintf(path, sizeof(path), "%s/lock", d->config.host.data_dir);
	d->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (d->lock_fd < 0)
		return err_set(e, errno, "data_dir", "cannot write in %s: %s",
		               d->config.host.data_dir, strerror(errno));
	/* One that was killed may have left a child on its way into a jail, for a moment. */
	while ((r = flock(d->lock_fd, LOCK_EX | LOCK_NB)) < 0 && mono_ms() < deadline)
		usleep(10000);
	if (r < 0)
		return err_set(
		    e, EBUSY, "data_dir",
		    "another pandad works with %s: stop that one, or choose another data_dir",
		    d->config.host.data_dir);
	return 0;
}

static int wire(struct daemon *d, struct err *e)
{
	struct config *c = &d->config;
	char key[PATH_MAX];
	int r;

	c->engines.run_dir = c->host.run_dir;
	c->engines.shared = true;
	c->engines.share.tenant_cpu_percent = c->host.tenant_cpu_percent;
	c->engines.jail_want = c->weak_jail ? 0 : JAIL_ALL;
	c->http.handler = api_handle;
	c->http.refusal = api_refusal;
	c->http.logged = api_logged;
	if (loop_new(&d->loop) < 0)
		return err_nomem(e);
	r = watch_signals(d, e);
	if (r == 0)
		r = lock_run_dir(d, e);
	if (r == 0)
		r = engines_new(&c->engines, &d->engines, e);
	if (r == 0)
		r = host_open(d->loop, d->engines, &c->host, &d->host, e);
	if (r == 0)
		r = api_new(d->host, &c->api, &d->api, e);
	if (r == 0) {
		snprintf(key, sizeof(key), "%s/admin.key", c->host.data_dir);
		r = api_first_token(d->api, key, e);
		if (r > 0) {
			printf("API key: %s\n", key);
			fflush(stdout);
		}
		r = r < 0 ? r : 0;
	}
	c->http.arg = d->api;
	c->http.account = r == 0 ? api_account(d->api) : NULL;
	if (r == 0)
		r = http_server_new(d->loop, &c->http, &d->server, e);
	if (r == 0)
		r = listen_all(d, e);
	return r;
}

static void unwire(struct daemon *d)
{
	if (d->server)
		http_server_free(d->server);
	if (d->api)
		api_free(d->api);
	host_close(d->host);
	if (d->engines)
		d->engines->free(d->engines);
	if (d->loop) {
		loop_io_del(d->loop, &d->signals);
		loop_free(d->loop);
	}
	closep(&d->signal_fd);
	closep(&d->lock_fd);
}

/*
 * Bodies and output come and go in megabytes. From a threshold on, malloc() has a mapping for each,
 * which goes back to the host at once; without ours it raises that threshold with what it sees.
 * What is left of many small pieces goes back when there is much of it.
 */
static void give_back(void *arg)
{
	struct daemon *d = arg;
	struct mallinfo2 m = mallinfo2();

	if (m.fordblks > d->unused + GIVE_BACK) {
		malloc_trim(0);
		/* Holes are counted as unused, also when the host has their pages again. */
		d->unused = mallinfo2().fordblks;
	} else {
		d->unused = MIN(d->unused, m.fordblks);
	}
	loop_timer_set(d->loop, &d->rest, mono_ms() + GIVE_BACK_MS);
}

static void keep_little(struct daemon *d)
{
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	mallopt(M_TRIM_THRESHOLD, 1 << 20);
	d->rest = (struct loop_timer){.fn = give_back, .arg = d};
	give_back(d);
}

/* Each sandbox, connection and stream has an fd. */
static void raise_limits(void)
{
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l) == 0) {
		l.rlim_cur = l.rlim_max;
		setrlimit(RLIMIT_NOFILE, &l);
	}
}

static int run(struct daemon *d)
{
	struct log_filter filter;
	struct err e = {0};
	int r;

	if (log_filter_parse(d->config.log, &filter, &e) == 0)
		log_filter_set(&filter);
	raise_limits();
	umask(077);
	fault_init();
	r = wire(d, &e);
	if (r < 0) {
		fprintf(stderr, "pandad: %s\n", e.text);
	} else {
		log_info("ready sandboxes=%zu isolation=%s", d->host->count,
		         d->engines->list[0].isolation);
		notify("READY=1");
		keep_little(d);
		r = loop_run(d->loop);
		log_info("ended sandboxes=%zu", d->host->count);
	}
	unwire(d);
	return r < 0 ? 1 : 0;
}

static int set_pair(struct config *c, const char *pair, struct err *e)
{
	const char *equals = strchr(pair, '=');
	char key[64];

	if (!equals || (size_t)(equals - pair) >= sizeof(key))
		return err_set(e, EINVAL, "bad_config", "--set takes KEY=VALUE, not '%.60s'", pair);
	snprintf(key, sizeof(key), "%.*s", (int)(equals - pair), pair);
	return config_set(c, key, equals + 1, e);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"config", required_argument, NULL, 'c'},
	                                        {"set", required_argument, NULL, 's'},
	                                        {"print-config", no_argument, NULL, 'p'},
	                                        {"list-faults", no_argument, NULL, 'f'},
	                                        {"version", no_argument, NULL, 'V'},
	                                        {"help", no_argument, NULL, 'h'},
	                                        {NULL, 0, NULL, 0}};
	struct daemon d = {.signal_fd = -1, .lock_fd = -1};
	const char *file = NULL, *sets[64];
	size_t nsets = 0;
	bool print = false;
	struct err e;
	int o, r;

	while ((o = getopt_long(argc, argv, "c:s:Vh", options, NULL)) != -1)
		switch (o) {
		case 'c':
			file = optarg;
			break;
		case 's':
			if (nsets < ARRAY_LEN(sets))
				sets[nsets++] = optarg;
			break;
		case 'p':
			print = true;
			break;
		case 'f':
			for (const char *const *f = fault_names; *f; f++)
				puts(*f);
			return 0;
		case 'V':
			printf("pandad %s\n", PANDA_VERSION);
			return 0;
		case 'h':
			fputs(usage, stdout);
			return 0;
		default:
			fputs("Try 'pandad --help'.\n", stderr);
			return 2;
		}
	if (optind < argc) {
		fprintf(stderr, "pandad: what is '%.60s'?\nTry 'pandad --help'.\n", argv[optind]);
		return 2;
	}
	r = config_default(&d.config) < 0 ? err_nomem(&e) : 0;
	if (r == 0 && (file || access("/etc/pandad.conf", R_OK) == 0))
		r = config_read(&d.config, file ? file : "/etc/pandad.conf", &e);
	if (r == 0 && getenv("PANDA_LOG"))
		r = config_set(&d.config, "log", getenv("PANDA_LOG"), &e);
	for (size_t i = 0; r == 0 && i < nsets; i++)
		r = set_pair(&d.config, sets[i], &e);
	if (r < 0)
		fprintf(stderr, "pandad: %s\n", e.text);
	else if (print)
		config_print(&d.config, stdout);
	else
		r = run(&d);
	config_fini(&d.config);
	return r < 0 ? 2 : r;
}
