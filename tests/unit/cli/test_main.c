/*
 * What all commands share: help, options, which server and which key, how a failure is told, and
 * what happens when nobody can read the answer.
 */
#include "base/cleanup.h"
#include "base/macro.h"
#include "bed.h"

/* ---- help ---- */

static void without_a_command_the_list_of_them_is_on_stderr(void **state)
{
	bed_run(__FILE__, __LINE__, (const char *const[]){"panda", NULL});
	fails(2, "usage: panda COMMAND [OPTION]... [ARG]...\n");
	assert_non_null(strstr(bed.err, "\n  create       start a sandbox that stays"));
}

static void help_that_was_asked_for_is_on_stdout(void **state)
{
	static const char *const ways[] = {"--help", "-h", "help"};

	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		panda(ways[i]);
		gives(0, NULL, "");
		assert_memory_equal(bed.out, "usage: panda COMMAND ", 21);
	}
}

static void help_of_a_command_is_the_same_in_three_ways(void **state)
{
	autofree char *first = NULL;

	panda("ls", "--help");
	gives(0, NULL, "");
	first = strdup(bed.out);
	assert_memory_equal(first, "usage: panda ls [OPTION]...\n\nlist sandboxes\n", 44);
	panda("ls", "-h");
	gives(0, first, "");
	panda("help", "ls");
	gives(0, first, "");
}

static void help_shows_options_with_their_values_and_letters(void **state)
{
	panda("help", "create");
	gives(0, NULL, "");
	assert_non_null(
	    strstr(bed.out, "\n  -t, --template NAME          template it starts from"));
	assert_non_null(strstr(bed.out, "\n      --persistent             do not end it"));
	assert_non_null(strstr(bed.out, "\n      --json                   print JSON"));
	panda("help", "volume");
	assert_memory_equal(bed.out, "usage: panda volume VERB [OPTION]... [ARG]...\n", 46);
	assert_non_null(
	    strstr(bed.out,
	           "\n  detach ID NAME               unmount a volume in a sandbox that runs\n"));
	panda("completion", "--help");
	assert_null(strstr(bed.out, "--url")); /* it talks to no server */
}

static void help_wins_over_what_stands_around_it(void **state)
{
	panda("kill", "web", "--help", "db");
	gives(0, NULL, "");
	assert_memory_equal(bed.out, "usage: panda kill ID... | --all\n", 32);
}

static void a_command_that_is_none_is_named(void **state)
{
	panda("frobnicate");
	gives(2, "", "panda: there is no command 'frobnicate'\nTry 'panda --help'.\n");
	panda("craete");
	gives(2, "",
	      "panda: there is no command 'craete': did you mean 'create'?\nTry 'panda --help'.\n");
}

static void words_of_other_tools_are_understood(void **state)
{
	answer("GET /v1/templates", "{'items':[]}");
	panda("images", "--json");
	prints("[]");
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	panda("rm", BOX);
	gives(0, BOX "\n", "");
	answer("POST /v1/sandboxes/" BOX "/hibernate", "{'status':'hibernated'}");
	panda("stop", BOX);
	assert_int_equal(bed.code, 0);
	panda("rm");
	fails(125, "panda kill: it needs ID... | --all\n");
	panda("help", "images");
	gives(0, NULL, "");
	assert_memory_equal(bed.out, "usage: panda template VERB ", 27);
}

/* ---- options ---- */

static void an_option_that_is_none_is_named(void **state)
{
	panda("create", "--ephemral");
	fails(125, "panda create: there is no option '--ephemral', or it takes no value\n");
	panda("create", "--tll", "5");
	fails(125, "panda create: there is no option '--tll': did you mean --ttl?\n");
	panda("ls", "--no-such");
	gives(125, "",
	      "panda ls: there is no option '--no-such', or it takes no value\n"
	      "Try 'panda ls --help'.\n");
	panda("ls", "-qz");
	fails(125, "panda ls: there is no option -z\n");
}

static void an_option_that_takes_no_value_says_so(void **state)
{
	panda("ls", "--json=1");
	fails(125, "panda ls: there is no option '--json=1', or it takes no value\n");
	panda("ls", "--quiet=1");
	fails(125, "panda ls: there is no option '--quiet=1', or it takes no value\n");
}

static void an_option_without_its_value_is_named(void **state)
{
	panda("ls", "--status");
	fails(125, "panda ls: --status wants a value\n");
	panda("ls", "-t");
	fails(125, "panda ls: -t wants a value\n");
}

