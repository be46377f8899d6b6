#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "cli/neighbours.h"

enum {
	TEXT_MAX = 64 * 1024,
};

/* Caller frees the text without its last newline. NULL: there is no such file. */
static char *file_text(int dir, const char *path)
{
	char *text;

	if (io_read_file(dir, path, TEXT_MAX, &text, NULL) < 0)
		return NULL;
	text[strcspn(text, "\n")] = '\0';
	return text;
}

static void look_at_threads(int sys, neighbour_row *row)
{
	autofree char *active = file_text(sys, "devices/system/cpu/smt/active");

	if (active && strcmp(active, "1") == 0)
		row("--", "cpu threads", "two threads of one core can serve two sandboxes at once",
		    "tenants that do not trust each other: boot the host with nosmt");
	else
		row("ok", "cpu threads", "one thread a core", NULL);
}

static void look_at_merging(int sys, neighbour_row *row)
{
	autofree char *run = file_text(sys, "kernel/mm/ksm/run");

	if (run && strcmp(run, "1") == 0)
		row("--", "merged pages", "KSM merges equal pages of different sandboxes",
		    "echo 2 >/sys/kernel/mm/ksm/run: a write tells by its time whether another "
		    "has the same page");
	else
		row("ok", "merged pages", "KSM is off", NULL);
}

static void look_at_swap(int proc, neighbour_row *row)
{
	autofree char *text = NULL;
	const char *second;

	if (io_read_file(proc, "swaps", TEXT_MAX, &text, NULL) < 0)
		return;
	second = strchr(text, '\n'); /* the first line is a heading */
	if (second && second[1])
		row("--", "swap", "the host swaps: memory of pandad can reach a disk",
		    "swapoff -a, or encrypt it; machines themselves are kept from swapping");
	else
		row("ok", "swap", "none", NULL);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

/* The kernel says "Vulnerable" first, or behind a mitigation what it does not cover. */
static void look_at_cpu(int sys, neighbour_row *row)
{
	autoclose int dir =
	    openat(sys, "devices/system/cpu/vulnerabilities", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent **list = NULL;
	char detail[400] = "";
	size_t used = 0;
	int n = dir < 0 ? -1 : scandirat(dir, ".", &list, NULL, by_name);

	for (int i = 0; i < n; i++) {
		autofree char *text = NULL;

		if (list[i]->d_name[0] != '.')
			text = file_text(dir, list[i]->d_name);
		if (text && (strstr(text, "ulnerable")) && used < sizeof(detail))
			used += (size_t)snprintf(detail + used, sizeof(detail) - used, "%s%s",
			                         used ? ", " : "", list[i]->d_name);
		free(list[i]);
	}
	free(list);
	if (n < 0)
		row("--", "cpu leaks", "the host's kernel does not say", NULL);
	else if (used)
		row("--", "cpu leaks", detail,
		    "update firmware and kernel; /sys/devices/system/cpu/vulnerabilities says "
		    "more");
	else
		row("ok", "cpu leaks", "the host's kernel mitigates all it knows of", NULL);
}

void neighbours_look(const char *sys, const char *proc, neighbour_row *row)
{
	autoclose int s = open(sys, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	autoclose int p = open(proc, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	look_at_threads(s, row);
	look_at_merging(s, row);
	look_at_cpu(s, row);
	look_at_swap(p, row);
}
