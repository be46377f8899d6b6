/*
 * template/oci.h - what images of other tools say of themselves, read
 * Pure: text in, JSON out; no I/O. The text comes from oci_unpack.py, which has read an archive
 * inside a machine and may have been taken over by it: it is bounded, and only what is known is
 * taken.
 */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum {
	OCI_TEXT_MAX = 1 << 20,
	OCI_REF_MAX = 255, /* a name with its tag */
	OCI_REFS_MAX = 16,
	OCI_ENV_MAX = 512,
	OCI_WORDS_MAX = 512,      /* of a command */
	OCI_VALUE_MAX = 32 << 10, /* one string */
};

/*
 * The last line of text as part of a template's description: "refs" (as oci_ref() makes them),
 * "env", "workdir", "user", "shell", "start" with "entrypoint", "cmd" and "ready"; those that are
 * said. "layers" is how many there were. Kind build_failed. Caller owns *ret.
 */
int oci_parse(const char *text, size_t n, json_t **ret, struct err *e);

/*
 * How an image is called when all is said: "alpine", "docker.io/library/alpine" and
 * "alpine:latest" are one. false: this names no image.
 */
bool oci_ref(const char *written, char ret[OCI_REF_MAX + 1]);

/* The suite that the base template is of. */
#define OCI_DEBIAN_BASE "bookworm"
/* For people: what oci_debian() knows. */
#define OCI_DEBIAN_KNOWN \
	"11 bullseye, 12 bookworm, 13 trixie, 14 forky, sid, testing, stable, oldstable"

/*
 * Does this name Debian as Docker's users do: "debian", "debian:12-slim", "debian:trixie-20250101"?
 * Then the suite it means: the base's when it names none in particular. "": there is none of that
 * name. NULL: this is something else.
 */
const char *oci_debian(const char *written);
