/*
 * panda - the command line of PandaStack
 */
#include <locale.h>

#include "cli/cli.h"

int main(int argc, char **argv)
{
	setlocale(LC_CTYPE, ""); /* may we draw with box characters? Numbers stay as they are. */
	return cli_main(argc, argv);
}
