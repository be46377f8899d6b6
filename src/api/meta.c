/*
 * api/meta.c - about the server itself: is it there, which one is it, how busy is it
 */
#include "api/api_internal.h"

void stats_note(struct api *a, const struct route *route, int status, uint64_t took_us)
{
	(void)a;
	(void)route;
	(void)status;
	(void)took_us;
}
