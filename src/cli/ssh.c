/*
 * panda ssh, panda ssh-proxy - OpenSSH into a sandbox
 * ssh does the talking, we carry its bytes. Each sandbox gets a client key of its own, made here
 * and kept in ~/.config/pandastack/ssh; the server lets in the one that a connection names. What
 * the sandbox's own key is in this life, the server tells: nothing is trusted at first sight, and
 * nothing has to be forgotten when a sandbox was restored.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "cli/carry.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/execio.h"
#include "client/panda.h"

extern char **environ;

enum {
	KEY_FILE_MAX = 4096,
	SSH_FIXED = 40, /* words of ours in front of the user's */
};

/* ---- the client's key ---- */

/* The directory of keys, with everything above it. NULL: said. */
static char *key_dir(void)
{
	const char *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
	bool xdg = base && *base == '/';
	char *dir = NULL;

	if (!xdg && !(home && *home == '/')) {
		cli_die("neither HOME nor XDG_CONFIG_HOME says where keys could be kept");
		return NULL;
	}
	if (asprintf(&dir, "%s%s/pandastack/ssh", xdg ? base : home, xdg ? "" : "/.config") < 0) {
		cli_die("out of memory");
		return NULL;
	}
	for (char *at = strchr(dir + 1, '/'); at; at = strchr(at + 1, '/')) {
		*at = 0;
		(void)mkdir(dir, 0700); /* whether it is there, the last one tells */
		*at = '/';
	}
	if (mkdir(dir, 0700) < 0 && errno != EEXIST) {
		cli_die("cannot make %s: %s", dir, strerror(errno));
		free(dir);
		return NULL;
	}
	return dir;
}

static int keygen(const char *file)
{
	char *argv[] = {"ssh-keygen", "-q",    "-t", "ed25519",    "-N", "",
	                "-C",         "panda", "-f", (char *)file, NULL};
	pid_t pid;
	int status;

	if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ) != 0)
		return cli_die("ssh-keygen cannot be started: install the OpenSSH client");
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return cli_die("ssh-keygen: %s", strerror(errno));
	return status == 0 ? 0 : cli_die("ssh-keygen could not make %s", file);
}

/* The private key for this sandbox, made when there is none. One of us at a time. NULL: said. */
static char *key_file(const char *id)
{
	autofree char *dir = key_dir(), *file = NULL, *pub = NULL;
	autoclose int lock = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

	if (!dir)
		return NULL;
	if (lock < 0 || flock(lock, LOCK_EX) < 0 || asprintf(&file, "%s/%s", dir, id) < 0 ||
	    asprintf(&pub, "%s.pub", file) < 0) {
		cli_die("cannot use %s: %s", dir, strerror(errno));
		return NULL;
	}
	if (access(file, R_OK) == 0 && access(pub, R_OK) == 0)
		return take_ptr(file);
	unlink(file); /* half of a pair that an earlier panda did not finish */
	return keygen(file) ? NULL : take_ptr(file);
}

/* Kind and base64 of FILE.pub (or of FILE, when that is what we were given). NULL: said. */
static char *public_key(const char *file)
{
	autofree char *pub = NULL, *text = NULL;
	size_t kind, n;
	int r;

	if (asprintf(&pub, "%s.pub", file) < 0)
		return NULL;
	if (strlen(file) > 4 && strcmp(file + strlen(file) - 4, ".pub") == 0)
		pub[strlen(file)] = 0;
	r = io_read_file(AT_FDCWD, pub, KEY_FILE_MAX, &text, &n);
	if (r < 0) {
		cli_die("cannot read the public key %s: %s", pub, strerror(-r));
		return NULL;
	}
	kind = strcspn(text, " ");
	n = text[kind] ? kind + 1 + strcspn(text + kind + 1, " \r\n") : kind;
	text[n] = 0;
	return take_ptr(text);
}

/* ---- the words for ssh ---- */

