/*
 * cli/completion.h - completion for shells, out of the table of commands
 */
#pragma once
#include <stdbool.h>

/* bash, zsh or fish; false for any other. */
bool completion_write(const char *shell, FILE *to);
