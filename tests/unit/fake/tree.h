/*
 * fake/tree.h - the files of a fake guest: a small tree, kept as bytes on a device
 * Each change is written to the device at once, page by page and only pages that differ. So what a
 * guest has in its files travels in the layers of its machine, or in a volume's file.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { TREE_MAX = 4 << 20 }; /* bytes of it on its device */

struct node {
	char *path; /* from its tree's root, without a slash in front: "a/b" */
	uint32_t mode;
	uint64_t mtime_ns, ino;
	char *data; /* content, or target of a link; NUL behind it */
	size_t n;
	struct node *next; /* by path */
};

struct device {
	int fd;  /* where it is read */
	int top; /* where a change is written, too; -1: nowhere else */
	off_t at, end;
	bool read_only;
	void (*before)(void *arg, off_t off, size_t n); /* a write; may be NULL */
	void *arg;
};

struct tree {
	struct device dev;
	struct node *nodes;
	uint64_t next_ino;
};

/* What is on the device, or an empty tree. */
void tree_load(struct tree *t, const struct device *dev);
void tree_fini(struct tree *t);

/* path "" is the root. NULL: there is none. */
struct node *tree_find(struct tree *t, const char *path);
struct node *tree_root(struct tree *t);

/*
 * 0 or a negative errno, as the system call would say. mode has the kind (S_IFREG, S_IFDIR,
 * S_IFLNK); what is there already is replaced. parents: missing directories are made.
 */
int tree_put(struct tree *t, const char *path, uint32_t mode, const void *p, size_t n,
             bool parents);
int tree_append(struct tree *t, const char *path, const void *p, size_t n);
int tree_remove(struct tree *t, const char *path, bool recursive);
int tree_rename(struct tree *t, const char *from, const char *to, bool replace);
int tree_chmod(struct tree *t, const char *path, uint32_t mode);

/* The name of n within the directory dir, or NULL when it is not directly in it. */
const char *tree_child(const struct node *n, const char *dir);
