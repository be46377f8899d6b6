/*
 * template/build_run.c - the work of a build, on a thread that may wait
 * Touches machines and the store, as jobs of the pool do, and of the host nothing else.
 */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/macro.h"
#include "layers/digest.h"
#include "machine/engine.h"
#include "machine/guest.h"
#include "machine/machine.h"
#include "template/build.h"
#include "template/build_internal.h"
#include "template/depot.h"
#include "template/dockerfile.h"
#include "template/template.h"
#include "template/verified.h"
#include "wire/guest.h"

#define NUMBERS    "0123456789:" /* of a user and a group */
#define SCRIPT     "/run/panda-script"
#define PATH_USUAL "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* --- one stage ------------------------------------------------------------------------------- */

int build_bad(struct stage *st, const struct docker_step *step, const char *fmt, ...)
{
	char why[200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	return err_set(st->e, EINVAL, "build_failed", "Dockerfile:%u: %s", step->line, why);
}

const char *build_variable(void *arg, const char *name)
{
	struct stage *st = arg;
	const char *v = json_string_value(json_object_get(st->env, name));

	if (!v)
		v = json_string_value(json_object_get(st->args, name));
	/* Images elsewhere say it, and so "ENV PATH=/mine:$PATH" is what people write. */
	return !v && !strcmp(name, "PATH") ? PATH_USUAL : v;
}

int build_expand(struct stage *st, const struct docker_step *step, const char *word, char **ret)
{
	return dockerfile_expand(word, st->b->file->escape, true, step->line, build_variable, st,
	                         ret, st->e);
}

int build_path(struct stage *st, const struct docker_step *step, const char *word,
               char ret[PATH_MAX])
{
	int n = *word == '/' ? snprintf(ret, PATH_MAX, "%s", word)
	                     : snprintf(ret, PATH_MAX, "%s/%s",
	                                strcmp(st->workdir, "/") ? st->workdir : "", word);

	return n < 0 || n >= PATH_MAX ? build_bad(st, step, "a path is too long") : 0;
}

static bool some(const json_t *list)
{
	return json_array_size(list) > 0;
}

/* As the stage begins: with what its template, its image or the stage before has said. */
static void stage_reset(struct stage *st)
{
	const json_t *doc = st->what->from >= 0 ? st->b->stages[st->what->from].said : st->s->doc;
	const json_t *start = json_object_get(doc, "start");
	const char *dir = json_string_value(json_object_get(doc, "workdir"));
	const char *user = json_string_value(json_object_get(doc, "user"));
	json_t *env = json_object_get(doc, "env"), *shell = json_object_get(doc, "shell");

	json_decref(st->env);
	json_decref(st->args);
	json_decref(st->shell);
	json_decref(st->entrypoint);
	json_decref(st->cmd);
	json_decref(st->ready);
	st->env = json_is_object(env) ? json_copy(env) : json_object();
	st->args = json_object();
	st->shell = some(shell) ? json_incref(shell) : json_pack("[s, s]", "/bin/sh", "-c");
	st->entrypoint = json_incref(json_object_get(start, "entrypoint"));
	st->cmd = json_incref(json_object_get(start, "cmd"));
	st->ready = json_incref(json_object_get(start, "ready"));
	st->cmd_own = false;
	snprintf(st->workdir, sizeof(st->workdir), "%s", dir && *dir == '/' ? dir : "/");
	snprintf(st->user, sizeof(st->user), "%s", user ? user : "");
}

static void stage_fini(struct stage *st)
{
	guest_free(take_ptr(st->guest));
	if (st->machine[0])
		machine_remove(st->b->order->depot->machines, st->machine, NULL);
	st->machine[0] = 0;
	json_decref(st->env);
	json_decref(st->args);
	json_decref(st->shell);
	json_decref(st->entrypoint);
	json_decref(st->cmd);
	json_decref(st->ready);
}

static char **env_list(struct stage *st)
{
	size_t n = 0, max = json_object_size(st->env) + json_object_size(st->args);
	char **list = calloc(max + 1, sizeof(*list));
	json_t *sets[] = {st->args, st->env}, *v;
	const char *k;

	for (size_t i = 0; list && i < ARRAY_LEN(sets); i++)
		json_object_foreach(sets[i], k, v) {
			if ((i == 0 && json_object_get(st->env, k)) || !json_is_string(v))
				continue;
			if (asprintf(&list[n], "%s=%s", k, json_string_value(v)) < 0) {
				list[n] = NULL;
				build_free_list(&list);
				return NULL;
			}
			n++;
		}
	return list;
}

/* A script goes into the guest as a file: its first line says what runs it. */
static int put_script(struct stage *st, const char *text)
{
	build_short(st->b, st->guest);
	return guest_write_file(st->guest, SCRIPT, text, strlen(text), WIRE_WRITE_PARENTS, 0755,
	                        st->e);
}

/* As agents take it: they know a group by number only, so "app:web" is looked up. */
static int user_of(struct stage *st, const struct docker_step *step, char ret[256])
{
	char *argv[] = {BUILD_TOOL, "id", st->user, NULL};
	char found[64] = "";
	autoclose int out = -1;
	ssize_t n;
	int r;

	snprintf(ret, 256, "%s", st->user);
	if (!strchr(ret, ':') || !ret[strspn(ret, NUMBERS)])
		return 0;
	out = build_spool(st);
	r = out < 0 ? out : build_machine(st);
	if (r == 0)
		r = build_hand(st, step, st->guest, argv, -1, out);
	if (r < 0)
		return r;
	n = pread(out, found, sizeof(found) - 1, 0);
	if (n <= 0 || found[strspn(found, NUMBERS)] || !strchr(found, ':'))
		return build_bad(st, step, "who '%.60s' is cannot be found out", st->user);
	snprintf(ret, 256, "%s", found);
	return 0;
}

static int run(struct stage *st, const struct docker_step *step)
{
	AUTO(build_free_list) char **env = env_list(st);
	char *argv[DOCKERFILE_WORDS_MAX + 4];
	char user[256];
	struct build_command c = {.guest = st->guest,
	                          .argv = argv,
	                          .env = env,
	                          .cwd = st->workdir,
	                          .user = user,
	                          .in = -1,
	                          .out = -1};
	struct build_mounted mounted;
	struct guest_exit end;
	size_t n = 0;
	json_t *v;
	int r;

	if (!env)
		return err_nomem(st->e);
	if (step->script) {
		r = put_script(st, step->words[0]);
		if (r < 0)
			return err_prefix(st->e, "Dockerfile:%u: RUN", step->line);
		argv[n++] = SCRIPT;
	} else if (step->exec) {
		for (; n < step->nwords; n++)
			argv[n] = step->words[n];
	} else {
		json_array_foreach(st->shell, n, v)
			argv[n] = (char *)json_string_value(v);
		argv[n++] = step->words[0];
	}
	argv[n] = NULL;
	r = user_of(st, step, user);
	if (r == 0)
		r = build_mounts(st, step, &mounted);
	if (r < 0)
		return r;
	r = build_command(st->b, &c, &end, st->e);
	if (step->script)
		(void)guest_remove(st->guest, SCRIPT, false, NULL);
	if (r < 0)
		return err_prefix(st->e, "Dockerfile:%u: RUN", step->line);
	if (end.signaled)
		return build_bad(st, step, "'%.80s' was ended by signal %d", step->text, end.code);
	if (end.code)
		return build_bad(st, step, "'%.80s' failed with %d", step->text, end.code);
	return build_unmount(st, step, &mounted);
}

/* --- instructions ----------------------------------------------------------------------------- */

static bool acts(const struct docker_step *s)
{
	return s->op == DOCKER_RUN || s->op == DOCKER_COPY || s->op == DOCKER_ADD;
}

/* A command as it is run: in its shell form, by the shell. */
static json_t *list_of(const struct stage *st, const struct docker_step *s)
{
	json_t *l = json_array();

	if (!s->exec && s->nwords)
		json_array_extend(l, st->shell);
	for (size_t i = 0; i < s->nwords; i++)
		json_array_append_new(l, json_string(s->words[i]));
	return l;
}

/* Those of one instruction do not see each other: "ENV A=1 B=$A" takes A from above. */
static int set_variables(struct stage *st, const struct docker_step *step)
{
	bool arg = step->op == DOCKER_ARG;
	AUTO(json_decrefp) json_t *set = json_object();
	int r = 0;

	for (size_t i = 0; r == 0 && i < step->nwords; i += 2) {
		const char *name = step->words[i], *given = NULL;
		autofree char *value = NULL;

		if (arg)
			given = json_string_value(json_object_get(st->b->order->args, name));
		if (!given && step->words[i + 1])
			r = build_expand(st, step, step->words[i + 1], &value);
		else if (!given)
			given = build_global(st->b, name);
		if (r == 0 && (given || value) &&
		    json_object_set_new(set, name, json_string(given ? given : value)) < 0)
			return build_bad(st, step, "the value of %.60s is not UTF-8", name);
	}
	if (r == 0 && json_object_update(arg ? st->args : st->env, set) < 0)
		return err_nomem(st->e);
	if (r == 0 && build_variables_too_many(st->env, st->args))
		return build_bad(st, step, "more than %d variables, or %d KiB of them",
		                 BUILD_VARIABLES_MAX, BUILD_VARIABLES_BYTES >> 10);
	return r;
}

static int set_workdir(struct stage *st, const struct docker_step *step)
{
	autofree char *to = NULL;
	char path[PATH_MAX];
	int r = build_expand(st, step, step->words[0], &to);

	if (r == 0)
		r = build_path(st, step, to, path);
	if (r < 0)
		return r;
	for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
		path[n - 1] = 0;
	memcpy(st->workdir, path, sizeof(path));
	return 0;
}

/* What an instruction means for those after it. */
static int apply(struct stage *st, const struct docker_step *step)
{
	autofree char *word = NULL;
	int r;

	switch (step->op) {
	case DOCKER_ENV:
	case DOCKER_ARG:
		return set_variables(st, step);
	case DOCKER_WORKDIR:
		return set_workdir(st, step);
	case DOCKER_USER:
		r = build_expand(st, step, step->words[0], &word);
		if (r == 0)
			snprintf(st->user, sizeof(st->user), "%.255s", word);
		return r;
	case DOCKER_SHELL:
		json_decref(st->shell);
		st->shell = list_of(st, step);
		return 0;
	case DOCKER_ENTRYPOINT:
		json_decref(st->entrypoint);
		st->entrypoint = list_of(st, step);
		if (!st->cmd_own) /* that of the base belongs to its entry point */
			json_decref(take_ptr(st->cmd));
		return 0;
	case DOCKER_CMD:
		json_decref(st->cmd);
		st->cmd = list_of(st, step);
		st->cmd_own = true;
		return 0;
	case DOCKER_HEALTHCHECK:
		json_decref(st->ready);
		st->ready = list_of(st, step);
		return 0;
	default:
		return 0;
	}
}

static int act(struct stage *st, const struct docker_step *step)
{
	int r = build_machine(st);

	if (r < 0)
		return r;
	st->dirty = true;
	if (step->op == DOCKER_RUN)
		return run(st, step);
	if (step->op == DOCKER_WORKDIR) {
		build_short(st->b, st->guest);
		return guest_mkdir(st->guest, st->workdir, 0755, true, st->e);
	}
	return build_copy(st, step);
}

/* --- a stage, a build ------------------------------------------------------------------------- */

/* A stage that goes on from here does not look into this root: its user is named as agents
 * take it. */
static int settle_user(struct stage *st)
{
	struct docker_step from = {.line = st->what->line};
	const struct docker_step *step = &from;
	char user[256];
	int r;

	for (size_t i = st->what->first; i < st->what->end; i++)
		if (st->b->file->steps[i].op == DOCKER_USER)
			step = &st->b->file->steps[i];
	r = user_of(st, step, user);
	if (r == 0)
		memcpy(st->user, user, sizeof(st->user));
	return r;
}

static int build_stage(struct stage *st, size_t index, size_t *step_no, size_t steps)
{
	struct build *b = st->b;
	struct dockerfile *f = b->file;
	size_t first = st->what->first, n = st->what->end - first, done = 0;
	char(*keys)[65] = calloc(n + 1, sizeof(*keys));
	AUTO(sha_freep) struct sha *sha = NULL;
	int r = keys && sha_new(&sha) == 0 ? 0 : err_nomem(st->e);

	if (r == 0 && st->what->from < 0 && st->s->root != BUILD_ROOT_TEMPLATE)
		r = build_root_look(st);
	/* Which steps are known? Only the newest of them counts. */
	stage_reset(st);
	for (size_t i = 0; r == 0 && i < n; i++) {
		r = apply(st, &f->steps[first + i]);
		if (r == 0)
			r = build_next_key(st, &f->steps[first + i], sha);
		if (r == 0)
			memcpy(keys[i], st->s->key, sizeof(keys[i]));
	}
	for (size_t i = n; r == 0 && i-- > 0 && !done;)
		if (acts(&f->steps[first + i]) && build_load_step(st, keys[i]))
			done = i + 1;
	if (r == 0 && !done && st->what->from < 0 && st->s->root != BUILD_ROOT_TEMPLATE)
		r = build_root_make(st);
	stage_reset(st);
	for (size_t i = 0; r == 0 && i < n; i++) {
		struct docker_step *step = &f->steps[first + i];

		build_say(b, "step %zu/%zu: %.*s%s", ++*step_no, steps,
		          (int)MIN(strcspn(step->text, "\n"), 800u), step->text,
		          i < done                   ? acts(step) ? " (as before)" : ""
		          : step->op == DOCKER_NOTED ? " (means nothing here)"
		                                     : "");
		r = apply(st, step);
		if (r == 0 && i >= done && (acts(step) || step->op == DOCKER_WORKDIR))
			r = act(st, step);
		if (r == 0 && i >= done && acts(step))
			r = build_seal(st, keys[i]);
	}
	if (r == 0 && st->dirty)
		r = build_seal(st, NULL);
	if (r == 0)
		r = settle_user(st);
	free(keys);
	(void)index;
	return r;
}

/* What the stage says of machines that are made from it. */
static json_t *said_by(const struct stage *st)
{
	AUTO(json_decrefp) json_t *start = json_object();
	json_t *said = json_object();
	int r = said ? 0 : -1;

	r |= json_object_set(said, "env", st->env);
	r |= json_object_set_new(said, "workdir", json_string(st->workdir));
	r |= json_object_set_new(said, "user", json_string(st->user));
	r |= json_object_set(said, "shell", st->shell);
	if (some(st->entrypoint))
		r |= json_object_set(start, "entrypoint", st->entrypoint);
	if (some(st->cmd))
		r |= json_object_set(start, "cmd", st->cmd);
	if (some(st->ready))
		r |= json_object_set(start, "ready", st->ready);
	r |= json_object_set(said, "start", start);
	if (r) {
		json_decref(said);
		return NULL;
	}
	return said;
}

/* What the last stage says becomes part of the template's description. */
static int describe(struct build *b, const struct build_stage *last)
{
	const json_t *start = json_object_get(last->said, "start");
	int r = json_object_update(b->doc, last->said);

	if (!some(json_object_get(start, "entrypoint")) && !some(json_object_get(start, "cmd")))
		json_object_del(b->doc, "start");
	if (!*json_string_value(json_object_get(b->doc, "user")))
		json_object_del(b->doc, "user");
	if (b->order->made_up && last->root == BUILD_ROOT_ARCHIVE &&
	    json_object_get(last->doc, "refs"))
		r |= json_object_set(b->doc, "refs", json_object_get(last->doc, "refs"));
	r |= json_object_set_new(b->doc, "description",
	                         json_string(b->order->made_up ? "imported from an image"
	                                                       : "built from a Dockerfile"));
	return r ? err_nomem(&b->err) : 0;
}

/* A machine of what the stage came to: booted afresh when its memory has to be of another size,
 * with its start command. What it is then is the image. */
static int run_once(struct build *b, struct build_stage *last)
{
	struct depot *depot = b->order->depot;
	struct engine_image baked = ENGINE_IMAGE_EMPTY;
	char machine[ENGINE_ID_MAX + 1] = "", note[240] = "";
	struct guest *g = NULL;
	struct err why;
	int r = 0;

	if (b->reboot)
		r = template_cold(&last->image, (uint64_t)b->info.memory_mb << 20, b->order->dir,
		                  "disk", &b->err);
	if (r == 0)
		r = build_start(b, &last->image, true, NULL, machine, &g, &b->err);
	if (r < 0)
		return r;
	json_object_set_new(b->doc, "memory_mb", json_integer(b->info.memory_mb));
	if (!b->reboot)
		template_quiet(g, build_root_doc(b, (size_t)(last - b->stages)));
	else if (template_warm(depot, machine, b->doc, b->wake, b->deadline_ms, &why) < 0)
		build_say(b, "warming up failed, sandboxes start without it: %s", why.text);
	r = template_start(g, b->doc, b, note, sizeof(note), &b->err);
	if (note[0])
		build_say(b, "%s", note);
	guest_free(g);
	if (r < 0)
		r = build_why(b, r, &b->err);
	else
		r = build_stopped(b, &b->err); /* warming up may have ended because of that */
	if (r == 0)
		r = machine_bake(depot->machines, machine, &baked, &b->err);
	machine_remove(depot->machines, machine, NULL);
	if (r == 0) {
		engine_image_fini(&last->image);
		last->image = baked;
	}
	return r;
}

/*
 * Its machine was restored from a baked one and is still warm: what came of the last step is the
 * bake, unless something is to be started or its memory has to be of another size.
 */
static int bake(struct build *b, struct build_stage *last)
{
	struct depot *depot = b->order->depot;
	int r = build_stopped(b, &b->err);

	if (r < 0)
		return r;
	if (!build_disk_has_room(depot))
		return err_set(&b->err, ENOSPC, "disk_full",
		               "the server's disk is full: delete templates or snapshots");
	/* A start command to run, or one of the base that is not to. */
	if (b->reboot || json_object_get(b->doc, "start") ||
	    json_object_get(build_root_doc(b, (size_t)(last - b->stages)), "start")) {
		r = run_once(b, last);
		if (r < 0)
			return r;
	}
	b->bytes = engine_image_bytes(&last->image);
	json_object_set_new(b->doc, "size_bytes", json_integer((json_int_t)b->bytes));
	r = verified_save(depot, &last->image, b->bake, &b->err);
	fault_at("build.baked");
	return r;
}

void build_work(struct build *b)
{
	struct dockerfile *f = b->file;
	size_t steps = 0, step = 0;

	build_ignore(b);
	for (size_t i = 0; i < f->nstages; i++)
		if (b->stages[i].needed)
			steps += f->stages[i].end - f->stages[i].first;
	for (size_t i = 0; b->r == 0 && i < f->nstages; i++) {
		struct stage st = {.b = b, .what = &f->stages[i], .s = &b->stages[i], .e = &b->err};

		if (!b->stages[i].needed)
			continue;
		if (st.what->from >= 0) {
			const struct build_stage *other = &b->stages[st.what->from];

			memcpy(st.s->key, other->key, sizeof(st.s->key));
			if (engine_image_copy(&other->image, &st.s->image) < 0)
				b->r = err_nomem(&b->err);
		} else { /* tenants do not see from a build's speed what others build */
			AUTO(sha_freep) struct sha *sha = NULL;
			struct digest d;

			b->r = sha_new(&sha);
			if (b->r == 0) {
				build_digest_add(sha, b->info.tenant);
				build_digest_add(sha, st.s->key);
				b->r = sha_done(sha, &d);
				digest_text(&d, st.s->key);
			}
			if (b->r < 0)
				err_nomem(&b->err);
		}
		if (b->r == 0)
			b->r = build_stage(&st, i, &step, steps);
		if (b->r == 0 && !(st.s->said = said_by(&st)))
			b->r = err_nomem(&b->err);
		if (b->r == 0 && i + 1 == f->nstages)
			b->r = describe(b, st.s);
		stage_fini(&st);
	}
	build_trim_steps(b->order->depot);
	if (b->r < 0)
		return;
	b->status = BUILD_BAKING;
	build_say(b, "baking");
	b->r = bake(b, &b->stages[f->nstages - 1]);
	if (b->r == 0)
		b->r = template_put(b->order->depot, b->doc,
		                    &(struct template_put){.replace = b->order->replace}, b->old,
		                    &b->err);
}
