#include "template/depot.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "layers/snapshot.h"

void depot_init(struct depot *d)
{
	*d = (struct depot){.stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	pthread_mutex_init(&d->drop_lock, NULL);
}

void depot_fini(struct depot *d)
{
	pthread_mutex_destroy(&d->drop_lock);
	closep(&d->stop);
	d->stop = -1;
}

void depot_stop(struct depot *d)
{
	d->closing = true;
	if (d->stop >= 0)
		eventfd_write(d->stop, 1);
}

int depot_drop_snapshot(struct depot *d, const char *id, struct err *e)
{
	int r;

	pthread_mutex_lock(&d->drop_lock);
	r = snapshot_delete(d->store, id, e);
	if (r == 0)
		snapshot_gc(d->store, NULL, NULL);
	pthread_mutex_unlock(&d->drop_lock);
	if (r == 0)
		d->collect = true;
	return r;
}

void depot_collect(struct depot *d)
{
	if (!atomic_exchange(&d->collect, false))
		return;
	pthread_mutex_lock(&d->drop_lock);
	snapshot_gc(d->store, NULL, NULL);
	pthread_mutex_unlock(&d->drop_lock);
}
