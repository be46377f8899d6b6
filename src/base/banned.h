/*
 * base/banned.h - functions no code here may call: they cannot be told how much room there is
 * Forced into every file by the build. System headers come first, poison speaks of what follows.
 */
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef PANDA_ALLOW_BANNED
#pragma GCC poison strcpy strcat sprintf vsprintf gets strtok tmpnam mktemp
#endif
