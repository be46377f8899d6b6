#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/macro.h"
#include "harness.h"

#define TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, test_teardown)

static void both_streams_are_apart_and_exact(void **state)
{
	struct box *b = *state;
	struct guest_exec x = {.cwd = b->dir};
	autofree char *out = NULL, *err = NULL;
	size_t n_out, n_err;
	struct result r;

	x.script =
	    "head -c 300001 /dev/urandom | tee out; head -c 200003 /dev/urandom | tee err >&2";
	r = run_exec(b->g, x);
	assert_int_equal(r.exit.code, 0);
	assert_int_equal(io_read_file(AT_FDCWD, path_in(b, "out"), 1 << 20, &out, &n_out), 0);
	assert_int_equal(io_read_file(AT_FDCWD, path_in(b, "err"), 1 << 20, &err, &n_err), 0);
	assert_int_equal(n_out, 300001);
	assert_int_equal(n_err, 200003);
	assert_int_equal(r.out.n, n_out);
	assert_int_equal(r.err.n, n_err);
	assert_memory_equal(r.out.p, out, n_out);
	assert_memory_equal(r.err.p, err, n_err);
	assert_int_equal(r.exit.out_bytes, n_out);
	assert_int_equal(r.exit.err_bytes, n_err);
	result_free(&r);
}

static void exit_codes_and_signals_are_told_apart(void **state)
{
	struct box *b = *state;
	struct result r = run_sh(b->g, "exit 137");

	assert_false(r.exit.signaled);
	assert_int_equal(r.exit.code, 137);
	result_free(&r);
	r = run_sh(b->g, "kill -9 $$");
	assert_true(r.exit.signaled);
	assert_int_equal(r.exit.code, 9);
	assert_false(r.exit.timed_out);
	result_free(&r);
}

static void argv_env_and_cwd_arrive_as_given(void **state)
{
	struct box *b = *state;
	char *argv[] = {(char *)"sh",
	                (char *)"-c",
	                (char *)"printf '%s|%s|%s|%s|' \"$1\" \"$A\" \"$LANG\" \"$PWD\"",
	                (char *)"x",
	                (char *)"a b\n\"c'",
	                NULL};
	char *env[] = {(char *)"A=1 2", (char *)"LANG=xx", NULL};
	struct result r =
	    run_exec(b->g, (struct guest_exec){.argv = argv, .env = env, .cwd = "/usr"});

	assert_string_equal(r.out.p, "a b\n\"c'|1 2|xx|/usr|");
	result_free(&r);
	r = run_sh(b->g, "printf '%s|%s|' \"$LANG\" \"$PATH\"");
	assert_string_equal(
	    r.out.p, "C.UTF-8|/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin|");
	result_free(&r);
}

static void a_program_starts_with_a_clean_slate(void **state)
{
	struct box *b = *state;
	/* Nothing blocked, nothing ignored, only 0, 1, 2 open (and what ls and grep open). */
	struct result r =
	    run_sh(b->g, "grep -E 'Sig(Blk|Ign)' /proc/self/status; exec ls /proc/self/fd");

	assert_string_equal(r.out.p, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
	                             "0\n1\n2\n3\n");
	result_free(&r);
}

static void what_cannot_start_says_why(void **state)
{
	struct box *b = *state;
	char *missing[] = {(char *)"no-such-program", NULL};
	char *dir[] = {(char *)"/tmp", NULL};
	char *ok[] = {(char *)"true", NULL};
	struct guest_exit exit;
	struct err e = {0};

	assert_int_equal(guest_exec_wait(b->g, &(struct guest_exec){.argv = missing}, &exit, &e),
	                 -ENOENT);
	assert_non_null(strstr(e.text, "cannot start program"));
	assert_int_equal(guest_exec_wait(b->g, &(struct guest_exec){.argv = dir}, &exit, &e),
	                 -EACCES);
	assert_int_equal(guest_exec_wait(b->g, &(struct guest_exec){.argv = ok, .cwd = "/nope"},
	                                 &exit, &e),
	                 -ENOENT);
	assert_non_null(strstr(e.text, "cannot enter directory"));
	assert_int_equal(guest_exec_wait(b->g, &(struct guest_exec){.argv = ok, .user = "nope"},
	                                 &exit, &e),
	                 -ENOENT);
	assert_non_null(strstr(e.text, "no such user"));
	assert_ok(guest_exec_wait(b->g, &(struct guest_exec){.argv = ok}, &exit, &why));
}

static void start_end(void *arg, struct guest_call *c, const struct guest_end *end)
{
	*(struct guest_end *)arg = *end;
}

/* How an exec of this program in this directory ends that does not even start. */
static struct guest_end failed_start(struct guest *g, const char *program, const char *cwd,
                                     const char *user)
{
	static const struct guest_ops ops = {.end = start_end};
	char *argv[] = {(char *)program, NULL};
	struct guest_end end = {.err = -1};
	struct wire_exec m = {.cwd = wire_str(cwd), .user = wire_str(user)};
	uint8_t list[256];

	assert_int_equal(wire_list_build(argv, list, sizeof(list), &m.argv), 0);
	assert_int_equal(guest_start(g, WIRE_EXEC, &m, &ops, &end, NULL), 0);
	turn(g);
	assert_true(end.err > 0);
	return end;
}

