/*
 * panda shell and exec -t: a terminal of ours, a WebSocket, and every way out. bed_run() looks
 * whether the terminal is as it was.
 */
#include "base/macro.h"
#include "bed.h"

#include <signal.h>

#define PTY "GET /v1/sandboxes/" BOX "/exec/pty?rows=24&cols=80"

static void a_shell_carries_keys_and_output_and_its_exit_code(void **state)
{
	bed.tty = true;
	reply(.request = PTY, .websocket = true);
	then(.act = SERVER_SAYS, .text = "# ", .asked = 1);
	then(.act = TYPE, .text = "ls\r", .when = "# ");
	then(.act = SERVER_SAYS, .text = "file\033[0m\r\n", .when = "ls\r");
	then(.act = SERVER_TEXT, .text = "{'exit':3}", .when = "file");
	panda("shell", BOX);
	gives(3, "# file\033[0m\r\n", NULL);
	assert_string_equal(bed.heard, "ls\r");
}

static void older_servers_say_the_exit_in_another_way(void **state)
{
	bed.tty = true;
	reply(.request = PTY, .websocket = true);
	then(.act = SERVER_TEXT, .text = "{'type':'exit','code':4}", .asked = 1);
	panda("shell", BOX);
	gives(4, "", NULL);
}

static void keys_are_not_echoed_here_and_control_c_is_a_key(void **state)
{
	bed.tty = true;
	reply(.request = PTY, .websocket = true);
	then(.act = SERVER_SAYS, .text = "# ", .asked = 1);
	then(.act = TYPE, .text = "\003\032a", .when = "# ");
	then(.act = SERVER_TEXT, .text = "{'exit':0}", .when = "\003\032a");
	panda("shell", BOX);
	gives(0, "# ", NULL);
}

static void tilde_dot_leaves_even_when_nothing_answers(void **state)
{
	bed.tty = true;
	reply(.request = PTY, .websocket = true);
	then(.act = SERVER_SAYS, .text = "# ", .asked = 1);
	then(.act = TYPE, .text = "~.", .when = "# ");
	panda("shell", BOX);
	gives(0, "# \r\nleft; the sandbox goes on\r\n", NULL);
	assert_string_equal(bed.heard, "");
}

static void a_new_size_is_told(void **state)
{
	bed.tty = true;
	reply(.request = PTY, .websocket = true);
	then(.act = SERVER_SAYS, .text = "# ", .asked = 1);
	then(.act = RESIZE, .n = 50, .when = "# ");
	then(.act = SERVER_TEXT, .text = "{'exit':0}",
	     .when = "{\"resize\":{\"rows\":50,\"cols\":80}}");
	panda("shell", BOX);
	gives(0, "# ", NULL);
}

static void an_error_of_the_terminal_is_told(void **state)
{
	bed.tty = true;
	reply(.request = PTY, .websocket = true);
	then(.act = SERVER_TEXT, .text = "{'error':'no shell here'}", .asked = 1);
	panda("shell", BOX);
	gives(125, "panda: no shell here\r\n", NULL);
}

static void a_connection_that_breaks_is_told(void **state)
{
	bed.tty = true;
	reply(.request = PTY, .websocket = true);
	then(.act = SERVER_SAYS, .text = "# ", .asked = 1);
	then(.act = SERVER_LEAVES, .when = "# ");
	panda("shell", BOX);
	assert_int_equal(bed.code, 125);
	assert_non_null(strstr(bed.out,
	                       "panda: the connection to the terminal broke: the shell has "
	                       "been hung up\r\n"));
}

static void a_signal_ends_a_session(void **state)
{
	bed.tty = true;
	reply(.request = PTY, .websocket = true);
	then(.act = SERVER_SAYS, .text = "# ", .asked = 1);
	then(.act = SIGNAL, .n = SIGTERM, .when = "# ");
	panda("shell", BOX);
	gives(128 + SIGTERM, "# ", NULL);
}

static void a_script_can_type_too_and_its_end_is_an_end_of_file(void **state)
{
	bed.in = "exit 3\n~.\n";
	reply(.request = PTY, .websocket = true);
	then(.act = SERVER_TEXT, .text = "{'exit':3}", .when = "\004");
	panda("shell", BOX);
	gives(3, "", "");
	assert_string_equal(bed.heard, "exit 3\n~.\n\004"); /* ~. means something to people only */
}

static void an_end_of_file_is_typed_until_it_is_heard(void **state)
{
	bed.in = "";
	reply(.request = PTY, .websocket = true);
	then(.act = SERVER_TEXT, .text = "{'exit':0}", .when = "\004\004\004");
	panda("shell", BOX);
	gives(0, "", "");
}

static void output_with_nobody_to_read_it_ends_the_session(void **state)
{
	bed.full = true;
	bed.in_open = true;
	reply(.request = PTY, .websocket = true);
	then(.act = SERVER_SAYS, .text = "# ", .asked = 1);
	panda("shell", BOX);
	assert_int_equal(bed.code, 125);
}

static void what_is_no_terminal_is_refused(void **state)
{
	bed_refuse(PTY, 409, "sandbox_paused", "it is paused");
	panda("shell", BOX);
	fails(125, "panda: it is paused\n       `panda resume ID` lets it go on\n");
	reply(.request = PTY, .json = "{}");
	panda("shell", BOX);
	fails(125, "answered 200, not a WebSocket\n");
}

