/*
 * base/glob.h - patterns of COPY and .dockerignore
 * Pure, and in time that grows with the product of both lengths, whatever the pattern: fnmatch(3)
 * goes back to every star it has seen, and a pattern with twenty of them outlives the build.
 */
#pragma once
#include <stdbool.h>

/*
 * Does all of path match? '*' and '?' stay inside a part of the path, "**" as a part stands for any
 * number of parts; [a-z], [^a-z], and '\' takes the next character as it is. A '[' without its ']'
 * is itself.
 */
bool glob_match(const char *pattern, const char *path);
