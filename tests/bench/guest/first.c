/*
 * The first program of a machine, for tests/bench/kvm.py: it says so, and stays.
 */
#include <unistd.h>

int main(void)
{
	static const char line[] = "the first program runs\n";

	(void)!write(STDOUT_FILENO, line, sizeof(line) - 1);
	for (;;)
		pause();
}