static void options_may_be_short_joined_abbreviated_and_behind_words(void **state)
{
	answer("POST /v1/sandboxes/" BOX "/fork", "{'sandboxes':[]}");
	panda("fork", BOX, "-n3");
	sent(0, "{'count':3}");
	answer("POST /v1/sandboxes/" BOX "/fork", "{'sandboxes':[]}");
	panda("fork", "--cou=4", BOX);
	sent(0, "{'count':4}");
	answer("POST /v1/sandboxes/" BOX "/fork", "{'sandboxes':[]}");
	panda("fork", BOX, "--count", "5");
	sent(0, "{'count':5}");
}

static void behind_two_dashes_everything_is_a_word(void **state)
{
	answer("GET /v1/sandboxes", "[]");
	panda("get", "--", "-x");
	fails(125, "there is no sandbox '-x'");
}

static void more_options_than_there_is_room_for_are_refused(void **state)
{
	const char *argv[2 + 60] = {"panda", "create"};

	/* Words of a child are few; -e joined to its value makes one of two. */
	for (size_t i = 2; i < ARRAY_LEN(argv) - 1; i++)
		argv[i] = "-eA=1";
	answer("POST /v1/sandboxes", "{'id':'x'}");
	bed_run(__FILE__, __LINE__, argv);
	gives(0, "x\n", "");
	for (size_t i = 2; i < ARRAY_LEN(argv) - 1; i++)
		argv[i] = "-qqqqq";
	argv[1] = "ls";
	bed_run(__FILE__, __LINE__, argv);
	fails(125, "panda ls: more than 256 options\n");
}

static void verbs_are_listed_to_those_who_know_none(void **state)
{
	panda("token");
	fails(125,
	      "panda token: say what to do: create, ls, rm, rotate\nTry 'panda token --help'.\n");
	panda("token", "make");
	fails(125, "panda token: it does not know 'make', only: create, ls, rm, rotate\n");
	panda("token", "rm");
	fails(125, "panda token rm: it needs PREFIX...\n");
}

/* ---- which server, which key ---- */

static void config_file(const char *json)
{
	bed_file(".config/pandastack/config.json", json, 0, 0600);
}

static void an_option_wins_over_the_environment_and_that_over_the_file(void **state)
{
	char url[64], json[256];

	snprintf(url, sizeof(url), "http://127.0.0.1:%d", bed.port);
	config_file("{\"apiUrl\":\"http://127.0.0.1:1\",\"token\":\"from-file\"}");
	answer("GET /v1/me", "{}");
	panda("me");
	gives(0, "", "");
	assert_string_equal(bed_field(0, "authorization"), "Bearer k");

	bed.no_url = bed.no_key = true;
	answer("GET /v1/me", "{}");
	panda("me", "--url", url);
	gives(0, "", "");
	assert_string_equal(bed_field(0, "authorization"), "Bearer from-file");

	snprintf(json, sizeof(json), "{\"api_url\":\"%s/\",\"api_key\":\"second\"}", url);
	config_file(json);
	answer("GET /v1/me", "{}");
	panda("me");
	gives(0, "", "");
	assert_string_equal(bed_field(0, "authorization"), "Bearer second");

	bed.env[0] = "PANDASTACK_TOKEN=old-name";
	answer("GET /v1/me", "{}");
	panda("me");
	assert_string_equal(bed_field(0, "authorization"), "Bearer old-name");

	bed.env[0] = "PANDASTACK_API=http://127.0.0.1:1";
	answer("GET /v1/me", "{}");
	panda("me", "--url", url);
	gives(0, "", "");
}

static void the_file_may_be_where_xdg_says(void **state)
{
	static char env[128];

	snprintf(env, sizeof(env), "XDG_CONFIG_HOME=%s/else", bed.dir);
	bed.env[0] = env;
	bed.no_key = true;
	bed_file("else/pandastack/config.json", "{\"token\":\"there\"}", 0, 0600);
	config_file("{\"token\":\"not-this\"}");
	answer("GET /v1/me", "{}");
	panda("me");
	assert_string_equal(bed_field(0, "authorization"), "Bearer there");
}

static void a_file_that_is_not_json_is_an_error_and_not_ignored(void **state)
{
	bed.no_key = true;
	config_file("token=x");
	panda("me");
	fails(125, "config.json is not JSON, line 1: ");
}

