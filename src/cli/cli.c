/*
 * cli/cli.c - options from a table, help from the same table, and how we say what went wrong
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/macro.h"
#include "base/nearest.h"
#include "cli/cli.h"
#include "cli/show.h"
#include "client/panda.h"

const struct cli_opt cli_common[] = {
    {KEY_JSON, "json", NULL, "print JSON, for programs", WORD_NONE},
    {KEY_URL, "url", "URL", "the server (PANDASTACK_API, http://127.0.0.1:8080)", WORD_NONE},
    {KEY_CA_FILE, "ca-file", "FILE", "trust these certificates (PEM) only", WORD_FILE},
    {KEY_HELP, "help", NULL, "this text", WORD_NONE},
    {0},
};

static const struct cli_opt only_help[] = {
    {KEY_HELP, "help", NULL, "this text", WORD_NONE},
    {0},
};

/* ---- help ---- */

static void help_opts(const struct cli_opt *o, FILE *to)
{
	char left[64];

	for (; o && o->key; o++) {
		snprintf(left, sizeof(left), "%s%c%s --%s%s%s", o->key < KEY_FIRST ? "-" : " ",
		         o->key < KEY_FIRST ? o->key : ' ', o->key < KEY_FIRST ? "," : " ", o->name,
		         o->arg ? " " : "", o->arg ? o->arg : "");
		fprintf(to, "  %-28s %s\n", left, o->help);
	}
}

void cli_help(const struct cli_command *cmd, FILE *to)
{
	const struct cli_verb *v = cmd->verbs;
	char left[64];

	fprintf(to, "usage: panda %s%s%s%s\n\n", cmd->name, v ? " VERB" : "",
	        cmd->args && *cmd->args ? " " : "", cmd->args ? cmd->args : "");
	fprintf(to, "%s\n\n", cmd->about ? cmd->about : cmd->what);
	for (; v && v->name; v++) {
		snprintf(left, sizeof(left), "%s %s", v->name, v->args);
		fprintf(to, "  %-28s %s\n", left, v->what);
	}
	if (cmd->verbs)
		fputc('\n', to);
	help_opts(cmd->opts, to);
	help_opts(cmd->local ? only_help : cli_common, to);
	fprintf(to, "\nExamples:\n%s", cmd->examples);
}

static void help_all(FILE *to)
{
	const struct cli_chapter *chapter = cli_chapters;

	fprintf(to, "usage: panda COMMAND [OPTION]... [ARG]...\n");
	for (const struct cli_command *const *c = cli_commands; *c; c++) {
		if (*c == chapter->first)
			fprintf(to, "\n%s:\n", chapter++->title);
		fprintf(to, "  %-12s %s\n", (*c)->name, (*c)->what);
	}
	fprintf(to,
	        "\nWords of other tools mean the same here: rm, delete (kill), list (ls), "
	        "inspect (get),\nattach (shell), stop (hibernate), start (wake), stats (top), "
	        "build (template build),\nimages, templates, snapshots, volumes, tokens (the ls "
	        "of each).\n\n"
	        "The key is in PANDASTACK_API_KEY or ~/.config/pandastack/config.json. Sandboxes\n"
	        "may be named by the beginning of their id. 'panda COMMAND --help' tells more.\n\n"
	        "Examples:\n"
	        "  panda run -it                           # a shell in a new sandbox\n"
	        "  panda run -- python3 -c 'print(6 * 7)'\n"
	        "  id=$(panda create) && panda shell $id; panda kill $id\n");
}

/* ---- options ---- */

static int add_given(struct cli *c, int key, const char *arg)
{
	if (c->ngiven == CLI_GIVEN_MAX)
		return cli_bad(c, "more than %d options", CLI_GIVEN_MAX);
	c->given[c->ngiven].key = key;
	c->given[c->ngiven++].arg = arg;
	return 0;
}

static void table_for(const struct cli_opt *o, struct option *lo, size_t max, size_t *n, char *so,
                      size_t so_len)
{
	size_t at = strlen(so);

	for (; o && o->key && *n + 1 < max; o++) {
		lo[(*n)++] = (struct option){.name = o->name,
		                             .has_arg = o->arg ? required_argument : no_argument,
		                             .val = o->key};
		if (o->key < KEY_FIRST && at + 3 < so_len) {
			so[at++] = (char)o->key;
			if (o->arg)
				so[at++] = ':';
			so[at] = 0;
		}
	}
}

static bool has_letter(const struct option *lo, int letter)
{
	for (; lo->name; lo++)
		if (lo->val == letter)
			return true;
	return false;
}

