#include "vmm/host.h"

uint32_t host_read(struct host_page *h, uint64_t off, unsigned len)
{
	uint64_t now;

	if (len != 4 || off % 4)
		return 0;
	switch (off) {
	case HOST_REG_MAGIC:
		return HOST_MAGIC;
	case HOST_REG_VERSION:
		return HOST_VERSION;
	case HOST_REG_GENERATION ... HOST_REG_GENERATION + 12:
		return h->generation[(off - HOST_REG_GENERATION) / 4];
	case HOST_REG_CLOCK:
		now = h->wall_ns();
		h->wall_high = (uint32_t)(now >> 32);
		return (uint32_t)now;
	case HOST_REG_CLOCK + 4:
		return h->wall_high;
	}
	return 0;
}

enum host_event host_write(struct host_page *h, uint64_t off, unsigned len, uint64_t value)
{
	if (off != HOST_REG_EVENT || len != 4 || value > HOST_RESEEDED)
		return HOST_NOTHING;
	return (enum host_event)value;
}