static void a_url_may_have_a_path_in_front_of_ours(void **state)
{
	char url[64];

	snprintf(url, sizeof(url), "http://127.0.0.1:%d/pre/v1/", bed.port);
	answer("GET /pre/v1/me", "{}");
	panda("me", "--url", url);
	gives(0, "", "");
}

static void a_url_that_is_none_is_refused(void **state)
{
	panda("me", "--url", "nonsense");
	fails(125, "panda: ");
	panda("me", "--url", "ftp://x");
	fails(125, "panda: ");
}

static void a_certificate_file_that_is_not_there_is_named(void **state)
{
	panda("me", "--url", "https://127.0.0.1:1", "--ca-file", "missing.pem");
	fails(125, "missing.pem");
}

static void without_a_key_none_is_sent_and_401_says_where_it_belongs(void **state)
{
	bed.no_key = true;
	bed_refuse("GET /v1/me", 401, "unauthorized", "no key");
	panda("me");
	gives(125, "",
	      "panda: no key\n       there is no key: put it into PANDASTACK_API_KEY or "
	      "~/.config/pandastack/config.json\n");
	assert_string_equal(bed_field(0, "authorization"), "");
}

static void with_a_key_401_says_that_it_is_not_known(void **state)
{
	bed_refuse("GET /v1/me", 401, "unauthorized", "wrong key");
	panda("me");
	gives(125, "",
	      "panda: wrong key\n       the server does not know this key: `make up` prints one "
	      "that it knows\n");
}

static void a_key_with_a_line_end_in_it_is_refused_here(void **state)
{
	bed.env[0] = "PANDASTACK_API_KEY=a\nb";
	panda("me");
	fails(125, "the API key has a space or control character in it");
}

/* ---- failures ---- */

static void a_server_that_is_not_there_may_have_to_be_started(void **state)
{
	bed.no_server = true;
	panda("ls");
	fails(125, "\n       is pandad running? `make up` starts one\n");
}

static void errors_tell_the_next_step(void **state)
{
	static const struct {
		const char *code, *step;
	} known[] = {
	    {"sandbox_paused", "`panda resume ID` lets it go on"},
	    {"sandbox_not_found", "`panda ls` shows what there is"},
	    {"snapshot_not_found", "`panda snapshot ls` shows what there is"},
	    {"exec_not_found", "`panda ps ID` shows what there is"},
	    {"volume_not_found", "`panda volume ls` shows what there is"},
	    {"quota_exceeded", "`panda me` shows the quota, `panda kill` makes room"},
	    {"host_full", "`panda top` shows who uses the host"},
	};

	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		bed_refuse("GET /v1/me", 409, known[i].code, "no");
		panda("me");
		fails(125, "panda: no\n       ");
		assert_non_null(strstr(bed.err, known[i].step));
	}
}

static void errors_with_json_are_json_on_stderr(void **state)
{
	bed_refuse("GET /v1/me", 429, "rate_limited", "slower");
	panda("me", "--json");
	gives(125, "",
	      "{\"error\":\"slower\",\"code\":\"rate_limited\",\"status\":429,"
	      "\"request_id\":\"req_1\"}\n");
}

static void what_an_error_says_cannot_move_the_cursor(void **state)
{
	bed_refuse("GET /v1/me", 400, "x", "a\\u001b[2Jb\\u009bc");
	panda("me");
	gives(125, "", "panda: a?[2Jb??c\n");
}

static void an_error_page_of_a_proxy_is_one_line(void **state)
{
	reply(.request = "GET /v1/me", .status = 502, .bytes = "<h1>\nBad\n\nGateway</h1>\n",
	      .type = "text/html");
	panda("me");
	gives(125, "", "panda: <h1> Bad Gateway</h1> \n");
	reply(.request = "GET /v1/me", .status = 503, .bytes = "");
	panda("me");
	gives(125, "", "panda: the server answered 503 without a word\n");
}

static void nonsense_of_a_server_is_called_that(void **state)
{
	reply(.request = "GET /v1/me", .raw = "SSH-2.0-OpenSSH\r\n\r\n");
	panda("me");
	fails(125, "panda: http://SERVER answered nonsense");
	reply(.request = "GET /v1/me", .bytes = "{half", .type = "application/json");
	panda("me");
	fails(125, "panda: ");
	reply(.request = "GET /v1/me", .json = "{}", .cut = true);
	panda("me");
	fails(125, "in the middle of a reply");
	reply(.request = "POST /v1/sandboxes", .gone = true);
	panda("create");
	fails(125, "before an answer came");
}