static void programs_learn_by_a_number_what_did_not_work(void **state)
{
	struct box *b = *state;

	assert_int_equal(failed_start(b->g, "no-such-program", "", "").reason, WIRE_REASON_PROGRAM);
	assert_int_equal(failed_start(b->g, "/tmp", "", "").reason, WIRE_REASON_PROGRAM);
	assert_int_equal(failed_start(b->g, "true", "/nope", "").reason, WIRE_REASON_DIRECTORY);
	assert_int_equal(failed_start(b->g, "no-such-program", "/nope", "").reason,
	                 WIRE_REASON_DIRECTORY);
	assert_int_equal(failed_start(b->g, "true", "", "nope").reason, WIRE_REASON_NONE);
	assert_int_equal(failed_start(b->g, "no-such-program", "", "").reason, WIRE_REASON_PROGRAM);
}

static void another_user_is_another_user(void **state)
{
	struct box *b = *state;
	struct result r;

	if (getuid() != 0)
		skip();
	r = run_exec(b->g, (struct guest_exec){.script = "id -u; id -g; id -G; echo $USER",
	                                       .user = "nobody"});
	assert_string_equal(r.out.p, "65534\n65534\n65534\nnobody\n");
	result_free(&r);
	r = run_exec(b->g, (struct guest_exec){.script = "id -u; id -g", .user = "1234:4321"});
	assert_string_equal(r.out.p, "1234\n4321\n");
	result_free(&r);
}

static int file_of(struct box *b, const char *name, size_t n)
{
	char cmd[256];

	snprintf(cmd, sizeof(cmd), "head -c %zu /dev/urandom >'%s'", n, path_in(b, name));
	assert_int_equal(system(cmd), 0);
	return open(path_in(b, name), O_RDONLY | O_CLOEXEC);
}

static void ten_mebibytes_of_stdin_come_back(void **state)
{
	struct box *b = *state;
	autoclose int fd = file_of(b, "in", 10 << 20);
	autofree char *in = NULL;
	size_t n;
	struct result r;

	r = run_exec(b->g,
	             (struct guest_exec){.script = "cat", .feed_stdin = true, .stdin_fd = fd});
	assert_int_equal(io_read_file(AT_FDCWD, path_in(b, "in"), 1 << 24, &in, &n), 0);
	assert_int_equal(r.out.n, n);
	assert_true(memcmp(r.out.p, in, n) == 0);
	result_free(&r);
}

static void stdin_that_nobody_reads_does_no_harm(void **state)
{
	struct box *b = *state;
	autoclose int fd = file_of(b, "in", 1 << 20);
	struct result r =
	    run_exec(b->g,
	             (struct guest_exec){.script = "exit 3", .feed_stdin = true, .stdin_fd = fd});

	assert_int_equal(r.exit.code, 3);
	result_free(&r);
	r = run_sh(b->g, "cat | wc -c"); /* closed: the end at once */
	assert_string_equal(r.out.p, "0\n");
	result_free(&r);
}

/* ---- several at once ---- */

struct flood {
	uint64_t bytes;
	bool give_credit, ended;
	int err;
};

static void flood_data(void *arg, struct guest_call *c, uint8_t chan, const void *p, size_t n)
{
	struct flood *f = arg;

	f->bytes += n;
	if (f->give_credit)
		guest_credit(c, chan, n);
}

static void flood_end(void *arg, struct guest_call *c, const struct guest_end *end)
{
	struct flood *f = arg;

	f->ended = true;
	f->err = end->err;
}

static const struct guest_ops flood_ops = {.data = flood_data, .end = flood_end};

static struct guest_call *start_flood(struct guest *g, const char *script, struct flood *f)
{
	char *argv[] = {(char *)script, NULL};
	uint8_t list[256];
	struct wire_exec m = {.flags = WIRE_EXEC_SHELL, .window = GUEST_WINDOW};
	struct guest_call *c;

	m.cwd = m.user = wire_str("");
	assert_int_equal(wire_list_build(argv, list, sizeof(list), &m.argv), 0);
	assert_int_equal(guest_start(g, WIRE_EXEC, &m, &flood_ops, f, &c), 0);
	return c;
}

static long rss_kib(pid_t pid)
{
	char path[64], *at;
	long kib = -1;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	at = strstr(read_small(path), "VmRSS:");
	if (at)
		sscanf(at, "VmRSS: %ld", &kib);
	return kib;
}

