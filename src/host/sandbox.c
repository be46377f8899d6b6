#include "host/sandbox.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* What the record says, and what clients are told: those that pass are one of the contract's. */
static const struct {
	const char *record, *api;
	bool machine; /* has a process */
} states[SANDBOX_STATES] = {
    [SANDBOX_CREATING] = {"creating", "creating", false},
    [SANDBOX_RUNNING] = {"running", "running", true},
    [SANDBOX_PAUSED] = {"paused", "paused", true},
    [SANDBOX_HIBERNATING] = {"hibernating", "running", true},
    [SANDBOX_HIBERNATED] = {"hibernated", "hibernated", false},
    [SANDBOX_WAKING] = {"waking", "hibernated", false},
    [SANDBOX_KILLING] = {"killing", "stopping", false},
    [SANDBOX_FAILED] = {"failed", "failed", false},
    [SANDBOX_REWINDING] = {"rewinding", "running", true},
};

const char *sandbox_state_name(enum sandbox_state s)
{
	return states[s].api;
}

const char *sandbox_state_record(enum sandbox_state s)
{
	return states[s].record;
}

bool sandbox_state_parse(const char *name, enum sandbox_state *ret)
{
	for (size_t i = 0; i < SANDBOX_STATES; i++)
		if (!strcmp(states[i].record, name)) {
			*ret = (enum sandbox_state)i;
			return true;
		}
	return false;
}

static const char *const holds[SANDBOX_HOLDS] = {
    [HOLD_NONE] = "", [HOLD_RESERVE] = "disk_reserve", [HOLD_OVERRUN] = "disk_overrun"};

const char *sandbox_hold_name(enum sandbox_hold hold)
{
	return holds[hold];
}

bool sandbox_may_go(enum sandbox_state from, enum sandbox_state to)
{
	static const unsigned arrows[SANDBOX_STATES] = {
	    [SANDBOX_CREATING] = 1u << SANDBOX_RUNNING,
	    [SANDBOX_RUNNING] =
		1u << SANDBOX_PAUSED | 1u << SANDBOX_HIBERNATING | 1u << SANDBOX_FAILED,
	    [SANDBOX_PAUSED] =
		1u << SANDBOX_RUNNING | 1u << SANDBOX_HIBERNATING | 1u << SANDBOX_FAILED,
	    [SANDBOX_HIBERNATING] = 1u << SANDBOX_HIBERNATED,
	    [SANDBOX_HIBERNATED] = 1u << SANDBOX_WAKING,
	    [SANDBOX_WAKING] = 1u << SANDBOX_RUNNING,
	    [SANDBOX_REWINDING] = 1u << SANDBOX_RUNNING,
	};

	return arrows[from] >> to & 1;
}

void sandbox_check(const struct sandbox *sb)
{
	assert(strlen(sb->id) == SANDBOX_ID && sb->tenant[0]);
	assert((unsigned)sb->state < SANDBOX_STATES);
	/* While it is being killed, the process may or may not be there still. */
	if (sb->state != SANDBOX_KILLING)
		assert((sb->pid > 0) == states[sb->state].machine);
	assert((sb->pidfd >= 0) == (sb->pid > 0));
	assert(!sb->link || sb->pid > 0);
	assert((sb->state == SANDBOX_FAILED) == (sb->end[0] != 0));
	assert(sb->hold == HOLD_NONE || sb->state == SANDBOX_PAUSED ||
	       sb->state == SANDBOX_REWINDING || sb->state == SANDBOX_KILLING);
	/* Checkpoints are memory: what sleeps has none. */
	assert(!sb->history || (sb->state != SANDBOX_CREATING && sb->state != SANDBOX_HIBERNATED &&
	                        sb->state != SANDBOX_WAKING));
	assert(sb->generation > 0 || sb->state == SANDBOX_CREATING || sb->state == SANDBOX_KILLING);
}

static void put(json_t *doc, const char *key, json_t *v)
{
	if (v)
		json_object_set(doc, key, v);
}

