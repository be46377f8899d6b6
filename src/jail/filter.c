#include "jail/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"

static void releasep(scmp_filter_ctx *ctx)
{
	if (*ctx)
		seccomp_release(*ctx);
}

static uint32_t deny_action(enum jail_deny deny)
{
	switch (deny) {
	case JAIL_DENY_LOG:
		return SCMP_ACT_LOG;
	case JAIL_DENY_TRAP:
		return SCMP_ACT_TRAP;
	case JAIL_DENY_ENOSYS:
		break;
	}
	return SCMP_ACT_ERRNO(ENOSYS);
}

static int add_rule(scmp_filter_ctx ctx, const struct jail_rule *rule, struct err *e)
{
	struct scmp_arg_cmp cmp[JAIL_ARGS_MAX];
	unsigned n = 0;
	int nr = seccomp_syscall_resolve_name(rule->name), r;

	if (nr == __NR_SCMP_ERROR)
		return err_set(e, EINVAL, "bad_filter", "no system call is called '%s'",
		               rule->name);
	if (nr < 0)
		return 0; /* exists, but not on this cpu */
	for (size_t i = 0; i < JAIL_ARGS_MAX && rule->args[i].cmp != JAIL_ANY; i++, n++) {
		const struct jail_arg *a = &rule->args[i];

		if (a->cmp == JAIL_EQ)
			cmp[n] = SCMP_CMP64(a->arg, SCMP_CMP_EQ, a->value, 0);
		else
			cmp[n] = SCMP_CMP64(a->arg, SCMP_CMP_MASKED_EQ, a->mask, a->value);
	}
	r = seccomp_rule_add_array(ctx, SCMP_ACT_ALLOW, nr, n, cmp);
	if (r == -EEXIST) /* two tables need the same call */
		return 0;
	if (r < 0)
		return err_set(e, -r, "bad_filter", "libseccomp refused the rule for '%s'",
		               rule->name);
	return 0;
}

static int add_rules(scmp_filter_ctx ctx, const struct jail_rule *v, size_t n, struct err *e)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = add_rule(ctx, &v[i], e);
	return r;
}

/* What spawn itself needs behind the filter: the exec, and a way out when it fails. */
static int add_start(scmp_filter_ctx ctx, uint64_t ticket, struct err *e)
{
	const struct jail_rule rules[] = {
	    {"execveat", {{JAIL_EQ, 4, AT_EMPTY_PATH, 0}, {JAIL_EQ, 5, ticket, 0}}},
	    {"exit", {{0}}},
	    {"exit_group", {{0}}},
	};

	return add_rules(ctx, rules, ARRAY_LEN(rules), e);
}

/* libseccomp 2.5 can only export to a file. */
static int export(scmp_filter_ctx ctx, struct jail_filter *ret)
{
	autoclose int fd = memfd_create("filter", MFD_CLOEXEC);
	autofree struct sock_filter *insns = NULL;
	off_t size;
	int r;

	if (fd < 0)
		return -errno;
	r = seccomp_export_bpf(ctx, fd);
	if (r < 0)
		return r;
	size = lseek(fd, 0, SEEK_END);
	if (size <= 0 || size > (off_t)(BPF_MAXINSNS * sizeof(*insns)))
		return -E2BIG;
	insns = malloc((size_t)size);
	if (!insns)
		return -ENOMEM;
	r = io_pread_full(fd, insns, (size_t)size, 0);
	if (r < 0)
		return r;
	ret->n = (unsigned short)((size_t)size / sizeof(*insns));
	ret->insns = take_ptr(insns);
	return 0;
}

int jail_filter_build(const struct jail_rules *lists, size_t n, enum jail_deny deny,
                      struct jail_filter *ret, struct err *e)
{
	AUTO(releasep) scmp_filter_ctx ctx = seccomp_init(deny_action(deny));
	uint64_t ticket;
	int r;

	if (!ctx)
		return err_set(e, ENOMEM, "no_memory", "no memory for a seccomp filter");
	if (getrandom(&ticket, sizeof(ticket), 0) != sizeof(ticket))
		return err_set(e, errno, "bad_filter", "no random bytes for a seccomp filter");
	r = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
	if (r == 0) /* a binary tree over the numbers instead of one long chain */
		r = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	if (r < 0)
		return err_set(e, -r, "bad_filter", "this libseccomp is too old (2.5 is needed)");
	r = add_start(ctx, ticket, e);
	for (size_t i = 0; i < n && r == 0; i++)
		r = add_rules(ctx, lists[i].v, lists[i].n, e);
	if (r < 0)
		return r;
	r = export(ctx, ret);
	if (r < 0)
		return err_set(e, -r, "bad_filter", "could not compile the seccomp filter");
	ret->ticket = ticket;
	return 0;
}

void jail_filter_fini(struct jail_filter *f)
{
	free(f->insns);
	*f = (struct jail_filter){0};
}
