/*
 * panda top - who uses how much
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/show.h"
#include "client/panda.h"

enum {
	ROWS_MAX = 200, /* sandboxes we ask for numbers: each is a request */
};

static const struct cli_opt opts[] = {
    {KEY_INTERVAL, "interval", "TIME", "time between two rounds, on a terminal (2s)", WORD_NONE},
    {'n', "count", "N", "end after so many rounds (until q; 1 without a terminal)", WORD_NONE},
    {0},
};

/* One object per running sandbox: the sandbox's own fields that we show, and its metrics. */
static int measure(struct cli *c, json_t **ret)
{
	autojson json_t *reply = NULL, *rows = json_array();
	struct panda_error e;
	json_t *sb;
	size_t i;

	if (panda_list(c->panda, &reply, &e) < 0)
		return cli_say(c, &e);
	json_array_foreach((json_t *)cli_list(reply, "items"), i, sb) {
		autofree char *path = panda_path("/v1/sandboxes/%s/metrics", js(sb, "id"));
		json_t *row =
		    json_pack("{s:s, s:s, s:s, s:I, s:s}", "id", js(sb, "id"), "status",
		              js(sb, "status"), "template", js(sb, "template"), "memory_mb",
		              (json_int_t)ji(sb, "memory_mb"), "created_at", js(sb, "created_at"));
		json_t *m = NULL;

		/* One that ended a moment ago is no failure, just a row without numbers. */
		if (i < ROWS_MAX && path && !strcmp(js(sb, "status"), "running") &&
		    panda_call(c->panda, "GET", path, NULL, &m, &e) == 0)
			json_object_set_new(row, "metrics", m);
		json_array_append_new(rows, row);
	}
	*ret = take_ptr(rows);
	return 0;
}

static double cpu_of(const json_t *row)
{
	return json_number_value(
	    json_object_get(json_object_get(row, "metrics"), "host_cpu_percent"));
}

static int by_cpu(const void *a, const void *b)
{
	double x = cpu_of(*(json_t *const *)a), y = cpu_of(*(json_t *const *)b);

	return x < y   ? 1
	       : x > y ? -1
	               : strcmp(js(*(json_t *const *)a, "id"), js(*(json_t *const *)b, "id"));
}

static void add_row(struct table *t, const json_t *row, int len, time_t now)
{
	const json_t *m = json_object_get(row, "metrics"), *g = json_object_get(m, "guest");
	char rss[16], used[16], age[16], cpu[16], procs[16];
	bool known = json_is_object(m);

	show_size(ji(m, "host_rss_bytes"), rss, sizeof(rss));
	show_size(ji(g, "mem_total") - ji(g, "mem_available"), used, sizeof(used));
	show_age(js(row, "created_at"), now, age, sizeof(age));
	table_add(t, "%.*s", len, js(row, "id"));
	table_add(t, "%s", js(row, "status"));
	table_add(t, "%s", js(row, "template"));
	snprintf(cpu, sizeof(cpu), "%.1f", cpu_of(row));
	snprintf(procs, sizeof(procs), "%lld", ji(g, "processes"));
	table_add(t, "%s", known ? cpu : "-");
	table_add(t, "%s", known ? rss : "-");
	table_add(t, "%s/%lldM", known && g ? used : "-", ji(row, "memory_mb"));
	table_add(t, "%s", known && g ? procs : "-");
	table_add(t, "%s", age);
}

static void show(const json_t *rows, size_t max, FILE *to)
{
	size_t n = json_array_size(rows), running = 0;
	autofree json_t **sorted = calloc(n + 1, sizeof(*sorted));
	time_t now = time(NULL);
	double cpu = 0;
	long long rss = 0;
	char mem[16];
	struct table t;

	if (!sorted)
		return;
	for (size_t i = 0; i < n; i++) {
		sorted[i] = json_array_get(rows, i);
		running += !strcmp(js(sorted[i], "status"), "running");
		cpu += cpu_of(sorted[i]);
		rss += ji(json_object_get(sorted[i], "metrics"), "host_rss_bytes");
	}
	qsort(sorted, n, sizeof(*sorted), by_cpu);
	show_size(rss, mem, sizeof(mem));
	fprintf(to, "%zu sandboxes, %zu running, cpu %.1f %%, memory of the host %s\n\n", n,
	        running, cpu, mem);
	table_init(&t, "ID STATUS TEMPLATE CPU% HOST-MEM GUEST-MEM PROCS AGE");
	for (size_t i = 0; i < n && i < max; i++)
		add_row(&t, sorted[i], show_short(rows), now);
	table_print(&t, to);
	table_fini(&t);
	if (n > max)
		fprintf(to, "... and %zu more\n", n - max);
}

