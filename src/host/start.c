#include "host/start.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/sandbox.h"
#include "host/volume_use.h"
#include "layers/map.h"
#include "machine/engine.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "wire/guest.h"

enum {
	LIMIT_MS = 10000, /* to say how large the disk of a new machine is */
};

void start_job_init(struct start_job *j, struct host *h)
{
	*j = (struct start_job){.host = h, .image = ENGINE_IMAGE_EMPTY};
	for (size_t i = 0; i < ENGINE_VOLUMES_MAX; i++)
		j->volumes[i].fd = -1;
}

void start_job_name(struct start_job *j, const struct sandbox *sb)
{
	memcpy(j->id, sb->id, sizeof(j->id));
	memcpy(j->machine, sb->machine, sizeof(j->machine));
	memcpy(j->tenant, sb->tenant, sizeof(j->tenant));
}

/*
 * The disk is as large as its image, and its file system is mounted already when the machine wakes
 * up. But ext4 can be told how much to keep back, from root too, and then says so in df: that is
 * memory of the guest's kernel, so forks and all that was saved have the same limit. What is
 * deleted becomes a hole in its layers (the agent mounts with discard), so they take no more than
 * that either. A guest that sets it back, or writes to the device itself, is paused: host/disk.h.
 */
static int limit_disk(struct start_job *j)
{
	autofree char *link = NULL;
	char device[32], path[96], text[32];
	const char *name = device + strlen("/dev/");
	uint64_t size, limit = (uint64_t)j->disk_gb << 30;
	struct wire_stats st;
	size_t d = 0;
	int n, r;

	while (d < j->image.ndisks && j->image.disks[d].read_only)
		d++;
	if (d == j->image.ndisks)
		return 0;
	size = j->image.disks[d].size;
	if (limit >= size) {
		j->disk_gb = (unsigned)((size + (1 << 30) - 1) >> 30);
		return 0;
	}
	snprintf(device, sizeof(device), "/dev/pblk%zu", d);
	guest_set_deadline(j->guest, LIMIT_MS);
	if (guest_readlink(j->guest, device, &link, NULL) == 0) /* another name for it */
		name = strrchr(link, '/') ? strrchr(link, '/') + 1 : link;
	snprintf(path, sizeof(path), "/sys/fs/ext4/%.40s/reserved_clusters", name);
	r = guest_stats(j->guest, &st, &j->err);
	if (r == 0 && st.disk_total > limit && st.disk_total <= size) {
		n = snprintf(text, sizeof(text), "%llu",
		             (unsigned long long)((st.disk_total - limit) / MAP_PAGE));
		r = guest_write_file(j->guest, path, text, (size_t)n, WIRE_WRITE_APPEND, 0,
		                     &j->err);
	}
	guest_set_deadline(j->guest, 0);
	return r;
}

void start_job_run(struct start_job *j)
{
	struct host *h = j->host;
	struct engine_start s = {.id = j->machine,
	                         .tenant = j->tenant,
	                         .hostname = j->id,
	                         .image = &j->image,
	                         .cpu = -1,
	                         .cpu_max_percent = h->config.sandbox_cpu_percent,
	                         .net_fd = j->net_fd,
	                         .umount_lost = true,
	                         .prepared = j->prepared};
	struct machine_info info;
	uint64_t began = mono_ns();

	if (j->load[0]) {
		j->r = machine_load(&h->machines, &h->store, j->load, false, &j->image, &j->err);
		if (j->r < 0)
			goto out;
	}
	j->r = host_check_image(h, &j->image, &j->err);
	if (j->r < 0)
		goto out;
	memcpy(s.volumes, j->volumes, sizeof(s.volumes));
	j->r = machine_start_guest(&h->machines, &s, j->parent, j->generation, &info, &j->guest,
	                           &j->err);
	if (j->r == 0 && j->disk_gb) {
		j->r = limit_disk(j);
		if (j->r < 0)
			machine_remove(&h->machines, j->machine, NULL);
	}
	if (j->r == 0) {
		j->pid = info.pid;
		j->engine = info.engine;
	}
out:
	if (j->r < 0 && j->prepared)
		machine_remove(&h->machines, j->machine, NULL); /* what was made ahead */
	j->took_us = (mono_ns() - began) / 1000;
}

void start_job_fini(struct start_job *j)
{
	engine_image_fini(&j->image);
	volume_close_all(j->volumes);
	guest_free(j->guest);
}
