/*
 * panda port-forward, ssh, ssh-proxy: bytes between a socket or a pipe of ours and a sandbox, and
 * the words and keys that OpenSSH gets.
 */
#include "base/cleanup.h"
#include "base/macro.h"
#include "bed.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define BOX_IS_THERE answer("GET /v1/sandboxes/" BOX, "{'id':'" BOX "'}")
#define TUNNEL       "GET /v1/sandboxes/" BOX "/ports/80/tunnel"

/* Connects to the first port that panda said it listens at. */
static void visit(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const char *at = strchr(bed.out, ':');

	a.sin_port = htons((uint16_t)atoi(at + 1));
	bed.heard_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(bed.heard_fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		abort();
	fcntl(bed.heard_fd, F_SETFL, O_NONBLOCK);
}

static void visit_and_speak(void)
{
	visit();
	if (send(bed.heard_fd, "ping", 4, MSG_NOSIGNAL) != 4)
		abort();
}

static void say_goodbye(void)
{
	shutdown(bed.heard_fd, SHUT_WR);
}

/* ---- port-forward ---- */

static void a_connection_here_leads_to_a_port_inside(void **state)
{
	BOX_IS_THERE;
	reply(.request = TUNNEL, .tunnel = true);
	then(.act = CALL, .call = visit_and_speak, .when = "leads to port 80");
	then(.act = SERVER_SAYS, .text = "pong", .when = "ping");
	then(.act = CALL, .call = say_goodbye, .when = "pong");
	then(.act = SERVER_SAYS, .text = "after", .when = "[end]");
	then(.act = SERVER_ENDS, .when = "after");
	then(.act = SIGNAL, .n = SIGTERM, .when = "[closed]");
	panda("port-forward", BOX, "0:80");
	assert_int_equal(bed.code, 128 + SIGTERM);
	assert_string_equal(bed.heard, "pingpong[end]after[closed]");
	assert_string_equal(bed_field(1, "upgrade"), "tcp");
}

static void what_was_cut_inside_is_a_reset_here(void **state)
{
	BOX_IS_THERE;
	bed_refuse(TUNNEL, 502, "port_closed", "nothing listens at port 80");
	then(.act = CALL, .call = visit, .when = "leads to port 80");
	then(.act = SIGNAL, .n = SIGTERM, .when = "[reset]");
	panda("port-forward", BOX, "0:80");
	assert_int_equal(bed.code, 128 + SIGTERM);
	assert_string_equal(bed.err, "panda: nothing listens at port 80\n");
}

static void a_visitor_does_not_keep_the_next_one_waiting(void **state)
{
	BOX_IS_THERE;
	reply(.request = TUNNEL, .tunnel = true);
	reply(.request = TUNNEL, .tunnel = true);
	then(.act = CALL, .call = visit_and_speak, .when = "leads to port 80");
	then(.act = CALL, .call = visit_and_speak, .when = "ping"); /* the first fd is left open */
	then(.act = SERVER_SAYS, .text = "pong", .when = "pingping");
	then(.act = SIGNAL, .n = SIGTERM, .when = "pong");
	panda("port-forward", BOX, "0:80");
	assert_int_equal(bed.code, 128 + SIGTERM);
}

static void every_port_has_a_line(void **state)
{
	BOX_IS_THERE;
	then(.act = SIGNAL, .n = SIGTERM, .when = "port 443");
	panda("port-forward", "-a", "127.0.0.2", BOX, "0:80", "0:443");
	assert_memory_equal(bed.out, "127.0.0.2:", 10);
	assert_non_null(strstr(bed.out, " leads to port 80 of " BOX "\n127.0.0.2:"));
	assert_non_null(strstr(bed.out, " leads to port 443 of " BOX "\n"));
}

static void ports_are_one_or_two_numbers(void **state)
{
	static const char *const bad[] = {"0",        "x",  "80:",   ":80", "80:0", "65536",
	                                  "80:65536", "8x", "1:2:3", "",    "-1:80"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		panda("port-forward", "--", BOX, bad[i]);
		fails(125, "' is not [LOCAL:]REMOTE, like 8080:80\n");
	}
	panda("port-forward", BOX);
	fails(125, "panda port-forward: it needs [OPTION]... ID [LOCAL:]REMOTE...\n");
}

static void a_port_that_is_taken_is_named(void **state)
{
	char ports[32], want[80];

	snprintf(ports, sizeof(ports), "%d:80", bed.port);
	snprintf(want, sizeof(want),
	         "panda: cannot listen on 127.0.0.1:%d: Address already in use\n", bed.port);
	BOX_IS_THERE;
	panda("port-forward", BOX, ports);
	fails(125, want);
	BOX_IS_THERE;
	panda("port-forward", "-a", "localhost", BOX, "0:80");
	fails(125, "panda: cannot listen on localhost:0: Invalid argument\n");
}

static void a_sandbox_that_is_not_there_is_not_listened_for(void **state)
{
	bed_refuse("GET /v1/sandboxes/" BOX, 404, "sandbox_not_found", "gone");
	panda("port-forward", BOX, "0:80");
	fails(125, "panda: gone\n       `panda ls` shows");
}

/* ---- ssh ---- */

static void expect_begins(const char *text)
{
	if (strncmp(bed.out, text, strlen(text)) != 0)
		fail_msg("does not begin with %s: %s", text, bed.out);
}

#define KEY_AT ".config/pandastack/ssh/" BOX

static void have_ssh(void)
{
	bed_file("bin/ssh-keygen",
	         "#!/bin/sh\nfor f; do :; done\necho \"$@\" >\"$HOME/keygen\"\n"
	         "echo secret >\"$f\" && echo 'ssh-ed25519 AAAAkey panda' >\"$f.pub\"\n",
	         0, 0755);
	bed_file("bin/ssh", "#!/bin/sh\nprintf '[%s]\\n' \"$@\"\nexit 7\n", 0, 0755);
}

static void ssh_gets_a_key_of_its_own_and_trusts_only_what_the_server_says(void **state)
{
	char want[512];

	have_ssh();
	panda("ssh", BOX, "uname", "-a");
	gives(7, NULL, "");
	snprintf(want, sizeof(want),
	         "[IdentityFile=\"%s/" KEY_AT "\"]\n[-l]\n[root]\n[--]\n[" BOX "]\n[uname]\n[-a]\n",
	         bed.dir);
	assert_non_null(strstr(bed.out, want));
	expect_begins("[-F]\n[none]\n[-o]\n[ForwardAgent=no]\n[-o]\n[ForwardX11=no]\n[-o]\n"
	              "[ForwardX11Trusted=no]\n[-o]\n[GSSAPIDelegateCredentials=no]\n[-o]\n"
	              "[PermitLocalCommand=no]\n[-o]\n[Tunnel=no]\n"
	              "[-o]\n[IdentitiesOnly=yes]\n[-o]\n[UserKnownHostsFile=/dev/null]\n[-o]\n"
	              "[GlobalKnownHostsFile=/dev/null]\n[-o]\n[StrictHostKeyChecking=yes]\n"
	              "[-o]\n[ProxyCommand=/");
	assert_non_null(strstr(bed.out, " ssh-proxy --url http://SERVER " BOX "]\n"));
	assert_non_null(strstr(bed.out, " ssh-proxy --url http://SERVER --host-key " BOX "]\n"));
	assert_int_equal(bed_mode(".config/pandastack/ssh"), 0700);
	assert_non_null(strstr(bed_content("keygen", NULL), "-t ed25519 -N "));
}

static void a_key_is_made_once_and_again_when_half_of_it_is_missing(void **state)
{
	char pub[256];

	have_ssh();
	bed_file(KEY_AT, "mine", 0, 0600);
	bed_file(KEY_AT ".pub", "ssh-ed25519 mine", 0, 0600);
	panda("ssh", "-t", BOX);
	gives(7, NULL, "");
	assert_non_null(strstr(bed.out, "]\n[-t]\n[-l]\n"));
	assert_null(bed_content("keygen", NULL));
	snprintf(pub, sizeof(pub), "%s/" KEY_AT ".pub", bed.dir);
	assert_int_equal(unlink(pub), 0);
	panda("ssh", BOX);
	assert_string_equal(bed_content(KEY_AT, NULL), "secret\n");
}

static void config_prints_lines_for_other_programs(void **state)
{
	char want[256];

	have_ssh();
	answer("GET /v1/sandboxes", LIST);
	panda("ssh", "--config", "web");
	gives(0, NULL, "");
	expect_begins("Host " BOX "\n\tUser root\n\tProxyCommand /");
	snprintf(want, sizeof(want), "\tIdentityFile \"%s/" KEY_AT "\"\n\tIdentitiesOnly yes\n",
	         bed.dir);
	assert_non_null(strstr(bed.out, want));
	assert_non_null(strstr(bed.out, "\n\tForwardAgent no\n\tForwardX11 no\n"));
	panda("ssh", "--config", BOX, "--", "ls");
	fails(125, "--config prints lines for ~/.ssh/config, it runs no command");
}

static void a_percent_sign_is_doubled_for_ssh(void **state)
{
	char url[64];

	have_ssh();
	snprintf(url, sizeof(url), "http://127.0.0.1:%d/a%%b", bed.port);
	panda("ssh", "--config", "--url", url, "--ca-file", "ca file", BOX);
	gives(0, NULL, "");
	assert_non_null(strstr(bed.out, "http://SERVER/a%%b --ca-file 'ca file' "));
}

static void without_openssh_it_says_what_to_install(void **state)
{
	bed.env[0] = "PATH=/nonexistent";
	panda("ssh", BOX);
	fails(125, "panda: ssh-keygen cannot be started: install the OpenSSH client\n");
	bed_file(KEY_AT, "mine", 0, 0600);
	bed_file(KEY_AT ".pub", "ssh-ed25519 mine", 0, 0600);
	panda("ssh", BOX);
	fails(125, "panda: ssh cannot be started: install the OpenSSH client\n");
}

static void a_key_that_could_not_be_made_is_told(void **state)
{
	bed_file("bin/ssh-keygen", "#!/bin/sh\nexit 1\n", 0, 0755);
	panda("ssh", BOX);
	fails(125, "panda: ssh-keygen could not make ");
	bed.env[0] = "HOME=";
	panda("ssh", BOX);
	fails(125, "panda: neither HOME nor XDG_CONFIG_HOME says where keys could be kept\n");
	bed.env[0] = "HOME=/dev/null";
	panda("ssh", BOX);
	fails(125, "panda: cannot make /dev/null/.config/pandastack/ssh: ");
}

/* ---- ssh-proxy ---- */

#define SSH_TUNNEL "GET /v1/sandboxes/" BOX "/ssh/tunnel?key=ssh-ed25519%20AAAAkey"

static void the_proxy_carries_stdin_and_stdout_and_says_the_key(void **state)
{
	bed_file("key.pub", "ssh-ed25519 AAAAkey me@here\n", 0, 0600);
	bed.in = "SSH-2.0-client\r\n";
	reply(.request = SSH_TUNNEL, .tunnel = true);
	then(.act = SERVER_SAYS, .text = "SSH-2.0-server\r\n", .when = "[end]");
	then(.act = SERVER_ENDS);
	panda("ssh-proxy", "-i", "key", BOX);
	gives(0, "SSH-2.0-server\r\n", "");
	assert_string_equal(bed.heard, "SSH-2.0-client\r\n[end]");
	reply(.request = SSH_TUNNEL, .tunnel = true);
	then(.act = SERVER_ENDS, .asked = 1);
	panda("ssh-proxy", "-i", "key.pub", BOX);
	gives(0, "", "");
}

static void much_goes_both_ways_at_once(void **state)
{
	size_t n = 1 << 20;
	autofree char *data = malloc(n + 1);

	for (size_t i = 0; i < n; i++)
		data[i] = (char)('a' + i % 26);
	data[n] = 0;
	bed_file("key.pub", "ssh-ed25519 AAAAkey", 0, 0600);
	bed.in = data;
	reply(.request = SSH_TUNNEL, .tunnel = true);
	then(.act = SERVER_SAYS, .text = data, .asked = 1);
	then(.act = SERVER_ENDS, .when = "[end]");
	panda("ssh-proxy", "-i", "key", BOX);
	assert_int_equal(bed.code, 0);
	assert_int_equal(bed.out_len, n);
	assert_memory_equal(bed.out, data, n);
	assert_int_equal(bed.heard_len, n + strlen("[end]"));
	assert_memory_equal(bed.heard, data, n);
}

static void a_proxy_that_is_refused_is_told(void **state)
{
	bed_file("key.pub", "ssh-ed25519 AAAAkey", 0, 0600);
	bed_refuse(SSH_TUNNEL, 409, "no_sshd", "the template has no sshd");
	panda("ssh-proxy", "-i", "key", BOX);
	fails(125, "panda: the template has no sshd\n");
	panda("ssh-proxy", "-i", "missing", BOX);
	fails(125, "panda: cannot read the public key missing.pub: No such file or directory\n");
	reply(.request = SSH_TUNNEL, .json = "{}");
	panda("ssh-proxy", "-i", "key", BOX);
	fails(125, "answered 200, not a tunnel\n");
}

static void without_an_identity_the_key_of_the_sandbox_is_used(void **state)
{
	have_ssh();
	reply(.request = SSH_TUNNEL, .tunnel = true);
	then(.act = SERVER_ENDS, .asked = 1);
	panda("ssh-proxy", BOX);
	gives(0, "", "");
}

#define HOST_KEY "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB"

static void the_key_of_a_sandbox_is_a_line_of_known_hosts(void **state)
{
	answer("POST /v1/sandboxes/" BOX "/exec", "{'exit_code':0,'stdout':'" HOST_KEY "\\n'}");
	panda("ssh-proxy", "--host-key", BOX);
	gives(0, "* " HOST_KEY "\n", "");
	sent(0, "{'cmd':'/usr/lib/panda/ssh-serve --host-key','timeout_seconds':30}");
}

static void what_is_no_key_is_not_passed_on(void **state)
{
	static const char *const bad[] = {
	    "", "ssh-rsa AAAA", "ssh-ed25519 short", HOST_KEY " *", "* " HOST_KEY, HOST_KEY "\\r"};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		char json[256];

		snprintf(json, sizeof(json), "{'exit_code':0,'stdout':'%s\\n'}", bad[i]);
		answer("POST /v1/sandboxes/" BOX "/exec", json);
		panda("ssh-proxy", "--host-key", BOX);
		fails(125, "panda: the sandbox has no ssh key: its template needs openssh-server");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(a_connection_here_leads_to_a_port_inside),
	    bed_test(what_was_cut_inside_is_a_reset_here),
	    bed_test(a_visitor_does_not_keep_the_next_one_waiting),
	    bed_test(every_port_has_a_line),
	    bed_test(ports_are_one_or_two_numbers),
	    bed_test(a_port_that_is_taken_is_named),
	    bed_test(a_sandbox_that_is_not_there_is_not_listened_for),
	    bed_test(ssh_gets_a_key_of_its_own_and_trusts_only_what_the_server_says),
	    bed_test(a_key_is_made_once_and_again_when_half_of_it_is_missing),
	    bed_test(config_prints_lines_for_other_programs),
	    bed_test(a_percent_sign_is_doubled_for_ssh),
	    bed_test(without_openssh_it_says_what_to_install),
	    bed_test(a_key_that_could_not_be_made_is_told),
	    bed_test(the_proxy_carries_stdin_and_stdout_and_says_the_key),
	    bed_test(much_goes_both_ways_at_once),
	    bed_test(a_proxy_that_is_refused_is_told),
	    bed_test(without_an_identity_the_key_of_the_sandbox_is_used),
	    bed_test(the_key_of_a_sandbox_is_a_line_of_known_hosts),
	    bed_test(what_is_no_key_is_not_passed_on),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
