/*
 * cli/tree_draw.c - the fork tree as text: a list in, lines out
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/show.h"

enum {
	NONE = -1,
	DEPTH_MAX = 64, /* deeper ones are drawn at this depth: no terminal is wider */
};

struct node {
	const json_t *j;
	const char *id, *parent, *created;
	int first, next; /* children, siblings */
	bool drawn;
};

struct drawing {
	struct node *node;
	int n, id_len;
	FILE *to;
	time_t now;
	const char *tee, *corner, *bar;
	bool open[DEPTH_MAX]; /* has this level a sibling still to come? */
};

static const char *text_of(const json_t *j, const char *key)
{
	const char *s = json_string_value(json_object_get(j, key));

	return s ? s : "";
}

static int by_age(const void *a, const void *b)
{
	const struct node *x = a, *y = b;
	int r = strcmp(x->created, y->created);

	return r ? r : strcmp(x->id, y->id);
}

static void line(struct drawing *d, const struct node *n, int depth, bool last)
{
	const char *name = text_of(n->j, "name");
	char age[16], id[80], template[80], shown[80];

	if (!*name)
		name = text_of(json_object_get(n->j, "metadata"), "name");
	for (int i = 1; i < depth; i++)
		fputs(d->open[i] ? d->bar : "   ", d->to);
	if (depth)
		fputs(last ? d->corner : d->tee, d->to);
	show_age(n->created, d->now, age, sizeof(age));
	show_clean(n->id, id, sizeof(id));
	show_clean(text_of(n->j, "template"), template, sizeof(template));
	show_clean(name, shown, sizeof(shown));
	fprintf(d->to, "%.*s  %s  %s  %s%s%s\n", d->id_len, id, text_of(n->j, "status"), template,
	        age, *shown ? "  " : "", shown);
}

static void draw(struct drawing *d, int at, int depth, bool last)
{
	struct node *n = &d->node[at];

	n->drawn = true;
	line(d, n, depth, last);
	if (depth + 1 < DEPTH_MAX)
		depth++;
	for (int k = n->first; k != NONE; k = d->node[k].next) {
		if (d->node[k].drawn)
			continue;
		d->open[depth] = d->node[k].next != NONE;
		draw(d, k, depth, d->node[k].next == NONE);
	}
}

/* Puts every node below its parent; oldest first, as they are sorted. */
static bool link_up(struct drawing *d)
{
	json_t *index = json_object();

	for (int i = 0; index && i < d->n; i++)
		if (json_object_set_new(index, d->node[i].id, json_integer(i)) < 0) {
			json_decref(index);
			return false;
		}
	for (int i = d->n - 1; index && i >= 0; i--) {
		struct node *n = &d->node[i];
		const json_t *at = *n->parent ? json_object_get(index, n->parent) : NULL;
		int up = at ? (int)json_integer_value(at) : NONE;

		if (up == NONE || up == i) {
			n->parent = "";
			continue;
		}
		n->next = d->node[up].first;
		d->node[up].first = i;
	}
	json_decref(index);
	return index;
}

char *tree_draw(const json_t *list, bool utf8, time_t now)
{
	struct drawing d = {.now = now,
	                    .id_len = show_short(list),
	                    .tee = utf8 ? "├─ " : "|- ",
	                    .corner = utf8 ? "└─ " : "`- ",
	                    .bar = utf8 ? "│  " : "|  "};
	autofree struct node *node = calloc(json_array_size(list) + 1, sizeof(*node));
	autofree char *text = NULL;
	size_t len, total = json_array_size(list);

	if (!node)
		return NULL;
	d.node = node;
	for (size_t i = 0; i < total; i++) {
		const json_t *j = json_array_get(list, i);

		node[d.n++] = (struct node){.j = j,
		                            .id = text_of(j, "id"),
		                            .parent = text_of(j, "parent_id"),
		                            .created = text_of(j, "created_at"),
		                            .first = NONE,
		                            .next = NONE};
	}
	qsort(node, (size_t)d.n, sizeof(*node), by_age);
	d.to = open_memstream(&text, &len);
	if (!d.to)
		return NULL;
	if (!link_up(&d)) {
		fclose(d.to);
		return NULL;
	}
	for (int i = 0; i < d.n; i++)
		if (!*node[i].parent)
			draw(&d, i, 0, true);
	/* Only a server that talks nonsense has circles; even then everything is shown, once. */
	for (int i = 0; i < d.n; i++)
		if (!node[i].drawn)
			draw(&d, i, 0, true);
	return fclose(d.to) == 0 ? take_ptr(text) : NULL;
}
