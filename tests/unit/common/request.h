/*
 * common/request.h - requests as bytes, for servers that exist only in tests
 * Pure. The client under test sent the bytes; a request that is none makes the test end.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Bytes of the head at p with its empty line; 0: not all of it is there. */
size_t request_head(const char *p, size_t n);
/* Bytes of the request at p: its head and the body that the head announces. 0: not all there. */
size_t request_whole(const char *p, size_t n);
/*
 * The body of a whole request, without the sizes of chunks. Caller frees; a NUL stands behind it.
 */
char *request_body(const char *p, size_t n, size_t *ret_len);
/* A field of the head, into buf; "" when there is none. */
void request_field(const char *p, size_t n, const char *name, char *buf, size_t size);
/* What Sec-WebSocket-Accept must say to this request. */
void request_ws_accept(const char *p, size_t n, char *buf, size_t size);
