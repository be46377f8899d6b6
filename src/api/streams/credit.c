#include "api/streams/credit.h"

#include "api/streams/exec.h"
#include "api/streams/job.h"
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
