/*
 * usage: test-agent PANDA-INIT [small]
 */
#include <stdio.h>

#include "harness.h"

int main(int argc, char **argv)
{
	int failed;

	if (argc < 2) {
		fprintf(stderr, "usage: test-agent PANDA-INIT [small]\n");
		return 2;
	}
	agent_path = argv[1];
	agent_is_small = argc > 2;
	failed =
	    _cmocka_run_group_tests("exec", exec_tests, n_exec_tests, group_setup, group_teardown);
	failed +=
	    _cmocka_run_group_tests("files", file_tests, n_file_tests, group_setup, group_teardown);
	failed += _cmocka_run_group_tests("reborn", reborn_tests, n_reborn_tests,
	                                  group_setup_reborn, group_teardown);
	return failed ? 1 : 0;
}
