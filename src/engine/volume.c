/*
 * engine/volume.c - volumes of a machine that runs already
 */
#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "engine/engines_internal.h"
#include "machine/engine.h"
#include "wire/control.h"

enum { VOLUME_TIMEOUT_MS = 30000 };

static int ask(struct engine_machine *m, struct control_packet *p, unsigned slot,
               enum ctl_volume_verb v)
{
	struct ctl_msg a;
	int r;

	p->msg.magic = CTL_MAGIC;
	p->msg.type = CTL_VOLUME;
	p->msg.arg[CTL_VOLUME_NR] = slot;
	p->msg.arg[CTL_VOLUME_VERB] = v;
	r = control_call(m->control, m->pidfd, p, VOLUME_TIMEOUT_MS, &a);
	return r < 0 ? r : control_done(&a);
}

static int failed(const struct engine_machine *m, int r, const char *what, struct err *e)
{
	return err_set(e, -r, r == -ESRCH ? "machine_gone" : "volume_failed",
	               "machine %s could not %s: %s", m->id, what,
	               r == -ESRCH ? "it has ended" : strerror(-r));
}

int local_volume_attach(struct engines *engines, struct engine_machine *m, unsigned slot,
                        const struct engine_volume *v, struct err *e)
{
	struct control_packet p = {0};
	int r = check_volume(v, slot, e);

	if (r < 0)
		return r;
	p.msg.volume[slot] = (struct ctl_volume){.size = v->size, .read_only = v->read_only};
	r = control_packet_add(&p, v->fd, CTL_FD_VOLUME + slot);
	if (r == 0)
		r = ask(m, &p, slot, CTL_VOLUME_ATTACH);
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

int local_volume_detach(struct engines *engines, struct engine_machine *m, unsigned slot,
                        bool force, struct err *e)
{
	struct control_packet p = {.msg.arg[CTL_VOLUME_FORCE] = force};
	int r = ask(m, &p, slot, CTL_VOLUME_DETACH);

	if (r == -EBUSY)
		return err_set(e, EBUSY, "volume_busy",
		               "processes in machine %s have volume %u open", m->id, slot);
	if (r < 0 && r != -ENOENT) /* which is what we want */
		return failed(m, r, "give back a volume", e);
	m->volumes[slot] = (struct engine_volume){.fd = -1};
	return 0;
}

int local_volume_grow(struct engines *engines, struct engine_machine *m, unsigned slot,
                      uint64_t size, struct err *e)
{
	struct control_packet p = {0};
	int r;

	p.msg.volume[slot].size = size;
	r = ask(m, &p, slot, CTL_VOLUME_GROW);
	if (r < 0)
		return failed(m, r, "be told that a volume has grown", e);
	m->volumes[slot].size = size;
	return 0;
}

int local_volume_copy(struct engines *engines, struct engine_machine *m, unsigned slot, int to,
                      int marks, struct err *e)
{
	struct control_packet p = {0};
	int r;

	control_packet_add(&p, to, CTL_FD_COPY);
	control_packet_add(&p, marks, CTL_FD_MARKS);
	r = ask(m, &p, slot, CTL_VOLUME_COPY);
	return r < 0 ? failed(m, r, "begin the copy of a volume", e) : 0;
}

int local_volume_copied(struct engines *engines, struct engine_machine *m, unsigned slot,
                        struct err *e)
{
	struct control_packet p = {0};
	int r = ask(m, &p, slot, CTL_VOLUME_COPIED);

	if (r == -ENOSPC || r == -EDQUOT || r == -EFBIG)
		return err_set(e, -r, "disk_full", "no space left for the copy of a volume");
	return r < 0 ? failed(m, r, "finish the copy of a volume", e) : 0;
}
