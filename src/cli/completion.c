/*
 * panda completion - for shells, out of the table of commands
 */
#include "cli/completion.h"

#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/commands.h"

static const char *const ask[] = {
    [WORD_SANDBOX] = "panda ls -q",
    [WORD_TEMPLATE] = "panda template ls --json | sed -n 's/^    \"name\": \"\\(.*\\)\".*/\\1/p'",
    [WORD_VOLUME] = "panda volume ls --json | sed -n 's/^    \"name\": \"\\(.*\\)\".*/\\1/p'",
    [WORD_SNAPSHOT] = "panda snapshot ls --json | sed -n 's/^    \"id\": \"\\(.*\\)\".*/\\1/p'",
    [WORD_TOKEN] = "panda token ls --json | sed -n 's/^    \"prefix\": \"\\(.*\\)\".*/\\1/p'",
    [WORD_SHELL] = "printf '%s\\n' bash zsh fish",
};

/* The i-th option of a command: its own, then those that all have. NULL: there are no more. */
static const struct cli_opt *opt_at(const struct cli_command *cmd, size_t i)
{
	const struct cli_opt *o = cmd->opts;

	for (; o && o->key; o++)
		if (!i--)
			return o;
	for (o = cli_common; o->key; o++)
		if ((!cmd->local || o->key == KEY_HELP) && !i--)
			return o;
	return NULL;
}

static void bash_words(const struct cli_command *cmd, FILE *to)
{
	const struct cli_opt *o;

	for (size_t i = 0; (o = opt_at(cmd, i)); i++) {
		if (o->key < KEY_FIRST)
			fprintf(to, "-%c ", o->key);
		fprintf(to, "--%s ", o->name);
	}
	for (const struct cli_verb *v = cmd->verbs; v && v->name; v++)
		fprintf(to, "%s ", v->name);
}

static void bash_values(const struct cli_command *cmd, FILE *to)
{
	const struct cli_opt *o;

	for (size_t i = 0; (o = opt_at(cmd, i)); i++) {
		if (!o->arg)
			continue;
		fprintf(to, "\t\t%s:--%s", cmd->name, o->name);
		if (o->key < KEY_FIRST)
			fprintf(to, "|%s:-%c", cmd->name, o->key);
		fputs(") ", to);
		if (o->word == WORD_FILE)
			fprintf(to, "compopt -o default ;;\n");
		else if (o->word)
			fprintf(to, "words=$(%s 2>/dev/null) ;;\n", ask[o->word]);
		else
			fprintf(to, "words= ;;\n");
	}
}

static void bash(FILE *to)
{
	fprintf(to,
	        "# panda completion bash\n"
	        "_panda()\n{\n"
	        "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n"
	        "\tlocal cmd=${COMP_WORDS[1]} verb=${COMP_WORDS[2]}\n"
	        "\tif ((COMP_CWORD == 1)); then\n\t\twords='");
	for (const struct cli_command *const *c = cli_commands; *c; c++)
		fprintf(to, "%s ", (*c)->name);
	fprintf(to, "--help --version'\n\telse\n\tcase $cmd:$prev in\n");
	for (const struct cli_command *const *c = cli_commands; *c; c++)
		bash_values(*c, to);
	fprintf(to, "\t\t*)\n\t\tcase $cmd in\n");
	for (const struct cli_command *const *c = cli_commands; *c; c++) {
		fprintf(to, "\t\t%s) words='", (*c)->name);
		bash_words(*c, to);
		fprintf(to, "'");
		if ((*c)->word == WORD_FILE || (*c)->raw)
			fprintf(to, "; compopt -o default");
		else if ((*c)->word)
			fprintf(to, "; [[ $cur == -* ]] || words=$(%s 2>/dev/null)",
			        ask[(*c)->word]);
		for (const struct cli_verb *v = (*c)->verbs; v && v->name; v++)
			if (v->word && v->word != WORD_FILE)
				fprintf(
				    to,
				    "\n\t\t\t[[ $verb != %s || $COMP_CWORD -lt 3 || $cur == -* ]] "
				    "|| words=$(%s 2>/dev/null)",
				    v->name, ask[v->word]);
		fprintf(to, " ;;\n");
	}
	/* compgen runs what is in $( ): a server's words are words, and nothing else. */
	fprintf(to, "\t\tesac ;;\n\tesac\n\tfi\n"
	            "\twords=${words//[^a-zA-Z0-9._[:space:]-]/}\n"
	            "\tCOMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\n"
	            "complete -F _panda panda\n");
}