static int no_option(const struct cli *c, const char *given)
{
	struct nearest near = nearest_to(given + strspn(given, "-"));

	for (const struct cli_opt *o = c->cmd->opts; o && o->key; o++)
		nearest_try(&near, o->name);
	for (const struct cli_opt *o = c->cmd->local ? only_help : cli_common; o->key; o++)
		nearest_try(&near, o->name);
	if (near.found && !strchr(given, '='))
		return cli_bad(c, "there is no option '%.60s': did you mean --%s?", given,
		               near.found);
	return cli_bad(c, "there is no option '%.60s', or it takes no value", given);
}

/* Does the word behind this option belong to it? */
static bool takes_next(const struct cli_opt *o, const char *word)
{
	for (; o && o->key; o++)
		if (o->arg &&
		    (word[1] == '-' ? !strcmp(word + 2, o->name) : word[1] == o->key && !word[2]))
			return true;
	return false;
}

/* Among our options -it and -ti become --tty: -t has a value there. */
static void spell_out_tty(const struct cli_command *cmd, int argc, char **argv)
{
	static char tty[] = "--tty";

	for (int i = 1; i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0; i++) {
		if (!strcmp(argv[i], "-it") || !strcmp(argv[i], "-ti"))
			argv[i] = tty;
		i += takes_next(cmd->opts, argv[i]) || takes_next(cli_common, argv[i]);
	}
}

/* 0, an exit code, or -1 when help was asked for and given. */
static int parse(struct cli *c, int argc, char **argv)
{
	struct option lo[48] = {0};
	char so[64] = ":";
	size_t n = 0;
	int o, r;

	if (c->cmd->guest)
		snprintf(so, sizeof(so), "+:");
	table_for(c->cmd->opts, lo, ARRAY_LEN(lo), &n, so, sizeof(so));
	table_for(c->cmd->local ? only_help : cli_common, lo, ARRAY_LEN(lo), &n, so, sizeof(so));
	if (c->cmd->docker)
		spell_out_tty(c->cmd, argc, argv);
	optind = 0; /* glibc: start anew */
	while ((o = getopt_long(argc, argv, so, lo, NULL)) != -1) {
		if (o == ':')
			return cli_bad(c, "%s wants a value", argv[optind - 1]);
		if (o == '?') {
			/* A letter that there is: its long name was given a value. */
			if (optopt && optopt < KEY_FIRST && !has_letter(lo, optopt))
				return cli_bad(c, "there is no option -%c", optopt);
			return no_option(c, argv[optind - 1]);
		}
		if (o == KEY_HELP) {
			cli_help(c->cmd, stdout);
			return -1;
		}
		r = add_given(c, o, optarg);
		if (r)
			return r;
	}
	c->json = cli_has(c, KEY_JSON);
	c->argc = argc - optind;
	c->argv = argv + optind;
	return 0;
}

static int choose_verb(struct cli *c)
{
	char known[160] = "";
	size_t at = 0;

	for (const struct cli_verb *v = c->cmd->verbs; v->name; v++) {
		if (c->argc && !strcmp(c->argv[0], v->name))
			c->verb = v;
		at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", at ? ", " : "",
		                       v->name);
		at = MIN(at, sizeof(known) - 1);
	}
	if (!c->argc)
		return cli_bad(c, "say what to do: %s", known);
	if (!c->verb)
		return cli_bad(c, "it does not know '%.40s', only: %s", c->argv[0], known);
	c->argc--;
	c->argv++;
	return 0;
}

const struct cli_command *cli_find(const char *name)
{
	for (const struct cli_alias *a = cli_aliases; a->word; a++)
		if (!strcmp(name, a->word))
			name = a->command;
	for (const struct cli_command *const *c = cli_commands; *c; c++)
		if (!strcmp(name, (*c)->name))
			return *c;
	return NULL;
}

static int no_command(const char *word)
{
	struct nearest near = nearest_to(word);

	for (const struct cli_command *const *c = cli_commands; *c; c++)
		nearest_try(&near, (*c)->name);
	for (const struct cli_alias *a = cli_aliases; a->word; a++)
		nearest_try(&near, a->word);
	fprintf(stderr, "panda: there is no command '%.40s'", word);
	if (near.found)
		fprintf(stderr, ": did you mean '%s'?", near.found);
	fprintf(stderr, "\nTry 'panda --help'.\n");
	return CLI_USAGE;
}

