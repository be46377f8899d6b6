/*
 * panda template - what sandboxes start from
 */
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

static int ls(struct cli *c)
{
	autojson json_t *reply = NULL;
	struct table t;
	char size[16], text[61];
	json_t *v;
	size_t i;

	if (cli_args(c, 0, 0) || cli_call(c, "GET", panda_path("/v1/templates"), &reply))
		return CLI_PANDA;
	if (c->json) {
		cli_json(cli_list(reply, "items"));
		return CLI_OK;
	}
	table_init(&t, "NAME CPU MEMORY DISK RUNNER BAKED WHAT");
	json_array_foreach((json_t *)cli_list(reply, "items"), i, v) {
		const char *what = js(v, "description");

		show_size(ji(v, "size_bytes"), size, sizeof(size));
		table_add(&t, "%s", js(v, "name"));
		table_add(&t, "%lld", ji(v, "cpu"));
		table_add(&t, "%lldM", ji(v, "memory_mb"));
		table_add(&t, "%s", size);
		table_add(&t, "%s", js(v, "runner"));
		table_add(&t, "%s", json_is_true(json_object_get(v, "baked")) ? "yes" : "no");
		show_clean(*what ? what : js(v, "label"), text, sizeof(text));
		table_add(&t, "%s", text);
	}
	table_print(&t, stdout);
	table_fini(&t);
	return CLI_OK;
}

static int get(struct cli *c)
{
	autojson json_t *v = NULL;

	if (cli_args(c, 1, 1) || cli_call(c, "GET", panda_path("/v1/templates/%s", c->argv[0]), &v))
		return CLI_PANDA;
	cli_json(v);
	return CLI_OK;
}

static int rm(struct cli *c)
{
	if (c->argc && !cli_sure(c, "Remove %d template%s?", c->argc, c->argc == 1 ? "" : "s"))
		return CLI_PANDA;
	return cli_delete_each(c, "/v1/templates/%s");
}

static const struct cli_opt opts[] = {
    {'y', "yes", NULL, "do not ask before (rm)", WORD_NONE},
    {'f', "file", "FILE", "the Dockerfile (build; DIRECTORY/Dockerfile)", WORD_FILE},
    {'d', "detach", NULL, "do not wait for its end (build, import)", WORD_NONE},
    {KEY_ARG, "arg", "NAME=VALUE", "a value for an ARG of the Dockerfile (build)", WORD_NONE},
    {KEY_NAME, "name", "NAME", "what the template is to be called (import)", WORD_NONE},
    {KEY_IMAGE, "image", "NAME", "image to take of several in the archive (import)", WORD_NONE},
    {KEY_REPLACE, "replace", NULL, "replace your template of that name (build, import, save)",
     WORD_NONE},
    {0},
};

static const struct cli_verb verbs[] = {
    {"ls", "", "list templates", ls, WORD_NONE},
    {"get", "NAME", "show everything about it", get, WORD_TEMPLATE},
    {"rm", "NAME...", "remove templates of your own", rm, WORD_TEMPLATE},
    {"build", "NAME [DIRECTORY]", "build a template from a Dockerfile and the files it needs",
     cmd_template_build, WORD_FILE},
    {"import", "FILE", "turn an image (docker save, OCI) or root file system into a template",
     cmd_template_import, WORD_FILE},
    {"save", "SANDBOX NAME", "make a template that starts where a sandbox is now",
     cmd_template_save, WORD_SANDBOX},
    {"builds", "", "list builds", cmd_template_builds, WORD_NONE},
    {"logs", "BUILD", "print the log of a build, to its end", cmd_template_logs, WORD_NONE},
    {0},
};

const struct cli_command command_template = {
    .name = "template",
    .args = "[ARG]...",
    .what = "manage what sandboxes start from: ls, get, rm, build, import, save, builds, logs",
    .opts = opts,
    .verbs = verbs,
    .examples = "  panda template build mine ./app\n"
		"  panda template import image.tar --name theirs\n",
};
