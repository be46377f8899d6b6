#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "template/dockerfile.h"

static struct dockerfile *parse(const char *text)
{
	struct dockerfile *d = NULL;
	struct err e = {0};
	int r = dockerfile_parse(text, strlen(text), &d, &e);

	if (r < 0)
		print_message("%s\n", e.text);
	assert_int_equal(r, 0);
	return d;
}

static void steps_have_words_and_lines(void **state)
{
	AUTO(dockerfile_freep)
	struct dockerfile *d = parse("# syntax=docker/dockerfile:1\r\n"
	                             "ARG V=12\r\n\r\n"
	                             "FROM base:$V AS build\r\n"
	                             "RUN apt-get update && \\\r\n"
	                             "  # why\r\n"
	                             "  apt-get install -y git\r\n"
	                             "copy --chown=a:b \"x y\" z /to/\r\n"
	                             "FROM base\r\n"
	                             "COPY --from=build /a /b\r\n"
	                             "ENV A=1 B=\"2 3\"\r\n"
	                             "ENV C d e\r\n"
	                             "CMD [\"run\", \"me\"]\r\n");

	assert_int_equal(d->nglobals, 1);
	assert_int_equal(d->nstages, 2);
	assert_string_equal(d->stages[0].base, "base:$V");
	assert_string_equal(d->stages[0].name, "build");
	assert_int_equal(d->nsteps, 6);
	assert_string_equal(d->steps[0].words[0], "apt-get update &&   apt-get install -y git");
	assert_int_equal(d->steps[0].line, 5);
	assert_int_equal(d->steps[1].line, 8);
	assert_string_equal(d->steps[1].chown, "a:b");
	assert_int_equal(d->steps[1].nwords, 3);
	assert_string_equal(d->steps[1].words[0], "\"x y\"");
	assert_int_equal(d->stages[1].first, 2);
	assert_int_equal(d->steps[2].from, 0);
	assert_string_equal(d->steps[3].words[3], "\"2 3\"");
	assert_string_equal(d->steps[4].words[1], "d e");
	assert_true(d->steps[5].exec);
	assert_string_equal(d->steps[5].words[1], "me");
}

static void copying_from_an_image_implies_a_stage(void **state)
{
	AUTO(dockerfile_freep)
	struct dockerfile *d = parse("FROM base AS a\n"
	                             "RUN x\n"
	                             "FROM base\n"
	                             "RUN y\n"
	                             "COPY --from=agent /1 /1\n"
	                             "COPY --from=a /2 /2\n"
	                             "COPY --from=debian:12 /3 /3\n"
	                             "COPY --from=agent /4 /4\n"
	                             "FROM a AS c\n"
	                             "COPY --from=1 /5 /5\n");
	static const int from[] = {-1, -1, 1, 0, 2, 1, 3};

	assert_int_equal(d->nstages, 5); /* a, agent, debian:12, the second, c */
	assert_true(d->stages[1].implied && d->stages[2].implied && !d->stages[3].implied);
	assert_string_equal(d->stages[1].base, "agent");
	assert_string_equal(d->stages[2].base, "debian:12");
	assert_int_equal(d->stages[2].line, 7);
	assert_int_equal(d->stages[1].first, d->stages[1].end);
	assert_int_equal(d->stages[3].first, 1);
	assert_int_equal(d->stages[3].end, 6);
	assert_int_equal(d->stages[4].from, 0);
	assert_int_equal(d->nsteps, ARRAY_LEN(from));
	for (size_t i = 0; i < ARRAY_LEN(from); i++)
		assert_int_equal(d->steps[i].from, from[i]);
}

static void heredocs_are_read(void **state)
{
	AUTO(dockerfile_freep)
	struct dockerfile *d = parse("FROM base\n"
	                             "RUN <<EOF\necho one\n# two\nEOF\n"
	                             "RUN cat <<-'E' >/x\n\ta $b\n\tE\n"
	                             "COPY <<A <<B /dir/\n1\nA\n2 $V\nB\n"
	                             "RUN echo $((a<<b)) \"<<C\"\n");

	assert_int_equal(d->nsteps, 4);
	assert_string_equal(d->steps[0].words[0], "echo one\n# two\n");
	assert_string_equal(d->steps[1].words[0], "cat <<-'E' >/x\na $b\nE");
	assert_false(d->steps[0].script);
	assert_int_equal(d->steps[2].nheredocs, 2);
	assert_string_equal(d->steps[2].heredocs[1].text, "2 $V\n");
	assert_string_equal(d->steps[2].words[0], "<<A");
	assert_int_equal(d->steps[3].nheredocs, 0);
	assert_int_equal(d->steps[3].line, 14);
}

