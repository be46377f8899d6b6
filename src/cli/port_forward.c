/*
 * panda port-forward - a port of this host leads to a port of a sandbox
 * A thread for each connection: opening one may take as long as a sandbox needs to wake up, and the
 * others do not wait for it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/carry.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "client/panda.h"

enum {
	FORWARDS_MAX = 256, /* connections at once; more wait in the kernel's queue */
	STACK = 256 * 1024,
	BACKLOG = 64,
	PORTS_MAX = 32,
};

static const struct cli_opt opts[] = {
    {'a', "address", "ADDRESS", "address to listen on (127.0.0.1)", WORD_NONE},
    {0},
};

struct gate {
	pthread_mutex_t lock;
	pthread_cond_t room;
	unsigned used;
};

struct forward {
	struct cli cli; /* a client of its own: one per thread */
	struct gate *gate;
	char *path;
	int fd;
};

static void gate_enter(struct gate *g)
{
	pthread_mutex_lock(&g->lock);
	while (g->used == FORWARDS_MAX)
		pthread_cond_wait(&g->room, &g->lock);
	g->used++;
	pthread_mutex_unlock(&g->lock);
}

static void gate_leave(struct gate *g)
{
	pthread_mutex_lock(&g->lock);
	g->used--;
	pthread_cond_signal(&g->room);
	pthread_mutex_unlock(&g->lock);
}

/* A client connected here shall read a reset, not an orderly end, when the other end is not there
 * or was cut. */
static void reset(int fd)
{
	struct linger now = {.l_onoff = 1};

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

static void *serve(void *arg)
{
	struct forward *f = arg;
	struct panda_pipe *p = NULL;
	struct panda_error e = {0};
	int r;

	r = cli_open(&f->cli) ? -EINVAL : panda_pipe_open(f->cli.panda, f->path, &p, &e);
	if (r == 0)
		r = carry(p, f->fd, f->fd, &e);
	else if (*e.text)
		cli_say(&f->cli, &e);
	if (r < 0)
		reset(f->fd);
	panda_pipe_close(p);
	close(f->fd);
	panda_free(f->cli.panda);
	free(f->path);
	gate_leave(f->gate);
	free(f);
	return NULL;
}

static int start(struct cli *c, struct gate *g, const char *id, int port, int fd)
{
	struct forward *f = malloc(sizeof(*f));
	pthread_attr_t attr;
	pthread_t t;
	int r = -ENOMEM;

	if (!f)
		return r;
	*f = (struct forward){.cli = *c, .gate = g, .fd = fd};
	f->cli.panda = NULL;
	f->path = panda_path("/v1/sandboxes/%s/ports/%d/tunnel", id, port);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (f->path)
		r = -pthread_create(&t, &attr, serve, f);
	pthread_attr_destroy(&attr);
	if (r < 0) {
		free(f->path);
		free(f);
	}
	return r;
}

/* "[LOCAL:]REMOTE"; LOCAL 0 is any free one. */
static bool ports_of(const char *text, int *local, int *remote)
{
	const char *colon = strchr(text, ':');
	char *end;
	long a, b;

	a = strtol(text, &end, 10);
	if (end == text || (*end && end != colon))
		return false;
	b = a;
	if (colon) {
		b = strtol(colon + 1, &end, 10);
		if (end == colon + 1 || *end)
			return false;
	}
	*local = (int)a;
	*remote = (int)b;
	return a >= (colon ? 0 : 1) && a <= 65535 && b >= 1 && b <= 65535;
}

static int listen_at(const char *address, int port, int *bound)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	socklen_t n = sizeof(a);
	autoclose int fd = -1;

	if (inet_pton(AF_INET, address, &a.sin_addr) != 1)
		return -EINVAL;
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, BACKLOG) < 0 ||
	    getsockname(fd, (struct sockaddr *)&a, &n) < 0)
		return -errno;
	*bound = ntohs(a.sin_port);
	return take_fd(&fd);
}

/* Takes one connection there. 0 also when it went away again; else the caller must say so. */
static int take(struct cli *c, struct gate *g, const char *id, int remote, int fd)
{
	int conn, r;

	gate_enter(g);
	conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	r = conn < 0 ? -errno : start(c, g, id, remote, conn);
	if (r == 0)
		return 0;
	if (conn >= 0)
		close(conn);
	gate_leave(g);
	if (r == -EMFILE || r == -ENFILE || r == -ENOMEM || (r == -EAGAIN && conn >= 0))
		usleep(100 * 1000); /* others end, then there is room again */
	else if (r != -ECONNABORTED && r != -EINTR && r != -EAGAIN)
		return r;
	return 0;
}

static int run(struct cli *c)
{
	static struct gate gate = {.lock = PTHREAD_MUTEX_INITIALIZER,
	                           .room = PTHREAD_COND_INITIALIZER};
	const char *address = cli_str(c, 'a', "127.0.0.1");
	int local[PORTS_MAX], remote[PORTS_MAX], n, r;
	struct pollfd p[PORTS_MAX];
	char id[CLI_ID];

	if (cli_args(c, 2, 1 + PORTS_MAX))
		return CLI_PANDA;
	n = c->argc - 1;
	for (int i = 0; i < n; i++)
		if (!ports_of(c->argv[1 + i], &local[i], &remote[i]))
			return cli_bad(c, "'%.40s' is not [LOCAL:]REMOTE, like 8080:80",
			               c->argv[1 + i]);
	if (cli_first_id(c, id) || cli_call(c, "GET", panda_path("/v1/sandboxes/%s", id), NULL))
		return CLI_PANDA;
	signal(SIGPIPE, SIG_IGN);
	for (int i = 0; i < n; i++) {
		int fd = listen_at(address, local[i], &local[i]);

		if (fd < 0)
			return cli_die("cannot listen on %.60s:%d: %s", address, local[i],
			               strerror(-fd));
		p[i] = (struct pollfd){.fd = fd, .events = POLLIN};
	}
	for (int i = 0; i < n; i++)
		printf("%s:%d leads to port %d of %s\n", address, local[i], remote[i], id);
	fflush(stdout);
	for (;;) {
		if (poll(p, (nfds_t)n, -1) < 0 && errno != EINTR)
			return cli_die("cannot wait for connections: %s", strerror(errno));
		for (int i = 0; i < n; i++) {
			r = p[i].revents ? take(c, &gate, id, remote[i], p[i].fd) : 0;
			if (r < 0)
				return cli_die("cannot accept connections: %s", strerror(-r));
		}
	}
}

const struct cli_command command_port_forward = {
    .name = "port-forward",
    .args = "[OPTION]... ID [LOCAL:]REMOTE...",
    .what = "forward ports of this host to ports of a sandbox",
    .about =
	"Listens here and carries every connection, byte for byte, to ports of the sandbox:\n"
	"databases, debuggers, anything over TCP. A sandbox that sleeps wakes up. LOCAL 0 is any\n"
	"free port; the line it prints says which. Ends with a signal.",
    .opts = opts,
    .word = WORD_SANDBOX,
    .examples = "  panda port-forward 3f2a 5432\n  panda port-forward 3f2a 8080:80 9229\n",
    .run = run,
};
