/*
 * template/build_cache.c - steps of builds that are kept: what they are called, and which of them
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "layers/digest.h"
#include "layers/snapshot.h"
#include "machine/engine.h"
#include "template/build.h"
#include "template/build_internal.h"
#include "template/depot.h"
#include "template/dockerfile.h"
#include "template/template.h"
#include "template/verified.h"

void build_digest_add(struct sha *sha, const char *text)
{
	(void)sha_add(sha, text, strlen(text) + 1);
}

/* What a source names, by name and content. */
static int add_source(struct stage *st, const struct docker_step *step, const char *word, int from,
                      struct sha *sha)
{
	struct build_order *o = st->b->order;
	autofree char *source = NULL;
	bool whole;
	int r = 0;

	if (from >= 0) {
		build_digest_add(sha, st->b->stages[from].key);
		return 0;
	}
	r = build_expand(st, step, word, &source);
	if (r == 0)
		r = build_source(st, step, source);
	for (size_t i = 0; r == 0 && i < o->nfiles; i++)
		if (!o->files[i].left_out && build_below(source, o->files[i].path, &whole)) {
			build_digest_add(sha, o->files[i].path);
			build_digest_add(sha, o->files[i].digest);
		}
	return r;
}

int build_next_key(struct stage *st, const struct docker_step *step, struct sha *sha)
{
	autofree char *env = json_dumps(st->env, JSON_COMPACT | JSON_SORT_KEYS);
	autofree char *args = json_dumps(st->args, JSON_COMPACT | JSON_SORT_KEYS);
	struct digest d;
	int r = 0;

	if (!env || !args)
		return err_nomem(st->e);
	build_digest_add(sha, st->s->key);
	build_digest_add(sha, step->text);
	build_digest_add(sha, env);
	build_digest_add(sha, args);
	build_digest_add(sha, st->workdir);
	build_digest_add(sha, st->user);
	if (step->op == DOCKER_COPY || step->op == DOCKER_ADD)
		for (size_t w = 0; r == 0 && w + 1 < step->nwords; w++)
			r = add_source(st, step, step->words[w], step->from, sha);
	for (size_t i = 0; r == 0 && i < step->nmounts; i++)
		if (step->mounts[i].kind == DOCKER_BIND)
			r = add_source(st, step, step->mounts[i].source, step->mounts[i].from, sha);
	if (sha_done(sha, &d) < 0)
		return err_set(st->e, EIO, "internal", "no digest");
	if (r == 0)
		digest_text(&d, st->s->key);
	return r;
}

bool build_load_step(struct stage *st, const char *key)
{
	struct depot *depot = st->b->order->depot;
	struct engine_image image = ENGINE_IMAGE_EMPTY;
	char id[SNAPSHOT_ID_MAX + 1];

	snprintf(id, sizeof(id), TEMPLATE_STEP "%.40s", key);
	if (faccessat(depot->store->snapshots, id, F_OK, 0) < 0)
		return false;
	if (verified_load(depot, id, &image, NULL) < 0) {
		verified_drop(depot, id, NULL);
		return false;
	}
	utimensat(depot->store->snapshots, id, NULL, 0); /* used now */
	engine_image_fini(&st->s->image);
	st->s->image = image;
	return true;
}

void build_trim_steps(struct depot *depot)
{
	for (;;) {
		autoclosedir DIR *d = io_opendir(depot->store->snapshots, ".", 0);
		char oldest[SNAPSHOT_ID_MAX + 1] = "";
		struct timespec when = {0};
		struct dirent *de;
		struct stat s;
		size_t n = 0;

		while (d && (de = readdir(d))) {
			if (strncmp(de->d_name, TEMPLATE_STEP, sizeof(TEMPLATE_STEP) - 1) != 0 ||
			    fstatat(dirfd(d), de->d_name, &s, 0) < 0)
				continue;
			n++;
			if (!oldest[0] || s.st_mtim.tv_sec < when.tv_sec ||
			    (s.st_mtim.tv_sec == when.tv_sec && s.st_mtim.tv_nsec < when.tv_nsec)) {
				snprintf(oldest, sizeof(oldest), "%.64s", de->d_name);
				when = s.st_mtim;
			}
		}
		if (n <= BUILD_STEPS_KEPT || verified_drop(depot, oldest, NULL) < 0)
			break;
	}
}
