/*
 * template/build_base.c - what a stage begins with
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/macro.h"
#include "template/build.h"
#include "template/build_internal.h"
#include "template/depot.h"
#include "template/dockerfile.h"
#include "template/oci.h"
#include "template/template.h"

size_t build_root_of(const struct dockerfile *f)
{
	size_t i = f->nstages - 1;

	while (f->stages[i].from >= 0)
		i = (size_t)f->stages[i].from;
	return i;
}

const char *build_global(void *arg, const char *name)
{
	static const struct {
		const char *name, *value;
	} usual[] = {{"TARGETPLATFORM", "linux/amd64"},
	             {"TARGETOS", "linux"},
	             {"TARGETARCH", "amd64"},
	             {"TARGETVARIANT", ""},
	             {"BUILDPLATFORM", "linux/amd64"},
	             {"BUILDOS", "linux"},
	             {"BUILDARCH", "amd64"},
	             {"BUILDVARIANT", ""}};
	const struct build *b = arg;
	const char *v = json_string_value(json_object_get(b->globals, name));

	for (size_t i = 0; !v && i < ARRAY_LEN(usual); i++)
		if (!strcmp(usual[i].name, name))
			v = usual[i].value;
	return v;
}

bool build_variables_too_many(const json_t *a, const json_t *b)
{
	const json_t *sets[] = {a, b}, *v;
	size_t bytes = 0;
	const char *k;

	for (size_t i = 0; i < ARRAY_LEN(sets); i++)
		json_object_foreach((json_t *)sets[i], k, v)
			bytes += strlen(k) + json_string_length(v) + 2;
	return bytes > BUILD_VARIABLES_BYTES ||
	       json_object_size(a) + json_object_size(b) > BUILD_VARIABLES_MAX;
}

int build_globals(struct build *b, struct err *e)
{
	b->globals = json_object();
	for (size_t i = 0; i < b->file->nglobals; i++) {
		const struct docker_step *s = &b->file->globals[i];

		for (size_t k = 0; k < s->nwords; k += 2) {
			const char *given =
			    json_string_value(json_object_get(b->order->args, s->words[k]));
			autofree char *value = NULL;
			int r = 0;

			if (!given && s->words[k + 1])
				r = dockerfile_expand(s->words[k + 1], b->file->escape, true,
				                      s->line, build_global, b, &value, e);
			if (r < 0)
				return r;
			if ((given || value) &&
			    json_object_set_new(b->globals, s->words[k],
			                        json_string(given ? given : value)) < 0)
				return err_set(e, EINVAL, "bad_request",
				               "Dockerfile:%u: the value of %.60s is not UTF-8",
				               s->line, s->words[k]);
		}
		if (build_variables_too_many(b->globals, NULL))
			return err_set(e, E2BIG, "bad_request",
			               "Dockerfile:%u: more than %d variables, or %d KiB of them",
			               s->line, BUILD_VARIABLES_MAX, BUILD_VARIABLES_BYTES >> 10);
	}
	return 0;
}

static int where(struct build *b, const struct docker_stage *s, struct err *e)
{
	return b->order->made_up ? -e->code : err_prefix(e, "Dockerfile:%u", s->line);
}

/* "./image.tar" and "oci-archive:image.tar", maybe with "#name", as they are called elsewhere;
 * NULL: it is no file. */
static const char *as_file(const char *name)
{
	static const char *const ways[] = {"./", "docker-archive:", "oci-archive:"};

	for (size_t i = 0; i < ARRAY_LEN(ways); i++)
		if (!strncmp(name, ways[i], strlen(ways[i])))
			return name + strlen(ways[i]);
	return NULL;
}

static int find_archive(struct build *b, const char *file, struct build_stage *ret, struct err *e)
{
	const struct build_order *o = b->order;
	size_t n = strcspn(file, "#");

	if (strlen(file + n) > OCI_REF_MAX)
		return err_set(e, EINVAL, "bad_request", "the name of an image is too long");
	for (size_t i = 0; i < o->nfiles; i++)
		if (strlen(o->files[i].path) == n && !strncmp(o->files[i].path, file, n)) {
			ret->root = BUILD_ROOT_ARCHIVE;
			ret->archive = i;
			snprintf(ret->which, sizeof(ret->which), "%s", file[n] ? file + n + 1 : "");
			return 0;
		}
	return err_set(
	    e, EINVAL, "bad_request",
	    "the archive '%.60s' is not in the context: send it along, or import it first "
	    "(panda template import FILE --name NAME) and say FROM NAME",
	    file);
}

static int unknown(const struct docker_stage *s, const char *name, struct err *e)
{
	if (oci_debian(name))
		return err_set(e, ENOENT, "template_unknown",
		               "'%.40s' is no Debian that can be had: there are " OCI_DEBIAN_KNOWN
		               "; of others import an archive and say FROM its name",
		               name);
	if (s->implied)
		return err_set(
		    e, ENOENT, "template_unknown",
		    "--from=%.40s: no earlier stage and no template is called so, and nothing "
		    "is pulled from registries: import an archive of that image (panda template "
		    "import FILE --name NAME), and use NAME",
		    name);
	return err_set(
	    e, ENOENT, "template_unknown",
	    "there is no template '%.40s', and nothing is pulled from registries: bring "
	    "the image as an archive (docker save), import it (panda template import FILE "
	    "--name NAME), and use NAME",
	    name);
}

struct template *build_base_of(struct build *b, size_t index, char **ret_name, struct err *e)
{
	const struct docker_stage *s = &b->file->stages[index];
	struct build_stage *to = &b->stages[index];
	struct templates *ts = b->order->depot->templates;
	const char *tenant = b->info.tenant, *file, *suite;
	struct template *t = NULL;
	int r;

	if (dockerfile_expand(s->base, b->file->escape, true, s->line, build_global, b, ret_name,
	                      e) < 0)
		return NULL;
	file = as_file(*ret_name);
	to->root = BUILD_ROOT_TEMPLATE;
	if (file || !strcmp(*ret_name, "scratch")) {
		to->root = BUILD_ROOT_EMPTY;
		r = file ? find_archive(b, file, to, e) : 0;
		t = r < 0 ? NULL : template_find(ts, tenant, "base", e);
	} else {
		t = template_find(ts, tenant, *ret_name, NULL);
		if (!t)
			t = template_of_ref(ts, tenant, *ret_name);
		suite = oci_debian(*ret_name);
		if (!t && suite && *suite) {
			t = template_find(ts, tenant, "base", NULL);
			if (strcmp(suite, OCI_DEBIAN_BASE) != 0) {
				to->root = BUILD_ROOT_DEBIAN;
				snprintf(to->which, sizeof(to->which), "%s", suite);
			}
		}
		if (!t)
			unknown(s, *ret_name, e);
	}
	if (!t)
		where(b, s, e);
	return t;
}