/* In single quotes, for zsh and fish. */
static void quoted(const char *s, FILE *to)
{
	fputc('\'', to);
	for (; *s; s++)
		if (*s == '\'')
			fputs("'\\''", to);
		else if (*s == '\n')
			fputc(' ', to);
		else
			fputc(*s, to);
	fputc('\'', to);
}

/* Inside an _arguments specification. */
static void zsh_text(const char *s, FILE *to)
{
	for (; *s; s++) {
		if (strchr("[]:\\", *s))
			fputc('\\', to);
		if (*s == '\'')
			fputs("'\\'", to);
		fputc(*s, to);
	}
}

static void zsh_action(enum cli_word word, FILE *to)
{
	static const char *const names[] = {
	    [WORD_SANDBOX] = "sandboxes",  [WORD_TEMPLATE] = "templates", [WORD_VOLUME] = "volumes",
	    [WORD_SNAPSHOT] = "snapshots", [WORD_TOKEN] = "tokens",       [WORD_SHELL] = "shells",
	};

	if (word == WORD_FILE)
		fputs("_files", to);
	else if (word)
		fprintf(to, "_panda_%s", names[word]);
}

static void zsh_command(const struct cli_command *cmd, FILE *to)
{
	const struct cli_opt *o;

	fprintf(to, "\t%s) _arguments -s", cmd->name);
	for (size_t i = 0; (o = opt_at(cmd, i)); i++) {
		fprintf(to, " \\\n\t\t'*--%s%s[", o->name, o->arg ? "=" : "");
		zsh_text(o->help, to);
		fputc(']', to);
		if (o->arg) {
			fputc(':', to);
			zsh_text(o->arg, to);
			fputc(':', to);
			zsh_action(o->word, to);
		}
		fputc('\'', to);
		if (o->key >= KEY_FIRST)
			continue;
		fprintf(to, " '*-%c[same]%s", o->key, o->arg ? ":value:" : "");
		if (o->arg)
			zsh_action(o->word, to);
		fputc('\'', to);
	}
	if (cmd->verbs) {
		fprintf(to, " \\\n\t\t'1:verb:(");
		for (const struct cli_verb *v = cmd->verbs; v->name; v++)
			fprintf(to, "%s%s", v == cmd->verbs ? "" : " ", v->name);
		fprintf(to, ")'");
		/* Verbs differ in what they take; the first kind that any takes is a good guess. */
		for (const struct cli_verb *v = cmd->verbs; v->name; v++)
			if (v->word) {
				fprintf(to, " '*:argument:");
				zsh_action(v->word, to);
				fputc('\'', to);
				break;
			}
	} else if (cmd->word || cmd->raw) {
		fprintf(to, " \\\n\t\t'*:argument:");
		zsh_action(cmd->raw ? WORD_FILE : cmd->word, to);
		fputc('\'', to);
	}
	fprintf(to, " ;;\n");
}

