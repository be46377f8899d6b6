#include "base/fault.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const fault_names[] = {
    "create.recorded",
    "create.started",
    "fork.recorded",
    "fork.sealed",
    "fork.started",
    "snapshot.recorded",
    "snapshot.sealed",
    "snapshot.saved",
    "forget.recorded",
    "forget.deleted",
    "hibernate.recorded",
    "hibernate.paused",
    "hibernate.sealed",
    "hibernate.saved",
    "hibernate.stopped",
    "wake.recorded",
    "wake.started",
    "wake.running",
    "wake.kept",
    "pause.done",
    "resume.done",
    "kill.recorded",
    "kill.stopped",
    "kill.cleaned",
    "checkpoint.sealed",
    "diff.started",
    "import.recorded",
    "import.verified",
    "rewind.begun",
    "rewind.started",
    "rewind.recorded",
    "rewind.stopped",
    "rewind.cleaned",
    "bake.booted",
    "bake.sealed",
    "bake.saved",
    "rebake.booted",
    "rebake.saved",
    "rebake.put",
    "unpack.done",
    "build.kept",
    "build.baked",
    "save.sealed",
    "save.saved",
    "save.written",
    "save.put",
    "save.unlinked",
    "volume.recorded",
    "volume.made",
    "volume.delete_recorded",
    "attach.recorded",
    "attach.done",
    "detach.recorded",
    "detach.done",
    "resize.grown",
    "resize.recorded",
    "resize.done",
    "copy.recorded",
    "copy.made",
    "prepare.done",
    NULL,
};

static char armed[64];
static atomic_int left;

void fault_init(void)
{
	const char *s = getenv("PANDA_FAULT");
	const char *colon = s ? strchr(s, ':') : NULL;

	if (!s)
		return;
	snprintf(armed, sizeof(armed), "%.*s", colon ? (int)(colon - s) : (int)strlen(s), s);
	left = colon ? atoi(colon + 1) : 1;
}

void fault_at(const char *name)
{
	if (armed[0] && !strcmp(name, armed) && atomic_fetch_sub(&left, 1) == 1)
		kill(getpid(), SIGKILL);
}
