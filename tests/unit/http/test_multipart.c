/*
 * http/multipart.h: forms as browsers and curl send them, cut anywhere; and those nobody sends.
 */
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
#include "http/multipart.h"

#define TYPE "multipart/form-data; boundary=XyZ"
#define D    "Content-Disposition: form-data; "

/* Tells the events as text: <name|filename|type>data[/], * at the end. Or the error. */
static int tell(const char *body, size_t n, size_t cut, char *ret, size_t size)
{
	struct multipart m;
	enum multipart_event ev;
	const char *data;
	size_t at = 0, len, out = 0;

	assert_int_equal(multipart_init(&m, TYPE), 0);
	ret[0] = 0;
	while (at < n) {
		/* A copy of its own for each piece, so that a sanitizer sees its end. */
		size_t k = at < cut ? cut - at : n - at;
		autofree char *piece = malloc(k);
		ssize_t ate;

		memcpy(piece, body + at, k);
		ate = multipart_eat(&m, piece, k, &ev, &data, &len);
		if (ate < 0)
			return (int)ate;
		assert_true((size_t)ate <= k);
		assert_true(ate > 0 || ev == MULTIPART_DATA);
		at += (size_t)ate;
		switch (ev) {
		case MULTIPART_PART:
			out += (size_t)snprintf(ret + out, size - out, "<%s|%s|%s>", m.name,
			                        m.filename ? m.filename : "-", m.type);
			break;
		case MULTIPART_DATA:
			out += (size_t)snprintf(ret + out, size - out, "%.*s", (int)len, data);
			break;
		case MULTIPART_PART_END:
			out += (size_t)snprintf(ret + out, size - out, "/");
			break;
		case MULTIPART_END:
			out += (size_t)snprintf(ret + out, size - out, "*");
			return 0;
		case MULTIPART_MORE:
			assert_true((size_t)ate == k);
		}
	}
	return -ENODATA; /* cut off */
}

#define RAW(s) s, sizeof(s) - 1

static const struct {
	const char *name, *body;
	size_t n;
	const char *told;
	int r;
} forms[] = {
    {"one field", RAW("--XyZ\r\n" D "name=\"a\"\r\n\r\nhello\r\n--XyZ--\r\n"),
     "<a|-|text/plain>hello/*", 0},
    {"a file",
     RAW("--XyZ\r\n" D "name=\"f\"; filename=\"x.tar\"\r\nContent-Type: application/x-tar\r\n\r\n"
         "data\r\n--XyZ\r\n" D "name=b\r\n\r\n2\r\n--XyZ--"),
     "<f|x.tar|application/x-tar>data/<b|-|text/plain>2/*", 0},
    {"empty value", RAW("--XyZ\r\n" D "name=\"a\"\r\n\r\n\r\n--XyZ--"), "<a|-|text/plain>/*", 0},
    {"nearly a boundary",
     RAW("--XyZ\r\n" D "name=a\r\n\r\n\r\n--Xy\r\r\n-\r\n\r\n--XyA\r\n--XyZ--"),
     "<a|-|text/plain>\r\n--Xy\r\r\n-\r\n\r\n--XyA/*", 0},
    {"quotes", RAW("--XyZ\r\n" D "name=\"a\\\"b\"; filename=\"C:\\dir\\\\x\"\r\n\r\n1\r\n--XyZ--"),
     "<a\"b|C:\\dir\\x|text/plain>1/*", 0},
    {"order and case",
     RAW("--XyZ\r\nX-Y: z\r\ncontent-type:  a/b \r\nCONTENT-DISPOSITION: Form-Data ; filename=x; "
         "name=y ;\r\n\r\n--XyZ\r\n--XyZ--"),
     "<y|x|a/b>--XyZ/*", 0},
    {"UTF-8", RAW("--XyZ\r\n" D "name=\"\xc3\xa4\"\r\n\r\n1\r\n--XyZ--junk"),
     "<\xc3\xa4|-|text/plain>1/*", 0},
    {"nothing", RAW("--XyZ--\r\n"), "*", 0},
    {"preamble", RAW("hello\r\n--XyZ\r\n" D "name=a\r\n\r\n1\r\n--XyZ--"), NULL, -EBADMSG},
    {"wrong boundary", RAW("--XyA\r\n" D "name=a\r\n\r\n1\r\n--XyZ--"), NULL, -EBADMSG},
    {"bare LF", RAW("--XyZ\n" D "name=a\n\n1\n--XyZ--"), NULL, -EBADMSG},
    {"bare LF in the head", RAW("--XyZ\r\n" D "name=a\n\r\n1\r\n--XyZ--"), NULL, -EBADMSG},
    {"longer boundary", RAW("--XyZ\r\n" D "name=a\r\n\r\n1\r\n--XyZZ--"), NULL, -EBADMSG},
    {"one dash", RAW("--XyZ\r\n" D "name=a\r\n\r\n1\r\n--XyZ-x"), NULL, -EBADMSG},
    {"no name", RAW("--XyZ\r\n" D "filename=a\r\n\r\n1\r\n--XyZ--"), NULL, -EBADMSG},
    {"no disposition", RAW("--XyZ\r\nContent-Type: a/b\r\n\r\n1\r\n--XyZ--"), NULL, -EBADMSG},
    {"no head", RAW("--XyZ\r\n\r\n1\r\n--XyZ--"), NULL, -EBADMSG},
    {"two names", RAW("--XyZ\r\n" D "name=a; name=b\r\n\r\n1\r\n--XyZ--"), NULL, -EBADMSG},
    {"attachment", RAW("--XyZ\r\nContent-Disposition: attachment; name=a\r\n\r\n1\r\n--XyZ--"),
     NULL, -EBADMSG},
    {"open quote", RAW("--XyZ\r\n" D "name=\"a\r\n\r\n1\r\n--XyZ--"), NULL, -EBADMSG},
    {"NUL in the name", RAW("--XyZ\r\n" D "name=\"a\0b\"\r\n\r\n1\r\n--XyZ--"), NULL, -EBADMSG},
    {"no UTF-8", RAW("--XyZ\r\n" D "name=\"\xff\"\r\n\r\n1\r\n--XyZ--"), NULL, -EBADMSG},
    {"cut off in the data", RAW("--XyZ\r\n" D "name=a\r\n\r\n1\r\n--Xy"), NULL, -ENODATA},
    {"cut off at the boundary", RAW("--XyZ\r\n" D "name=a\r\n\r\n1\r\n--XyZ"), NULL, -ENODATA},
};

