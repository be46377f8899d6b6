#include "api/streams/credit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/streams/exec.h"
#include "api/streams/job.h"
#include "base/macro.h"
#include "wire/guest.h"

void credit_pay(void *credit)
{
	struct credit *k = credit;

	for (int chan = 0; chan < 2; chan++) {
		size_t n = k->owed[chan];

		k->owed[chan] = 0; /* before: what is given may be used, and owed again, at once */
		if (n && k->give)
			k->give(k->arg, chan, n);
	}
}

void credit_owe(struct credit *k, int chan, size_t n, bool room)
{
	k->owed[chan] += n;
	if (room)
		credit_pay(k);
}

/* As many as there is room for: how many bytes that was, or a negative errno. */
static ssize_t tell_rows(struct credit_rows *r, const uint8_t *p, size_t n)
{
	size_t at = 0;

	while (at < n && r->room(r->arg)) {
		ssize_t k = r->row(r->arg, p + at, n - at);

		if (k < 0)
			return k;
		at += (size_t)k;
	}
	if (at)
		credit_owe(r->credit, 0, at, r->room(r->arg));
	return (ssize_t)at;
}

int credit_rows_add(struct credit_rows *r, const uint8_t *p, size_t n)
{
	ssize_t told = r->n_held ? 0 : tell_rows(r, p, n);
	uint8_t *bigger;

	if (told < 0 || (size_t)told == n)
		return (int)MIN(told, 0);
	p += told;
	n -= (size_t)told;
	bigger = realloc(r->held, r->n_held + n);
	if (!bigger)
		return -ENOMEM;
	memcpy(bigger + r->n_held, p, n);
	r->held = bigger;
	r->n_held += n;
	return 0;
}

int credit_rows_more(struct credit_rows *r)
{
	ssize_t told = tell_rows(r, r->held, r->n_held);

	if (told < 0)
		return (int)told;
	r->n_held -= (size_t)told;
	if (told && r->n_held)
		memmove(r->held, r->held + told, r->n_held);
	return 0;
}

void credit_to_job(void *jobp, int chan, size_t n)
{
	struct job *j = *(struct job **)jobp;

	if (j)
		job_credit(j, chan ? WIRE_ERR : WIRE_OUT, n);
}

void credit_to_exec(void *execp, int chan, size_t n)
{
	struct exec_job *x = *(struct exec_job **)execp;

	if (x)
		exec_credit(x, chan, n);
}
