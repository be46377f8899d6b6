/*
 * cli/cli.h - what the subcommands of panda share
 * A subcommand is a struct cli_command in a file of its own; commands.c has the table of them. The
 * table says everything that parsing, --help and shell completion need, so none of them goes stale.
 * main() parses the options before the command runs; the command asks for them by key.
 */
#pragma once
#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"
#include "client/panda.h"

/* Exit codes; a command that runs something in a guest passes the guest's on. */
enum {
	CLI_OK = 0,
	CLI_FAILED = 1, /* machine and doctor */
	CLI_USAGE = 2,  /* machine and doctor */
	CLI_TIMEOUT = 124,
	CLI_PANDA = 125, /* every other command, when it was panda itself that failed */
};

enum {
	CLI_GIVEN_MAX = 256, /* options on one command line */
	CLI_ID = 64,
};

/* What a word on the command line is: for completion. */
enum cli_word {
	WORD_NONE,
	WORD_SANDBOX,
	WORD_TEMPLATE,
	WORD_VOLUME,
	WORD_SNAPSHOT,
	WORD_TOKEN,
	WORD_FILE,
	WORD_SHELL, /* bash, zsh, fish */
};

/* Keys of options without a letter. */
enum cli_key {
	KEY_HELP = 'h',
	KEY_FIRST = 256,
	KEY_ACCEPT,
	KEY_ALL,
	KEY_APPEND,
	KEY_ARG,
	KEY_ATTACH,
	KEY_AUTO_HIBERNATE,
	KEY_CA_FILE,
	KEY_CHECKPOINTS,
	KEY_CONFIG,
	KEY_DRY_RUN,
	KEY_EGRESS,
	KEY_ENV_FILE,
	KEY_FROM,
	KEY_HOST_KEY,
	KEY_IDLE,
	KEY_IMAGE,
	KEY_INTERVAL,
	KEY_JSON,
	KEY_KEEP,
	KEY_KILL_OTHERS,
	KEY_LABEL,
	KEY_NAME,
	KEY_PERSISTENT,
	KEY_READ_ONLY,
	KEY_REPLACE,
	KEY_RM,
	KEY_ROTATE,
	KEY_SANDBOX,
	KEY_SCOPE,
	KEY_SIGNAL,
	KEY_STATUS,
	KEY_TENANT,
	KEY_THEIRS,
	KEY_TIMEOUT,
	KEY_TTL,
	KEY_TTY,
	KEY_URL,
};

struct cli_opt {
	int key; /* its letter, or an enum cli_key when it has none */
	const char *name;
	const char *arg; /* NULL: it takes none */
	const char *help;
	enum cli_word word;
};

struct cli;

struct cli_verb {
	const char *name, *args, *what;
	int (*run)(struct cli *c);
	enum cli_word word;
};

struct cli_command {
	const char *name, *args, *what;
	const char *about;            /* a few lines; NULL: what is enough */
	const struct cli_opt *opts;   /* ends with a zero key; NULL: none of its own */
	const struct cli_verb *verbs; /* ends with a NULL name; the first argument chooses one */
	const char *examples;         /* two lines, each begins with two spaces */
	enum cli_word word;           /* what its arguments are */
	bool guest;                   /* the first word that is no option ends our options */
	bool local;                   /* needs no server: no --url and the like */
	bool docker;                  /* -it means --tty, whatever -t is */
	int misused;                  /* exit code of a misuse; 0: CLI_PANDA */
	int (*run)(struct cli *c);    /* NULL when it has verbs */
	int (*raw)(int argc, char **argv); /* parses for itself */
};

extern const struct cli_command *const cli_commands[]; /* ends with NULL */

struct cli {
	const struct cli_command *cmd;
	const struct cli_verb *verb;
	int argc; /* what is left behind the options (and the verb) */
	char **argv;
	bool json;
	struct {
		int key;
		const char *arg;
	} given[CLI_GIVEN_MAX];
	size_t ngiven;
	struct panda *panda; /* cli_open() */
};

/* Finds the command and runs it; argv[0] is the program. */
int cli_main(int argc, char **argv);
const struct cli_command *cli_find(const char *name);
/* A chapter of --help begins with this command. */
struct cli_chapter {
	const char *title;
	const struct cli_command *first;
};
extern const struct cli_chapter cli_chapters[]; /* ends with a NULL title */
/* Another word for a command, or for a command and its verb, as other tools have it. */
struct cli_alias {
	const char *word, *command, *verb;
};
extern const struct cli_alias cli_aliases[]; /* ends with a NULL word */
/* --help of a command; what completion and the man page are checked against. */
void cli_help(const struct cli_command *cmd, FILE *to);
extern const struct cli_opt cli_common[]; /* what every command with a server has */

