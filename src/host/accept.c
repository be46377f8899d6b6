#include "host/accept.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/macro.h"

static const char *skip(const char *s)
{
	return s + strspn(s, " \t");
}

static bool word(const char **s, const char *w)
{
	size_t n = strlen(w);

	if (strncmp(*s, w, n) != 0)
		return false;
	*s = skip(*s + n);
	return true;
}

static bool parse_field(const char **s, char *ret)
{
	static const struct {
		const char *name;
		char field;
	} fields[] = {{"exit_code", 'x'},    {"duration_ms", 'd'}, {"stdout_bytes", 'O'},
	              {"stderr_bytes", 'E'}, {"stdout", 'o'},      {"stderr", 'e'}};

	for (size_t i = 0; i < ARRAY_LEN(fields); i++)
		if (word(s, fields[i].name)) {
			*ret = fields[i].field;
			return true;
		}
	return false;
}

static bool parse_number(const char **s, struct accept_term *t)
{
	static const struct {
		const char *text;
		char op;
	} ops[] = {{"==", '='}, {"!=", '!'}, {"<=", '{'}, {">=", '}'}, {"<", '<'}, {">", '>'}};
	char *end;

	for (size_t i = 0; i < ARRAY_LEN(ops) && !t->op; i++)
		if (word(s, ops[i].text))
			t->op = ops[i].op;
	if (!t->op)
		return false;
	errno = 0;
	t->number = strtoll(*s, &end, 10);
	if (end == *s || errno)
		return false;
	*s = skip(end);
	return true;
}

static bool parse_text(const char **s, struct accept_term *t)
{
	size_t n = 0;

	if (word(s, "contains"))
		t->op = 'c';
	else if (word(s, "lacks"))
		t->op = 'l';
	if (!t->op || **s != '"')
		return false;
	for (++*s; **s && **s != '"'; ++*s) {
		if (**s == '\\' && ((*s)[1] == '"' || (*s)[1] == '\\'))
			++*s;
		if (n == ACCEPT_TEXT_MAX)
			return false;
		t->text[n++] = **s;
	}
	if (**s != '"')
		return false;
	*s = skip(*s + 1);
	return n > 0;
}

int accept_parse(const char *text, struct accept *ret, struct err *e)
{
	struct accept a = {.n = 0};
	const char *s = skip(text);

	do {
		struct accept_term *t = &a.term[a.n];
		const char *at = s;
		bool ok;

		if (a.n == ACCEPT_TERMS_MAX)
			return err_set(e, EINVAL, "bad_request",
			               "field 'accept' has more than %d terms", ACCEPT_TERMS_MAX);
		ok = parse_field(&s, &t->field) &&
		     (strchr("oe", t->field) ? parse_text(&s, t) : parse_number(&s, t)) &&
		     (!*s || !strncmp(s, "&&", 2));
		if (!ok)
			return err_set(e, EINVAL, "bad_request",
			               "field 'accept' cannot be understood at '%.40s': write it "
			               "as \"exit_code "
			               "== 0\" or \"exit_code == 0 && stdout contains \\\"ok\\\"\"",
			               at);
		a.n++;
	} while (word(&s, "&&"));
	*ret = a;
	return 0;
}

static bool compare(int64_t v, char op, int64_t with)
{
	switch (op) {
	case '=':
		return v == with;
	case '!':
		return v != with;
	case '<':
		return v < with;
	case '>':
		return v > with;
	case '{':
		return v <= with;
	default:
		return v >= with;
	}
}

static bool holds(const struct accept_term *t, const struct outcome *o)
{
	const char *p = t->field == 'o' ? o->out : o->err;
	size_t n = t->field == 'o' ? o->out_len : o->err_len;

	switch (t->field) {
	case 'x':
		return compare(o->exit_code, t->op, t->number);
	case 'd':
		return compare(o->duration_ms, t->op, t->number);
	case 'O':
		return compare((int64_t)o->out_len, t->op, t->number);
	case 'E':
		return compare((int64_t)o->err_len, t->op, t->number);
	default:
		return (n && memmem(p, n, t->text, strlen(t->text))) == (t->op == 'c');
	}
}

bool accept_holds(const struct accept *a, const struct outcome *o)
{
	for (size_t i = 0; i < a->n; i++)
		if (!holds(&a->term[i], o))
			return false;
	return true;
}
