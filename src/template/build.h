/*
 * template/build.h - templates from Dockerfiles, built inside machines
 * A build is ordered on the loop, done on a thread of its own, and kept for a while after its end:
 *
 *   <data>/builds/<id>/build.json  log  c<n> (context files) and disk<n>, until it ends
 *
 * Nothing a user sends is run, unpacked or used as a path on the host: instructions run in a
 * machine without a record (as bakes do, so the next start removes it), files go in through the
 * guest's agent. After each RUN, COPY and ADD the machine is saved as a step (TEMPLATE_STEP and a
 * digest over the tenant, the base, and every instruction and file so far): what did not change is
 * not done again. What came of the last step is the template's bake, see template/template.h: its
 * machine is as warm as that of its base. Memory of another size means a fresh boot in the end.
 *
 * A build that was not done when we ended is failed after the next start.
 */
#pragma once
#include <jansson.h>

#include "template/depot.h"
#include "template/oci.h"
#include "template/template.h"

enum {
	BUILD_ID = 16,                /* hex digits */
	BUILD_CONTEXT_MAX = 50 << 20, /* bytes of all files, but for an archive of an image */
	BUILD_FILES_MAX = 1000,
	BUILD_PATH_MAX = 1024, /* of one file in the context */
	BUILD_LOG_MAX = 4 << 20,
	BUILDS_AT_ONCE = 4,     /* of all */
	BUILDS_OF_TENANT = 2,   /* at once */
	BUILDS_WAITING_MAX = 8, /* of a tenant, those at work counted */
	BUILDS_KEPT = 200,
	BUILD_STEPS_KEPT = 64,
};

enum build_status {
	BUILD_QUEUED,
	BUILD_RUNNING,
	BUILD_BAKING,
	BUILD_DONE,
	BUILD_FAILED,
};

struct build_info {
	char id[BUILD_ID + 1], tenant[TENANT_MAX + 1], name[TEMPLATE_NAME_MAX + 1];
	enum build_status status;
	char error[240];
	uint64_t started_ms, ended_ms;    /* wall clock; 0: not yet */
	unsigned size_mb, cpu, memory_mb; /* cpu: the base decides */
	uint64_t bytes;
};

#define BUILD_ARCHIVE_MAX ((uint64_t)8 << 30) /* an archive of an image */

const char *build_status_name(enum build_status s);

struct builds;
/* Reads what is on disk; blocks. The loop's own from there on. */
int builds_open(struct depot *depot, struct builds **ret, struct err *e);
void builds_close(struct builds *bs); /* stops what is at work */

/* ---- an order, while it comes in; one thread at a time has it ---- */

struct build_order {
	struct depot *depot;
	struct build_info info;
	bool replace;
	char *dockerfile; /* owned */
	size_t dockerfile_len;
	bool made_up;                    /* by build_order_complete(): no Dockerfile was sent */
	int archive;                     /* of files, the image it is made from; -1: none */
	char image_ref[OCI_REF_MAX + 1]; /* an image that is known here, or one of the archive */
	json_t *args;                    /* values for ARG, or NULL */
	struct build_file *files;
	size_t nfiles;
	uint64_t bytes;
	int dir; /* <data>/builds/<id> */
	int fd;  /* of the file at hand, -1: none */
	struct sha *sha;
};

struct build_file {
	char *path; /* relative, no "..", no empty parts: as the client named it, made plain */
	char digest[65];
	uint64_t size;
	bool program;  /* begins as a program does: no other sign comes with it */
	bool left_out; /* by a .dockerignore in the context */
};

/* On the loop: has this tenant room for one more? too_many, shutting_down. Caller owns *ret. */
int build_order_new(struct depot *depot, const char *tenant, struct build_order **ret,
                    struct err *e);
/* A file begins, goes on, ends. Any thread. bad_request, too_large, disk_full. */
int build_order_file(struct build_order *o, const char *path, struct err *e);
/* The same for an archive of an image or of a root file system: may be larger than the context. */
int build_order_archive(struct build_order *o, struct err *e);
int build_order_data(struct build_order *o, const void *p, size_t n, struct err *e);
int build_order_file_end(struct build_order *o, struct err *e);
/* All is there: a Dockerfile, an archive or the name of an image, and not two of them. An archive
 * and a name: which image of several. bad_request. */
int build_order_complete(struct build_order *o, struct err *e);
/* Removes what it wrote. Blocks a little. */
void build_order_free(struct build_order *o);

/*
 * On the loop. Takes the order, whatever comes of it. What is wrong with the Dockerfile, the name
 * or the base is said here (bad_request, exists, forbidden, template_unknown), the rest by the
 * build.
 */
int build_submit(struct build_order *o, struct build_info *ret, struct err *e);

/* Newest first. fn returns false to stop. tenant NULL: of all. */
void build_each(struct builds *bs, const char *tenant,
                bool (*fn)(void *arg, const struct build_info *b), void *arg);
/* false: there is none. */
bool build_get(struct builds *bs, const char *tenant, const char *id, struct build_info *ret);
/* Ends it if it is not over; false: there is none. */
bool build_cancel(struct builds *bs, const char *tenant, const char *id);
/* Its log so far, to be read; -1 when there is none. Whole lines until it has ended. */
int build_log(struct builds *bs, const char *id);