static void one_flood_stalls_nobody_and_fills_no_memory(void **state)
{
	struct box *b = *state;
	struct flood stuck = {0}, flowing = {.give_credit = true};
	struct guest_call *c1 = start_flood(b->g, "yes", &stuck);
	struct guest_call *c2 = start_flood(b->g, "yes no >&2", &flowing);
	struct result r;
	long kib;

	for (int i = 0; i < 20 || flowing.bytes < 64 << 20; i++) {
		r = run_sh(b->g, "echo answered");
		assert_string_equal(r.out.p, "answered\n");
		result_free(&r);
	}
	assert_int_equal(stuck.bytes, GUEST_WINDOW); /* what it was allowed, not a byte more */
	kib = rss_kib(b->pid);
	assert_true(kib > 0);
	if (agent_is_small && kib > 2048)
		fail_msg("the agent has grown to %ld KiB", kib);
	guest_cancel(c1);
	guest_cancel(c2);
	while (!stuck.ended || !flowing.ended)
		turn(b->g);
	assert_int_equal(stuck.err, ECANCELED);
}

static bool all_have(const struct flood *f, size_t n, uint64_t bytes)
{
	for (size_t i = 0; i < n; i++)
		if (f[i].bytes != bytes)
			return false;
	return true;
}

static void fifty_at_once_all_answer(void **state)
{
	struct box *b = *state;
	struct flood f[50] = {0};
	char script[128];
	int fifo;

	/* None can end before all have started: they read from a fifo that we hold open. */
	assert_int_equal(mkfifo(path_in(b, "fifo"), 0600), 0);
	fifo = open(path_in(b, "fifo"), O_RDWR | O_CLOEXEC);
	assert_true(fifo >= 0);
	for (int i = 0; i < 50; i++) {
		f[i].give_credit = true;
		snprintf(script, sizeof(script), "exec 3<%s; echo here; read x <&3; echo %04d",
		         path_in(b, "fifo"), i);
		start_flood(b->g, script, &f[i]);
	}
	while (!all_have(f, ARRAY_LEN(f), 5))
		turn(b->g);
	close(fifo);
	for (int i = 0; i < 50; i++) {
		while (!f[i].ended)
			turn(b->g);
		assert_int_equal(f[i].err, 0);
	}
	assert_true(all_have(f, ARRAY_LEN(f), 10));
}

static void garbage_closes_only_its_own_connection(void **state)
{
	struct box *b = *state;
	static const char *const garbage[] = {
	    "GET / HTTP/1.1\r\n\r\n",
	    "\x05\x00\x00\x00\xa1\x20\x00\x00\x01\x00\x00\x00hello", /* not an exec */
	    "\x00\x00\x00\x00\xa1\xff\x00\x00\x01\x00\x00\x00",      /* no such type */
	    "\xff\xff\xff\x7f\xa1\x01\x00\x00\x01\x00\x00\x00",      /* too long */
	    "\x00\x00\x00\x00\xa1\x30\x00\x00\x00\x00\x00\x00",      /* stream 0 */
	};
	static const size_t len[] = {18, 17, 12, 12, 12};
	char c;
	struct result r;

	for (size_t i = 0; i < ARRAY_LEN(garbage); i++) {
		autoclose int fd = box_raw(b);

		assert_true(fd >= 0);
		assert_int_equal(io_write_full(fd, garbage[i], len[i]), 0);
		assert_int_equal(read(fd, &c, 1), 0); /* blocks until the agent hangs up */
	}
	r = run_sh(b->g, "echo still here");
	assert_string_equal(r.out.p, "still here\n");
	result_free(&r);
}

static void read_whole(int sock, void *buf, size_t n)
{
	assert_int_equal(recv(sock, buf, n, MSG_WAITALL), n);
}

static void frames_may_come_in_any_pieces(void **state)
{
	struct box *b = *state;
	static const char stats[] = "\x00\x00\x00\x00\xa1\x30\x00\x00\x07\x00\x00\x00";
	autoclose int fd = box_raw(b);
	uint8_t h[WIRE_HEADER];
	struct wire_header got;

	assert_true(fd >= 0);
	for (int i = 0; i < WIRE_HEADER; i++) {
		struct result r;

		assert_int_equal(io_write_full(fd, stats + i, 1), 0);
		r = run_sh(b->g, "true"); /* the agent has seen that byte by now */
		result_free(&r);
	}
	read_whole(fd, h, sizeof(h));
	assert_int_equal(wire_header_decode(h, &got), 0);
	assert_int_equal(got.type, WIRE_STATS_REPLY);
	assert_int_equal(got.stream, 7);
}

static void who_asks_and_never_listens_waits_alone(void **state)
{
	static char questions[1000 * WIRE_HEADER];
	struct box *b = *state;
	autoclose int fd = box_raw(b);
	size_t bytes = 0, asked, ends = 0;
	struct wire_header h = {.type = WIRE_STATS, .stream = 7};

	for (size_t i = 0; i < sizeof(questions); i += WIRE_HEADER)
		wire_header_encode(&h, (uint8_t *)questions + i);
	assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	for (int full = 0; full < 3;) { /* until the agent takes no more */
		size_t at = bytes % sizeof(questions);
		ssize_t r = write(fd, questions + at, sizeof(questions) - at);

		if (r > 0) {
			bytes += (size_t)r;
			full = 0;
		} else {
			full++;
			turn(b->g); /* others are served */
		}
	}
	if (agent_is_small && rss_kib(b->pid) > 2048)
		fail_msg("the agent has grown to %ld KiB", rss_kib(b->pid));
	assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
	asked = bytes / WIRE_HEADER;
	assert_true(asked > 1000);
	while (ends < asked) { /* and no question was lost */
		uint8_t frame[WIRE_FRAME_MAX];

		read_whole(fd, frame, WIRE_HEADER);
		assert_int_equal(wire_header_decode(frame, &h), 0);
		read_whole(fd, frame, h.length);
		ends += h.type == WIRE_END;
	}
}