static void a_script_says_what_runs_it(void **state)
{
	AUTO(dockerfile_freep)
	struct dockerfile *d = parse("# a comment with an = in it\n"
	                             "# escape=? is no directive behind a comment\n"
	                             "FROM --platform=$BUILDPLATFORM base\n"
	                             "RUN <<EOF\n#!/usr/bin/env python3\nprint(1)\nEOF\n"
	                             "RUN sh <<EOF\n#!/bin/false\nEOF\n"
	                             "COPY --parents=false --link a b\n"
	                             "COPY --parents a b\n");

	assert_int_equal(d->nsteps, 4);
	assert_true(d->steps[0].script && !d->steps[1].script);
	assert_true(!d->steps[2].parents && d->steps[3].parents);
}

static void mounts_are_read(void **state)
{
	AUTO(dockerfile_freep)
	struct dockerfile *d = parse(
	    "FROM base AS a\nFROM base\n"
	    "RUN --mount=type=cache,target=/c,id=x --mount=target=. --mount=from=a,dst=/d,rw "
	    "--mount=type=tmpfs,target=/t,size=10 --mount=type=bind,src=s,target=t,ro,from=z x\n");
	const struct docker_mount *m = d->steps[0].mounts;

	assert_int_equal(d->nstages, 3); /* z is an image */
	assert_int_equal(d->steps[0].nmounts, 5);
	assert_string_equal(d->steps[0].words[0], "x");
	assert_int_equal(m[0].kind, DOCKER_CACHE);
	assert_int_equal(m[1].kind, DOCKER_BIND);
	assert_string_equal(m[1].source, ".");
	assert_int_equal(m[1].from, -1);
	assert_true(m[2].writable && m[2].from == 0);
	assert_string_equal(m[2].source, "/");
	assert_int_equal(m[3].kind, DOCKER_TMPFS);
	assert_false(m[4].writable);
	assert_string_equal(m[4].source, "s");
	assert_int_equal(m[4].from, 1);
}