/*
 * The words of the command line, with a command's own words in the place of an alias. Caller frees;
 * the strings are borrowed.
 */
static char **resolve_alias(int *argc, char **argv)
{
	char **words = calloc((size_t)*argc + 2, sizeof(*words));
	const struct cli_alias *a = cli_aliases;
	int n = 0;

	if (!words)
		return NULL;
	while (a->word && strcmp(a->word, argv[1]) != 0)
		a++;
	words[n++] = argv[0];
	words[n++] = a->word ? (char *)a->command : argv[1];
	if (a->verb)
		words[n++] = (char *)a->verb;
	for (int i = 2; i < *argc; i++)
		words[n++] = argv[i];
	*argc = n;
	return words;
}

/* A full disk or a reader that left must not look like success. */
static int flush_output(void)
{
	if (fflush(stdout) != 0)
		return cli_unwritten(errno);
	/* What a command has flushed itself is gone when that failed; only this remembers it. */
	return ferror(stdout) ? cli_die("cannot write the output") : CLI_OK;
}

int cli_main(int argc, char **given)
{
	autofree char **argv = NULL;
	struct cli c = {0};
	int r;

	if (argc < 2) {
		help_all(stderr);
		return CLI_USAGE;
	}
	argv = resolve_alias(&argc, given);
	if (!argv)
		return cli_die("out of memory");
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		c.cmd = argc > 2 ? cli_find(argv[2]) : NULL;
		if (c.cmd && c.cmd->raw)
			return c.cmd->raw(2, (char *[]){argv[2], (char *)"--help", NULL});
		if (c.cmd)
			cli_help(c.cmd, stdout);
		else
			help_all(stdout);
		return CLI_OK;
	}
	c.cmd = cli_find(!strcmp(argv[1], "--version") ? "version" : argv[1]);
	if (!c.cmd)
		return no_command(argv[1]);
	if (c.cmd->raw)
		return c.cmd->raw(argc - 1, argv + 1);
	r = parse(&c, argc - 1, argv + 1);
	if (r == 0 && c.cmd->verbs)
		r = choose_verb(&c);
	if (r == 0)
		r = c.verb ? c.verb->run(&c) : c.cmd->run(&c);
	panda_free(c.panda);
	if (r == -1)
		r = CLI_OK;
	return r == CLI_OK ? flush_output() : r;
}

bool cli_has(const struct cli *c, int key)
{
	for (size_t i = 0; i < c->ngiven; i++)
		if (c->given[i].key == key)
			return true;
	return false;
}

const char *cli_str(const struct cli *c, int key, const char *other)
{
	for (size_t i = c->ngiven; i-- > 0;)
		if (c->given[i].key == key)
			return c->given[i].arg;
	return other;
}

static const char *name_of(const struct cli *c, int key)
{
	for (const struct cli_opt *o = c->cmd->opts; o && o->key; o++)
		if (o->key == key)
			return o->name;
	return "?";
}

int cli_num(const struct cli *c, int key, long min, long max, long *ret)
{
	const char *s = cli_str(c, key, NULL);
	char *end;
	long v;

	if (!s)
		return 0;
	errno = 0;
	v = strtol(s, &end, 10);
	if (errno || end == s || *end || v < min || v > max)
		return cli_bad(c, "--%s wants a number from %ld to %ld, not '%.40s'",
		               name_of(c, key), min, max, s);
	*ret = v;
	return 0;
}

int cli_seconds(const struct cli *c, int key, long *ret)
{
	static const struct {
		char unit;
		long seconds;
	} units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
	const char *s = cli_str(c, key, NULL);
	long v, times = 1;
	char *end;

	if (!s)
		return 0;
	errno = 0;
	v = strtol(s, &end, 10);
	for (size_t i = 0; i < ARRAY_LEN(units) && end != s; i++)
		if (*end == units[i].unit && !end[1]) {
			times = units[i].seconds;
			end++;
		}
	if (errno || end == s || *end || v < 0 || v > INT_MAX / times)
		return cli_bad(c,
		               "--%s wants seconds, or a number with s, m, h or d behind it, "
		               "not '%.40s'",
		               name_of(c, key), s);
	*ret = v * times;
	return 0;
}