static void a_shell_without_a_sandbox_has_one_for_itself(void **state)
{
	bed.tty = true;
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	reply(.request = PTY, .websocket = true);
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	then(.act = SERVER_TEXT, .text = "{'exit':4}", .asked = 2);
	panda("shell", "-t", "agent");
	gives(4, "", NULL);
	sent(0, "{'template':'agent'}");
}

static void a_shell_can_leave_its_sandbox_behind(void **state)
{
	bed.tty = true;
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	reply(.request = PTY, .websocket = true);
	then(.act = SERVER_TEXT, .text = "{'exit':0}", .asked = 2);
	panda("shell", "--keep");
	gives(0, BOX "\r\n", NULL);
	panda("shell", "--keep", BOX);
	assert_int_equal(bed.code, 125);
	assert_non_null(strstr(bed.out, "are for a new sandbox, without ID"));
}

static void run_on_a_terminal_is_a_shell_or_a_command(void **state)
{
	bed.tty = true;
	answer("POST /v1/sandboxes", "{'id':'" BOX "'}");
	reply(.request = PTY, .websocket = true);
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	then(.act = SERVER_TEXT, .text = "{'exit':7}", .asked = 2);
	panda("run", "-it");
	gives(7, "", NULL);
	sent(0, "{'template':'base'}");

	answer("GET /v1/templates", "{'items':[{'name':'agent'},{'name':'base'}]}");
	answer("POST /v1/sandboxes", "{'id':'" BOX "','name':'x'}");
	reply(.request = PTY "&cmd=cd%20%2Fsrv%20%26%26%20make%20-j%20%27a%20b%27",
	      .websocket = true);
	reply(.request = "DELETE /v1/sandboxes/" BOX, .status = 204);
	then(.act = SERVER_TEXT, .text = "{'exit':0}", .asked = 3);
	panda("run", "--name", "x", "-ti", "-w", "/srv", "agent", "make", "-j", "a b");
	gives(0, "", NULL);
	sent(1, "{'template':'agent','name':'x'}");
}

static void run_on_a_terminal_refuses_what_it_cannot_keep(void **state)
{
	panda("run", "-it", "-d");
	fails(125, "--tty goes with neither --detach nor --json");
	panda("run", "--tty", "-u", "bob", "--", "id");
	fails(125, "--tty goes with neither --user nor --timeout");
}

/* ---- exec -t ---- */

static void a_command_on_a_terminal_is_one_line(void **state)
{
	reply(.request = PTY "&cmd=ls%20%7C%20wc", .websocket = true);
	then(.act = SERVER_TEXT, .text = "{'exit':0}", .asked = 1);
	panda("exec", "-t", BOX, "ls | wc");
	gives(0, "", "");
	reply(.request = PTY "&cmd=vi%20%27a%20b%27", .websocket = true);
	then(.act = SERVER_TEXT, .text = "{'exit':7}", .asked = 1);
	panda("exec", "-t", BOX, "--", "vi", "a b");
	gives(7, "", "");
	reply(.request = PTY, .websocket = true);
	then(.act = SERVER_TEXT, .text = "{'exit':0}", .asked = 1);
	panda("exec", "-t", BOX);
	gives(0, "", "");
}

static void a_terminal_goes_with_neither_detach_nor_json(void **state)
{
	panda("exec", "-t", "-d", BOX, "vi");
	fails(125, "panda exec: --tty goes with neither --detach nor --json\n");
	panda("exec", "-t", "--json", BOX, "vi");
	fails(125, "panda exec: --tty goes with neither --detach nor --json\n");
}

static void options_that_a_terminal_does_not_know_are_not_forgotten_in_silence(void **state)
{
	static const char *const options[][2] = {{"-u", "web"},
	                                         {"-e", "A=1"},
	                                         {"-C", "/srv"},
	                                         {"--timeout", "5"}};

	for (size_t i = 0; i < ARRAY_LEN(options); i++) {
		panda("exec", "-t", options[i][0], options[i][1], BOX, "id");
		fails(125, "panda exec: ");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    bed_test(a_shell_carries_keys_and_output_and_its_exit_code),
	    bed_test(older_servers_say_the_exit_in_another_way),
	    bed_test(keys_are_not_echoed_here_and_control_c_is_a_key),
	    bed_test(tilde_dot_leaves_even_when_nothing_answers),
	    bed_test(a_new_size_is_told),
	    bed_test(an_error_of_the_terminal_is_told),
	    bed_test(a_connection_that_breaks_is_told),
	    bed_test(a_signal_ends_a_session),
	    bed_test(a_script_can_type_too_and_its_end_is_an_end_of_file),
	    bed_test(an_end_of_file_is_typed_until_it_is_heard),
	    bed_test(output_with_nobody_to_read_it_ends_the_session),
	    bed_test(what_is_no_terminal_is_refused),
	    bed_test(a_shell_without_a_sandbox_has_one_for_itself),
	    bed_test(a_shell_can_leave_its_sandbox_behind),
	    bed_test(run_on_a_terminal_is_a_shell_or_a_command),
	    bed_test(run_on_a_terminal_refuses_what_it_cannot_keep),
	    bed_test(a_command_on_a_terminal_is_one_line),
	    bed_test(a_terminal_goes_with_neither_detach_nor_json),
	    bed_test(options_that_a_terminal_does_not_know_are_not_forgotten_in_silence),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