static void what_is_wrong_is_named_with_its_line(void **state)
{
	static const struct {
		const char *text, *line, *says;
	} bad[] = {
	    {"", ":1:", "no FROM"},
	    {"# only\n\n", ":2:", "no FROM"},
	    {"RUN x\n", ":1:", "before FROM"},
	    {"FROM\n", ":1:", "FROM takes"},
	    {"FROM a b\n", ":1:", "FROM takes"},
	    {"FROM a AS 1x\n", ":1:", "no name for a stage"},
	    {"FROM base\nFETCH x\n", ":2:", "no instruction 'FETCH'"},
	    {"FROM base\n\nRUN\n", ":3:", "needs a command"},
	    {"FROM base\nRUN []\n", ":2:", "needs a command"},
	    {"FROM base\nCOPY a\n", ":2:", "a source and a destination"},
	    {"FROM base\nCOPY --from=0 a b\n", ":2:", "no earlier stage"},
	    {"FROM base\nCOPY --from=x a b\nCOPY --from=1 a b\n", ":3:", "no earlier stage"},
	    {"FROM base\nCOPY --from=scratch a b\n", ":2:", "and no image"},
	    {"FROM base\nCOPY --from= a b\n", ":2:", "and no image"},
	    {"FROM base\nCOPY --what=0 a b\n", ":2:", "--what"},
	    {"FROM base\nRUN --mount=type=secret,id=x a\n", ":2:", "--mount"},
	    {"FROM base\nCOPY \"a b\n", ":2:", "no end"},
	    {"FROM base\nENV\n", ":2:", "needs a name"},
	    {"FROM base\nENV a=1 b\n", ":2:", "not NAME=value"},
	    {"FROM base\nENV a$b=1\n", ":2:", "no name of a variable"},
	    {"FROM base\nSHELL /bin/sh\n", ":2:", "needs a list"},
	    {"FROM base\nRUN <<EOF\nx\n", ":2:", "'EOF'"},
	    {"FROM base\nWORKDIR\n", ":2:", "a directory"},
	    {"FROM base\nUSER \\\n\n", ":2:", "a user"},
	    {"# escape=x\nFROM base\n", ":1:", "escape"},
	    {"FROM --foo=bar base\n", ":1:", "--foo=bar"},
	    {"FROM base\nRUN a \\\n\nb\x01\n\x02 x\n", ":5:", "no instruction '?'"},
	    {"FROM base\nRUN --mount=type=ssh a\n", ":2:", "type=ssh is not known"},
	    {"FROM base\nRUN --mount=type=cache a\n", ":2:", "needs a target"},
	    {"FROM base\nRUN --mount=type=bind,target a\n", ":2:", "'target' needs a value"},
	    {"FROM base\nRUN --mount=target=/a,what=b a\n", ":2:", "does not know 'what'"},
	    {"FROM base\nRUN --mount=target=/a,from=7 a\n", ":2:", "--from=7"},
	    {"FROM base\nRUN a \\\\\nb\n", ":3:", "no instruction 'b'"},
	    {"FROM --platform=linux/arm64 base\n", ":1:", "linux/amd64, and not linux/arm64"},
	    {"FROM base\nEXPOSE\n", ":2:", "EXPOSE needs a value"},
	    {"FROM base\nEXPOSE http\n", ":2:", "and not 'http'"},
	    {"FROM base\nEXPOSE 80/tpc\n", ":2:", "and not '80/tpc'"},
	    {"FROM base\nLABEL\n", ":2:", "LABEL needs a value"},
	    {"FROM base\nVOLUME\n", ":2:", "VOLUME needs"},
	    {"FROM base\nSTOPSIGNAL\n", ":2:", "STOPSIGNAL needs"},
	    {"FROM base\nMAINTAINER\n", ":2:", "MAINTAINER needs"},
	    {"FROM base\nONBUILD\n", ":2:", "ONBUILD needs"},
	    {"FROM base\nHEALTHCHECK --often CMD x\n", ":2:", "the option --often"},
	    {"FROM base\nHEALTHCHECK --interval= CMD x\n", ":2:", "the option --interval="},
	    {"FROM base\nCOPY --parents --from=base a b\n", ":2:", "--parents does not work"},
	    {"FROM base\nADD --parents a b\n", ":2:", "--parents"},
	    {"FROM base\nCOPY --exclude=x a b\n", ":2:", "--exclude"},
	    {"# syntax=x\n#escape = ?\nFROM base\n", ":2:", "escape"},
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct dockerfile *d = NULL;
		struct err e = {0};

		assert_int_equal(dockerfile_parse(bad[i].text, strlen(bad[i].text), &d, &e),
		                 -EINVAL);
		assert_null(d);
		assert_string_equal(e.kind, "bad_request");
		if (!strstr(e.text, bad[i].says) || strncmp(e.text + 10, bad[i].line, 3) != 0)
			fail_msg("'%s' gave '%s'", bad[i].text, e.text);
	}
	assert_int_equal(dockerfile_parse("FROM a\0b", 8, NULL, NULL), -EINVAL);
}

static void too_much_is_refused(void **state)
{
	static const char *const lines[] = {"FROM base\n", "RUN x\n", "COPY <<E /x\nE\n"};
	char *text = malloc(DOCKERFILE_MAX + 64);
	struct dockerfile *d = NULL;
	struct err e;

	assert_non_null(text);
	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		size_t n = 0, k = strlen(lines[i]);

		memcpy(text, "FROM base\n", 10);
		for (n = 10; n + k < DOCKERFILE_MAX; n += k)
			memcpy(text + n, lines[i], k);
		assert_int_equal(dockerfile_parse(text, n, &d, &e), -EINVAL);
		assert_non_null(strstr(e.text, "more than"));
	}
	memset(text, '\n', DOCKERFILE_MAX + 1);
	assert_int_equal(dockerfile_parse(text, DOCKERFILE_MAX + 1, &d, &e), -EFBIG);
	free(text);
}