/* ---- options ---- */

bool cli_has(const struct cli *c, int key);
/* The last one given, or other. */
const char *cli_str(const struct cli *c, int key, const char *other);
/* 0, or what cli_bad() gives, said. *ret keeps its value when it is not given. */
int cli_num(const struct cli *c, int key, long min, long max, long *ret);
/* "90", "90s", "15m", "2h", "1d" */
int cli_seconds(const struct cli *c, int key, long *ret);
/* NAME=VALUE as often as given, into an object. */
int cli_pairs(const struct cli *c, int key, json_t *into);
/* The variables of --env-file, then those of -e, into an object. */
int cli_env(const struct cli *c, json_t *into);
/* "64", "64M", "1G", "2T" in MiB, at least 1. As cli_num() otherwise. */
int cli_mib(const struct cli *c, int key, long max, long *ret);
/* 0 when there are min to max arguments left (max -1: any number), else as cli_bad(), said. */
int cli_args(const struct cli *c, int min, int max);

/* ---- talking ---- */

/* Says what is wrong and where the help is. CLI_PANDA, or what the command says of misuse. */
int cli_bad(const struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "panda: text", with the next step where we know one. Both return CLI_PANDA. */
int cli_say(const struct cli *c, const struct panda_error *e);
int cli_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Our stdout took no more: says so. CLI_PANDA. */
int cli_unwritten(int errnum);
/* The client; says what is wrong when there is none. 0 or CLI_PANDA. */
int cli_open(struct cli *c);
void cli_json(const json_t *j); /* --json */
void cli_fields(json_t *j);     /* an object for people: one field on a line */
/* What there is now: all of it with --json, else the field that names it. CLI_OK. */
int cli_made(const struct cli *c, const json_t *made, const char *key);

/* machine and doctor: "panda: text" and CLI_FAILED; what is wrong and CLI_USAGE. */
int cli_fail(const struct err *e);
int cli_usage(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- json ---- */

void cli_json_free(json_t **j);
#define autojson __attribute__((cleanup(cli_json_free)))
void cli_free_panda(struct panda **p);
/* "" and 0 when it is not there. */
const char *js(const json_t *j, const char *key);
long long ji(const json_t *j, const char *key);

/*
 * One call with a path (freed here, NULL: out of memory). 0, or CLI_PANDA after saying why. ret may
 * be NULL.
 */
int cli_call(struct cli *c, const char *method, char *path, json_t **ret);
/*
 * The same with a body, which is freed here. NULL is what json_pack() makes of a word that is not
 * UTF-8: nothing is sent then, because a request without its body would be another request.
 */
int cli_send(struct cli *c, const char *method, char *path, json_t *body, json_t **ret);

/*
 * Asks on a terminal before something is gone for ever; elsewhere, and with --yes, the answer is
 * yes. Without one it says that nothing was done.
 */
bool cli_sure(const struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* DELETE of this path for each argument; at least one. A failure does not keep it from the
 * others. */
int cli_delete_each(struct cli *c, const char *fmt);

/* ---- which one was meant ---- */

/*
 * A sandbox by its id, the beginning of it, or its name. 0, or CLI_PANDA after saying what is
 * wrong. A whole id is taken as it is, without asking the server.
 */
int cli_id(struct cli *c, const char *text, char id[CLI_ID]);
/* The same in a list that the caller has; what is "sandbox", "snapshot", ... */
int cli_pick(struct cli *c, const json_t *list, const char *what, const char *text,
             char id[CLI_ID]);
int cli_snapshot_id(struct cli *c, const char *text, char id[CLI_ID]);
/* NAME, NAME:/PATH or NAME:/PATH:ro as the API takes it. NULL: said what is wrong. */
json_t *cli_volume(struct cli *c, const char *text);
/* cli_id() and cli_open() for the first argument, which is cut off. */
int cli_first_id(struct cli *c, char id[CLI_ID]);

/* The array in a reply that is one, or has one under that key. Borrowed; never NULL. */
const json_t *cli_list(const json_t *reply, const char *key);

/* What a sandbox may reach, of words: off, open, or hosts with commas between (egress.c). */
int cli_egress(struct cli *c, int argc, char **argv, json_t *body);
/* Words and their options that create and run share (create.c). */
int cli_create_body(struct cli *c, json_t **ret);

int cmd_machine(int argc, char **argv);