#define SECONDS "a whole number of seconds from 0"

const struct spec_number spec_numbers[] = {
    {"ttl_seconds", "ttl_s", offsetof(struct sandbox_spec, ttl_s), SPEC_SECONDS_MAX, -1, SECONDS},
    {"idle_seconds", "idle_s", offsetof(struct sandbox_spec, idle_s), SPEC_SECONDS_MAX, 0, SECONDS},
    {"auto_hibernate_seconds", "auto_hibernate_s", offsetof(struct sandbox_spec, auto_hibernate_s),
     SPEC_SECONDS_MAX, -1, SECONDS},
    {"snapshots_max_age_seconds", "snapshots_max_age_s",
     offsetof(struct sandbox_spec, snapshots_max_age_s), SPEC_SECONDS_MAX, 0, SECONDS},
    {"snapshots_keep", "snapshots_keep", offsetof(struct sandbox_spec, snapshots_keep), 1000000, 0,
     "a number from 0 (all)"},
    {0},
};

int64_t *spec_number(struct sandbox_spec *s, const struct spec_number *n)
{
	return (int64_t *)((char *)s + n->at);
}

void spec_init(struct sandbox_spec *ret)
{
	*ret = (struct sandbox_spec){0};
	for (const struct spec_number *n = spec_numbers; n->key; n++)
		*spec_number(ret, n) = -1;
}

static void put_numbers(json_t *doc, const struct sandbox_spec *s)
{
	for (const struct spec_number *n = spec_numbers; n->key; n++) {
		int64_t value = *(const int64_t *)((const char *)s + n->at);

		if (value >= 0)
			json_object_set_new(doc, n->recorded, json_integer(value));
	}
}

json_t *sandbox_to_doc(const struct sandbox *sb)
{
	const struct sandbox_spec *s = &sb->spec;
	json_t *doc =
	    json_pack("{s:s, s:s, s:b, s:s, s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:I, s:s, s:s}",
	              "template", s->template, "from_snapshot", s->from_snapshot, "persistent",
	              s->persistent, "parent", sb->parent, "tree", sb->tree, "cpu", (int)sb->cpu,
	              "memory_mb", (int)sb->memory_mb, "disk_gb", (int)sb->disk_gb, "boot_ms",
	              (int)sb->boot_ms, "boot_mode", sb->boot_mode, "runner", sb->runner,
	              "generation", (json_int_t)sb->generation, "end", sb->end, "isolation",
	              sb->isolation);

	if (!doc)
		return NULL;
	if (sb->machine[0] && strcmp(sb->machine, sb->id) != 0)
		json_object_set_new(doc, "machine", json_string(sb->machine));
	if (s->checkpoints)
		json_object_set_new(doc, "checkpoints", json_true());
	put_numbers(doc, s);
	if (sb->checkpointed)
		json_object_set_new(doc, "checkpointed", json_true());
	if (sb->volumes_pending)
		json_object_set_new(doc, "volumes_pending", json_true());
	if (sb->hold)
		json_object_set_new(doc, "hold", json_string(sandbox_hold_name(sb->hold)));
	json_object_set_new(doc, "preview", json_string(sb->preview));
	if (sb->preview_epoch)
		json_object_set_new(doc, "preview_epoch",
		                    json_integer((json_int_t)sb->preview_epoch));
	put(doc, "metadata", s->metadata);
	put(doc, "env", s->env);
	put(doc, "egress", s->egress);
	put(doc, "volumes", s->volumes);
	return doc;
}

static void get_text(const json_t *doc, const char *key, char *buf, size_t n)
{
	const char *s = json_string_value(json_object_get(doc, key));

	if (s)
		snprintf(buf, n, "%s", s);
}

static int64_t get_int(const json_t *doc, const char *key, int64_t otherwise)
{
	const json_t *v = json_object_get(doc, key);

	return json_is_integer(v) ? json_integer_value(v) : otherwise;
}

