/*
 * wire/answers.h - what a guest may answer to each request, how often, and when
 * One table (docs/design/guest-protocol.md shows it). A guest may lie in every frame it sends, but
 * it can send no frame that is not in the row of its request, no reply twice, and none too early
 * or too late. So those who read answers on the host meet only the orders that the rows allow.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/guest.h"

/*
 *   first ──> data, GAP ... ──> last ──> END
 *
 * Each of the two comes once, and END says that all went well only after all that its row has. END
 * with an error may come at any time.
 */
struct wire_answers {
	uint8_t request;
	const char *name; /* as the page has it: "READ" */
	uint32_t flags;   /* EXEC has several rows: this one is for requests with one of these */
	uint8_t first;    /* the reply that comes before all others; 0: none has to */
	uint8_t last;     /* the reply that only END may follow; 0: none is the last */
	uint8_t chans;    /* what data comes on: a bit for each channel */
	bool gaps;        /* GAP may come on them, each time to a higher offset */
	bool eof;         /* EOF comes on each of them, once, behind the data */
	bool input;       /* data goes to the guest, which gives CREDIT for it */
	bool fed;         /* END says that all went well only after the host's own EOF */
	bool endless;     /* END never says that all went well */
};

extern const struct wire_answers wire_answers[];
extern const size_t wire_answers_count;

/* The row of a request with this message. NULL: there is no such request. */
const struct wire_answers *wire_answers_of(uint8_t request, const void *msg);

/* The answer to one request, as far as it has come. Begins as {.may = its row}. */
struct wire_answered {
	const struct wire_answers *may;
	uint16_t seen;  /* a bit for each reply that has come */
	uint8_t eof;    /* a bit for each channel that has ended */
	bool fed;       /* the host has sent its EOF */
	uint64_t at[2]; /* of ATTACH: the offset of the next byte on OUT and ERR */
};

/*
 * The guest's next frame on the stream; msg is the decoded payload, if the type has one. False: it
 * may not come now, and nothing has changed. True: it is noted. Credit is the caller's matter.
 */
bool wire_answer(struct wire_answered *a, const struct wire_header *h, const void *msg);
