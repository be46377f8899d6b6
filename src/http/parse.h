/*
 * http/parse.h - the bytes of HTTP/1.1: heads of requests and responses, chunked bodies
 * Pure and strict: no I/O, no allocation, and no second guess about what a sender may have meant,
 * since two readers who guess differently are how requests get smuggled. A head is one buffer of at
 * most HTTP_HEAD_MAX bytes, judged in one pass when it is whole.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	HTTP_HEAD_MAX = 32 * 1024, /* request line and headers */
	HTTP_HEADERS_MAX = 100,
};

struct http_field {
	const char *name, *value;
};

enum http_body_kind {
	HTTP_BODY_NONE,
	HTTP_BODY_LENGTH,
	HTTP_BODY_CHUNKED,
	HTTP_BODY_EOF, /* responses only: everything until the connection ends */
};

struct http_head {
	const char *method, *path, *query; /* requests */
	int status;                        /* responses */
	const char *reason;
	int minor; /* HTTP/1.minor: 0 or 1 */
	enum http_body_kind body;
	uint64_t length; /* HTTP_BODY_LENGTH: more than 0 */
	bool keep_alive, expect_continue;
	bool upgrade; /* "upgrade" is among the words of Connection */
	size_t n;
	struct http_field field[HTTP_HEADERS_MAX];
};

/*
 * Where the head at p ends: its length with the empty line; 0 when it is not whole yet; -EBADMSG
 * when a line ends in a bare LF. *scanned starts as 0 and saves looking twice when p grows.
 */
ssize_t http_head_end(const char *p, size_t n, size_t *scanned);

/*
 * A whole head (n from http_head_end()). p is written into: the result points there. Returns 0, or
 * the status to answer with (400, 417, 431, 501, 505), and *why says what is wrong.
 */
int http_parse_request(char *p, size_t n, struct http_head *ret, const char **why);

/* The same for a response to a request with that method. Returns 0 or -EBADMSG. */
int http_parse_response(char *p, size_t n, const char *method, struct http_head *ret,
                        const char **why);

/* The first field of that name, in any case, or NULL. */
const char *http_head_field(const struct http_head *h, const char *name);

/* Is word among the comma-separated words of list, in any case? */
bool http_list_has(const char *list, const char *word);

/* May this byte be in a method or a field name? */
bool http_is_token(unsigned char c);

/*
 * A chunked body, in pieces that may end anywhere. Zeroed is the start. Trailers are skipped, or,
 * with no_trailers, refused: some readers take a Transfer-Encoding there for one of the request.
 */
struct http_chunked {
	bool no_trailers;
	uint64_t left;  /* of this chunk's data */
	unsigned extra; /* digits of the size, or bytes of the trailer, so far */
	uint8_t state;
	bool done; /* the last chunk and its trailer are read */
};

/*
 * Eats from p, at most up to the end of one run of data, which is then *data, *len (it lies in p;
 * *len may be 0). Returns how much was eaten: less than n only when there was data or at the end.
 * -EBADMSG: this is not chunked; there is no way to go on.
 */
ssize_t http_chunked_eat(struct http_chunked *c, const char *p, size_t n, const char **data,
                         size_t *len);
