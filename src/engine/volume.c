/*
 * engine/volume.c - volumes of a machine that runs already
 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/engines_internal.h"

enum { VOLUME_TIMEOUT_MS = 30000 };

static int ask(struct engine_machine *m, struct um_packet *p, unsigned slot, enum um_volume_verb v)
{
	struct um_msg a;
	int r;

	p->msg.magic = UM_MAGIC;
	p->msg.type = UM_VOLUME;
	p->msg.arg[UM_VOLUME_NR] = slot;
	p->msg.arg[UM_VOLUME_VERB] = v;
	r = um_call(m->control, m->pidfd, p, VOLUME_TIMEOUT_MS, &a);
	return r < 0 ? r : um_done(&a);
}

static int failed(const struct engine_machine *m, int r, const char *what, struct err *e)
{
	return err_set(e, -r, r == -ESRCH ? "machine_gone" : "volume_failed",
	               "machine %s could not %s: %s", m->id, what,
	               r == -ESRCH ? "it has ended" : strerror(-r));
}

int um_volume_attach(struct engine *engine, struct engine_machine *m, unsigned slot,
                     const struct engine_volume *v, struct err *e)
{
	struct um_packet p = {0};
	int r = um_check_volume(v, slot, e);

	if (r < 0)
		return r;
	p.msg.volume[slot] = (struct um_volume){.size = v->size, .read_only = v->read_only};
	r = um_packet_add(&p, v->fd, UM_FD_VOLUME + slot);
	if (r == 0)
		r = ask(m, &p, slot, UM_VOLUME_ATTACH);
	if (r == -EBUSY || r == -EEXIST)
		return err_set(e, EBUSY, "volume_busy",
		               "processes in machine %s still use what was volume %u", m->id, slot);
	if (r < 0)
		return failed(m, r, "take a volume", e);
	m->volumes[slot] = *v;
	m->volumes[slot].fd = -1;
	m->volumes[slot].mount = NULL;
	return 0;
}

int um_volume_detach(struct engine *engine, struct engine_machine *m, unsigned slot, bool force,
                     struct err *e)
{
	struct um_packet p = {.msg.arg[UM_VOLUME_FORCE] = force};
	int r = ask(m, &p, slot, UM_VOLUME_DETACH);

	if (r == -EBUSY)
		return err_set(e, EBUSY, "volume_busy",
		               "processes in machine %s have volume %u open", m->id, slot);
	if (r < 0 && r != -ENOENT) /* which is what we want */
		return failed(m, r, "give back a volume", e);
	m->volumes[slot] = (struct engine_volume){.fd = -1};
	return 0;
}

int um_volume_grow(struct engine *engine, struct engine_machine *m, unsigned slot, uint64_t size,
                   struct err *e)
{
	struct um_packet p = {0};
	int r;

	p.msg.volume[slot].size = size;
	r = ask(m, &p, slot, UM_VOLUME_GROW);
	if (r < 0)
		return failed(m, r, "be told that a volume has grown", e);
	m->volumes[slot].size = size;
	return 0;
}

int um_volume_copy(struct engine *engine, struct engine_machine *m, unsigned slot, int to,
                   int marks, struct err *e)
{
	struct um_packet p = {0};
	int r;

	um_packet_add(&p, to, UM_FD_COPY);
	um_packet_add(&p, marks, UM_FD_MARKS);
	r = ask(m, &p, slot, UM_VOLUME_COPY);
	return r < 0 ? failed(m, r, "begin the copy of a volume", e) : 0;
}

int um_volume_copied(struct engine *engine, struct engine_machine *m, unsigned slot, struct err *e)
{
	struct um_packet p = {0};
	int r = ask(m, &p, slot, UM_VOLUME_COPIED);

	if (r == -ENOSPC || r == -EDQUOT || r == -EFBIG)
		return err_set(e, -r, "disk_full", "no space left for the copy of a volume");
	return r < 0 ? failed(m, r, "finish the copy of a volume", e) : 0;
}