/* ---- answers that nobody can read ---- */

static void a_full_disk_does_not_look_like_success(void **state)
{
	bed.full = true;
	answer("GET /v1/sandboxes", "[]");
	panda("ls");
	gives(125, NULL, "panda: cannot write the output: No space left on device\n");
}

static void nor_does_it_when_the_output_was_long(void **state)
{
	autofree char *list = malloc(128 * 1024);
	size_t n = 0;

	list[n++] = '[';
	for (int i = 0; i < 1024; i++)
		n += (size_t)snprintf(list + n, 64, "%s{'id':'%030d'}", i ? "," : "", i);
	snprintf(list + n, 2, "]");
	bed.full = true;
	answer("GET /v1/sandboxes", list);
	panda("ls", "-q");
	gives(125, NULL, "panda: cannot write the output: No space left on device\n");
	answer("GET /v1/sandboxes", list);
	panda("ls", "--json");
	gives(125, NULL, "panda: cannot write the output: No space left on device\n");
}

static void nor_when_it_was_written_piece_by_piece(void **state)
{
	bed.full = true;
	reply(.request = "GET /v1/sandboxes/" BOX "/logs?follow=0", .bytes = "line\n");
	panda("logs", BOX);
	gives(125, NULL, "panda: cannot write the output: No space left on device\n");
	reply(.request = "GET /v1/sandboxes/" BOX "/logs?follow=1",
	      .events = "data: {'line':'x'}\n\n");
	panda("logs", "-f", BOX);
	gives(125, NULL, "panda: cannot write the output: No space left on device\n");
	reply(.request = "GET /v1/events?tail=50&follow=1",
	      .events = "event: event\ndata: {'type':'x'}\n\n");
	panda("events", "-f");
	gives(125, NULL, "panda: cannot write the output: No space left on device\n");
	answer("GET /v1/sandboxes", "[]");
	panda("top");
	gives(125, NULL, "panda: cannot write the output\n");
}

/* ---- version, me, url, ports, token: commands of one request ---- */

static void version_tells_both_when_a_server_answers(void **state)
{
	answer("GET /version", "{'service':'pandad','semver':'9.8.7','engine':'um'}");
	panda("version");
	assert_int_equal(bed.code, 0);
	assert_non_null(strstr(bed.out, "\npandad 9.8.7 at http://SERVER, engine um\n"));
	answer("GET /version", "{'semver':'1'}");
	panda("--version");
	assert_non_null(strstr(bed.out, "panda "));
	bed.no_server = true;
	panda("version");
	gives(0, NULL, "");
	assert_non_null(strstr(bed.out, "\nno server at http://SERVER\n"));
}

static void version_with_json_has_null_for_a_server_that_is_not_there(void **state)
{
	bed_refuse("GET /version", 500, "internal", "no");
	panda("version", "--json");
	gives(0, NULL, "");
	assert_non_null(strstr(bed.out, "\"url\": \"http://SERVER\",\n  \"server\": null\n}"));
}

static void me_prints_fields_or_json(void **state)
{
	answer("GET /v1/me", "{'tenant':'t1','quota':{'sandboxes':5}}");
	panda("me");
	gives(0, "tenant             t1\nquota              {\"sandboxes\":5}\n", "");
	answer("GET /v1/me", "{'tenant':'t1'}");
	panda("me", "--json");
	prints("{'tenant':'t1'}");
}

static void url_prints_a_link_that_can_be_opened(void **state)
{
	answer("POST /v1/sandboxes/" BOX "/preview-token", "{'url':'/p/abc/','token':'abc'}");
	panda("url", BOX, "8000");
	gives(0, "http://SERVER/p/abc/\n", "");
	sent(0, "{'port':8000,'ttl_seconds':3600}");
	answer("POST /v1/sandboxes/" BOX "/preview-token", "{'url':'https://p.example/abc'}");
	panda("url", "--ttl", "10m", BOX, "1");
	gives(0, "https://p.example/abc\n", "");
	sent(0, "{'port':1,'ttl_seconds':600}");
	answer("POST /v1/sandboxes/" BOX "/preview-token", "{'url':'/p/','token':'t'}");
	panda("url", "--json", BOX, "65535");
	prints("{'url':'/p/','token':'t'}");
}

