#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "jail/jail_internal.h"

enum {
	CREATE_RULESET_VERSION = 1,
	RULE_PATH_BENEATH = 1,
	FS_EXECUTE = 1 << 0,
	FS_READ_FILE = 1 << 2,
	/* Rights come in with the ABI that brought them; handling all of them denies all. */
	FS_ABI_1 = (1 << 13) - 1,
	FS_REFER = 1 << 13,                  /* ABI 2 */
	FS_TRUNCATE = 1 << 14,               /* ABI 3 */
	FS_IOCTL_DEV = 1 << 15,              /* ABI 5 */
	NET_BIND_CONNECT_TCP = 3,            /* ABI 4 */
	SCOPE_ABSTRACT_UNIX_AND_SIGNALS = 3, /* ABI 6 */
};

struct ruleset_attr {
	uint64_t fs;
	uint64_t net;
	uint64_t scoped;
};

struct path_beneath_attr {
	uint64_t allowed;
	int32_t parent_fd;
} __attribute__((packed));

int landlock_abi(void)
{
	long r = syscall(SYS_landlock_create_ruleset, NULL, 0, CREATE_RULESET_VERSION);

	return r < 0 ? -errno : (int)r;
}

int landlock_rules(int abi, int exe_fd)
{
	struct ruleset_attr attr = {.fs = FS_ABI_1};
	struct path_beneath_attr exe = {.allowed = FS_EXECUTE | FS_READ_FILE, .parent_fd = exe_fd};
	size_t size = sizeof(attr.fs);
	autoclose int fd = -1;

	if (abi >= 2)
		attr.fs |= FS_REFER;
	if (abi >= 3)
		attr.fs |= FS_TRUNCATE;
	if (abi >= 4) {
		attr.net = NET_BIND_CONNECT_TCP;
		size = offsetof(struct ruleset_attr, scoped);
	}
	if (abi >= 5)
		attr.fs |= FS_IOCTL_DEV;
	if (abi >= 6) {
		attr.scoped = SCOPE_ABSTRACT_UNIX_AND_SIGNALS;
		size = sizeof(attr);
	}
	fd = (int)syscall(SYS_landlock_create_ruleset, &attr, size, 0);
	if (fd < 0)
		return -errno;
	/* EBADFD: a memfd or the like, which no path leads to and Landlock does not speak of. */
	if (syscall(SYS_landlock_add_rule, fd, RULE_PATH_BENEATH, &exe, 0) < 0 && errno != EBADFD)
		return -errno;
	return take_fd(&fd);
}
