#include "tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"

enum { PAGE = 4096 };

struct tree_head {
	char magic[8];
	uint32_t count, bytes; /* of what follows */
};

struct entry {
	uint32_t mode, path, data;
	uint64_t mtime_ns, ino;
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void *must(void *p)
{
	if (!p)
		abort(); /* a test's helper: out of memory is the end of the test */
	return p;
}

/* ---- nodes ---- */

static struct node *node_add(struct tree *t, const char *path, size_t len)
{
	struct node **p = &t->nodes, *n = must(calloc(1, sizeof(*n)));

	n->path = must(strndup(path, len));
	n->data = must(calloc(1, 1));
	n->ino = ++t->next_ino;
	n->mtime_ns = now_ns();
	while (*p && strcmp((*p)->path, n->path) < 0)
		p = &(*p)->next;
	n->next = *p;
	*p = n;
	return n;
}

/* By path again, after some have got another. */
static void tree_sort(struct tree *t)
{
	struct node *old = t->nodes;

	t->nodes = NULL;
	while (old) {
		struct node **p = &t->nodes, *n = old;

		old = old->next;
		while (*p && strcmp((*p)->path, n->path) < 0)
			p = &(*p)->next;
		n->next = *p;
		*p = n;
	}
}

static void node_drop(struct node **p)
{
	struct node *n = *p;

	*p = n->next;
	free(n->path);
	free(n->data);
	free(n);
}

static void node_set(struct node *n, const void *p, size_t len)
{
	char *copy = must(malloc(len + 1));

	if (len)
		memcpy(copy, p, len);
	copy[len] = 0;
	free(n->data);
	n->data = copy;
	n->n = len;
	n->mtime_ns = now_ns();
}

struct node *tree_find(struct tree *t, const char *path)
{
	struct node *n = t->nodes;

