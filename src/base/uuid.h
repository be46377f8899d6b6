/*
 * base/uuid.h - random UUIDs, version 4
 */
#pragma once

enum {
	UUID_TEXT = 36, /* characters, without the NUL */
};

void uuid_new(char ret[UUID_TEXT + 1]);
