/*
 * jail/filter.h - a seccomp allow-list, compiled once, installed many times
 * Code that needs a system call names it in a table of struct jail_rule beside itself; the
 * caller that starts the process hands all those tables to jail_filter_build(). Everything else is
 * refused.
 */
#pragma once
#include <linux/filter.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { JAIL_ARGS_MAX = 3 };

enum jail_cmp {
	JAIL_ANY, /* no (further) condition */
	JAIL_EQ,  /* argument == value */
	JAIL_SET, /* (argument & mask) == value */
};

struct jail_arg {
	enum jail_cmp cmp;
	unsigned arg; /* 0 to 5 */
	uint64_t value;
	uint64_t mask;
};

/* All conditions of a rule must hold. One syscall may have several rules; any one is enough. */
struct jail_rule {
	const char *name;
	struct jail_arg args[JAIL_ARGS_MAX];
};

/* A rule for one word of a call that knows many: its argument number n must be option. */
#define JAIL_OPTION(name, n, option)                  \
	{                                             \
		name,                                 \
		{                                     \
			{                             \
				JAIL_EQ, n, option, 0 \
			}                             \
		}                                     \
	}

struct jail_rules {
	const struct jail_rule *v;
	size_t n;
};

/* What happens to a system call that no rule allows. */
enum jail_deny {
	JAIL_DENY_ENOSYS, /* as on a kernel that never had it: what we ship */
	JAIL_DENY_LOG,    /* let it pass and log it: to find out what a new program needs */
	JAIL_DENY_TRAP,   /* SIGSYS, a debugger shows the place */
};

struct jail_filter {
	struct sock_filter *insns;
	unsigned short n;
	uint64_t ticket; /* for the one exec that starts the program */
};

/*
 * The filter also allows exit and exit_group, and the one execveat that starts the program: that
 * of a bare fd (AT_EMPTY_PATH) with the ticket, a random number, as its sixth argument. The kernel
 * ignores that argument and clears all registers in the exec, and a filter cannot be read from
 * inside, so no program behind the filter can start another one, unless its own rules say so.
 * A call of another architecture kills the process. A name
 * that this cpu does not have is left out; a name no kernel knows is "bad_filter", EINVAL.
 * Release *ret with jail_filter_fini().
 */
int jail_filter_build(const struct jail_rules *lists, size_t n, enum jail_deny deny,
                      struct jail_filter *ret, struct err *e);
void jail_filter_fini(struct jail_filter *f);
