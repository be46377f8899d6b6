/*
 * api/routes/templates.c - what sandboxes are made from
 */
#include "host/disk_use.h"
#include "template/template.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/routes/routes.h"
#include "base/err.h"
#include "base/macro.h"
#include "host/host.h"
#include "template/depot.h"

static json_int_t image_size(const struct template *t)
{
	const char *image = json_string_value(json_object_get(t->doc, "image"));
	struct stat st;

	if (!image)
		return json_integer_value(json_object_get(t->doc, "size_bytes"));
	return stat(image, &st) == 0 ? (json_int_t)st.st_size : 0;
}

static json_t *show(const struct template *t)
{
	static const char *const kept[] = {"label", "description", "category", "base", "tools"};
	json_t *j = json_pack("{s:s, s:s, s:I, s:i, s:i, s:i, s:b, s:s, s:b}", "name", t->name,
	                      "rootfs_path", "", "size_bytes", image_size(t), "cpu", (int)t->cpu,
	                      "memory_mb", (int)t->memory_mb, "disk_gb", (int)t->disk_gb,
	                      "is_global", t->tenant[0] == 0, "runner",
	                      t->runner ? t->runner : "shell", "baked", t->bake[0] != 0);
	json_t *aliases = json_object_get(t->doc, "aliases"), *v;
	const json_t *rebaked = json_object_get(t->doc, "rebaked");

	if (!j)
		return NULL;
	if (t->tenant[0])
		json_object_set_new(j, "workspace", json_string(t->tenant));
	if (rebaked)
		json_object_set_new(
		    j, "note",
		    json_sprintf("made again from its disk (%s): programs that ran when it was "
		                 "saved do not",
		                 json_string_value(json_object_get(rebaked, "why"))));
	json_object_set_new(j, "aliases",
	                    json_is_array(aliases) ? json_copy(aliases) : json_array());
	for (size_t i = 0; i < ARRAY_LEN(kept); i++) {
		v = json_object_get(t->doc, kept[i]);
		if (v && !json_is_null(v))
			json_object_set(j, kept[i], v);
	}
	return j;
}

json_t *templates_json(struct call *c)
{
	json_t *list = json_array();

	/* public ones first */
	for (int own = 0; own < 2; own++)
		for (struct template *t = NULL;
		     (t = template_next(c->host->depot.templates, c->tenant, t));)
			if ((t->tenant[0] != 0) == own)
				json_array_append_new(list, show(t));
	return list;
}

void templates_list(struct call *c)
{
	call_json(c, 200, templates_json(c));
}

void templates_get(struct call *c)
{
	struct template *t;
	struct err e;

	t = template_find(c->host->depot.templates, c->tenant, c->param[0], &e);
	if (t)
		call_json(c, 200, show(t));
	else
		call_error(c, &e);
}

void templates_delete(struct call *c)
{
	struct err e;

	if (template_delete(c->host->depot.templates, c->tenant, c->param[0], &e) < 0)
		call_error(c, &e);
	else
		call_empty(c, 204);
}

static void saved(void *arg, const struct err *e, struct template *t)
{
	struct call *c = arg;

	if (e)
		call_error(c, e);
	else
		call_json(c, 201, show(t));
	call_drop(c);
}

void sandbox_save_template(struct call *c)
{
	const char *name;
	bool replace;
	struct err e;

	if (!call_str(c, "name", "", &name) || !call_bool(c, "replace", false, &replace))
		return;
	if (disk_use_admit(c->host, c->tenant, &c->quota, &e) < 0) {
		call_error(c, &e);
		return;
	}
	host_save_template(c->host, c->sb, name, replace, saved, call_hold(c));
}
