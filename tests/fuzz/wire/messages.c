/*
 * One message of any kind, chosen by the first byte: alone, and at the head of a row.
 */
#include <assert.h>
#include <string.h>

#include "base/macro.h"
#include "wire/guest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct wire_desc *const kinds[] = {
    &wire_exec_desc,      &wire_started_desc, &wire_exited_desc,     &wire_attach_desc,
    &wire_attached_desc,  &wire_gap_desc,     &wire_window_desc,     &wire_exec_info_desc,
    &wire_signal_desc,    &wire_size_desc,    &wire_end_desc,        &wire_read_desc,
    &wire_write_desc,     &wire_file_desc,    &wire_path_flags_desc, &wire_mkdir_desc,
    &wire_two_paths_desc, &wire_path_desc,    &wire_watch_desc,      &wire_event_desc,
    &wire_connect_desc,   &wire_stats_desc,   &wire_reborn_desc,     &wire_shutdown_desc,
    &wire_mount_desc,
};

/* A list must give back exactly as many strings as it claims, none of them running away. */
static void walk(const struct wire_list *l)
{
	const char *s;
	uint32_t pos = 0, n = 0;

	while ((s = wire_list_next(l, &pos))) {
		assert((const uint8_t *)s + strlen(s) < l->p + l->len);
		n++;
	}
	assert(n == l->count && pos == l->len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t again[WIRE_PAYLOAD_MAX];
	const struct wire_desc *d;
	uint64_t msg[16], whole[16];
	ssize_t n, m;

	if (!size || size - 1 > WIRE_PAYLOAD_MAX)
		return 0;
	d = kinds[data[0] % ARRAY_LEN(kinds)];
	n = wire_take(d, data + 1, size - 1, msg);
	if (n < 0)
		return 0;
	m = wire_encode(d, msg, again, sizeof(again));
	assert(wire_length(d, msg) == (size_t)m);
	assert(n == m && memcmp(again, data + 1, (size_t)n) == 0);
	assert((wire_decode(d, data + 1, size - 1, whole) == 0) == ((size_t)n == size - 1));
	if (d == &wire_exec_desc) {
		walk(&((struct wire_exec *)msg)->argv);
		walk(&((struct wire_exec *)msg)->env);
	}
	return 0;
}
