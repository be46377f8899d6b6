/*
 * http/multipart.h - multipart/form-data, read in pieces that may end anywhere
 * Pure: no I/O, no allocation; what it holds is in the struct, the data stays where it is. Strict
 * where clients agree: nothing before the first boundary, CR LF at the end of lines.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
	MULTIPART_HEAD_MAX = 4096, /* the headers of one part */
	MULTIPART_PARTS_MAX = 1000,
	MULTIPART_BOUNDARY_MAX = 70,
};

enum multipart_event {
	MULTIPART_MORE,     /* all was eaten, and there is nothing to tell */
	MULTIPART_PART,     /* a part begins: look at name, filename and type */
	MULTIPART_DATA,     /* a run of its data */
	MULTIPART_PART_END, /* that was all of it */
	MULTIPART_END,      /* the last boundary; whatever follows is not looked at */
};

struct multipart {
	const char *name;     /* of the form field */
	const char *filename; /* NULL when there is none; never trust it as a path */
	const char *type;     /* "text/plain" when the client says nothing */

	uint8_t state;
	char delim[4 + MULTIPART_BOUNDARY_MAX + 1]; /* CR LF - - boundary */
	size_t delim_len, matched;
	unsigned parts;
	char head[MULTIPART_HEAD_MAX + 1];
	size_t head_len;
};

/* With the request's Content-Type. -EINVAL: not multipart/form-data, or no usable boundary. */
int multipart_init(struct multipart *m, const char *content_type);

/*
 * Eats from p up to the next event and returns how much. MULTIPART_DATA: *data, *len is the run,
 * valid until p or m changes. -EBADMSG: malformed. -EMSGSIZE: a head too long, or too many parts.
 * A body that ends before MULTIPART_END was cut off.
 */
ssize_t multipart_eat(struct multipart *m, const char *p, size_t n, enum multipart_event *ev,
                      const char **data, size_t *len);