static void a_port_is_a_number_up_to_65535(void **state)
{
	static const char *const bad[] = {"0", "65536", "http", "", "80x", "-1"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		panda("url", "--", BOX, bad[i]);
		fails(125, "' is not a port\n");
	}
	panda("url", BOX);
	fails(125, "panda url: it needs [OPTION]... ID PORT\n");
}

static void ports_shows_what_listens_and_where_it_is_reached(void **state)
{
	answer("GET /v1/sandboxes/" BOX "/ports",
	       "{'ports':[{'port':8000,'listening':true,'source':'found','label':'web',"
	       "'proxy_url':'/v1/x/8000/','preview_url':'http://8000-x.localhost/"
	       "'},{'port':9,'source':'declared','label':'a\\tb'}]}");
	panda("ports", BOX);
	gives(0,
	      "PORT  LISTENS  SOURCE    LABEL  PREVIEW                   PROXY\n"
	      "8000  yes      found     web    http://8000-x.localhost/  "
	      "http://SERVER/v1/x/8000/\n"
	      "9     no       declared  a?b    -                         http://SERVER\n",
	      "");
}

static void ports_can_be_declared_and_taken_back(void **state)
{
	reply(.request = "DELETE /v1/sandboxes/" BOX "/ports/80", .status = 204);
	answer("POST /v1/sandboxes/" BOX "/ports", "{}");
	answer("GET /v1/sandboxes/" BOX "/ports", "{'ports':[]}");
	panda("ports", BOX, "--add", "8000", "--label", "app", "--rm", "80", "--json");
	prints("[]");
	sent(1, "{'port':8000,'label':'app'}");
	answer("POST /v1/sandboxes/" BOX "/ports", "{}");
	answer("GET /v1/sandboxes/" BOX "/ports", "[]");
	panda("ports", "-a", "1", BOX);
	sent(0, "{'port':1,'label':'service'}");
	answer("POST /v1/sandboxes/" BOX "/preview/rotate", "{'preview_name':'x'}");
	answer("GET /v1/sandboxes/" BOX "/ports", "[]");
	panda("ports", "--rotate", BOX);
}

static void a_port_that_cannot_be_declared_lists_nothing(void **state)
{
	bed_refuse("POST /v1/sandboxes/" BOX "/ports", 409, "conflict", "it is declared already");
	panda("ports", BOX, "--add", "8000");
	gives(125, "", "panda: it is declared already\n");
	panda("ports", BOX, "--add", "65536");
	fails(125, "panda ports: --add wants a number from 1 to 65535");
	panda("ports", BOX, "--add", "80", "--label", "\xff");
	fails(125, "the label is not UTF-8");
}

static void a_token_is_shown_once_and_alone_on_stdout(void **state)
{
	answer("POST /v1/me/tokens", "{'token':'pds_secret','prefix':'pds_s'}");
	panda("token", "create", "--label", "ci", "--scope", "admin", "--tenant", "blue");
	gives(0, "pds_secret\n", "This is the only time it is shown.\n");
	sent(0, "{'label':'ci','scopes':['admin'],'tenant':'blue'}");
	answer("POST /v1/me/tokens", "{'token':'t'}");
	panda("token", "create", "--json");
	prints("{'token':'t'}");
	sent(0, "{}");
}

static void a_token_may_be_of_one_sandbox_and_for_a_time(void **state)
{
	answer("POST /v1/me/tokens", "{'token':'t'}");
	panda("token", "create", "--sandbox", BOX, "--scope", "exec", "--ttl", "8h");
	sent(0, "{'scopes':['exec','sandbox:" BOX "'],'ttl_seconds':28800}");
	answer("POST /v1/me/tokens", "{'token':'t'}");
	panda("token", "create", "--sandbox", BOX, "--scope", "sandbox");
	sent(0, "{'scopes':['sandbox:" BOX "']}");
	answer("POST /v1/me/tokens/pds_1/rotate", "{'token':'pds_new'}");
	panda("token", "rotate", "pds_1");
	gives(0, "pds_new\n", "This is the only time it is shown.\n");
	reply(.request = "DELETE /v1/me/tokens/pds_2?cascade=0", .status = 204);
	panda("token", "rm", "--keep", "pds_2");
	gives(0, "", "");
}

