/*
 * api/routes/boot_stats.c - how long creates took, from the events that told it
 */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/routes/routes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/err.h"
#include "db/events.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "template/template.h"

enum {
	SAMPLES_MAX = 500,
	GROUPS_MAX = 32, /* templates shown */
};

struct sample {
	double ms;
	char mode[16], template[TEMPLATE_NAME_MAX + 1], id[SANDBOX_ID + 1];
	uint64_t at_ms;
};

struct samples {
	struct sample s[SAMPLES_MAX]; /* newest first */
	size_t n;
};

static bool collect(void *arg, const struct db_event *row)
{
	struct samples *all = arg;
	struct sample *s = &all->s[all->n];
	json_t *p = json_loads(row->payload, 0, NULL);
	const char *mode = json_string_value(json_object_get(p, "boot_mode"));
	const char *template = json_string_value(json_object_get(p, "template"));

	if (json_is_number(json_object_get(p, "boot_ms"))) {
		s->ms = json_number_value(json_object_get(p, "boot_ms"));
		snprintf(s->mode, sizeof(s->mode), "%s", mode ? mode : "");
		snprintf(s->template, sizeof(s->template), "%s", template ? template : "");
		snprintf(s->id, sizeof(s->id), "%s", row->sandbox_id);
		s->at_ms = row->at_ms;
		all->n++;
	}
	json_decref(p);
	return all->n < SAMPLES_MAX;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Of those whose mode or template is this; both NULL: of all. */
static json_t *group(const struct samples *all, const char *mode, const char *template)
{
	double ms[SAMPLES_MAX], sum = 0;
	size_t n = 0;

	for (size_t i = 0; i < all->n; i++)
		if ((!mode || strcmp(mode, all->s[i].mode) == 0) &&
		    (!template || strcmp(template, all->s[i].template) == 0)) {
			ms[n] = all->s[i].ms;
			sum += ms[n++];
		}
	if (n == 0)
		return json_pack("{s:i}", "count", 0);
	qsort(ms, n, sizeof(ms[0]), by_value);
	return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "count", (json_int_t)n, "min_ms",
	                 ms[0], "max_ms", ms[n - 1], "mean_ms", sum / (double)n, "p50_ms",
	                 ms[(n - 1) / 2], "p90_ms", ms[(n - 1) * 9 / 10], "p99_ms",
	                 ms[(n - 1) * 99 / 100]);
}

static json_t *groups(const struct samples *all, bool mode)
{
	json_t *j = json_object();

	for (size_t i = 0; i < all->n && json_object_size(j) < GROUPS_MAX; i++) {
		const char *key = mode ? all->s[i].mode : all->s[i].template;

		if (!json_object_get(j, key))
			json_object_set_new(j, key,
			                    group(all, mode ? key : NULL, mode ? NULL : key));
	}
	return j;
}

void boot_stats(struct call *c)
{
	autofree struct samples *all = calloc(1, sizeof(*all));
	json_t *recent;
	int64_t limit;
	struct err e;

	if (!call_query_int(c, "limit", 50, 1, SAMPLES_MAX, &limit))
		return;
	if (!all) {
		call_nomem(c);
		return;
	}
	if (db_events_of_type(c->host->db, c->tenant, "sandbox.running", SAMPLES_MAX, collect, all,
	                      &e) < 0) {
		call_error(c, &e);
		return;
	}
	recent = json_array();
	for (size_t i = 0; i < all->n && i < (size_t)limit; i++)
		json_array_append_new(recent,
		                      json_pack("{s:s, s:f, s:s, s:s, s:o}", "sandbox_id",
		                                all->s[i].id, "boot_ms", all->s[i].ms, "boot_mode",
		                                all->s[i].mode, "template", all->s[i].template,
		                                "at", json_time(all->s[i].at_ms)));
	call_json(c, 200,
	          json_pack("{s:I, s:I, s:o, s:o, s:o, s:o}", "total_samples", (json_int_t)all->n,
	                    "window_seconds",
	                    (json_int_t)(all->n ? (wall_ms() - all->s[all->n - 1].at_ms) / 1000
	                                        : 0),
	                    "overall", group(all, NULL, NULL), "by_mode", groups(all, true),
	                    "by_template", groups(all, false), "recent", recent));
}