/* The line that runs us again, for a shell and for ssh, which both read it. */
static char *our_line(struct cli *c, const char *what, const char *id)
{
	char self[4096], *argv[9], *line, *out, *to;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int argc = 0;

	if (n <= 0)
		return NULL;
	self[n] = 0;
	argv[argc++] = self;
	argv[argc++] = "ssh-proxy";
	argv[argc++] = "--url";
	argv[argc++] = (char *)panda_url(c->panda);
	if (cli_has(c, KEY_CA_FILE)) {
		argv[argc++] = "--ca-file";
		argv[argc++] = (char *)cli_str(c, KEY_CA_FILE, "");
	}
	if (what)
		argv[argc++] = (char *)what;
	argv[argc++] = (char *)id;
	line = execio_quote(argc, argv);
	out = line ? malloc(2 * strlen(line) + 1) : NULL;
	if (out) {
		to = out;
		for (const char *at = line; *at; at++) {
			if (*at == '%') /* ssh would put something in its place */
				*to++ = '%';
			*to++ = *at;
		}
		*to = 0;
	}
	free(line);
	return out;
}

struct ssh_setup {
	char *file, *proxy, *known;
};

static void setup_fini(struct ssh_setup *s)
{
	free(s->file);
	free(s->proxy);
	free(s->known);
}

static int setup(struct cli *c, const char *id, struct ssh_setup *ret)
{
	*ret = (struct ssh_setup){0};
	ret->file = key_file(id);
	if (!ret->file)
		return CLI_PANDA;
	ret->proxy = our_line(c, NULL, id);
	ret->known = our_line(c, "--host-key", id);
	return ret->proxy && ret->known ? 0 : cli_die("out of memory");
}

/*
 * What a sandbox must not get, though its user's own ssh_config may give it to every host: agents,
 * displays, tickets, commands here. panda ssh reads no such file; who has our lines in one gets
 * these.
 */
static const char *const forwards_nothing[] = {"ForwardAgent",
                                               "ForwardX11",
                                               "ForwardX11Trusted",
                                               "GSSAPIDelegateCredentials",
                                               "PermitLocalCommand",
                                               "Tunnel",
                                               NULL};

static int run_ssh(struct cli *c, const char *id, const struct ssh_setup *s)
{
	autofree char *proxy = NULL, *known = NULL, *file = NULL;
	autofree char **argv = calloc(SSH_FIXED + (size_t)c->argc, sizeof(*argv));
	char no[ARRAY_LEN(forwards_nothing)][64];
	int n = 0;

	if (!argv || asprintf(&proxy, "ProxyCommand=%s", s->proxy) < 0 ||
	    asprintf(&known, "KnownHostsCommand=%s", s->known) < 0 ||
	    asprintf(&file, "IdentityFile=\"%s\"", s->file) < 0)
		return cli_die("out of memory");
	argv[n++] = "ssh";
	argv[n++] = "-F";
	argv[n++] = "none";
	for (size_t i = 0; forwards_nothing[i]; i++) {
		snprintf(no[i], sizeof(no[i]), "%s=no", forwards_nothing[i]);
		argv[n++] = "-o";
		argv[n++] = no[i];
	}
	for (const char *const *o =
	         (const char *const[]){"IdentitiesOnly=yes", "UserKnownHostsFile=/dev/null",
	                               "GlobalKnownHostsFile=/dev/null",
	                               "StrictHostKeyChecking=yes", NULL};
	     *o; o++) {
		argv[n++] = "-o";
		argv[n++] = (char *)*o;
	}
	argv[n++] = "-o";
	argv[n++] = proxy;
	argv[n++] = "-o";
	argv[n++] = known;
	argv[n++] = "-o";
	argv[n++] = file;
	if (cli_has(c, 't'))
		argv[n++] = "-t";
	argv[n++] = "-l";
	argv[n++] = "root";
	argv[n++] = "--";
	argv[n++] = (char *)id;
	for (int i = 0; i < c->argc; i++)
		argv[n++] = c->argv[i];
	execvp(argv[0], argv);
	return cli_die("ssh cannot be started: install the OpenSSH client");
}

static void print_config(const char *id, const struct ssh_setup *s)
{
	printf("Host %s\n\tUser root\n\tProxyCommand %s\n\tKnownHostsCommand %s\n"
	       "\tIdentityFile \"%s\"\n\tIdentitiesOnly yes\n\tUserKnownHostsFile /dev/null\n"
	       "\tGlobalKnownHostsFile /dev/null\n\tStrictHostKeyChecking yes\n",
	       id, s->proxy, s->known, s->file);
	for (size_t i = 0; forwards_nothing[i]; i++)
		printf("\t%s no\n", forwards_nothing[i]);
}

