#include "host/op.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "host/disk_use.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/sandbox.h"

static void op_init(struct op *op, struct sandbox *sb, const char *name)
{
	const char *request = sb->host->request;

	op->sb = sb;
	op->name = name;
	op->asked_ms = mono_ms();
	op->began_ms = 0;
	snprintf(op->request, sizeof(op->request), "%s", request ? request : "");
}

void op_check(const struct sandbox *sb)
{
	for (const struct op *op = sb->ops; op; op = op->next) {
		assert(op->sb == sb && op->begin && op->name);
		assert((op->began_ms != 0) == (op == sb->ops));
	}
}

static void op_begin(struct op *op)
{
	op->began_ms = mono_ms();
	op_check(op->sb);
	log_debug("operation begins op=%s sandbox=%s request=%s waited_ms=%llu", op->name,
	          op->sb->id, op->request[0] ? op->request : "-",
	          (unsigned long long)(op->began_ms - op->asked_ms));
	op->begin(op);
}

void op_queue(struct sandbox *sb, const char *name, struct op *op)
{
	struct op **p = &sb->ops;

	op_init(op, sb, name);
	op->next = NULL;
	for (; *p; p = &(*p)->next)
		assert(*p != op); /* it would wait for itself */
	*p = op;
	if (sb->ops == op)
		op_begin(op);
}

void op_queue_first(struct sandbox *sb, const char *name, struct op *op)
{
	if (!sb->ops) {
		op_queue(sb, name, op);
		return;
	}
	op_init(op, sb, name);
	op->next = sb->ops->next;
	sb->ops->next = op;
	if (sb->ops->cancel)
		sb->ops->cancel(sb->ops);
}

void op_end(struct op *op)
{
	struct sandbox *sb = op->sb;

	assert(sb->ops == op && op->began_ms);
	log_debug("operation ended op=%s sandbox=%s request=%s state=%s took_ms=%llu", op->name,
	          sb->id, op->request[0] ? op->request : "-", sandbox_state_record(sb->state),
	          (unsigned long long)(mono_ms() - op->began_ms));
	sb->ops = op->next;
	disk_use_changed(sb->host);
	host_quieter(sb->host);
	if (sb->ops)
		op_begin(sb->ops);
	else if (sb->state == SANDBOX_KILLING && sb->pid == 0)
		host_drop(sb->host, sb); /* killed, and no caller asks for it any more */
}
