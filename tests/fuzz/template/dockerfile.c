/*
 * A Dockerfile. The promises: what is refused is named with a line, what is taken keeps to the
 * limits, every step belongs to a stage, --from points backwards, and words can be expanded or
 * are refused.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "template/dockerfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *get(void *arg, const char *name)
{
	(void)arg;
	return strlen(name) % 2 ? "a value" : NULL;
}

static void look(const struct dockerfile *d, const struct docker_step *s)
{
	assert(s->text && s->line > 0 && s->nwords <= DOCKERFILE_WORDS_MAX);
	for (size_t i = 0; i < s->nwords; i++) {
		char *out = NULL;
		struct err e = {0};

		if (!s->words[i]) {
			assert(s->op == DOCKER_ARG);
			continue;
		}
		if (dockerfile_expand(s->words[i], d->escape, true, s->line, get, NULL, &out, &e) <
		    0)
			assert(!strncmp(e.text, "Dockerfile:", 11));
		else
			assert(strlen(out) <= DOCKERFILE_EXPANDED_MAX);
		free(out);
	}
	for (size_t i = 0; i < s->nheredocs; i++)
		assert(s->heredocs[i].name && s->heredocs[i].text);
	assert(s->nmounts <= DOCKERFILE_MOUNTS_MAX && (s->op == DOCKER_RUN || !s->nmounts));
	for (size_t i = 0; i < s->nmounts; i++)
		assert(s->mounts[i].source && s->mounts[i].target && *s->mounts[i].target);
	assert(!s->script || (s->op == DOCKER_RUN && s->nwords == 1));
	assert(s->op != DOCKER_RUN || s->nwords >= 1);
	assert((s->op != DOCKER_COPY && s->op != DOCKER_ADD) || s->nwords >= 2);
	assert((s->op != DOCKER_ENV && s->op != DOCKER_ARG) || s->nwords % 2 == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AUTO(dockerfile_freep) struct dockerfile *d = NULL;
	struct err e = {0};
	size_t at = 0;

	if (dockerfile_parse((const char *)data, size, &d, &e) < 0) {
		assert(!d && e.code > 0 && e.text[0]);
		assert(size > DOCKERFILE_MAX || !strncmp(e.text, "Dockerfile:", 11));
		return 0;
	}
	assert(d->nstages > 0 && d->nstages <= DOCKERFILE_STAGES_MAX);
	assert(d->nsteps + d->nglobals <= DOCKERFILE_STEPS_MAX);
	for (size_t i = 0; i < d->nglobals; i++)
		look(d, &d->globals[i]);
	for (size_t k = 0; k < d->nstages; k++) {
		assert(d->stages[k].first == at && d->stages[k].from < (int)k);
		for (; at < d->stages[k].end; at++) {
			look(d, &d->steps[at]);
			assert(d->steps[at].from < (int)k);
			for (size_t m = 0; m < d->steps[at].nmounts; m++)
				assert(d->steps[at].mounts[m].from < (int)k);
		}
	}
	assert(at == d->nsteps);
	return 0;
}