static void a_scope_is_one_of_four_words(void **state)
{
	panda("token", "create", "--scope", "root");
	fails(125, "panda token create: --scope is read, exec, sandbox or admin, not 'root'\n");
	panda("token", "create", "--label", "\xff");
	fails(125, "names must be UTF-8");
}

static void tokens_are_listed_by_their_beginning(void **state)
{
	answer("GET /v1/me/tokens",
	       "{'items':[{'prefix':'pds_1','created_at':'2025-12-31T23:59:30Z','scopes':['admin'],"
	       "'tenant':'t','label':'ci'},{'prefix':'pds_2'}]}");
	panda("token", "ls");
	gives(0,
	      "PREFIX  AGE  SCOPES  TENANT  LABEL\n"
	      "pds_1   30s  admin   t       ci\n"
	      "pds_2   -    -               \n",
	      "");
	answer("GET /v1/me/tokens", "{'items':[{'prefix':'pds_1'}]}");
	panda("token", "ls", "--json");
	prints("[{'prefix':'pds_1'}]");
}

static void tokens_are_revoked_each_for_itself(void **state)
{
	bed_refuse("DELETE /v1/me/tokens/a%2Fb", 404, "token_not_found", "no such token");
	reply(.request = "DELETE /v1/me/tokens/pds_2", .status = 204);
	panda("token", "rm", "a/b", "pds_2");
	gives(125, "", "panda: no such token\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(without_a_command_the_list_of_them_is_on_stderr),
	    bed_test(help_that_was_asked_for_is_on_stdout),
	    bed_test(help_of_a_command_is_the_same_in_three_ways),
	    bed_test(help_shows_options_with_their_values_and_letters),
	    bed_test(help_wins_over_what_stands_around_it),
	    bed_test(a_command_that_is_none_is_named),
	    bed_test(words_of_other_tools_are_understood),
	    bed_test(an_option_that_is_none_is_named),
	    bed_test(an_option_that_takes_no_value_says_so),
	    bed_test(an_option_without_its_value_is_named),
	    bed_test(options_may_be_short_joined_abbreviated_and_behind_words),
	    bed_test(behind_two_dashes_everything_is_a_word),
	    bed_test(more_options_than_there_is_room_for_are_refused),
	    bed_test(verbs_are_listed_to_those_who_know_none),
	    bed_test(an_option_wins_over_the_environment_and_that_over_the_file),
	    bed_test(the_file_may_be_where_xdg_says),
	    bed_test(a_file_that_is_not_json_is_an_error_and_not_ignored),
	    bed_test(a_url_may_have_a_path_in_front_of_ours),
	    bed_test(a_url_that_is_none_is_refused),
	    bed_test(a_certificate_file_that_is_not_there_is_named),
	    bed_test(without_a_key_none_is_sent_and_401_says_where_it_belongs),
	    bed_test(with_a_key_401_says_that_it_is_not_known),
	    bed_test(a_key_with_a_line_end_in_it_is_refused_here),
	    bed_test(a_server_that_is_not_there_may_have_to_be_started),
	    bed_test(errors_tell_the_next_step),
	    bed_test(errors_with_json_are_json_on_stderr),
	    bed_test(what_an_error_says_cannot_move_the_cursor),
	    bed_test(an_error_page_of_a_proxy_is_one_line),
	    bed_test(nonsense_of_a_server_is_called_that),
	    bed_test(a_full_disk_does_not_look_like_success),
	    bed_test(nor_does_it_when_the_output_was_long),
	    bed_test(nor_when_it_was_written_piece_by_piece),
	    bed_test(version_tells_both_when_a_server_answers),
	    bed_test(version_with_json_has_null_for_a_server_that_is_not_there),
	    bed_test(me_prints_fields_or_json),
	    bed_test(url_prints_a_link_that_can_be_opened),
	    bed_test(a_port_is_a_number_up_to_65535),
	    bed_test(ports_shows_what_listens_and_where_it_is_reached),
	    bed_test(ports_can_be_declared_and_taken_back),
	    bed_test(a_port_that_cannot_be_declared_lists_nothing),
	    bed_test(a_token_is_shown_once_and_alone_on_stdout),
	    bed_test(a_token_may_be_of_one_sandbox_and_for_a_time),
	    bed_test(a_scope_is_one_of_four_words),
	    bed_test(tokens_are_listed_by_their_beginning),
	    bed_test(tokens_are_revoked_each_for_itself),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
