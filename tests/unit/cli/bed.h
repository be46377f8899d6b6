/*
 * cli/bed.h - the commands of panda, each in a process of its own, against a pandad with a script
 * bed_run() forks: the child is panda (cli_main() with a clean environment, in an empty directory
 * that is also its HOME), and the test is its server, its keyboard and its reader, in one loop
 * without threads. A request that the script does not have next makes the test fail, and so does an
 * answer that was not asked for: the answers of a test are what it says about requests.
 *
 * In JSON, ' stands for ", here as in what is expected. What panda writes has http://SERVER where
 * it wrote our address. It is always NOW.
 * Under ASan some commands are looked at for leaks, and with BED_LEAKS=1 each of them.
 */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

#include <cmocka.h>

#define NOW_TEXT "2026-01-01T00:00:00Z"
enum {
	NOW = 1767225600,
	BED_MAX = 64, /* answers, requests, steps, connections of one command */
};

/* Whole ids, which need no list to be understood. */
#define BOX  "3f2a0000-0000-4000-8000-000000000001"
#define BOX2 "77bc0000-0000-4000-8000-000000000002"
#define LIST "{'items':[{'id':'" BOX "','name':'web'},{'id':'" BOX2 "','name':'db'}]}"

struct answer {
	const char *request; /* "GET /v1/sandboxes": method, path and query, all of it */
	int status;          /* 0: 200 */
	const char *json;    /* its body; or: */
	const char *events;  /* one of text/event-stream, which ends with it; or: */
	const char *bytes;   /* any body; or: */
	const char *raw;     /* head and all, byte for byte, and then the connection ends */
	size_t len;          /* of bytes; 0: strlen */
	const char *type;    /* of bytes */
	bool cut;            /* the head announces a byte more than comes */
	bool hold;           /* events: the stream goes on until SERVER_ENDS */
	bool early;          /* when the head is here; the body is never looked at */
	bool gone;           /* the connection ends without a word */
	bool any_time;       /* not in its turn: for requests of another thread */
	bool websocket, tunnel;
};

/* What happens while the command runs; each step waits for the one before. */
enum act {
	TYPE,        /* text goes to its stdin */
	TYPE_END,    /* and that was all */
	SIGNAL,      /* number n */
	SERVER_SAYS, /* text (n bytes; 0: strlen) on the newest connection that is held */
	SERVER_TEXT, /* the same as a text message of a WebSocket; SERVER_SAYS makes binary ones */
	SERVER_ENDS, /* that connection, or our half of a tunnel */
	SERVER_LEAVES, /* every connection, and nobody listens any more */
	SERVER_BACK,   /* it listens again */
	STOP_READING,  /* its stdout has no reader any more */
	RESIZE,        /* its terminal has n rows now */
	CALL,          /* call() */
	LATER,         /* n seconds have passed */
};

struct step {
	enum act act;
	const char *text;
	int n;
	void (*call)(void);
	const char *when; /* once this is in its output, or in what it said in a tunnel */
	size_t asked;     /* and so many requests have come */
};

struct bed_request {
	char *line; /* "GET /v1/me" */
	char *text; /* all of it, as it came */
	size_t text_len;
	char *body; /* NUL behind it */
	size_t len;
};

struct bed {
	/* What the next command finds; bed_run() leaves all of it as it is. */
	const char *in; /* its stdin; NULL: /dev/null */
	size_t in_len;  /* 0: strlen */
	bool in_open;   /* stdin does not end behind that, until TYPE_END */
	bool tty;       /* stdin, stdout and stderr are a terminal, with 24 rows and 80 columns */
	bool full;      /* stdout is /dev/full */
	bool no_server; /* nobody listens */
	bool no_url;    /* nothing says where the server is */
	bool no_key;
	const char *env[8]; /* more of its environment */

	/* What came of it. */
	int code; /* 128 and the number when a signal ended it */
	char *out, *err;
	size_t out_len, err_len;
	struct bed_request asked[BED_MAX];
	size_t nasked;
	/* What it said in WebSockets and tunnels ([end]: its half), and what came to heard_fd. */
	char *heard;
	size_t heard_len;

	int heard_fd; /* of ours, read, too; -1: none. Its end is heard as [closed] or [reset] */
	char dir[64]; /* its directory, and its HOME */
	int port;
};

extern struct bed bed;

/* cmocka's setup and teardown of each test. */
int bed_begin(void **state);
int bed_end(void **state);
#define bed_test(f) cmocka_unit_test_setup_teardown(f, bed_begin, bed_end)

void bed_reply(struct answer a);
#define reply(...) bed_reply((struct answer){__VA_ARGS__})
/* The usual one: 200 and this JSON. */
#define answer(what, text) bed_reply((struct answer){.request = (what), .json = (text)})
/* An error as pandad gives it. */
void bed_refuse(const char *request, int status, const char *code, const char *text);
void bed_step(struct step s);
#define then(...) bed_step((struct step){__VA_ARGS__})

/* Runs panda with these words, to its end. Forgets what came of the last one, and the script. */
void bed_run(const char *file, int line, const char *const *argv);
#define panda(...) bed_run(__FILE__, __LINE__, (const char *const[]){"panda", __VA_ARGS__, NULL})

/* ---- what is expected; each says what there was instead ---- */

/* The exit code, and exactly that on stdout and on stderr. NULL: not looked at. */
void bed_gives(const char *file, int line, int code, const char *out, const char *err);
#define gives(code, out, err) bed_gives(__FILE__, __LINE__, (code), (out), (err))
/* The exit code, nothing on stdout, and on stderr a text with this in it. */
void bed_fails(const char *file, int line, int code, const char *part);
#define fails(code, part) bed_fails(__FILE__, __LINE__, (code), (part))
/* 0, and this JSON on stdout. */
void bed_prints(const char *file, int line, const char *json);
#define prints(json) bed_prints(__FILE__, __LINE__, (json))
/* The body of request i is this JSON; NULL: it has none. */
void bed_sent(const char *file, int line, size_t i, const char *json);
#define sent(i, json) bed_sent(__FILE__, __LINE__, (i), (json))
/* A field of the head of request i; "" when there is none. Good until the next call. */
const char *bed_field(size_t i, const char *name);

/* ---- its files; paths are below its directory ---- */

/* Makes the directories above it, too. n 0: strlen. */
void bed_file(const char *path, const char *text, size_t n, mode_t mode);
void bed_mkdir(const char *path);
/* NULL: there is none. Good until the test ends. */
const char *bed_content(const char *path, size_t *len);
/* Permissions, or 0 when there is nothing. */
mode_t bed_mode(const char *path);
/* How many entries a directory has. */
int bed_entries(const char *path);