/* As they are found in the world, shortened. */
static void real_shapes_are_understood(void **state)
{
	static const struct {
		const char *text;
		size_t stages, steps;
	} real[] = {
	    {"FROM python:3.11-slim\nENV PYTHONUNBUFFERED=1 \\\n    PIP_NO_CACHE_DIR=off\nWORKDIR "
	     "/app\n"
	     "COPY requirements.txt ./\nRUN --mount=type=cache,target=/root/.cache pip install -r "
	     "requirements.txt\nCOPY . .\nEXPOSE 8000/tcp\nHEALTHCHECK --interval=5m --timeout=3s "
	     "CMD curl -f http://localhost/ || exit 1\nUSER 1000:1000\n"
	     "CMD [\"gunicorn\", \"-b\", \"0.0.0.0:8000\", \"app:app\"]\n",
	     1, 9},
	    {"# syntax=docker/dockerfile:1.4\nARG GO=1.22\nFROM --platform=$BUILDPLATFORM "
	     "golang:${GO} AS build\nWORKDIR /src\nCOPY go.* .\nRUN go mod download\nCOPY --link . "
	     ".\nRUN CGO_ENABLED=0 go build -o /out/app ./cmd/...\nfrom build as test\nRUN go test "
	     "./...\nFROM base\nCOPY --from=build --chown=nobody /out/app /usr/bin/app\n"
	     "ENTRYPOINT [\"/usr/bin/app\"]\n",
	     3, 8},
	    {"FROM node:22 AS deps\nWORKDIR /app\nCOPY [\"package.json\", \"package-lock.json*\", "
	     "\"./\"]\nRUN npm ci --omit=dev\n\nFROM deps AS build\nRUN npm ci && npm run build\n\n"
	     "FROM node:22\nLABEL org.opencontainers.image.source=\"https://x\" \\\n      "
	     "maintainer='me'\nCOPY --from=deps /app/node_modules ./node_modules\n"
	     "COPY --from=1 /app/dist ./dist\nONBUILD RUN echo\nSTOPSIGNAL SIGTERM\nVOLUME "
	     "[\"/data\"]\nCMD node dist/main.js\n",
	     3, 11},
	    {"FROM debian:12\nSHELL [\"/bin/bash\", \"-o\", \"pipefail\", \"-c\"]\nRUN set -eux; "
	     "\\\n\tapt-get update; \\\n\t\\\n# a comment\n\tapt-get install -y "
	     "--no-install-recommends \\\n\t\tca-certificates \\\n\t; \\\n\trm -rf "
	     "/var/lib/apt/lists/*\nRUN <<-'EOT' bash -e\n\techo $HOME\n\tEOT\nCOPY <<EOF "
	     "/etc/motd\nhello $USER\nEOF\n",
	     1, 4},
	    {"# escape=`\nFROM base\nRUN dir `\n  C:\\\nENV X=a\\b\n", 1, 2},
	    {"\xef\xbb\xbf"
	     "FROM base\nMAINTAINER me <me@x>\nADD https://x/y.tar.gz /y\nRUN echo "
	     "'it''s \\' && echo \"a # b\"\n",
	     1, 3},
	};

	for (size_t i = 0; i < ARRAY_LEN(real); i++) {
		AUTO(dockerfile_freep) struct dockerfile *d = parse(real[i].text);

		assert_int_equal(d->nstages, real[i].stages);
		assert_int_equal(d->nsteps, real[i].steps);
	}
}

static const char *get(void *arg, const char *name)
{
	(void)arg;
	return !strcmp(name, "A") ? "one" : !strcmp(name, "EMPTY") ? "" : NULL;
}

static void variables_are_expanded(void **state)
{
	static const struct {
		const char *word, *is;
	} good[] = {
	    {"plain", "plain"},
	    {"$A-${A}$B", "one-one"},
	    {"'$A'\"$A\"", "$Aone"},
	    {"\\$A \\x", "$A x"},
	    {"\"a\\b \\\"\"", "a\\b \""},
	    {"${B:-x $A}", "x one"},
	    {"${A:-x}${EMPTY:-y}${EMPTY-z}", "oney"},
	    {"${A:+yes}${B:+no}", "yes"},
	    {"${B:-${C:-${A}}}", "one"},
	    {"$", "$"},
	    {"a$1", "a$1"},
	};
	static const char *const bad[] = {"${",
	                                  "${A",
	                                  "${A:x}",
	                                  "${B:?gone}",
	                                  "'a",
	                                  "${}",
	                                  "${B:-${B:-${B:-${B:-${B:-${B:-${B:-${B:-${B:-${B:-x"};
	char *s;
	struct err e;

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_int_equal(dockerfile_expand(good[i].word, '\\', true, 1, get, NULL, &s, &e),
		                 0);
		assert_string_equal(s, good[i].is);
		free(s);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(dockerfile_expand(bad[i], '\\', true, 7, get, NULL, &s, &e),
		                 -EINVAL);
	assert_int_equal(dockerfile_expand("\"$A\" 'x'", '\\', false, 1, get, NULL, &s, &e), 0);
	assert_string_equal(s, "\"one\" 'x'");
	free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(steps_have_words_and_lines),
	    cmocka_unit_test(copying_from_an_image_implies_a_stage),
	    cmocka_unit_test(heredocs_are_read),
	    cmocka_unit_test(a_script_says_what_runs_it),
	    cmocka_unit_test(mounts_are_read),
	    cmocka_unit_test(what_is_wrong_is_named_with_its_line),
	    cmocka_unit_test(too_much_is_refused),
	    cmocka_unit_test(real_shapes_are_understood),
	    cmocka_unit_test(variables_are_expanded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
