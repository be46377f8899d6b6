/*
 * cli/neighbours.h: what a host's /sys and /proc say, of hosts that are folders of the test's.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "cli/neighbours.h"

static char host[] = "/tmp/panda-neighbours.XXXXXX";
static char seen[4096];

static void put(const char *path, const char *text)
{
	char full[300];

	snprintf(full, sizeof(full), "%s/%s", host, path);
	for (char *p = full + 1; (p = strchr(p, '/')); p++) {
		*p = '\0';
		mkdir(full, 0700);
		*p = '/';
	}
	assert_int_equal(io_replace_file(AT_FDCWD, full, text, strlen(text), 0600, false), 0);
}

static void note(const char *state, const char *name, const char *detail, const char *todo)
{
	size_t used = strlen(seen);

	snprintf(seen + used, sizeof(seen) - used, "%s|%s|%s%s\n", state, name, detail,
	         todo ? "|!" : "");
}

static void look(const char *want)
{
	char sys[300], proc[300];

	seen[0] = '\0';
	snprintf(sys, sizeof(sys), "%s/sys", host);
	snprintf(proc, sizeof(proc), "%s/proc", host);
	neighbours_look(sys, proc, note);
	assert_string_equal(seen, want);
}

static void a_host_that_shares_little_is_well(void **state)
{
	(void)state;
	put("sys/devices/system/cpu/smt/active", "0\n");
	put("sys/kernel/mm/ksm/run", "0\n");
	put("sys/devices/system/cpu/vulnerabilities/mds", "Not affected\n");
	put("sys/devices/system/cpu/vulnerabilities/spectre_v2", "Mitigation: IBRS\n");
	put("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n");
	look("ok|cpu threads|one thread a core\n"
	     "ok|merged pages|KSM is off\n"
	     "ok|cpu leaks|the host's kernel mitigates all it knows of\n"
	     "ok|swap|none\n");
}

static void what_is_shared_is_named_with_a_way_out(void **state)
{
	(void)state;
	put("sys/devices/system/cpu/smt/active", "1\n");
	put("sys/kernel/mm/ksm/run", "1\n");
	put("sys/devices/system/cpu/vulnerabilities/l1tf", "Mitigation: PTE; SMT vulnerable\n");
	put("sys/devices/system/cpu/vulnerabilities/mds", "Vulnerable: no microcode\n");
	put("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/vda2 partition 9 0 -2\n");
	look("--|cpu threads|two threads of one core can serve two sandboxes at once|!\n"
	     "--|merged pages|KSM merges equal pages of different sandboxes|!\n"
	     "--|cpu leaks|l1tf, mds|!\n"
	     "--|swap|the host swaps: memory of pandad can reach a disk|!\n");
}

static int host_make(void **state)
{
	(void)state;
	return mkdtemp(host) ? 0 : -1;
}

static int host_remove(void **state)
{
	char command[400];

	(void)state;
	snprintf(command, sizeof(command), "rm -r %s", host);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_host_that_shares_little_is_well),
	    cmocka_unit_test(what_is_shared_is_named_with_a_way_out),
	};

	return cmocka_run_group_tests(tests, host_make, host_remove);
}
