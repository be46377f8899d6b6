#include "core/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/cleanup.h"

void engine_image_fini(struct engine_image *i)
{
	set_fini(&i->memory);
	for (size_t d = 0; d < i->ndisks; d++) {
		set_fini(&i->disks[d].layers);
	}
	closep(&i->state);
	*i = (struct engine_image)ENGINE_IMAGE_EMPTY;
}

int engine_image_copy(const struct engine_image *i, struct engine_image *ret)
{
	struct engine_image c = ENGINE_IMAGE_EMPTY;
	int r;

	c.memory_size = i->memory_size;
	r = set_copy(&i->memory, &c.memory);
	for (size_t d = 0; r == 0 && d < i->ndisks; d++) {
		c.disks[d] = i->disks[d];
		c.disks[d].layers = (struct set){.pages = i->disks[d].layers.pages};
		c.ndisks = d + 1;
		r = set_copy(&i->disks[d].layers, &c.disks[d].layers);
	}
	if (r == 0 && i->state >= 0) {
		c.state = fcntl(i->state, F_DUPFD_CLOEXEC, 3);
		r = c.state < 0 ? -errno : 0;
	}
	if (r < 0) {
		engine_image_fini(&c);
		return r;
	}
	*ret = c;
	return 0;
}

void engine_machine_fini(struct engine_machine *m)
{
	closep(&m->dirfd);
	closep(&m->pidfd);
	closep(&m->top);
	closep(&m->control);
	engine_image_fini(&m->image);
	*m = (struct engine_machine)ENGINE_MACHINE_EMPTY;
}
