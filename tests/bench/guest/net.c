/*
 * net - both ends of a connection, for tests/bench/net.py: the same program in a guest and beside
 * it
 *
 *   net serve PORT                   the client's first byte says what for: d sends, u takes, e
 * echoes net down|up ADDRESS PORT SECONDS one stream: Gbit/s net rtt ADDRESS PORT COUNT       one
 * byte there and back: median in us net http PORT                    the same short answer to
 * everybody, one after the other net dns COUNT                    asks the gateway for web.example:
 * median in us
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static char buf[1 << 18];

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static struct sockaddr_in at(const char *addr, const char *port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	if (inet_pton(AF_INET, addr, &a.sin_addr) != 1)
		die(addr);
	return a;
}

static int listen_on(const char *port)
{
	struct sockaddr_in a = at("0.0.0.0", port);
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 128) < 0)
		die("listen");
	puts("ready");
	fflush(stdout);
	return fd;
}

static void answer(int c)
{
	int on = 1;
	ssize_t n;
	char what;

	setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (read(c, &what, 1) != 1)
		return;
	if (what == 'd')
		while (write(c, buf, sizeof(buf)) > 0)
			;
	else if (what == 'u')
		while (read(c, buf, sizeof(buf)) > 0)
			;
	else
		while ((n = read(c, buf, sizeof(buf))) > 0 && write(c, buf, (size_t)n) == n)
			;
}

static void serve(const char *port)
{
	int fd = listen_on(port);

	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		int c = accept(fd, NULL, NULL);

		if (c >= 0 && fork() == 0) {
			answer(c);
			_exit(0);
		}
		close(c);
	}
}

static void http(const char *port)
{
	static const char reply[] = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n"
				    "Connection: close\r\n\r\nok\n";
	int fd = listen_on(port);

	for (;;) {
		int c = accept(fd, NULL, NULL);

		if (c < 0)
			continue;
		if (read(c, buf, sizeof(buf)) > 0)
			(void)!write(c, reply, sizeof(reply) - 1);
		close(c);
	}
}

static int reach(const char *addr, const char *port, char what)
{
	struct sockaddr_in a = at(addr, port);
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		die("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (write(fd, &what, 1) != 1)
		die("write");
	return fd;
}

static double stream(int fd, int down, double seconds)
{
	double begun = now(), bytes = 0;
	ssize_t n;

	while (now() - begun < seconds) {
		n = down ? read(fd, buf, sizeof(buf)) : write(fd, buf, sizeof(buf));
		if (n <= 0)
			die("stream");
		bytes += (double)n;
	}
	return bytes * 8 / 1e9 / (now() - begun);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double trips(int fd, int count, const void *ask, size_t n)
{
	double *times = calloc((size_t)count, sizeof(*times)), r;

	for (int i = 0; i < count; i++) {
		double begun = now();

		if (send(fd, ask, n, 0) != (ssize_t)n || recv(fd, buf, sizeof(buf), 0) <= 0)
			die("trip");
		times[i] = (now() - begun) * 1e6;
	}
	qsort(times, (size_t)count, sizeof(*times), by_size);
	r = times[count / 2];
	free(times);
	return r;
}

static double names(int count)
{
	static const char ask[] = "\x12\x34\x01\0\0\1\0\0\0\0\0\0\3web\7example\0\0\1\0\1";
	struct sockaddr_in a = at("172.31.255.1", "53");
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		die("connect");
	trips(fd, 1, ask, sizeof(ask) - 1); /* into the cache */
	return trips(fd, count, ask, sizeof(ask) - 1);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";

	signal(SIGPIPE, SIG_IGN);
	if (!strcmp(what, "serve"))
		serve(argv[2]);
	else if (!strcmp(what, "http"))
		http(argv[2]);
	else if (!strcmp(what, "dns"))
		printf("%.3f\n", names(atoi(argv[2])));
	else if (argc < 5)
		return 2;
	else if (!strcmp(what, "rtt"))
		printf("%.3f\n", trips(reach(argv[2], argv[3], 'e'), atoi(argv[4]), "x", 1));
	else
		printf("%.3f\n",
		       stream(reach(argv[2], argv[3], *what), *what == 'd', atof(argv[4])));
	return 0;
}
