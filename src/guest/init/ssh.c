/*
 * guest/init/ssh.c - the ssh keys of this life
 * templates/common/files/usr/lib/panda/ssh-serve makes the machine's key when the first connection
 * needs it, and writes down who may come in. All of that belongs to one life: a machine that was
 * forked, woken or restored begins without, before a client can reach it. sshd has no port of its
 * own, every connection comes through us, and those of the life before have ended (HANGUP).
 */
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "guest/init/agent.h"

void ssh_forget(void)
{
	DIR *d = opendir("/run/panda/ssh");
	struct dirent *e;

	if (!d)
		return; /* no client has asked for ssh */
	while ((e = readdir(d)))
		if (e->d_name[0] != '.')
			unlinkat(dirfd(d), e->d_name, 0);
	closedir(d);
}