/* ---- ends ---- */

static pid_t pid_from(struct box *b, const char *name)
{
	pid_t pid;

	assert_soon((pid = atoi(read_small(path_in(b, name)))) > 0 &&
	            strchr(read_small(path_in(b, name)), '\n'));
	return pid;
}

static void a_timeout_kills_all_it_started(void **state)
{
	struct box *b = *state;
	struct guest_exec x = {.cwd = b->dir, .timeout_ms = 1500};
	struct result r;

	/* in the group; in a session of its own; the same and orphaned twice */
	x.script = "sleep 1000 & echo $! >group; "
		   "setsid sh -c 'echo $$ >session; sleep 1000; :' & "
		   "(setsid sh -c 'sh -c \"echo \\$\\$ >orphan; sleep 1000; :\" & ' &) ; "
		   "sleep 1000";
	r = run_exec(b->g, x);
	assert_true(r.exit.timed_out);
	assert_true(r.exit.signaled);
	assert_int_equal(r.exit.code, SIGKILL);
	assert_soon(process_gone(pid_from(b, "group")));
	assert_soon(process_gone(pid_from(b, "session")));
	assert_soon(process_gone(pid_from(b, "orphan")));
	result_free(&r);
}

static void a_closed_connection_kills_its_execs(void **state)
{
	struct box *b = *state;
	struct guest *other = box_connect(b);
	struct flood f = {0};
	char script[128];
	pid_t pid;

	snprintf(script, sizeof(script), "echo $$ >%s; setsid sleep 1000 & sleep 1000",
	         path_in(b, "victim"));
	start_flood(other, script, &f);
	guest_flush(other);
	pid = pid_from(b, "victim");
	guest_free(other);
	assert_soon(process_gone(pid));
}

static void a_background_server_is_left_alone_and_not_waited_for(void **state)
{
	struct box *b = *state;
	struct result r = run_exec(
	    b->g,
	    (struct guest_exec){.cwd = b->dir,
	                        .script = "(while sleep 0.01; do echo tick; done) & echo $! >bg; "
	                                  "echo started"});
	pid_t pid = pid_from(b, "bg");
	size_t n = r.out.n;

	assert_int_equal(r.exit.code, 0);
	assert_true(n >= 8);
	assert_memory_equal(r.out.p, "started\n", 8);
	assert_false(process_gone(pid)); /* its stdout still has a reader */
	result_free(&r);
	r = run_sh(b->g, "true");
	result_free(&r);
	assert_false(process_gone(pid));
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_soon(process_gone(pid));
}

static void all_output_can_be_waited_for(void **state)
{
	struct box *b = *state;
	struct result r =
	    run_exec(b->g, (struct guest_exec){.script = "(sleep 0.2; echo late) & echo early",
	                                       .wait_output = true});

	assert_string_equal(r.out.p, "early\nlate\n");
	result_free(&r);
}

static void nothing_is_left_unreaped(void **state)
{
	struct box *b = *state;
	char path[64];
	struct result r = run_sh(b->g, "for i in 1 2 3 4 5; do (setsid sh -c 'true &' &); done");

	result_free(&r);
	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)b->pid, (int)b->pid);
	assert_soon(read_small(path)[0] == 0);
}

/* ---- terminals ---- */

struct terminal {
	struct result r;
	struct guest_call *call;
	int stage;
};

static void terminal_data(void *arg, struct guest_call *c, uint8_t chan, const void *p, size_t n)
{
	struct terminal *t = arg;

	collect(&t->r, chan, p, n);
	guest_credit(c, chan, n);
	if (t->stage == 0 && strstr(t->r.out.p, "30 100")) {
		t->stage = 1;
		assert_int_equal(guest_resize(c, 50, 132), 0);
		assert_int_equal(guest_send(c, "stty size\n", 10), 10);
	} else if (t->stage == 1 && strstr(t->r.out.p, "50 132")) {
		t->stage = 2;
		assert_int_equal(guest_send(c, "exit 5\n", 7), 7);
	}
}

static void terminal_reply(void *arg, struct guest_call *c, uint8_t type, uint8_t chan,
                           const void *msg)
{
	struct terminal *t = arg;

	if (type == WIRE_EXITED)
		t->r.exit.code = (int)((const struct wire_exited *)msg)->code;
}

static void terminal_end(void *arg, struct guest_call *c, const struct guest_end *end)
{
	struct terminal *t = arg;

	t->call = NULL;
	assert_int_equal(end->err, 0);
}