static void zsh(FILE *to)
{
	fprintf(to, "#compdef panda\n# panda completion zsh\n");
	for (int w = WORD_SANDBOX; w <= WORD_SHELL; w++) {
		if (!ask[w])
			continue;
		zsh_action((enum cli_word)w, to);
		fprintf(to, "() { compadd -- ${(f)\"$(%s 2>/dev/null)\"} }\n", ask[w]);
	}
	fprintf(to, "_panda_commands() {\n\tlocal -a commands=(\n");
	for (const struct cli_command *const *c = cli_commands; *c; c++) {
		autofree char *line = NULL;

		if (asprintf(&line, "%s:%s", (*c)->name, (*c)->what) < 0)
			return;
		fprintf(to, "\t\t");
		quoted(line, to);
		fputc('\n', to);
	}
	fprintf(to, "\t)\n\t_describe command commands\n}\n"
	            "_panda() {\n\tif ((CURRENT == 2)); then _panda_commands; return; fi\n"
	            "\tlocal cmd=$words[2]\n\tshift words; ((CURRENT--))\n\tcase $cmd in\n");
	for (const struct cli_command *const *c = cli_commands; *c; c++)
		zsh_command(*c, to);
	fprintf(to,
	        "\tesac\n}\nif [[ $zsh_eval_context[-1] == loadautofunc ]]; then _panda \"$@\"; "
	        "else compdef _panda panda; fi\n");
}

static void fish(FILE *to)
{
	fprintf(to, "# panda completion fish\ncomplete -c panda -f\n");
	for (const struct cli_command *const *c = cli_commands; *c; c++) {
		const struct cli_command *cmd = *c;
		const struct cli_opt *o;

		fprintf(to, "complete -c panda -n __fish_use_subcommand -a %s -d ", cmd->name);
		quoted(cmd->what, to);
		fputc('\n', to);
		for (size_t i = 0; (o = opt_at(cmd, i)); i++) {
			fprintf(to, "complete -c panda -n '__fish_seen_subcommand_from %s'",
			        cmd->name);
			if (o->key < KEY_FIRST)
				fprintf(to, " -s %c", o->key);
			fprintf(to, " -l %s -d ", o->name);
			quoted(o->help, to);
			if (o->arg && o->word == WORD_FILE)
				fprintf(to, " -r -F");
			else if (o->arg && o->word) {
				autofree char *call = NULL;

				if (asprintf(&call, "(%s 2>/dev/null)", ask[o->word]) < 0)
					return;
				fprintf(to, " -x -a ");
				quoted(call, to);
			} else if (o->arg)
				fprintf(to, " -x");
			fputc('\n', to);
		}
		for (const struct cli_verb *v = cmd->verbs; v && v->name; v++) {
			fprintf(to,
			        "complete -c panda -n '__fish_seen_subcommand_from %s' -a %s -d ",
			        cmd->name, v->name);
			quoted(v->what, to);
			fputc('\n', to);
		}
		if (cmd->word == WORD_FILE || cmd->raw)
			fprintf(to, "complete -c panda -n '__fish_seen_subcommand_from %s' -F\n",
			        cmd->name);
		else if (cmd->word) {
			autofree char *call = NULL;

			if (asprintf(&call, "(%s 2>/dev/null)", ask[cmd->word]) < 0)
				return;
			fprintf(to, "complete -c panda -n '__fish_seen_subcommand_from %s' -a ",
			        cmd->name);
			quoted(call, to);
			fputc('\n', to);
		}
	}
}

bool completion_write(const char *shell, FILE *to)
{
	if (!strcmp(shell, "bash"))
		bash(to);
	else if (!strcmp(shell, "zsh"))
		zsh(to);
	else if (!strcmp(shell, "fish"))
		fish(to);
	else
		return false;
	return true;
}

static int run(struct cli *c)
{
	if (cli_args(c, 1, 1))
		return CLI_PANDA;
	if (!completion_write(c->argv[0], stdout))
		return cli_bad(c, "it knows bash, zsh and fish, not '%.40s'", c->argv[0]);
	return CLI_OK;
}

const struct cli_command command_completion = {
    .name = "completion",
    .args = "bash|zsh|fish",
    .what = "print completion for a shell",
    .about =
	"Prints what a shell needs to complete commands, options, ids and names. It is made from\n"
	"the same table as this help.",
    .word = WORD_SHELL,
    .local = true,
    .examples = "  panda completion bash >/etc/bash_completion.d/panda\n"
		"  panda completion fish | source\n",
    .run = run,
};
