/*
 * template/depot.h - what templates and sandboxes are made with and kept in
 * The host (host/host.h) has one and fills it before it opens its templates. Templates and builds
 * know nothing else of the host: what they ask of it are the three calls at the end. All pointers
 * are borrowed and stay as they are from then on.
 */
#pragma once
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "layers/snapshot.h"

struct loop;
struct machines;
struct net;
struct pool;
struct templates;

enum {
	TENANT_MAX = 64, /* bytes of the name of a tenant */
};

struct depot {
	struct loop *loop;
	struct pool *pool;
	struct machines *machines;
	struct snapshot_store *store;
	struct net *net; /* NULL: guests have no network */
	struct templates *templates;
	const char *data_dir;
	const char *upper_image; /* an empty file system: what machines write on */
	uint64_t disk_reserve;   /* free bytes of data_dir that builds leave alone */
	unsigned build_s;        /* how long a whole build may take */
	bool closing;            /* no new work: depot_stop() */
	int stop;                /* an eventfd that can be read when work for tenants has to end */

	pthread_mutex_t drop_lock; /* of depot_drop_snapshot() */
	atomic_bool collect;       /* a snapshot was dropped since the last depot_collect() */

	/* The host's, called on the loop thread with host as first argument. */
	void *host;
	/* Is there room for one more machine of this tenant? Kinds: host_full, shutting_down. */
	int (*admit)(void *host, const char *tenant, unsigned memory_mb, struct err *e);
	/* A template has been baked: what the host makes ahead can be made now. */
	void (*baked)(void *host);
	/* Takes the payload. */
	void (*event)(void *host, const char *tenant, const char *type, json_t *payload);
};

void depot_init(struct depot *d);
void depot_fini(struct depot *d);
/* No new work, and what runs in machines of tenants' templates ends. */
void depot_stop(struct depot *d);

/*
 * Deletes a snapshot and the layers that only it had. For the pool. One at a time: a collection
 * that runs beside another delete sees files that are about to go as still in use, and nothing
 * looks at them again.
 */
int depot_drop_snapshot(struct depot *d, const char *id, struct err *e);

/* For the pool, now and then: deletes layers that a writer still held when their snapshot went. */
void depot_collect(struct depot *d);