int cli_mib(const struct cli *c, int key, long max, long *ret)
{
	static const char units[] = "MGT";
	const char *s = cli_str(c, key, NULL), *unit = NULL;
	long v, times = 1;
	char *end;

	if (!s)
		return 0;
	errno = 0;
	v = strtol(s, &end, 10);
	if (end != s && *end)
		unit = strchr(units, *end);
	for (; unit && unit > units; unit--)
		times *= 1024;
	if (errno || end == s || (*end && (!unit || end[1])) || v < 1 || v > max / times)
		return cli_bad(c, "--%s wants a size like 512M or 10G, at most %ldM, not '%.40s'",
		               name_of(c, key), max, s);
	*ret = v * times;
	return 0;
}

/* NAME=VALUE, of which the name has n letters. */
static int add_pair(const struct cli *c, const char *pair, size_t n, json_t *into)
{
	autofree char *name = strndup(pair, n);

	if (!name || json_object_set_new(into, name, json_string(pair + n + 1)) < 0)
		return cli_bad(c, "'%.60s' is not UTF-8", pair);
	return 0;
}

int cli_pairs(const struct cli *c, int key, json_t *into)
{
	for (size_t i = 0; i < c->ngiven; i++) {
		const char *s = c->given[i].arg, *eq;

		if (c->given[i].key != key)
			continue;
		eq = strchr(s, '=');
		if (!eq || eq == s)
			return cli_bad(c, "--%s wants NAME=VALUE, not '%.60s'", name_of(c, key), s);
		if (add_pair(c, s, (size_t)(eq - s), into))
			return CLI_PANDA;
	}
	return 0;
}

/* As docker reads it: # begins a comment, a NAME alone has the value that it has here. */
static int env_line(const struct cli *c, const char *file, int n, char *line, json_t *into)
{
	const char *ours;
	char *eq;

	line += strspn(line, " \t");
	line[strcspn(line, "\r\n")] = 0;
	if (!*line || *line == '#')
		return 0;
	eq = strchr(line, '=');
	if (eq == line)
		return cli_bad(c, "%s:%d: there is no name before the =", file, n);
	if (eq)
		return add_pair(c, line, (size_t)(eq - line), into);
	ours = getenv(line);
	if (ours && json_object_set_new(into, line, json_string(ours)) < 0)
		return cli_bad(c, "%s:%d: '%.60s' is not UTF-8", file, n, line);
	return 0;
}

static int env_file(const struct cli *c, const char *file, json_t *into)
{
	autofree char *line = NULL;
	FILE *f = fopen(file, "re");
	int n = 0, r = 0;
	size_t room = 0;

	if (!f)
		return cli_die("cannot open %s: %s", file, strerror(errno));
	while (!r && getline(&line, &room, f) >= 0)
		r = env_line(c, file, ++n, line, into);
	if (!r && ferror(f))
		r = cli_die("cannot read %s", file);
	fclose(f);
	return r;
}

int cli_env(const struct cli *c, json_t *into)
{
	for (size_t i = 0; i < c->ngiven; i++)
		if (c->given[i].key == KEY_ENV_FILE && env_file(c, c->given[i].arg, into))
			return CLI_PANDA;
	return cli_pairs(c, 'e', into);
}

int cli_args(const struct cli *c, int min, int max)
{
	if (c->argc < min)
		return cli_bad(c, "it needs %s", c->verb ? c->verb->args : c->cmd->args);
	if (max >= 0 && c->argc > max)
		return cli_bad(c, "unexpected argument '%.60s'", c->argv[max]);
	return 0;
}

/* ---- talking ---- */

int cli_bad(const struct cli *c, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "panda %s%s%s: ", c->cmd->name, c->verb ? " " : "",
	        c->verb ? c->verb->name : "");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\nTry 'panda %s --help'.\n", c->cmd->name);
	return c->cmd->misused ? c->cmd->misused : CLI_PANDA;
}

