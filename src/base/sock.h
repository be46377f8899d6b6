/*
 * base/sock.h - unix sockets by name within a directory
 * However long the directory's own path is: names are resolved through its fd.
 */
#pragma once

/* type is SOCK_STREAM or SOCK_SEQPACKET. The caller owns *ret, close-on-exec. Negative errno. */
int sock_listen(int dirfd, const char *name, int type, int *ret);
/* Never waits. -EAGAIN: the listener has let too many pile up. */
int sock_connect(int dirfd, const char *name, int type, int *ret);
