/*
 * panda pause, resume, hibernate, wake - the same for several sandboxes, four times
 */
#include "cli/cli.h"
#include "cli/commands.h"
#include "client/panda.h"

/* Goes on after a failure: the others were meant, too. */
static int each(struct cli *c, int (*call)(struct panda *, const char *, struct panda_error *))
{
	autojson json_t *done = json_array();
	struct panda_error e;
	char id[CLI_ID];
	int code = CLI_OK;

	if (cli_args(c, 1, -1) || cli_open(c))
		return CLI_PANDA;
	for (int i = 0; i < c->argc; i++) {
		if (cli_id(c, c->argv[i], id)) {
			code = CLI_PANDA;
		} else if (call(c->panda, id, &e) < 0) {
			code = cli_say(c, &e);
		} else {
			json_array_append_new(done, json_string(id));
			if (!c->json)
				printf("%s\n", id);
		}
	}
	if (c->json)
		cli_json(done);
	return code;
}

static int run_pause(struct cli *c)
{
	return each(c, panda_pause);
}

static int run_resume(struct cli *c)
{
	return each(c, panda_resume);
}

static int run_hibernate(struct cli *c)
{
	return each(c, panda_hibernate);
}

static int run_wake(struct cli *c)
{
	return each(c, panda_wake);
}

const struct cli_command command_pause = {
    .name = "pause",
    .args = "ID...",
    .what = "let sandboxes stand still; they keep their memory",
    .about = "Lets sandboxes stand still. They keep their memory and answer nothing until resumed.",
    .word = WORD_SANDBOX,
    .examples = "  panda pause 3f2a\n  panda ls -q --status running | xargs panda pause\n",
    .run = run_pause,
};

const struct cli_command command_resume = {
    .name = "resume",
    .args = "ID...",
    .what = "let paused sandboxes go on",
    .word = WORD_SANDBOX,
    .examples = "  panda resume 3f2a\n  panda ls -q --status paused | xargs panda resume\n",
    .run = run_resume,
};

const struct cli_command command_hibernate = {
    .name = "hibernate",
    .args = "ID...",
    .what = "save sandboxes to disk; they cost no memory then",
    .about =
	"Saves sandboxes to disk, memory and all, and gives their memory back to the host. The\n"
	"next command, file or terminal wakes them.",
    .word = WORD_SANDBOX,
    .examples = "  panda hibernate 3f2a\n  panda hibernate 3f2a && panda exec 3f2a -- uptime\n",
    .run = run_hibernate,
};

const struct cli_command command_wake = {
    .name = "wake",
    .args = "ID...",
    .what = "bring hibernated sandboxes back now",
    .about = "Brings hibernated sandboxes back before they are asked for something. One that runs\n"
	     "already is left alone.",
    .word = WORD_SANDBOX,
    .examples = "  panda wake 3f2a\n  panda ls -q --status hibernated | xargs panda wake\n",
    .run = run_wake,
};
