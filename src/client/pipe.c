/*
 * client/pipe.c - a connection through the server into a sandbox: an upgrade, and then bytes
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/client_internal.h"
#include "client/panda.h"

struct panda_pipe {
	struct server_conn conn;
};

int panda_pipe_open(struct panda *p, const char *path, struct panda_pipe **ret,
                    struct panda_error *e)
{
	struct request q = {.method = "GET",
	                    .path = path,
	                    .extra = "Connection: Upgrade\r\nUpgrade: tcp\r\n",
	                    .own_conn = true};
	struct panda_pipe *w;
	struct reply rp;
	int r;

	r = reply_open(p, &q, &rp, e);
	if (r < 0)
		return r;
	if (rp.status >= 400)
		return reply_error(&rp, NULL, e);
	if (rp.status != 101) {
		r = perr_set(e, EPROTO, "protocol", "%s%s answered %d, not a tunnel", p->target.url,
		             path, rp.status);
		reply_close(&rp, NULL);
		return r;
	}
	w = calloc(1, sizeof(*w));
	if (!w) {
		reply_close(&rp, NULL);
		return perr_nomem(e);
	}
	r = reply_upgraded(&rp, &w->conn, e);
	if (r < 0)
		free(w);
	else
		*ret = w;
	return r;
}

static ssize_t broke(ssize_t r, struct panda_error *e)
{
	if (r == -EAGAIN)
		return r;
	return perr_set(e, (int)-r, "connect", "the connection to the server broke: %s",
	                strerror((int)-r));
}

ssize_t panda_pipe_recv(struct panda_pipe *w, void *buf, size_t n, int timeout_ms,
                        struct panda_error *e)
{
	ssize_t r = conn_read(&w->conn, buf, n, conn_deadline(timeout_ms));

	return r < 0 ? broke(r, e) : r;
}

ssize_t panda_pipe_send(struct panda_pipe *w, const void *data, size_t n, int timeout_ms,
                        struct panda_error *e)
{
	ssize_t r = conn_write(&w->conn, data, n, conn_deadline(timeout_ms));

	return r < 0 ? broke(r, e) : r;
}

int panda_pipe_end(struct panda_pipe *w, struct panda_error *e)
{
	int r = conn_end(&w->conn);

	return r < 0 ? (int)broke(r, e) : 0;
}

int panda_pipe_fd(const struct panda_pipe *w)
{
	return w->conn.fd;
}

void panda_pipe_close(struct panda_pipe *w)
{
	if (!w)
		return;
	conn_close(&w->conn);
	free(w);
}
