#include "vmm/host.h"

uint32_t host_read(struct host *h, uint64_t off, unsigned len)
{
	uint64_t now;

	if (len != 4 || off % 4)
		return 0;
	switch (off) {
	case 0x00:
		return HOST_MAGIC;
	case 0x04:
		return HOST_VERSION;
	case 0x10 ... 0x1c:
		return h->generation[(off - 0x10) / 4];
	case 0x20:
		now = h->wall_ns();
		h->wall_high = (uint32_t)(now >> 32);
		return (uint32_t)now;
	case 0x24:
		return h->wall_high;
	}
	return 0;
}

enum host_event host_write(struct host *h, uint64_t off, unsigned len, uint64_t value)
{
	if (off != 0x08 || len != 4 || value > HOST_RESEEDED)
		return HOST_NOTHING;
	return (enum host_event)value;
}