static int run(struct cli *c)
{
	struct ssh_setup s;
	char id[CLI_ID];
	int r;

	if (cli_first_id(c, id))
		return CLI_PANDA;
	if (c->argc && strcmp(c->argv[0], "--") == 0) {
		c->argc--;
		c->argv++;
	}
	if (cli_has(c, KEY_CONFIG) && c->argc)
		return cli_bad(c, "--config prints lines for ~/.ssh/config, it runs no command");
	r = setup(c, id, &s);
	if (r == 0 && cli_has(c, KEY_CONFIG))
		print_config(id, &s);
	else if (r == 0)
		r = run_ssh(c, id, &s);
	setup_fini(&s);
	return r;
}

static const struct cli_opt opts[] = {
    {'t', "tty", NULL, "give the command a terminal, too", WORD_NONE},
    {KEY_CONFIG, "config", NULL, "print lines for ~/.ssh/config instead", WORD_NONE},
    {0},
};

const struct cli_command command_ssh = {
    .name = "ssh",
    .args = "[OPTION]... ID [COMMAND...]",
    .what = "ssh into a sandbox",
    .about =
	"Runs the OpenSSH client with a key of its own for this sandbox, through the server: no\n"
	"port is opened. Its exit code is the command's. No ssh_config is read, and nothing is\n"
	"forwarded: no agent, no display, no variable. With --config, ssh, scp, sftp, rsync and\n"
	"editors find the sandbox under its id; the lines belong in front of any 'Host *'.",
    .opts = opts,
    .word = WORD_SANDBOX,
    .guest = true,
    .examples = "  panda ssh 3f2a uname -a\n  scp -F <(panda ssh --config 3f2a) notes.txt 3f2a:\n",
    .run = run,
};

/* ---- ssh-proxy ---- */

/* For KnownHostsCommand. The guest says it: only what is a key and nothing else is passed on. */
static int print_host_key(struct cli *c, const char *id)
{
	static const char letters[] =
	    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
	struct panda_exec x;
	struct panda_error e;
	int r = CLI_OK;

	if (panda_exec(c->panda, id, "/usr/lib/panda/ssh-serve --host-key", 30, &x, &e) < 0)
		return cli_say(c, &e);
	x.out[strcspn(x.out, "\n")] = 0;
	if (strncmp(x.out, "ssh-ed25519 ", 12) == 0 && strlen(x.out + 12) > 40 &&
	    strspn(x.out + 12, letters) == strlen(x.out + 12))
		printf("* %s\n", x.out);
	else
		r = cli_die("the sandbox has no ssh key: its template needs openssh-server and "
		            "/usr/lib/panda/ssh-serve");
	panda_exec_fini(&x);
	return r;
}

static int proxy(struct cli *c)
{
	autofree char *file = NULL, *key = NULL, *path = NULL;
	const char *given = cli_str(c, 'i', NULL);
	struct panda_pipe *p = NULL;
	struct panda_error e = {0};
	char id[CLI_ID];
	int r;

	if (cli_args(c, 1, 1) || cli_first_id(c, id))
		return CLI_PANDA;
	if (cli_has(c, KEY_HOST_KEY))
		return print_host_key(c, id);
	if (!given)
		given = file = key_file(id);
	key = given ? public_key(given) : NULL;
	path = key ? panda_path("/v1/sandboxes/%s/ssh/tunnel?key=%s", id, key) : NULL;
	if (!path)
		return CLI_PANDA;
	signal(SIGPIPE, SIG_IGN);
	if (panda_pipe_open(c->panda, path, &p, &e) < 0)
		return cli_say(c, &e);
	r = carry(p, 0, 1, &e);
	panda_pipe_close(p);
	return r < 0 && *e.text ? cli_say(c, &e) : CLI_OK;
}

static const struct cli_opt proxy_opts[] = {
    {'i', "identity", "FILE", "let in this key instead of the sandbox's own", WORD_FILE},
    {KEY_HOST_KEY, "host-key", NULL, "print the sandbox's key, for KnownHostsCommand", WORD_NONE},
    {0},
};

const struct cli_command command_ssh_proxy = {
    .name = "ssh-proxy",
    .args = "[OPTION]... ID",
    .what = "connect stdin and stdout to a sandbox's sshd",
    .about = "Made for ProxyCommand of the OpenSSH client. `panda ssh --config ID` writes the "
	     "lines that use it.",
    .opts = proxy_opts,
    .word = WORD_SANDBOX,
    .examples = "  ssh -i KEY -o ProxyCommand='panda ssh-proxy -i KEY %h' root@3f2a\n"
		"  scp -F <(panda ssh --config ID) notes.txt ID:\n",
    .run = proxy,
};