static void a_terminal_has_a_size_that_changes(void **state)
{
	static const struct guest_ops ops = {.data = terminal_data,
	                                     .reply = terminal_reply,
	                                     .end = terminal_end};
	struct box *b = *state;
	struct terminal t = {0};
	char *argv[] = {(char *)"/bin/sh", NULL};
	uint8_t list[64];
	struct wire_exec m = {.flags = WIRE_EXEC_PTY,
	                      .window = GUEST_WINDOW,
	                      .rows = 30,
	                      .cols = 100};

	t.r.out.p = calloc(1, 1);
	m.cwd = m.user = wire_str("");
	assert_int_equal(wire_list_build(argv, list, sizeof(list), &m.argv), 0);
	assert_int_equal(guest_start(b->g, WIRE_EXEC, &m, &ops, &t, &t.call), 0);
	assert_int_equal(guest_send(t.call, "tty && stty size\n", 17), 17);
	while (t.call)
		turn(b->g);
	assert_int_equal(t.stage, 2);
	assert_int_equal(t.r.exit.code, 5);
	assert_non_null(strstr(t.r.out.p, "/dev/pts/"));
	result_free(&t.r);
}

static void the_end_of_input_reaches_a_terminal(void **state)
{
	struct box *b = *state;
	autoclose int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	struct result r = run_exec(b->g, (struct guest_exec){.script = "cat; echo over",
	                                                     .pty = true,
	                                                     .feed_stdin = true,
	                                                     .stdin_fd = null});

	assert_non_null(strstr(r.out.p, "over\r\n"));
	assert_int_equal(r.exit.err_bytes, 0);
	result_free(&r);
}

/* ---- detached ---- */

static uint64_t start_detached(struct guest *g, const char *script, bool stdin_open)
{
	uint64_t id = 0;

	assert_ok(guest_exec_start(g,
	                           &(struct guest_exec){.script = script, .feed_stdin = stdin_open},
	                           &id, &why));
	assert_true(id > 0);
	return id;
}

static struct result attach(struct guest *g, struct guest_attach *at, int stdin_fd)
{
	struct result r = {0};
	struct guest_exec x = {.output = collect, .arg = &r};

	r.out.p = calloc(1, 1);
	r.err.p = calloc(1, 1);
	if (stdin_fd >= 0) {
		x.feed_stdin = true;
		x.stdin_fd = stdin_fd;
	}
	assert_ok(guest_exec_attach(g, at, &x, &r.exit, &why));
	return r;
}

struct lookup {
	uint64_t id;
	struct wire_exec_info info;
	char command[128];
};

static void look_up(void *arg, const struct wire_exec_info *m)
{
	struct lookup *l = arg;

	if (m->id != l->id)
		return;
	l->info = *m;
	snprintf(l->command, sizeof(l->command), "%s", m->command.p);
}

static struct lookup find_exec(struct guest *g, uint64_t id)
{
	struct lookup l = {.id = id};

	assert_ok(guest_exec_list(g, look_up, &l, &why));
	return l;
}

static void a_detached_exec_can_be_replayed_by_anybody(void **state)
{
	struct box *b = *state;
	uint64_t id =
	    start_detached(b->g, "echo one; echo two >&2; read x; echo \"got $x\"; exit 4", true);
	struct guest *other = box_connect(b);
	struct guest_attach at = {.id = id};
	struct lookup l;
	struct result r;
	int p[2];

	guest_free(b->g); /* its first connection goes away, and it does not care */
	b->g = box_connect(b);
	assert_soon((l = find_exec(other, id)).info.out_to == 4 && l.info.err_to == 4);
	assert_int_equal(l.info.flags, WIRE_INFO_RUNNING | WIRE_INFO_DETACHED);
	assert_non_null(strstr(l.command, "echo one"));

	assert_int_equal(pipe(p), 0);
	assert_int_equal(write(p[1], "line\n", 5), 5);
	close(p[1]);
	r = attach(other, &at, p[0]);
	close(p[0]);
	assert_string_equal(r.out.p, "one\ngot line\n");
	assert_string_equal(r.err.p, "two\n");
	assert_int_equal(r.exit.code, 4);
	result_free(&r);

	/* It is over, and still can be asked for, from the middle too. */
	at = (struct guest_attach){.id = id, .out_offset = 2};
	r = attach(b->g, &at, -1);
	assert_string_equal(r.out.p, "e\ngot line\n");
	assert_int_equal(at.out_offset, 2);
	assert_int_equal(r.exit.code, 4);
	result_free(&r);
	l = find_exec(b->g, id);
	assert_int_equal(l.info.flags, WIRE_INFO_DETACHED);
	assert_int_equal(l.info.code, 4);
	guest_free(other);
}

