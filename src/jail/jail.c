#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/macro.h"
#include "jail/cgroup.h"
#include "jail/jail.h"
#include "jail/jail_internal.h"
#include "jail/uid.h"

enum {
	ALL_NAMESPACES = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS |
	                 CLONE_NEWCGROUP,
};

static bool has_capabilities(uint32_t wanted)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {0};

	return syscall(SYS_capget, &head, data) == 0 && (data[0].effective & wanted) == wanted;
}

static bool has_seccomp(void)
{
	uint32_t action = SECCOMP_RET_ERRNO;

	return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

/* The only honest test is to make them; what comes out for root is kept and used. */
static int try_namespaces(struct jail *j)
{
	static const char *const mnt[] = {"/proc/self/ns/mnt"};
	struct ns_job job = {.root = true};
	struct id_maps maps;

	if (!j->userns) {
		job.names = mnt;
		job.fds = &j->mnt;
		job.n = 1;
		return namespaces_make(ALL_NAMESPACES, &job);
	}
	id_maps_self(&maps);
	job.maps = &maps;
	return namespaces_make(ALL_NAMESPACES | CLONE_NEWUSER, &job);
}

int jail_new(const struct jail_config *cfg, struct jail **ret, struct err *e)
{
	uint32_t caps = 1u << CAP_SETUID | 1u << CAP_SETGID | 1u << CAP_SETPCAP;
	struct jail *j = calloc(1, sizeof(*j));
	unsigned cg;
	int r;

	if (!j)
		return err_set(e, ENOMEM, "no_memory", "no memory for a jail");
	j->mnt = -1;
	j->no_spawns = cfg->no_spawns;
	j->dumpable = prctl(PR_GET_DUMPABLE) == 1;
	j->uids.base = cfg->uid_base ? cfg->uid_base : JAIL_UID_BASE;
	j->uids.count = cfg->uid_count ? cfg->uid_count : JAIL_UID_COUNT;
	/* Others begin elsewhere: fewer locks to try. */
	atomic_init(&j->uids.hint, (unsigned)getpid());
	j->uids.dir = open(cfg->run_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (j->uids.dir < 0) {
		r = err_set(e, errno, "bad_run_dir", "cannot open the directory %s", cfg->run_dir);
		goto failed;
	}
	r = cg_open(NULL, cfg->cgroup_parent ? cfg->cgroup_parent : "panda", cfg->share, &j->cg);
	if (r < 0) {
		err_set(e, -r, "jail_failed", "cannot look for control groups: %s", strerror(-r));
		goto failed;
	}
	if (cfg->share)
		cg_settle(j->cg);
	cg = cg_have(j->cg);
	j->have |= (cg & CG_MEMORY ? JAIL_CG_MEMORY : 0) | (cg & CG_CPU ? JAIL_CG_CPU : 0) |
	           (cg & CG_PIDS ? JAIL_CG_PIDS : 0);
	if (has_capabilities(caps))
		j->have |= JAIL_UID;
	j->userns = !has_capabilities(1u << CAP_SYS_ADMIN | 1u << CAP_SYS_CHROOT);
	j->ns_err = cfg->no_spawns ? ENOTSUP : -try_namespaces(j);
	if (!j->ns_err) {
		j->have |= JAIL_NAMESPACES;
		if (j->userns) /* its one uid is ours: in there is no other to change to */
			j->have &= ~(unsigned)JAIL_UID;
	}
	if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) >= 0)
		j->have |= JAIL_NO_NEW_PRIVS;
	if (has_seccomp())
		j->have |= JAIL_SECCOMP;
	j->landlock_abi = landlock_abi();
	if (j->landlock_abi > 0)
		j->have |= JAIL_LANDLOCK;
	*ret = j;
	return 0;
failed:
	jail_free(j);
	return r;
}

void jail_free(struct jail *j)
{
	if (!j)
		return;
	cg_close(j->cg);
	closep(&j->mnt);
	closep(&j->uids.dir);
	free(j);
}

int jail_uid_take(struct jail *j, struct jail_uid *ret, struct err *e)
{
	return uid_take(&j->uids, ret, e);
}

const struct cg_host *jail_cgroups(const struct jail *j)
{
	return j->cg;
}

static void detail_cgroup(const struct jail *j, struct jail_part *p)
{
	const char *why = cg_why(j->cg);

	if (p->ok)
		snprintf(p->detail, sizeof(p->detail), "%s", cg_describe(j->cg));
	else
		snprintf(p->detail, sizeof(p->detail), "found %s%s%.100s", cg_describe(j->cg),
		         *why ? "; " : "", why);
}

static void detail(const struct jail *j, struct jail_part *p)
{
	const char *text = "";
	char buf[sizeof(p->detail)];

	switch (p->bit) {
	case JAIL_UID:
		snprintf(buf, sizeof(buf), "range %u to %u", j->uids.base,
		         j->uids.base + j->uids.count - 1);
		text = p->ok ? buf : "we lack CAP_SETUID, SETGID, SETPCAP, SYS_ADMIN or SYS_CHROOT";
		break;
	case JAIL_NAMESPACES:
		snprintf(buf, sizeof(buf), "making them failed: %s", strerror(j->ns_err));
		text = !p->ok      ? buf
		       : j->userns ? "in a user namespace, as we are not root"
		                   : "pid, mount with empty root, net, ipc, uts, cgroup";
		break;
	case JAIL_NO_NEW_PRIVS:
		text = p->ok ? "and empty capability sets" : "prctl knows no PR_SET_NO_NEW_PRIVS";
		break;
	case JAIL_SECCOMP:
		text = p->ok ? "filters" : "the kernel was built without seccomp filters";
		break;
	case JAIL_LANDLOCK:
		snprintf(buf, sizeof(buf), "ABI %d", j->landlock_abi);
		text = p->ok ? buf : strerror(-j->landlock_abi);
		break;
	default:
		detail_cgroup(j, p);
		return;
	}
	snprintf(p->detail, sizeof(p->detail), "%s", text);
}

void jail_probe(const struct jail *j, struct jail_part ret[JAIL_PARTS])
{
	static const char cgroups[] = "mount the controller (v2, or v1 if v2 lacks it) writable, "
				      "or have it delegated to us";
	static const struct {
		unsigned bit;
		const char *name, *todo;
	} parts[] = {
	    {JAIL_UID, "own uid", "run as root"},
	    {JAIL_NAMESPACES, "namespaces",
	     "run as root, or allow user namespaces (sysctl user.max_user_namespaces)"},
	    {JAIL_CG_MEMORY, "memory limit", cgroups},
	    {JAIL_CG_CPU, "cpu limit", cgroups},
	    {JAIL_CG_PIDS, "pids limit", cgroups},
	    {JAIL_NO_NEW_PRIVS, "no_new_privs", "use a kernel from 5.13 on"},
	    {JAIL_SECCOMP, "seccomp", "use a kernel with CONFIG_SECCOMP_FILTER"},
	    {JAIL_LANDLOCK, "landlock",
	     "use a kernel with CONFIG_SECURITY_LANDLOCK and landlock in its lsm= list"},
	};

	_Static_assert(ARRAY_LEN(parts) == JAIL_PARTS, "one row per part");
	for (size_t i = 0; i < JAIL_PARTS; i++) {
		struct jail_part *p = &ret[i];

		*p = (struct jail_part){.bit = parts[i].bit, .name = parts[i].name};
		p->ok = j->have & p->bit;
		p->todo = p->ok ? NULL : parts[i].todo;
		detail(j, p);
	}
}
