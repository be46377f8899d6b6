/*
 * api/streams/exec_message.h - a command as its guest is told
 * One message has what the request, the sandbox and the template say.
 * Its lists lie in a buffer that the next message uses, too: encode it, or start it, before. Loop
 * thread only.
 */
#pragma once
#include "api/streams/exec.h"
#include "wire/guest.h"

struct exec_message {
	struct wire_exec m;
	bool own_cwd; /* its directory is the template's, not the caller's */
	const char **strv;
	char **owned; /* "KEY=value" */
	size_t n_owned;
};

/*
 * cmd: what the shell runs instead of s->cmd; reads: it has a stdin. What s and sb have must stay
 * as long as the message. NULL: *e says why (no memory, too_large).
 */
struct exec_message *exec_message_new(struct host *h, const struct sandbox *sb,
                                      const struct exec_spec *s, const char *cmd, bool reads,
                                      struct err *e);
void exec_message_freep(struct exec_message **p);
