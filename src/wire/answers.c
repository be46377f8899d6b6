#include "wire/answers.h"

#include "base/macro.h"
#include "wire/guest.h"

enum {
	OUT = 1 << WIRE_OUT,
	BOTH = 1 << WIRE_OUT | 1 << WIRE_ERR,
};

#define TO(type) .request = WIRE_##type, .name = #type

/* Agents of 0.1.0 are in machines that were saved with it: what they answer stays allowed. */
const struct wire_answers wire_answers[] = {
    {.request = WIRE_EXEC, .name = "EXEC DETACH", .flags = WIRE_EXEC_DETACH, .first = WIRE_STARTED},
    {.request = WIRE_EXEC,
     .name = "EXEC STARTED",
     .flags = WIRE_EXEC_STARTED,
     .first = WIRE_STARTED,
     .chans = BOTH,
     .last = WIRE_EXITED,
     .input = true},
    {TO(EXEC), .chans = BOTH, .last = WIRE_EXITED, .input = true},
    {TO(ATTACH), .first = WIRE_ATTACHED, .chans = BOTH, .gaps = true, .last = WIRE_EXITED,
     .input = true},
    {TO(LIST), .chans = OUT},
    {TO(SIGNAL)},
    {TO(READ), .first = WIRE_FILE, .chans = OUT},
    {TO(WRITE), .input = true, .fed = true},
    {TO(DIR), .chans = OUT},
    {TO(STAT), .first = WIRE_FILE},
    {TO(MKDIR)},
    {TO(REMOVE)},
    {TO(RENAME)},
    {TO(CHMOD)},
    {TO(SYMLINK)},
    {TO(READLINK), .first = WIRE_PATH},
    {TO(WATCH), .first = WIRE_READY, .chans = OUT, .endless = true},
    {TO(CONNECT), .first = WIRE_READY, .chans = OUT, .eof = true, .input = true},
    {TO(STATS), .first = WIRE_STATS_REPLY},
    {TO(SYNC)},
    {TO(REBORN)},
    {TO(SHUTDOWN)},
    {TO(MOUNT)},
    {TO(UMOUNT)},
    {TO(GROW)},
    {TO(FREEZE)},
    {TO(THAW)},
};

const size_t wire_answers_count = ARRAY_LEN(wire_answers);

const struct wire_answers *wire_answers_of(uint8_t request, const void *msg)
{
	uint32_t flags = request == WIRE_EXEC ? ((const struct wire_exec *)msg)->flags : 0;

	for (size_t i = 0; i < ARRAY_LEN(wire_answers); i++)
		if (wire_answers[i].request == request &&
		    (!wire_answers[i].flags || (wire_answers[i].flags & flags)))
			return &wire_answers[i];
	return NULL;
}

static bool has_come(const struct wire_answered *a, uint8_t reply)
{
	return !reply || (a->seen & 1u << reply);
}

/* Data, or what is said about it, on this channel. */
static bool chan_is_open(const struct wire_answered *a, uint8_t chan)
{
	const struct wire_answers *may = a->may;

	return (chan == WIRE_OUT || chan == WIRE_ERR) && (may->chans & 1u << chan) &&
	       !(a->eof & 1u << chan) && has_come(a, may->first) &&
	       !(may->last && has_come(a, may->last));
}

static bool is_whole(const struct wire_answered *a)
{
	const struct wire_answers *may = a->may;

	return !may->endless && has_come(a, may->first) && has_come(a, may->last) &&
	       (!may->eof || a->eof == may->chans) && (!may->fed || a->fed);
}

static bool reply_may_come(const struct wire_answered *a, const struct wire_header *h)
{
	if (h->chan || has_come(a, h->type))
		return false;
	return h->type == a->may->first || (h->type == a->may->last && has_come(a, a->may->first));
}

bool wire_answer(struct wire_answered *a, const struct wire_header *h, const void *msg)
{
	unsigned k = h->chan - (unsigned)WIRE_OUT;

	switch (h->type) {
	case WIRE_END:
		return !h->chan && (((const struct wire_end *)msg)->err || is_whole(a));
	case WIRE_CREDIT:
		return a->may->input && h->chan == WIRE_IN &&
		       ((const struct wire_window *)msg)->window;
	case WIRE_DATA:
		if (!chan_is_open(a, h->chan) || !h->length)
			return false;
		a->at[k] += h->length;
		return true;
	case WIRE_GAP: {
		uint64_t to = ((const struct wire_gap *)msg)->offset;

		if (!a->may->gaps || !chan_is_open(a, h->chan) || to <= a->at[k])
			return false;
		a->at[k] = to;
		return true;
	}
	case WIRE_EOF:
		if (!a->may->eof || !chan_is_open(a, h->chan))
			return false;
		a->eof |= (uint8_t)(1u << h->chan);
		return true;
	}
	if (!reply_may_come(a, h))
		return false;
	a->seen |= (uint16_t)(1u << h->type);
	if (h->type == WIRE_ATTACHED) {
		a->at[0] = ((const struct wire_attached *)msg)->out_offset;
		a->at[1] = ((const struct wire_attached *)msg)->err_offset;
	}
	return true;
}
