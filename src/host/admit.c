/*
 * host/admit.c - is there room for more sandboxes, and what is made ahead for them
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "base/macro.h"
#include "base/pool.h"
#include "base/uuid.h"
#include "host/disk_use.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/sandbox.h"
#include "machine/engine.h"
#include "machine/machine.h"
#include "template/depot.h"

enum { SANDBOX_MEMORY_FLOOR = 16 /* MiB a new sandbox will surely use */ };

static uint64_t memory_available(void)
{
	autofree char *text = NULL;
	unsigned long long kib = 0;
	char *p;

	if (io_read_file(AT_FDCWD, "/proc/meminfo", 65536, &text, NULL) < 0 ||
	    !(p = strstr(text, "MemAvailable:")) || sscanf(p, "MemAvailable: %llu", &kib) != 1)
		return UINT64_MAX; /* no answer is no reason to refuse */
	return (uint64_t)kib << 10;
}

int host_check_size(const struct host *h, uint64_t memory, uint64_t disk, struct err *e)
{
	const struct host_config *c = &h->config;

	if (memory > c->machine_memory_max)
		return err_set(
		    e, EFBIG, "too_large",
		    "its machine has %llu MiB of memory and this host gives %llu at most: "
		    "the operator can raise machine_memory_max_mb",
		    (unsigned long long)(memory >> 20),
		    (unsigned long long)(c->machine_memory_max >> 20));
	if (disk > c->machine_disk_max)
		return err_set(
		    e, EFBIG, "too_large",
		    "its machine has a disk of %llu MiB and this host gives %llu at most: "
		    "the operator can raise machine_disk_max_mb",
		    (unsigned long long)(disk >> 20),
		    (unsigned long long)(c->machine_disk_max >> 20));
	return 0;
}

int host_check_image(const struct host *h, const struct engine_image *image, struct err *e)
{
	uint64_t disk = 0;

	for (size_t d = 0; d < image->ndisks; d++)
		disk = MAX(disk, image->disks[d].size);
	return host_check_size(h, image->memory_size, disk, e);
}

int host_admit(struct host *h, const char *tenant, size_t n, unsigned memory_mb,
               const struct quota *quota, struct err *e)
{
	uint64_t have, mine = 0, mine_mb = 0;
	struct statvfs vfs;
	int r = host_check_size(h, (uint64_t)memory_mb << 20, 0, e);

	if (r < 0)
		return r;
	if (h->depot.closing)
		return err_set(e, ESHUTDOWN, "shutting_down",
		               "pandad is going down: try again later");
	if (h->count + n > h->config.sandboxes_max) {
		h->stats.refused++;
		return err_set(
		    e, EAGAIN, "host_full",
		    "this host has %zu sandboxes and takes no more than %u: kill some, or "
		    "raise sandboxes_max",
		    h->count, h->config.sandboxes_max);
	}
	have = memory_available();
	if (have < h->config.memory_reserve + n * ((uint64_t)SANDBOX_MEMORY_FLOOR << 20)) {
		h->stats.refused++;
		return err_set(
		    e, EAGAIN, "host_full",
		    "this host has %llu MiB of memory left and keeps %llu in reserve: kill "
		    "or hibernate some sandboxes",
		    (unsigned long long)(have >> 20),
		    (unsigned long long)(h->config.memory_reserve >> 20));
	}
	if (statvfs(h->config.data_dir, &vfs) == 0 &&
	    (uint64_t)vfs.f_bavail * vfs.f_frsize < h->config.disk_reserve) {
		h->stats.refused++;
		return err_set(
		    e, EAGAIN, "host_full",
		    "%s has %llu MiB left and %llu are kept in reserve: delete snapshots or "
		    "volumes",
		    h->config.data_dir,
		    (unsigned long long)((uint64_t)vfs.f_bavail * vfs.f_frsize >> 20),
		    (unsigned long long)(h->config.disk_reserve >> 20));
	}
	if (n && disk_use_admit(h, tenant, quota, e) < 0)
		return -e->code;
	if (!quota || (!quota->sandboxes && !quota->memory_mb))
		return 0;
	for (struct sandbox *sb = h->newest; sb; sb = sb->next)
		if (!strcmp(sb->tenant, tenant)) {
			mine++;
			mine_mb += sb->memory_mb;
		}
	if (quota->sandboxes && mine + n > quota->sandboxes)
		return err_set(e, EDQUOT, "quota_exceeded",
		               "your quota is %llu sandboxes and you have %llu: kill some first",
		               (unsigned long long)quota->sandboxes, (unsigned long long)mine);
	if (quota->memory_mb && mine_mb + n * memory_mb > quota->memory_mb)
		return err_set(e, EDQUOT, "quota_exceeded",
		               "your quota is %llu MiB of memory and you use %llu: kill some first",
		               (unsigned long long)quota->memory_mb, (unsigned long long)mine_mb);
	return 0;
}

/* --- processes made ahead -------------------------------------------------------------------- */

struct host_spare {
	struct host_spare *next;
	char id[SANDBOX_ID + 1];
};

struct prepare_job {
	struct host *host;
	struct host_spare *spare;
	int r;
	struct err err;
};

static void prepare_work(void *arg)
{
	struct prepare_job *j = arg;

	j->r = machine_prepare(&j->host->machines, j->spare->id, &j->err);
	fault_at("prepare.done");
}

static void prepare_done(void *arg)
{
	struct prepare_job *j = arg;
	struct host *h = j->host;

	h->preparing--;
	if (j->r == 0) {
		j->spare->next = h->spare;
		h->spare = j->spare;
		h->nspare++;
	} else {
		log_warn("cannot prepare a machine, creates will be slower why=\"%s\"",
		         j->err.text);
		free(j->spare);
	}
	free(j);
}

void host_fill_spare(struct host *h)
{
	while (!h->depot.closing && h->nspare + h->preparing < h->config.prepare_ahead) {
		struct prepare_job *j = calloc(1, sizeof(*j));
		struct host_spare *s = calloc(1, sizeof(*s));

		if (!j || !s) {
			free(j);
			free(s);
			return;
		}
		uuid_new(s->id);
		*j = (struct prepare_job){.host = h, .spare = s};
		if (pool_submit(h->pool, prepare_work, prepare_done, j) < 0) {
			free(j);
			free(s);
			return;
		}
		h->preparing++;
	}
}

void host_take_id(struct host *h, char ret[SANDBOX_ID + 1], bool *ret_prepared)
{
	struct host_spare *s = h->spare;

	*ret_prepared = s != NULL;
	if (!s) {
		uuid_new(ret);
		return;
	}
	h->spare = s->next;
	h->nspare--;
	memcpy(ret, s->id, sizeof(s->id));
	free(s);
}

void host_drop_spare(struct host *h)
{
	while (h->spare) {
		struct host_spare *s = h->spare;

		h->spare = s->next;
		machine_remove(&h->machines, s->id, NULL);
		free(s);
	}
}
