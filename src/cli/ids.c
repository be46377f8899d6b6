/*
 * cli/ids.c - which sandbox was meant
 */
#include <ctype.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/show.h"
#include "client/panda.h"

static bool is_uuid(const char *s)
{
	for (int i = 0; i < 36; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;

		if (dash ? s[i] != '-' : !isxdigit((unsigned char)s[i]))
			return false; /* the end of a short one as well */
	}
	return !s[36];
}

const json_t *cli_list(const json_t *reply, const char *key)
{
	static json_t *empty;
	const json_t *inside = json_object_get(reply, key);

	if (json_is_array(reply))
		return reply;
	if (json_is_array(inside))
		return inside;
	if (!empty)
		empty = json_array();
	return empty;
}

int cli_pick(struct cli *c, const json_t *list, const char *what, const char *text, char id[CLI_ID])
{
	const json_t *found = NULL;
	char shown[80];

	show_clean(text, shown, sizeof(shown));
	switch (match_prefix(list, "id", text, &found)) {
	case MATCH_ONE:
		snprintf(id, CLI_ID, "%s", js(found, "id"));
		return 0;
	case MATCH_MANY:
		return cli_die("'%s' fits more than one %s: give more of its id", shown, what);
	case MATCH_NONE:
		break;
	}
	return cli_die("there is no %s '%s'\n       `panda %s` shows what there is", what, shown,
	               !strcmp(what, "snapshot") ? "snapshot ls" : "ls");
}

int cli_id(struct cli *c, const char *text, char id[CLI_ID])
{
	autojson json_t *list = NULL;
	struct panda_error e;

	if (cli_open(c))
		return CLI_PANDA;
	if (is_uuid(text)) {
		snprintf(id, CLI_ID, "%s", text);
		return 0;
	}
	if (panda_list(c->panda, &list, &e) < 0)
		return cli_say(c, &e);
	return cli_pick(c, cli_list(list, "items"), "sandbox", text, id);
}

int cli_first_id(struct cli *c, char id[CLI_ID])
{
	if (cli_args(c, 1, -1) || cli_id(c, c->argv[0], id))
		return CLI_PANDA;
	c->argc--;
	c->argv++;
	return 0;
}