int cli_die(const char *fmt, ...)
{
	va_list ap;

	fputs("panda: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	return CLI_PANDA;
}

int cli_unwritten(int errnum)
{
	return cli_die("cannot write the output: %s", strerror(errnum));
}

static const char *next_step(const struct cli *c, const struct panda_error *e)
{
	if (!strcmp(e->code, "connect") && c->panda)
		return strstr(panda_url(c->panda), "://127.") ||
		               strstr(panda_url(c->panda), "://localhost")
		           ? "is pandad running? `make up` starts one"
		           : "is that the right server? PANDASTACK_API or --url names another";
	if (e->status == 401)
		return c->panda && panda_has_key(c->panda)
		           ? "the server does not know this key: `make up` prints one that it knows"
		           : "there is no key: put it into PANDASTACK_API_KEY or "
		             "~/.config/pandastack/config.json";
	if (!strcmp(e->code, "sandbox_paused"))
		return "`panda resume ID` lets it go on";
	if (!strcmp(e->code, "sandbox_not_found"))
		return "`panda ls` shows what there is";
	if (!strcmp(e->code, "snapshot_not_found"))
		return "`panda snapshot ls` shows what there is";
	if (!strcmp(e->code, "exec_not_found"))
		return "`panda ps ID` shows what there is";
	if (!strcmp(e->code, "volume_not_found"))
		return "`panda volume ls` shows what there is";
	if (!strcmp(e->code, "quota_exceeded"))
		return "`panda me` shows the quota, `panda kill` makes room";
	if (!strcmp(e->code, "host_full"))
		return "`panda top` shows who uses the host; `panda hibernate` and `panda kill` "
		       "make room";
	return NULL;
}

int cli_say(const struct cli *c, const struct panda_error *e)
{
	const char *next = next_step(c, e);
	char shown[sizeof(e->text)];

	if (c->json) {
		autojson json_t *j =
		    json_pack("{s:s, s:s, s:i, s:s}", "error", e->text, "code", e->code, "status",
		              e->status, "request_id", e->request_id);
		autofree char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;

		/* On stderr, too: stdout is for answers. */
		fprintf(stderr, "%s\n", text ? text : e->text);
		return CLI_PANDA;
	}
	show_clean(e->text, shown, sizeof(shown)); /* a guest may have said a part of it */
	fprintf(stderr, "panda: %s\n", shown);
	if (next)
		fprintf(stderr, "       %s\n", next);
	return CLI_PANDA;
}

int cli_open(struct cli *c)
{
	struct panda_config cfg = {.url = cli_str(c, KEY_URL, NULL),
	                           .ca_file = cli_str(c, KEY_CA_FILE, NULL)};
	struct panda_error e;

	if (c->panda)
		return 0;
	return panda_new(&cfg, &c->panda, &e) < 0 ? cli_say(c, &e) : 0;
}

void cli_json(const json_t *j)
{
	json_dumpf(j, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
	putchar('\n');
}

int cli_made(const struct cli *c, const json_t *made, const char *key)
{
	if (c->json)
		cli_json(made);
	else
		printf("%s\n", js(made, key));
	return CLI_OK;
}

int cli_fail(const struct err *e)
{
	fprintf(stderr, "panda: %s\n", e->text);
	return CLI_FAILED;
}

int cli_usage(const char *command, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "panda %s: ", command);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\nTry 'panda %s --help'.\n", command);
	return CLI_USAGE;
}

/* ---- json ---- */

void cli_json_free(json_t **j)
{
	json_decref(*j);
}

const char *js(const json_t *j, const char *key)
{
	const char *s = json_string_value(json_object_get(j, key));

	return s ? s : "";
}

long long ji(const json_t *j, const char *key)
{
	const json_t *v = json_object_get(j, key);

	return json_is_real(v) ? (long long)json_real_value(v) : json_integer_value(v);
}

bool cli_sure(const struct cli *c, const char *fmt, ...)
{
	char answer[16] = "";
	va_list ap;

	if (cli_has(c, 'y') || !isatty(0) || !isatty(2))
		return true;
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, " [y/N] ");
	fflush(stderr);
	if (fgets(answer, sizeof(answer), stdin) && (*answer == 'y' || *answer == 'Y'))
		return true;
	cli_die("nothing was done");
	return false;
}

int cli_delete_each(struct cli *c, const char *fmt)
{
	int code = CLI_OK;

	if (cli_args(c, 1, -1))
		return CLI_PANDA;
	for (int i = 0; i < c->argc; i++)
		if (cli_call(c, "DELETE", panda_path(fmt, c->argv[i]), NULL))
			code = CLI_PANDA;
	return code;
}

static int call(struct cli *c, const char *method, char *path, json_t *body, json_t **ret)
{
	autofree char *owned = path;
	struct panda_error e;

	if (!owned)
		return cli_die("out of memory");
	if (cli_open(c))
		return CLI_PANDA;
	return panda_call(c->panda, method, owned, body, ret, &e) < 0 ? cli_say(c, &e) : 0;
}

int cli_call(struct cli *c, const char *method, char *path, json_t **ret)
{
	return call(c, method, path, NULL, ret);
}

int cli_send(struct cli *c, const char *method, char *path, json_t *body, json_t **ret)
{
	autojson json_t *owned = body;

	if (!owned) {
		free(path);
		return cli_bad(c, "what it was told is not UTF-8");
	}
	return call(c, method, path, owned, ret);
}
