/*
 * net/leash.h - what a connection that was opened to a name may say
 * The kernel knows addresses; a front that serves many names at one address can be asked for any
 * of them. So the guest's bytes are read before they go out: on POLICY_TLS the name in the
 * ClientHello, on POLICY_HTTP the Host of each request, on other ports the name in a ClientHello if
 * that is what comes first. Pure: bytes in, judgement out. The bytes come from the guest, and what
 * is not exactly one request or one hello is refused rather than guessed.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "http/parse.h"
#include "net/policy.h"

enum {
	LEASH_BYTES_MAX = HTTP_HEAD_MAX, /* the most that is held until it can be judged */
	LEASH_ANSWER = 12,               /* "HTTP/1.1 101" */
};

enum leash_http {
	LEASH_HEAD,
	LEASH_BODY,
	LEASH_CHUNKS,
	LEASH_SWITCHING, /* a WebSocket was asked for: the server says whether it is one */
};

struct leash {
	uint16_t port;
	bool free;  /* nothing that comes is looked at any more */
	bool over;  /* something was refused */
	bool mixed; /* requests for several names went out */
	/* That was allowed last; empty: none yet. The caller puts a name here for what is judged by
	 * its address alone. */
	char name[POLICY_NAME_MAX + 1];
	/* Of a refusal: "sni", "host" (the name is not on the list), "http" (no request that can be
	 * judged); and the name, if there was one that can be written. */
	const char *why;
	char refused[POLICY_NAME_MAX + 1];

	enum leash_http http;
	bool asked; /* a request went out */
	size_t scanned;
	uint64_t left;
	struct http_chunked chunks;
};

void leash_init(struct leash *l, uint16_t port);

/*
 * One step. p: *n bytes that are held, none of which has gone out. How many of them may go, from
 * the first; the caller sends these, and shows the rest again. 0: not before there is more, or,
 * while LEASH_SWITCHING, an answer. -EPERM: refused, nothing more may go. Bytes may be taken out of
 * p, then *n is less. *told: name is another one than before.
 */
ssize_t leash_judge(struct leash *l, const struct net_policy *policy, uint8_t *p, size_t *n,
                    bool *told);

/* The first LEASH_ANSWER bytes that the server has sent; only while LEASH_SWITCHING. */
void leash_answer(struct leash *l, const uint8_t *answer);

/* May the connection go on under this policy? */
bool leash_holds(const struct leash *l, const struct net_policy *policy);
