/*
 * Numbers for http-toy: many small requests, or one long body.
 * usage: http-load PORT small CONNS SECONDS | down BYTES | up BYTES
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

static char buf[1 << 18];

static int dial(int port)
{
	struct sockaddr_in in = {.sin_family = AF_INET,
	                         .sin_port = htons((uint16_t)port),
	                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&in, sizeof(in)) < 0) {
		perror("http-load: connect");
		exit(1);
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	return fd;
}

static void say(int fd, const char *text)
{
	if (write(fd, text, strlen(text)) < 0)
		perror("http-load: write");
}

static void small(int port, int conns, int seconds)
{
	static const char get[] = "GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n";
	int *fd = calloc((size_t)conns, sizeof(int));
	uint64_t from = mono_ns(), n = 0;
	ssize_t size;

	for (int i = 0; i < conns; i++)
		fd[i] = dial(port);
	say(fd[0], get);
	size = read(fd[0], buf, sizeof(buf)); /* all replies are as long as this one */
	while (mono_ns() - from < (uint64_t)seconds * 1000000000u) {
		for (int i = 0; i < conns; i++)
			say(fd[i], get);
		for (int i = 0; i < conns; i++)
			for (ssize_t got = 0; got < size;) {
				ssize_t r = read(fd[i], buf, sizeof(buf));

				if (r <= 0)
					exit(1);
				got += r;
			}
		n += (uint64_t)conns;
	}
	printf("%.0f requests/s\n", (double)n * 1e9 / (double)(mono_ns() - from));
	free(fd);
}

static void down(int port, unsigned long long bytes)
{
	int fd = dial(port);
	unsigned long long got = 0;
	uint64_t from = mono_ns();
	char head[200];

	snprintf(head, sizeof(head), "GET /bytes?n=%llu HTTP/1.1\r\nHost: a\r\n\r\n", bytes);
	say(fd, head);
	while (got < bytes) {
		ssize_t r = read(fd, buf, sizeof(buf));

		if (r <= 0)
			exit(1);
		got += (unsigned long long)r;
	}
	printf("down %.2f GB/s\n", (double)got / (double)(mono_ns() - from));
}

static void up(int port, unsigned long long bytes)
{
	int fd = dial(port);
	unsigned long long sent = 0;
	uint64_t from = mono_ns();
	char head[200];

	snprintf(head, sizeof(head),
	         "POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: %llu\r\n\r\n", bytes);
	say(fd, head);
	while (sent < bytes) {
		size_t k = bytes - sent < sizeof(buf) ? (size_t)(bytes - sent) : sizeof(buf);
		ssize_t r = write(fd, buf, k);

		if (r <= 0)
			exit(1);
		sent += (unsigned long long)r;
	}
	if (read(fd, buf, sizeof(buf)) <= 0)
		exit(1);
	printf("up %.2f GB/s\n", (double)sent / (double)(mono_ns() - from));
}

int main(int argc, char **argv)
{
	int port = argc > 3 ? atoi(argv[1]) : 0;

	if (argc == 5 && strcmp(argv[2], "small") == 0)
		small(port, atoi(argv[3]), atoi(argv[4]));
	else if (argc == 4 && strcmp(argv[2], "down") == 0)
		down(port, strtoull(argv[3], NULL, 10));
	else if (argc == 4 && strcmp(argv[2], "up") == 0)
		up(port, strtoull(argv[3], NULL, 10));
	else
		fprintf(stderr,
		        "usage: http-load PORT small CONNS SECONDS | down BYTES | up BYTES\n");
	return 0;
}