static void a_ring_keeps_the_newest_and_says_where_it_starts(void **state)
{
	struct box *b = *state;
	uint64_t id = start_detached(b->g, "seq 1 200000", false); /* 1288895 bytes */
	struct guest_attach at = {.id = id};
	struct lookup l;
	struct result r;

	assert_soon(!((l = find_exec(b->g, id)).info.flags & WIRE_INFO_RUNNING));
	r = attach(b->g, &at, -1);
	assert_int_equal(r.exit.out_bytes, 1288895);
	assert_true(at.out_offset > 0);
	assert_int_equal(at.out_offset + at.lost + r.out.n, 1288895);
	assert_string_equal(r.out.p + r.out.n - 14, "199999\n200000\n");
	if (at.lost == 0) /* in one piece, then */
		assert_int_equal(r.out.n, 256 * 1024);
	result_free(&r);
}

struct holder {
	struct guest_call *c;
	size_t got, gaps;
	bool go, ended;
	int err;
};

static void holder_data(void *arg, struct guest_call *c, uint8_t chan, const void *p, size_t n)
{
	struct holder *h = arg;

	h->got += n;
	if (h->go)
		guest_credit(c, chan, n);
}

static void holder_reply(void *arg, struct guest_call *c, uint8_t type, uint8_t chan,
                         const void *msg)
{
	((struct holder *)arg)->gaps += type == WIRE_GAP;
}

static void holder_end(void *arg, struct guest_call *c, const struct guest_end *end)
{
	((struct holder *)arg)->ended = true;
	((struct holder *)arg)->err = end->err;
}

static void a_reader_that_holds_loses_nothing(void **state)
{
	static const struct guest_ops ops = {.data = holder_data,
	                                     .reply = holder_reply,
	                                     .end = holder_end};
	struct box *b = *state;
	struct guest *other = box_connect(b);
	uint64_t id = start_detached(b->g, "read x; seq 1 200000", true), held;
	struct wire_attach m = {.id = id,
	                        .window = 4096,
	                        .flags = WIRE_ATTACH_STDIN | WIRE_ATTACH_HOLD};
	struct holder h = {0};
	struct lookup l;

	assert_int_equal(guest_start(b->g, WIRE_ATTACH, &m, &ops, &h, &h.c), 0);
	assert_int_equal(guest_send(h.c, "x\n", 2), 2);
	assert_int_equal(guest_flush(b->g), 0);
	assert_soon(guest_dispatch(b->g, EPOLLIN) == 0 && h.got == 4096);
	/* The ring is full of what it has not seen, and there the program waits. */
	held = 4096 + 256 * 1024;
	assert_soon((l = find_exec(other, id)).info.out_to == held);
	turn(other);
	l = find_exec(other, id);
	assert_int_equal(l.info.out_to, held);
	assert_true(l.info.flags & WIRE_INFO_RUNNING);

	h.go = true;
	guest_credit(h.c, WIRE_OUT, 4096);
	assert_int_equal(guest_flush(b->g), 0);
	assert_soon(guest_dispatch(b->g, EPOLLIN) == 0 && h.ended);
	assert_int_equal(h.err, 0);
	assert_int_equal(h.got, 1288895);
	assert_int_equal(h.gaps, 0);

	/* The same at full speed, several times. */
	for (int i = 0; i < 20; i++) {
		id = m.id = start_detached(b->g, "read x; seq 1 200000", true);
		m.window = 256 * 1024;
		h = (struct holder){.go = true};
		assert_int_equal(guest_start(b->g, WIRE_ATTACH, &m, &ops, &h, &h.c), 0);
		assert_int_equal(guest_send(h.c, "x\n", 2), 2);
		assert_int_equal(guest_flush(b->g), 0);
		assert_soon(guest_dispatch(b->g, EPOLLIN) == 0 && h.ended);
		assert_int_equal(h.got, 1288895);
	}
	m.window = 4096;

	/* When it goes away, the program goes on. */
	id = m.id = start_detached(b->g, "read x; seq 1 200000", true);
	h = (struct holder){0};
	assert_int_equal(guest_start(other, WIRE_ATTACH, &m, &ops, &h, &h.c), 0);
	assert_int_equal(guest_send(h.c, "x\n", 2), 2);
	assert_int_equal(guest_flush(other), 0);
	assert_soon(find_exec(b->g, id).info.out_to == held);
	guest_free(other);
	assert_soon(!(find_exec(b->g, id).info.flags & WIRE_INFO_RUNNING));
}

struct turn {
	struct holder h; /* first: what the other calls of ops take */
	bool attached;
};

static void turn_reply(void *arg, struct guest_call *c, uint8_t type, uint8_t chan, const void *msg)
{
	((struct turn *)arg)->attached |= type == WIRE_ATTACHED;
}

