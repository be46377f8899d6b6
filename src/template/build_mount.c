/*
 * template/build_mount.c - RUN --mount
 * A bind is a copy of what it names, at a place of its own on the machine's disk, mounted where it
 * is wanted and gone before the step is sealed. A cache is a directory of the machine: it stays.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "machine/guest.h"
#include "template/build_internal.h"
#include "template/dockerfile.h"
#include "wire/guest.h"

#define PLACES "/.panda-mounts"

static int where(struct stage *st, const struct docker_step *step, const struct docker_mount *m,
                 char ret[PATH_MAX])
{
	autofree char *word = NULL;
	int r = build_expand(st, step, m->target, &word);

	return r < 0 ? r : build_path(st, step, word, ret);
}

/* Something to mount on: *made when it was not there. */
static int make_point(struct stage *st, const char *path, bool dir, bool *made)
{
	struct wire_file f;

	build_short(st->b, st->guest);
	if (guest_stat(st->guest, path, true, &f, NULL) == 0)
		return 0;
	*made = true;
	return dir ? guest_mkdir(st->guest, path, 0755, true, st->e)
	           : guest_write_file(st->guest, path, "", 0, WIRE_WRITE_PARENTS, 0644, st->e);
}

static int bind(struct stage *st, const struct docker_step *step, size_t i, char *path, bool *made)
{
	const struct docker_mount *m = &step->mounts[i];
	char place[64], *words[] = {m->source, place};
	struct docker_step copy = {.op = DOCKER_COPY,
	                           .line = step->line,
	                           .words = words,
	                           .nwords = ARRAY_LEN(words),
	                           .from = m->from};
	char *argv[] = {BUILD_TOOL, "mount", m->writable ? "rw" : "ro", place, path, NULL};
	struct wire_file f;
	int r;

	snprintf(place, sizeof(place), PLACES "/%zu/it", i);
	r = build_copy(st, &copy);
	build_short(st->b, st->guest);
	if (r == 0)
		r = guest_stat(st->guest, place, false, &f, st->e);
	if (r == 0)
		r = make_point(st, path, S_ISDIR(f.mode), made);
	return r < 0 ? r : build_hand(st, step, st->guest, argv, -1, -1);
}

int build_mounts(struct stage *st, const struct docker_step *step, struct build_mounted *ret)
{
	int r = 0;

	*ret = (struct build_mounted){.n = 0};
	for (size_t i = 0; r == 0 && i < step->nmounts; i++) {
		char path[PATH_MAX], *argv[] = {BUILD_TOOL, "tmpfs", path, NULL};

		r = where(st, step, &step->mounts[i], path);
		if (r == 0 && step->mounts[i].kind == DOCKER_BIND)
			r = bind(st, step, i, path, &ret->made[i]);
		else if (r == 0)
			r = make_point(st, path, true, &ret->made[i]);
		if (r == 0 && step->mounts[i].kind == DOCKER_TMPFS)
			r = build_hand(st, step, st->guest, argv, -1, -1);
		ret->n = i + 1;
	}
	return r;
}

int build_unmount(struct stage *st, const struct docker_step *step, const struct build_mounted *m)
{
	int r = 0;

	for (size_t i = m->n; r == 0 && i-- > 0;) {
		char path[PATH_MAX], *argv[] = {BUILD_TOOL, "umount", path, NULL};

		if (step->mounts[i].kind == DOCKER_CACHE)
			continue;
		r = where(st, step, &step->mounts[i], path);
		if (r == 0)
			r = build_hand(st, step, st->guest, argv, -1, -1);
		build_short(st->b, st->guest);
		if (r == 0 && m->made[i])
			r = guest_remove(st->guest, path, false, st->e);
	}
	build_short(st->b, st->guest);
	if (r == 0 && m->n)
		(void)guest_remove(st->guest, PLACES, true, NULL);
	return r;
}
