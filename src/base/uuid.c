#include "base/uuid.h"

#include <stdio.h>

#include "base/random.h"

void uuid_new(char ret[UUID_TEXT + 1])
{
	unsigned char r[16];

	random_fill(r, sizeof(r));
	r[6] = (r[6] & 0x0f) | 0x40;
	r[8] = (r[8] & 0x3f) | 0x80;
	snprintf(ret, UUID_TEXT + 1,
	         "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", r[0], r[1],
	         r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9], r[10], r[11], r[12], r[13], r[14],
	         r[15]);
}