static void a_stream_can_wait_for_its_turn_to_feed_stdin(void **state)
{
	static const struct guest_ops ops = {.data = holder_data,
	                                     .reply = turn_reply,
	                                     .end = holder_end};
	struct box *b = *state;
	uint64_t id = start_detached(b->g, "cat", true);
	struct wire_attach m = {.id = id, .window = 4096, .flags = WIRE_ATTACH_STDIN};
	struct turn one = {0}, two = {0}, gone = {0}, rude = {0}, *all[] = {&one, &two, &gone};

	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		assert_int_equal(guest_start(b->g, WIRE_ATTACH, &m, &ops, all[i], &all[i]->h.c), 0);
		m.flags |= WIRE_ATTACH_WAIT;
	}
	m.flags &= ~(uint32_t)WIRE_ATTACH_WAIT;
	assert_int_equal(guest_start(b->g, WIRE_ATTACH, &m, &ops, &rude, &rude.h.c), 0);
	assert_int_equal(guest_send(one.h.c, "one\n", 4), 4);
	assert_int_equal(guest_flush(b->g), 0);
	assert_soon(guest_dispatch(b->g, EPOLLIN) == 0 && rude.h.ended && one.attached);
	assert_int_equal(rude.h.err, EBUSY);
	assert_false(two.attached || gone.attached);

	guest_cancel(gone.h.c);
	guest_cancel(one.h.c);
	assert_int_equal(guest_flush(b->g), 0);
	assert_soon(guest_dispatch(b->g, EPOLLIN) == 0 && two.attached);
	assert_false(gone.attached);
	assert_int_equal(guest_send(two.h.c, "two\n", 4), 4);
	guest_send_eof(two.h.c);
	assert_int_equal(guest_flush(b->g), 0);
	assert_soon(guest_dispatch(b->g, EPOLLIN) == 0 && two.h.ended);
	assert_int_equal(find_exec(b->g, id).info.out_to, 8);
}

static void a_detached_exec_can_be_signalled(void **state)
{
	struct box *b = *state;
	uint64_t id = start_detached(b->g,
	                             "trap 'echo caught; exit 9' TERM; echo ready; "
	                             "while :; do sleep 0.01; done",
	                             false);
	struct guest_attach at = {.id = id};
	struct guest_exit exit;
	struct err e = {0};
	struct result r;

	assert_soon(find_exec(b->g, id).info.out_to == 6);
	assert_ok(guest_exec_signal(b->g, id, SIGTERM, 0, &why));
	r = attach(b->g, &at, -1);
	assert_string_equal(r.out.p, "ready\ncaught\n");
	assert_int_equal(r.exit.code, 9);
	result_free(&r);
	assert_int_equal(guest_exec_signal(b->g, id, SIGTERM, 0, &e), -ESRCH);
	assert_int_equal(guest_exec_signal(b->g, 1ull << 60, SIGTERM, 0, &e), -ESRCH);
	at.id = 1ull << 60;
	assert_int_equal(guest_exec_attach(b->g, &at, &(struct guest_exec){0}, &exit, &e), -ESRCH);
}

static void only_so_many_results_are_kept(void **state)
{
	struct box *b = *state;
	uint64_t first = start_detached(b->g, "true", false), id = 0;

	assert_soon(!(find_exec(b->g, first).info.flags & WIRE_INFO_RUNNING));
	for (int i = 0; i < 40; i++) {
		id = start_detached(b->g, "true", false);
		assert_soon(!(find_exec(b->g, id).info.flags & WIRE_INFO_RUNNING));
	}
	assert_int_equal(find_exec(b->g, first).info.id, 0);
	assert_int_equal(find_exec(b->g, id).info.id, id);
}

const struct CMUnitTest exec_tests[] = {
    TEST(both_streams_are_apart_and_exact),
    TEST(exit_codes_and_signals_are_told_apart),
    TEST(argv_env_and_cwd_arrive_as_given),
    TEST(a_program_starts_with_a_clean_slate),
    TEST(what_cannot_start_says_why),
    TEST(programs_learn_by_a_number_what_did_not_work),
    TEST(another_user_is_another_user),
    TEST(ten_mebibytes_of_stdin_come_back),
    TEST(stdin_that_nobody_reads_does_no_harm),
    TEST(one_flood_stalls_nobody_and_fills_no_memory),
    TEST(fifty_at_once_all_answer),
    TEST(garbage_closes_only_its_own_connection),
    TEST(frames_may_come_in_any_pieces),
    TEST(who_asks_and_never_listens_waits_alone),
    TEST(a_timeout_kills_all_it_started),
    TEST(a_closed_connection_kills_its_execs),
    TEST(a_background_server_is_left_alone_and_not_waited_for),
    TEST(all_output_can_be_waited_for),
    TEST(nothing_is_left_unreaped),
    TEST(a_terminal_has_a_size_that_changes),
    TEST(the_end_of_input_reaches_a_terminal),
    TEST(a_detached_exec_can_be_replayed_by_anybody),
    TEST(a_ring_keeps_the_newest_and_says_where_it_starts),
    TEST(a_reader_that_holds_loses_nothing),
    TEST(a_stream_can_wait_for_its_turn_to_feed_stdin),
    TEST(a_detached_exec_can_be_signalled),
    TEST(only_so_many_results_are_kept),
};
const size_t n_exec_tests = ARRAY_LEN(exec_tests);

/* ---- after a fork or restore: this agent takes ECONNRESET for one ---- */

