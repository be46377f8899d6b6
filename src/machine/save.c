/*
 * machine/save.c - an image as a snapshot on disk, and back
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/io.h"
#include "base/macro.h"
#include "layers/manifest.h"
#include "layers/set.h"
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "machine/machine.h"

/* What a machine of this engine may have seen of the host's cpu and kept in mind. */
static int host_flags(const struct engine *k, struct manifest_flags *ret)
{
	autofree char *text = NULL;
	char *line, *end;

	if (!k->host_cpu || io_read_file(AT_FDCWD, "/proc/cpuinfo", 16 << 20, &text, NULL) < 0 ||
	    !(line = strstr(text, "\nflags")) || !(line = strchr(line, ':')))
		return manifest_flags_parse("", ret);
	end = strchr(line, '\n');
	if (end)
		*end = 0;
	return manifest_flags_parse(line + 1, ret);
}

int machine_save(const struct engine_image *i, const struct snapshot_store *st,
                 const char *snapshot_id, const char *parent, struct err *e)
{
	AUTO(manifest_fini)
	struct manifest m = {.memory_size = i->memory_size, .ndisks = i->ndisks};
	struct set disks[ENGINE_DISKS_MAX] = {0};
	int r;

	snprintf(m.engine, sizeof(m.engine), "%s", i->engine->name);
	snprintf(m.kernel, sizeof(m.kernel), "%s", i->engine->kernel);
	snprintf(m.parent, sizeof(m.parent), "%s", parent ? parent : "");
	m.created_at_ms = wall_ms();
	r = host_flags(i->engine, &m.cpu_flags);
	if (r < 0)
		return err_set(e, -r, "no_memory", "no memory");
	for (size_t d = 0; d < i->ndisks; d++) {
		snprintf(m.disks[d].name, sizeof(m.disks[d].name), "disk%zu", d);
		m.disks[d].size = i->disks[d].size;
		m.disks[d].read_only = i->disks[d].read_only;
		disks[d] = i->disks[d].layers; /* borrowed */
	}
	return snapshot_write(st, snapshot_id, &m, &i->memory, disks, i->state, e);
}

static int take_disks(const struct snapshot *s, const char *snapshot_id, struct engine_image *i,
                      struct err *e)
{
	int r = 0;

	if (s->manifest.ndisks > ENGINE_DISKS_MAX)
		return err_set(e, E2BIG, "snapshot_foreign", "snapshot %s has more than %d disks",
		               snapshot_id, ENGINE_DISKS_MAX);
	for (size_t d = 0; r == 0 && d < s->manifest.ndisks; d++) {
		i->disks[d] = (struct engine_disk){.size = s->manifest.disks[d].size,
		                                   .read_only = s->manifest.disks[d].read_only};
		i->ndisks = d + 1;
		r = set_copy(&s->disks[d], &i->disks[d].layers);
	}
	return r < 0 ? err_set(e, -r, "no_memory", "no memory to load snapshot %s", snapshot_id)
	             : 0;
}

int machine_load_disks(const struct snapshot_store *st, const char *snapshot_id,
                       struct engine_image *ret, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	AUTO(snapshot_freep) struct snapshot *s = NULL;
	int r = snapshot_load(st, snapshot_id, NULL, SNAPSHOT_SIZES, &s, e);

	if (r == 0)
		r = take_disks(s, snapshot_id, &i, e);
	if (r < 0)
		return r;
	*ret = i;
	i = (struct engine_image)ENGINE_IMAGE_EMPTY;
	return 0;
}

int machine_load(struct machines *ms, const struct snapshot_store *st, const char *snapshot_id,
                 bool verify, struct engine_image *ret, struct err *e)
{
	AUTO(engine_image_fini) struct engine_image i = ENGINE_IMAGE_EMPTY;
	AUTO(snapshot_freep) struct snapshot *s = NULL;
	struct manifest_host hosts[ENGINES_MAX] = {0};
	int r = 0;

	for (size_t k = 0; r == 0 && k < ms->engines->count; k++) {
		const struct engine *engine = &ms->engines->list[k];

		hosts[k].engine = engine->name;
		hosts[k].kernel = engine->kernel;
		if (k + 1 < ms->engines->count)
			hosts[k].also = &hosts[k + 1];
		r = host_flags(engine, &hosts[k].cpu_flags);
		if (r < 0)
			err_set(e, -r, "no_memory", "no memory");
	}
	if (r == 0)
		r = snapshot_load(st, snapshot_id, hosts, verify ? SNAPSHOT_FULL : SNAPSHOT_SIZES,
		                  &s, e);
	for (size_t k = 0; k < ARRAY_LEN(hosts); k++)
		manifest_flags_fini(&hosts[k].cpu_flags);
	if (r < 0)
		return r;
	i.engine = engine_find(ms->engines, s->manifest.engine, NULL);
	i.memory_size = s->manifest.memory_size;
	r = set_copy(&s->memory, &i.memory);
	r = r < 0 ? err_set(e, -r, "no_memory", "no memory to load snapshot %s", snapshot_id)
	          : take_disks(s, snapshot_id, &i, e);
	if (r < 0)
		return r;
	i.state = take_fd(&s->state);
	*ret = i;
	i = (struct engine_image)ENGINE_IMAGE_EMPTY;
	return 0;
}