/* One of the words we compare and print, never freed. */
static const char *word(const json_t *doc, const char *key, const char *const *words)
{
	const char *s = json_string_value(json_object_get(doc, key));

	for (size_t i = 0; s && words[i]; i++)
		if (!strcmp(words[i], s))
			return words[i];
	return words[0];
}

void sandbox_from_doc(struct sandbox *sb, const json_t *doc)
{
	static const char *const modes[] = {"snapshot", "fork", "cold", NULL};
	static const char *const runners[] = {"shell", "python", NULL};
	struct sandbox_spec *s = &sb->spec;

	get_text(doc, "template", s->template, sizeof(s->template));
	get_text(doc, "from_snapshot", s->from_snapshot, sizeof(s->from_snapshot));
	for (const struct spec_number *n = spec_numbers; n->key; n++)
		*spec_number(s, n) = get_int(doc, n->recorded, -1);
	s->persistent = json_is_true(json_object_get(doc, "persistent"));
	s->checkpoints = json_is_true(json_object_get(doc, "checkpoints"));
	sb->checkpointed = json_is_true(json_object_get(doc, "checkpointed"));
	sb->volumes_pending = json_is_true(json_object_get(doc, "volumes_pending"));
	get_text(doc, "parent", sb->parent, sizeof(sb->parent));
	get_text(doc, "tree", sb->tree, sizeof(sb->tree));
	get_text(doc, "machine", sb->machine, sizeof(sb->machine));
	sb->cpu = (unsigned)get_int(doc, "cpu", 1);
	sb->memory_mb = (unsigned)get_int(doc, "memory_mb", 0);
	sb->disk_gb = (unsigned)get_int(doc, "disk_gb", 0);
	sb->boot_ms = (unsigned)get_int(doc, "boot_ms", 0);
	sb->boot_mode = word(doc, "boot_mode", modes);
	sb->runner = word(doc, "runner", runners);
	sb->generation = (uint64_t)get_int(doc, "generation", 1);
	get_text(doc, "end", sb->end, sizeof(sb->end));
	get_text(doc, "isolation", sb->isolation, sizeof(sb->isolation));
	for (size_t i = 0; i < SANDBOX_HOLDS; i++) {
		const char *hold = json_string_value(json_object_get(doc, "hold"));

		if (hold && !strcmp(hold, holds[i]))
			sb->hold = (enum sandbox_hold)i;
	}
	get_text(doc, "preview", sb->preview, sizeof(sb->preview));
	sb->preview_epoch = (uint64_t)get_int(doc, "preview_epoch", 0);
	s->metadata = json_incref(json_object_get(doc, "metadata"));
	s->env = json_incref(json_object_get(doc, "env"));
	s->egress = json_incref(json_object_get(doc, "egress"));
	s->volumes = json_incref(json_object_get(doc, "volumes"));
}

void spec_fini(struct sandbox_spec *s)
{
	json_decref(s->metadata);
	json_decref(s->env);
	json_decref(s->egress);
	json_decref(s->volumes);
	s->metadata = s->env = s->egress = s->volumes = NULL;
}

int spec_copy(const struct sandbox_spec *s, struct sandbox_spec *ret)
{
	struct sandbox_spec c = *s;

	c.metadata = s->metadata ? json_deep_copy(s->metadata) : NULL;
	c.env = s->env ? json_deep_copy(s->env) : NULL;
	c.egress = s->egress ? json_deep_copy(s->egress) : NULL;
	c.volumes = s->volumes ? json_deep_copy(s->volumes) : NULL;
	if (!c.metadata != !s->metadata || !c.env != !s->env || !c.egress != !s->egress ||
	    !c.volumes != !s->volumes) {
		spec_fini(&c);
		return -ENOMEM;
	}
	*ret = c;
	return 0;
}

uint64_t sandbox_expires_ms(const struct sandbox *sb)
{
	return sb->spec.ttl_s < 0 ? 0 : sb->created_ms + (uint64_t)sb->spec.ttl_s * 1000;
}