static void a_fork_leaves_execs_running_as_detached_ones(void **state)
{
	struct box *b = *state;
	char script[200], one;
	char *argv[] = {script, NULL};
	uint8_t list[512], frame[1024];
	struct wire_header h = {.type = WIRE_EXEC, .stream = 1};
	struct wire_exec m = {.flags = WIRE_EXEC_SHELL | WIRE_EXEC_STARTED, .window = GUEST_WINDOW};
	struct guest_attach at = {0};
	int fd = box_raw(b);
	struct result r;
	ssize_t n;

	snprintf(script, sizeof(script),
	         "echo before; until [ -e %s ]; do sleep 0.01; done; echo after; exit 6",
	         path_in(b, "go"));
	m.cwd = m.user = wire_str("");
	assert_int_equal(wire_list_build(argv, list, sizeof(list), &m.argv), 0);
	n = wire_frame(&h, &wire_exec_desc, &m, frame, sizeof(frame));
	assert_true(n > 0);
	assert_int_equal(io_write_full(fd, frame, (size_t)n), 0);
	/* STARTED (24 bytes) and "before" (12 + 7) wait unread: closing now resets the stream. */
	assert_int_equal(recv(fd, &one, 1, MSG_PEEK), 1);
	assert_soon(ioctl(fd, FIONREAD, &n) == 0 && (int)n == 24 + 19);
	close(fd);

	at.id = 1;
	assert_soon(find_exec(b->g, at.id).info.flags & WIRE_INFO_DETACHED);
	assert_ok(guest_write_file(b->g, path_in(b, "go"), "", 0, 0, 0, &why));
	r = attach(b->g, &at, -1);
	assert_int_equal(at.out_offset, 7); /* the first line went to the old connection */
	assert_string_equal(r.out.p, "after\n");
	assert_int_equal(r.exit.code, 6);
	assert_int_equal(r.exit.out_bytes, 13);
	result_free(&r);
}

/* One end of a connection, as sshd is: in the copy it reads the end of its input, and goes by
 * itself. */
static void a_fork_hangs_up_what_was_one_end_of_a_connection(void **state)
{
	struct box *b = *state;
	char script[300], one;
	char *argv[] = {script, NULL};
	uint8_t list[512], frame[1024];
	struct wire_header h = {.type = WIRE_EXEC, .stream = 1};
	struct wire_exec m = {.flags = WIRE_EXEC_SHELL | WIRE_EXEC_STDIN | WIRE_EXEC_HANGUP,
	                      .window = GUEST_WINDOW};
	int fd = box_raw(b);
	ssize_t n;

	snprintf(script, sizeof(script), "echo up; cat >/dev/null; echo ended >%s",
	         path_in(b, "hung-up"));
	m.cwd = m.user = wire_str("");
	assert_int_equal(wire_list_build(argv, list, sizeof(list), &m.argv), 0);
	n = wire_frame(&h, &wire_exec_desc, &m, frame, sizeof(frame));
	assert_true(n > 0);
	assert_int_equal(io_write_full(fd, frame, (size_t)n), 0);
	assert_int_equal(recv(fd, &one, 1, MSG_PEEK), 1); /* it is there: "up" waits unread */
	close(fd);
	/* Not killed: it came to its last command. */
	assert_soon(access(path_in(b, "hung-up"), F_OK) == 0);
	/* And it is not kept, as a detached one would be (its number is 2, after the one above). */
	assert_int_equal(find_exec(b->g, 2).info.id, 0);
}

static void a_new_life_has_its_own_environment(void **state)
{
	struct box *b = *state;
	char *env[] = {(char *)"TOKEN=fresh", (char *)"LANG=de", NULL};
	uint8_t list[128];
	struct wire_reborn m = {.generation = 42, .hostname = wire_str("other")};
	struct wire_stats stats;
	struct err e = {0};
	struct result r;

	m.machine_id = wire_str("not hex");
	assert_int_equal(guest_ask(b->g, WIRE_REBORN, &m, "reborn", &e), -EINVAL);
	m.machine_id = wire_str("0123456789abcdef0123456789abcdef");
	assert_int_equal(wire_list_build(env, list, sizeof(list), &m.env), 0);
	assert_ok(guest_ask(b->g, WIRE_REBORN, &m, "reborn", &why));
	r = run_sh(b->g, "echo $TOKEN $LANG $HOME");
	assert_string_equal(r.out.p, "fresh de /root\n");
	result_free(&r);
	assert_ok(guest_stats(b->g, &stats, &why));
	assert_int_equal(stats.generation, 42);
	m = (struct wire_reborn){.generation = 43,
	                         .hostname = wire_str(""),
	                         .machine_id = wire_str("")};
	assert_ok(guest_ask(b->g, WIRE_REBORN, &m, "reborn", &why));
	r = run_sh(b->g, "echo ${TOKEN-none}");
	assert_string_equal(r.out.p, "none\n");
	result_free(&r);
}

const struct CMUnitTest reborn_tests[] = {
    TEST(a_fork_leaves_execs_running_as_detached_ones),
    TEST(a_fork_hangs_up_what_was_one_end_of_a_connection),
    TEST(a_new_life_has_its_own_environment),
};
const size_t n_reborn_tests = ARRAY_LEN(reborn_tests);