	while (n && strcmp(n->path, path) != 0)
		n = n->next;
	return n;
}

struct node *tree_root(struct tree *t)
{
	return tree_find(t, "");
}

const char *tree_child(const struct node *n, const char *dir)
{
	size_t len = strlen(dir);
	const char *name = n->path + len + (len > 0);

	if (!n->path[0] || strncmp(n->path, dir, len) != 0 || (len && n->path[len] != '/'))
		return NULL;
	return strchr(name, '/') ? NULL : name;
}

static bool node_below(const struct node *n, const char *dir)
{
	size_t len = strlen(dir);

	return len == 0 ? n->path[0] != 0 : strncmp(n->path, dir, len) == 0 && n->path[len] == '/';
}

/* ---- on the device ---- */

/* Pages that are as they should be already are left alone: a snapshot then seals few. */
static int tree_store(struct tree *t, const char *bytes, size_t n)
{
	for (size_t off = 0; off < n; off += PAGE) {
		off_t at = t->dev.at + (off_t)off;
		char old[PAGE] = {0};
		int r;

		if (pread(t->dev.fd, old, PAGE, at) == PAGE && !memcmp(old, bytes + off, PAGE))
			continue;
		if (t->dev.before)
			t->dev.before(t->dev.arg, at, PAGE);
		r = io_pwrite_full(t->dev.fd, bytes + off, PAGE, at);
		if (r == 0 && t->dev.top >= 0)
			r = io_pwrite_full(t->dev.top, bytes + off, PAGE, at);
		if (r < 0)
			return r;
	}
	return 0;
}

static int tree_save(struct tree *t)
{
	size_t len = sizeof(struct tree_head), n = 0;
	autofree char *bytes = NULL;
	struct tree_head h = {.magic = "faketre"};
	char *p;

	if (t->dev.read_only)
		return -EROFS;
	for (struct node *k = t->nodes; k; k = k->next)
		len += sizeof(struct entry) + strlen(k->path) + k->n;
	if (len > TREE_MAX || t->dev.at + (off_t)len + PAGE > t->dev.end)
		return -ENOSPC;
	bytes = must(calloc(1, len + PAGE));
	p = bytes + sizeof(h);
	for (struct node *k = t->nodes; k; k = k->next, n++) {
		struct entry e = {.mode = k->mode,
		                  .path = (uint32_t)strlen(k->path),
		                  .data = (uint32_t)k->n,
		                  .mtime_ns = k->mtime_ns,
		                  .ino = k->ino};

		memcpy(p, &e, sizeof(e));
		memcpy(p + sizeof(e), k->path, e.path);
		memcpy(p + sizeof(e) + e.path, k->data, k->n);
		p += sizeof(e) + e.path + k->n;
	}
	h.count = (uint32_t)n;
	h.bytes = (uint32_t)(len - sizeof(h));
	memcpy(bytes, &h, sizeof(h));
	return tree_store(t, bytes, (len + PAGE - 1) / PAGE * PAGE);
}

static int tree_parse(struct tree *t)
{
	autofree char *bytes = NULL;
	struct tree_head h;
	char *p;

	if (io_pread_full(t->dev.fd, &h, sizeof(h), t->dev.at) < 0 ||
	    memcmp(h.magic, "faketre", 8) || h.bytes > TREE_MAX)
		return -ENOENT;
	p = bytes = must(malloc(h.bytes + 1u));
	if (io_pread_full(t->dev.fd, bytes, h.bytes, t->dev.at + (off_t)sizeof(h)) < 0)
		return -EIO;
	for (uint32_t i = 0; i < h.count; i++) {
		struct entry e;
		struct node *n;

		memcpy(&e, p, sizeof(e));
		p += sizeof(e);
		n = node_add(t, p, e.path);
		node_set(n, p + e.path, e.data);
		n->mode = e.mode;
		n->mtime_ns = e.mtime_ns;
		n->ino = e.ino;
		t->next_ino = MAX(t->next_ino, e.ino);
		p += e.path + e.data;
	}
	return 0;
}

void tree_load(struct tree *t, const struct device *dev)
{
	*t = (struct tree){.dev = *dev};
	if (tree_parse(t) < 0)
		node_add(t, "", 0)->mode = S_IFDIR | 0755;
}

void tree_fini(struct tree *t)
{
	while (t->nodes)
		node_drop(&t->nodes);
}

/* ---- changes ---- */

static int parent_of(struct tree *t, const char *path, bool make)
{
	const char *slash = strrchr(path, '/');
	autofree char *dir = must(strndup(path, slash ? (size_t)(slash - path) : 0));
	struct node *n = tree_find(t, dir);
	int r;

	if (!n && make) {
		r = parent_of(t, dir, true);
		if (r < 0)
			return r;
		n = node_add(t, dir, strlen(dir));
		n->mode = S_IFDIR | 0755;
	}
	return !n ? -ENOENT : S_ISDIR(n->mode) ? 0 : -ENOTDIR;
}

int tree_put(struct tree *t, const char *path, uint32_t mode, const void *p, size_t n, bool parents)
{
	struct node *k = tree_find(t, path);
	int r;

	if (t->dev.read_only)
		return -EROFS;
	if (k && S_ISDIR(k->mode))
		return S_ISDIR(mode) ? -EEXIST : -EISDIR;
	r = path[0] ? parent_of(t, path, parents) : 0;
	if (r < 0)
		return r;
	if (!k)
		k = node_add(t, path, strlen(path));
	k->mode = mode;
	node_set(k, p, n);
	return tree_save(t);
}

int tree_append(struct tree *t, const char *path, const void *p, size_t n)
{
	struct node *k = tree_find(t, path);
	autofree char *all = NULL;
	size_t was = k ? k->n : 0;

	if (k && S_ISDIR(k->mode))
		return -EISDIR;
	all = must(malloc(was + n + 1));
	if (k)
		memcpy(all, k->data, was);
	memcpy(all + was, p, n);
	return tree_put(t, path, k ? k->mode : S_IFREG | 0644, all, was + n, false);
}

int tree_remove(struct tree *t, const char *path, bool recursive)
{
	struct node *n = tree_find(t, path);

	if (t->dev.read_only)
		return -EROFS;
	if (!n)
		return -ENOENT;
	if (!path[0])
		return -EBUSY;
	if (!recursive && S_ISDIR(n->mode))
		for (struct node *k = t->nodes; k; k = k->next)
			if (node_below(k, path))
				return -ENOTEMPTY;
	for (struct node **p = &t->nodes; *p;)
		if (*p == n || node_below(*p, path))
			node_drop(p);
		else
			p = &(*p)->next;
	return tree_save(t);
}

int tree_rename(struct tree *t, const char *from, const char *to, bool replace)
{
	autofree char *old = must(strdup(from)), *fresh = must(strdup(to));
	struct node *n = tree_find(t, old), *there = tree_find(t, fresh);
	size_t len = strlen(old);
	int r;

	if (t->dev.read_only)
		return -EROFS;
	if (!n)
		return -ENOENT;
	if (there && !replace)
		return -EEXIST;
	if (!strncmp(fresh, old, len) && fresh[len] == '/')
		return -EINVAL;
	r = parent_of(t, fresh, false);
	if (r == 0 && there && there != n)
		r = tree_remove(t, fresh, false);
	if (r < 0)
		return r;
	for (struct node *k = t->nodes; k; k = k->next) {
		char *path = NULL;

		if (k != n && !node_below(k, old))
			continue;
		if (asprintf(&path, "%s%s", fresh, k->path + len) < 0)
			abort();
		free(k->path);
		k->path = path;
	}
	tree_sort(t);
	return tree_save(t);
}

int tree_chmod(struct tree *t, const char *path, uint32_t mode)
{
	struct node *n = tree_find(t, path);

	if (t->dev.read_only)
		return -EROFS;
	if (!n)
		return -ENOENT;
	n->mode = (n->mode & S_IFMT) | (mode & 07777);
	return tree_save(t);
}