static void forms_are_told_the_same_however_they_are_cut(void **state)
{
	for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
		for (size_t cut = 0; cut < forms[i].n; cut++) {
			char told[1024];
			int r = tell(forms[i].body, forms[i].n, cut, told, sizeof(told));

			if (r != forms[i].r || (r == 0 && strcmp(told, forms[i].told) != 0))
				fail_msg("%s, cut at %zu: %d %s", forms[i].name, cut, r, told);
		}
	}
}

static void content_types_have_a_boundary_or_are_refused(void **state)
{
	static const struct {
		const char *type;
		int r;
	} all[] = {
	    {TYPE, 0},
	    {"Multipart/Form-Data;boundary=\"a b:c\"", 0},
	    {"multipart/form-data; charset=utf-8; boundary=----WebKitFormBoundaryAbC123", 0},
	    {"multipart/form-data", -EINVAL},
	    {"multipart/form-data; boundary=", -EINVAL},
	    {"multipart/form-data; boundary=\"\"", -EINVAL},
	    {"multipart/form-data; boundary=\"a\r\nb\"", -EINVAL},
	    {"multipart/form-data; boundary=\"a \"", -EINVAL},
	    {"multipart/form-data; boundary=a; boundary=b", -EINVAL},
	    {"multipart/form-data; boundary=\"unclosed", -EINVAL},
	    {"multipart/form-dat; boundary=a", -EINVAL},
	    {"multipart/form-datax; boundary=a", -EINVAL},
	    {"application/json", -EINVAL},
	    {"", -EINVAL},
	    {"multipart/form-data; boundary="
	     "0123456789012345678901234567890123456789012345678901234567890123456789",
	     0},
	    {"multipart/form-data; boundary="
	     "01234567890123456789012345678901234567890123456789012345678901234567890",
	     -EINVAL},
	};

	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		struct multipart m;

		if (multipart_init(&m, all[i].type) != all[i].r)
			fail_msg("'%s'", all[i].type);
	}
}

static void heads_and_parts_have_limits(void **state)
{
	static char body[200000];
	char told[65536];
	int n = snprintf(body, sizeof(body), "--XyZ\r\n" D "name=a\r\nX: ");

	memset(body + n, 'x', 5000);
	assert_int_equal(tell(body, 5000, 0, told, sizeof(told)), -EMSGSIZE);

	for (n = 0; n < 150000;)
		n += snprintf(body + n, sizeof(body) - (size_t)n,
		              "--XyZ\r\n" D "name=a\r\n\r\n\r\n");
	assert_int_equal(tell(body, (size_t)n, 0, told, sizeof(told)), -EMSGSIZE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(forms_are_told_the_same_however_they_are_cut),
	    cmocka_unit_test(content_types_have_a_boundary_or_are_refused),
	    cmocka_unit_test(heads_and_parts_have_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
