/*
 * api/routes/files.h - what the handlers of files share
 */
#pragma once
#include <jansson.h>

struct call;
struct wire_file;

/* The query's "path". NULL: answered. Caller frees. */
char *file_query_path(struct call *c, const char *otherwise);

/* FileInfo; path is its full one. */
json_t *show_file(const struct wire_file *m, const char *name, size_t name_len, const char *path);
