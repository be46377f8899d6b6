/*
 * guest/init/list.h - a ring of things that carry their own links
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct list {
	struct list *prev, *next;
};

static inline void list_init(struct list *l)
{
	l->prev = l->next = l;
}

static inline bool list_empty(const struct list *l)
{
	return l->next == l;
}

/* Behind the last one. n is in no list. */
static inline void list_add(struct list *l, struct list *n)
{
	n->prev = l->prev;
	n->next = l;
	l->prev->next = n;
	l->prev = n;
}

/* n may be taken out twice; it is an empty list of its own afterwards. */
static inline void list_del(struct list *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	list_init(n);
}

/* All of from goes behind the last one of l. */
static inline void list_splice(struct list *l, struct list *from)
{
	if (list_empty(from))
		return;
	from->next->prev = l->prev;
	l->prev->next = from->next;
	from->prev->next = l;
	l->prev = from->prev;
	list_init(from);
}

#define container_of(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))

/* The body may take the current one out, and no other. */
#define list_for_each(n, l)                                             \
	for (struct list *n = (l)->next, *n##_next = n->next; n != (l); \
	     n = n##_next, n##_next = n->next)