/* ---- the refreshing one ---- */

static struct termios saved;

static void restore(void)
{
	static const char back[] = "\033[?25h\033[?1049l";

	tcsetattr(0, TCSADRAIN, &saved);
	if (write(1, back, sizeof(back) - 1) < 0)
		return;
}

static int take_over(void)
{
	struct termios t;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGQUIT);
	sigaddset(&set, SIGWINCH);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (tcgetattr(0, &saved) < 0)
		return -errno;
	t = saved;
	t.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	atexit(restore);
	tcsetattr(0, TCSADRAIN, &t);
	printf("\033[?1049h\033[?25l");
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* One screen in one write: it does not flicker. */
static void draw(const json_t *rows)
{
	struct winsize w = {0};
	autofree char *text = NULL;
	size_t n;
	FILE *f;

	(void)ioctl(1, TIOCGWINSZ, &w);
	f = open_memstream(&text, &n);
	if (!f)
		return;
	fputs("\033[H\033[J", f);
	show(rows, w.ws_row > 8 ? w.ws_row - 6u : 4, f);
	fputs("\nq quits", f);
	if (fclose(f) == 0)
		fwrite(text, 1, n, stdout);
	fflush(stdout);
}

static int watch(struct cli *c, long interval_s, long rounds)
{
	autoclose int sigfd = take_over();
	struct signalfd_siginfo si;
	char key;

	if (sigfd < 0)
		return cli_die("cannot use this terminal: %s", strerror(-sigfd));
	for (long i = 0; !rounds || i < rounds; i++) {
		autojson json_t *rows = NULL;
		struct pollfd p[] = {{.fd = 0, .events = POLLIN}, {.fd = sigfd, .events = POLLIN}};

		if (measure(c, &rows))
			return CLI_PANDA;
		draw(rows);
		if (i + 1 == rounds || poll(p, 2, (int)interval_s * 1000) <= 0)
			continue;
		if (p[1].revents && read(sigfd, &si, sizeof(si)) == sizeof(si) &&
		    si.ssi_signo != SIGWINCH)
			break;
		if (p[0].revents && (read(0, &key, 1) <= 0 || key == 'q'))
			break;
	}
	return CLI_OK;
}

static int run(struct cli *c)
{
	autojson json_t *rows = NULL;
	bool live = isatty(0) && isatty(1) && !c->json;
	long interval = 2, rounds = 0;

	if (cli_seconds(c, KEY_INTERVAL, &interval) || cli_num(c, 'n', 1, 1000000, &rounds) ||
	    cli_args(c, 0, 0) || cli_open(c))
		return CLI_PANDA;
	if (interval < 1 || interval > 3600)
		return cli_bad(c, "--interval is 1s to 1h");
	if (live)
		return watch(c, interval, rounds);
	for (long i = 0; i < MAX(rounds, 1L); i++) {
		if (i)
			sleep((unsigned)interval);
		json_decref(rows);
		rows = NULL;
		if (measure(c, &rows))
			return CLI_PANDA;
		if (c->json)
			cli_json(rows);
		else
			show(rows, SIZE_MAX, stdout);
		fflush(stdout);
	}
	return CLI_OK;
}

const struct cli_command command_top = {
    .name = "top",
    .args = "[OPTION]...",
    .what = "show cpu and memory of sandboxes, refreshed",
    .about =
	"A table of sandboxes with the cpu and memory they use, busiest first. On a terminal it\n"
	"refreshes until q is typed; elsewhere it is printed once.",
    .opts = opts,
    .examples = "  panda top\n  panda top --json | jq -r '.[0].id'\n",
    .run = run,
};
