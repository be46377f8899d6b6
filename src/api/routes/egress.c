/*
 * api/routes/egress.c - what a body says about the network of a sandbox
 */
#include <errno.h>
#include <string.h>

#include "api/api_internal.h"
#include "api/routes/sandbox_spec.h"
#include "base/err.h"
#include "base/macro.h"
#include "host/network.h"

enum {
	KBIT_MAX = 100000000, /* 100 Gbit/s */
	EGRESS_MAX = 256,
	EGRESS_ENTRY_MAX = 260,
};

static bool egress_entry(const char *s)
{
	size_t n = strlen(s);

	return n >= 1 && n <= EGRESS_ENTRY_MAX &&
	       strspn(s,
	              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.*:/_-[]") ==
	           n;
}

static int egress_allow(const json_t *body, json_t **ret, struct err *e)
{
	const json_t *list = spec_field(body, "egress_allowlist"),
		     *word = spec_field(body, "egress"), *v;
	size_t i;

	if (word) {
		const char *s = json_string_value(word);

		if (!s || (strcmp(s, "off") != 0 && strcmp(s, "open") != 0))
			return spec_bad(e, "egress", "must be \"off\" or \"open\"");
		if (list && json_array_size(list) && strcmp(s, "off") == 0)
			return spec_bad(e, "egress",
			                "is \"off\", but egress_allowlist names hosts");
		if (!list || strcmp(s, "off") == 0) {
			*ret = strcmp(s, "off") == 0 ? json_array() : json_string("open");
			return *ret ? 0 : err_nomem(e);
		}
	}
	if (!list)
		return 0;
	if (!json_is_array(list) || json_array_size(list) > EGRESS_MAX)
		return err_set(e, EINVAL, "bad_request",
		               "field 'egress_allowlist' must be a list of up to %d strings",
		               EGRESS_MAX);
	json_array_foreach(list, i, v) {
		if (!json_is_string(v) || !egress_entry(json_string_value(v)))
			return err_set(e, EINVAL, "bad_request",
			               "field 'egress_allowlist': element %zu must be a host name, "
			               "*.name, name:port, name:port/udp, address or CIDR",
			               i);
	}
	*ret = json_incref((json_t *)list);
	return 0;
}

/* Copies what we know of it: the rest is ignored, as everywhere. */
static int egress_limits(const json_t *given, json_t **ret, struct err *e)
{
	static const struct {
		const char *key;
		json_int_t max;
	} known[] = {{"connections", 65536}, {"up_kbit", KBIT_MAX}, {"down_kbit", KBIT_MAX}};
	json_t *limits = json_object();
	int r = limits ? 0 : err_nomem(e);

	if (r == 0 && !json_is_object(given))
		r = spec_bad(e, "egress_limits", "must be an object");
	for (size_t i = 0; i < ARRAY_LEN(known) && r == 0; i++) {
		const json_t *v = spec_field(given, known[i].key);

		if (!v)
			continue;
		if (!json_is_integer(v) || json_integer_value(v) < 1 ||
		    json_integer_value(v) > known[i].max)
			r = err_set(e, EINVAL, "bad_request",
			            "field 'egress_limits': %s must be a number from 1 to %lld",
			            known[i].key, (long long)known[i].max);
		else
			json_object_set(limits, known[i].key, (json_t *)v);
	}
	if (r == 0 && json_object_size(limits))
		*ret = json_incref(limits);
	json_decref(limits);
	return r;
}

int egress_parse(const json_t *body, const json_t *now, json_t **ret, struct err *e)
{
	const json_t *limits = json_object_get(body, "egress_limits");
	json_t *allow = NULL, *most = NULL;
	int r = 0;

	if (json_object_get(body, "egress_allowlist") || json_object_get(body, "egress"))
		r = egress_allow(body, &allow, e);
	else
		allow = json_incref((json_t *)network_allow(now));
	if (r == 0 && limits && !json_is_null(limits))
		r = egress_limits(limits, &most, e);
	else if (r == 0 && !limits)
		most = json_incref((json_t *)network_limits(now));
	if (r == 0 && network_join(allow, most, ret) < 0)
		r = err_nomem(e);
	json_decref(allow);
	json_decref(most);
	return r;
}

json_t *egress_list(const json_t *egress)
{
	const json_t *allow = network_allow(egress);

	return json_is_array(allow) ? json_incref((json_t *)allow) : json_null();
}
