/*
 * api/reference.c - /docs, the same table for people: one page, no scripts, nothing from elsewhere
 */
#include <ctype.h>
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/schemas.h"

static const char head[] =
    "<!doctype html><html lang=en><meta charset=utf-8>"
    "<meta name=viewport content='width=device-width,initial-scale=1'><title>PandaStack API</title>"
    "<style>:root{color-scheme:light dark;--line:#8884;--dim:#888;--get:#27a;--post:#383;"
    "--put:#a70;--del:#b33}body{font:15px/1.5 system-ui,sans-serif;margin:0;display:flex}"
    "nav{position:sticky;top:0;height:100vh;overflow:auto;padding:1.2em;flex:0 0 12em;"
    "border-right:1px solid var(--line);box-sizing:border-box}nav a{display:block;color:inherit;"
    "text-decoration:none;padding:.15em 0}main{padding:1.2em 2em;max-width:60em;min-width:0}"
    "h2{margin-top:2.5em;border-bottom:1px solid var(--line)}code,pre{font:13px/1.5 ui-monospace,"
    "monospace}pre{padding:.8em;border:1px solid var(--line);border-radius:6px;overflow:auto}"
    "details{border:1px solid var(--line);border-radius:6px;margin:.5em 0;padding:.4em .8em}"
    "summary{cursor:pointer}summary "
    "span{color:var(--dim);margin-left:.6em}b.m{display:inline-block;"
    "width:4.5em;font:600 12px "
    "ui-monospace,monospace}.GET{color:var(--get)}.POST{color:var(--post)}"
    ".PUT,.PATCH{color:var(--put)}.DELETE{color:var(--del)}table{border-collapse:collapse;"
    "margin:.6em 0;width:100%}td,th{text-align:left;padding:.2em .8em .2em 0;vertical-align:top;"
    "border-top:1px solid var(--line)}td:nth-child(2){color:var(--dim);white-space:nowrap}"
    "@media(max-width:50em){nav{display:none}main{padding:1em}}</style>";

static const char intro[] =
    "<h1>PandaStack API</h1><p>Every request carries <code>Authorization: Bearer pds_...</code> "
    "(or "
    "<code>?access_token=</code> for WebSockets and event streams of browsers). Bodies are JSON "
    "unless said "
    "otherwise; "
    "unknown fields are ignored. Times are RFC 3339, UTC. Errors have one shape, and "
    "<code>code</code> never changes:</p><pre>{\"error\": \"sandbox not found: ...\", \"code\": "
    "\"sandbox_not_found\", \"request_id\": \"...\"}</pre><p>Machine-readable: <a "
    "href=/openapi.json>/openapi.json</a>.</p><pre>curl -H \"Authorization: Bearer "
    "$PANDASTACK_API_KEY\" "
    "-d '{\"template\": \"base\", \"ttl_seconds\": 600}' http://127.0.0.1:8080/v1/sandboxes</pre>";

static void put_escaped(FILE *f, const char *s)
{
	for (; *s; s++)
		switch (*s) {
		case '<':
			fputs("&lt;", f);
			break;
		case '>':
			fputs("&gt;", f);
			break;
		case '&':
			fputs("&amp;", f);
			break;
		case '"':
			fputs("&quot;", f);
			break;
		default:
			fputc(*s, f);
		}
}

static void put_anchor(FILE *f, const char *s)
{
	for (; *s; s++)
		fputc(isalnum((unsigned char)*s) ? tolower((unsigned char)*s) : '-', f);
}

/* "Sandbox[]" leads to Sandbox. */
static void put_type(FILE *f, const char *type)
{
	size_t n = strcspn(type, "[?");

	if (schema_find(type, n)) {
		fprintf(f, "<a href='#%.*s'>", (int)n, type);
		put_escaped(f, type);
		fputs("</a>", f);
	} else {
		put_escaped(f, type);
	}
}

static void put_fields(FILE *f, const struct schema *s)
{
	fputs("<table>", f);
	for (const struct field *x = s->fields; x->name; x++) {
		size_t n = strlen(x->name);
		bool must = x->name[n - 1] == '!';

		fprintf(f, "<tr><td><code>%.*s</code>%s<td>", (int)(n - must), x->name,
		        must ? "" : " <small>optional</small>");
		put_type(f, x->type);
		fputs("<td>", f);
		put_escaped(f, x->what);
	}
	fputs("</table>", f);
}

static void put_body(FILE *f, const char *title, const char *name)
{
	const struct schema *s = schema_find(name, strcspn(name, "["));

	fprintf(f, "<p>%s: ", title);
	put_type(f, name);
	fputs("</p>", f);
	/* What is asked is shown here, what comes back below: it comes back from many. */
	if (s && strcmp(title, "Body") == 0)
		put_fields(f, s);
}

static void put_route(FILE *f, const struct route *r)
{
	fprintf(f, "<details><summary><b class='m %s'>%s</b><code>", r->method,
	        strcmp(r->method, "*") ? r->method : "ANY");
	put_escaped(f, r->path);
	fputs("</code><span>", f);
	put_escaped(f, r->summary);
	fputs("</span></summary>", f);
	if (r->scope == SCOPE_NONE)
		fputs("<p><small>No token needed.</small></p>", f);
	else
		fprintf(f, "<p><small>Needs a token with scope %s.</small></p>", route_scope(r));
	if (r->params) {
		fputs("<p>Query</p><table>", f);
		for (const struct api_param *p = r->params; p->name; p++) {
			fputs("<tr><td><code>", f);
			put_escaped(f, p->name);
			fprintf(f, "</code><td>%s<td>", p->type);
			put_escaped(f, p->what);
		}
		fputs("</table>", f);
	}
	if (r->request)
		put_body(f, "Body", r->request);
	if (r->reply && strcmp(r->reply, "ws") != 0) {
		char title[32];

		snprintf(title, sizeof(title), "Answers %d", r->status);
		put_body(f, title, r->reply);
	} else {
		fprintf(f, "<p>Answers %d%s</p>", r->status, r->reply ? ": a WebSocket" : "");
	}
	fputs("</details>", f);
}

char *api_reference(void)
{
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);
	const char *last = "";

	if (!f)
		return NULL;
	fputs(head, f);
	fputs("<nav><b>PandaStack API</b>", f);
	for (size_t i = 0; i < nroutes; i++)
		if (strcmp(last, routes[i].tag) != 0) {
			last = routes[i].tag;
			fputs("<a href='#", f);
			put_anchor(f, last);
			fprintf(f, "'>%s</a>", last);
		}
	fputs("<a href='#objects'>Objects</a></nav><main>", f);
	fputs(intro, f);
	last = "";
	for (size_t i = 0; i < nroutes; i++) {
		if (strcmp(last, routes[i].tag) != 0) {
			last = routes[i].tag;
			fputs("<h2 id='", f);
			put_anchor(f, last);
			fprintf(f, "'>%s</h2>", last);
		}
		put_route(f, &routes[i]);
	}
	fputs("<h2 id=objects>Objects</h2>", f);
	for (size_t i = 0; i < nschemas; i++) {
		fprintf(f, "<h3 id='%s'>%s</h3><p>", schemas[i].name, schemas[i].name);
		put_escaped(f, schemas[i].what);
		fputs("</p>", f);
		put_fields(f, &schemas[i]);
	}
	fputs("</main>\n", f);
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}
