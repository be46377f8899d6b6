#include "common/phrase.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "base/macro.h"

/* A text that begins with one of these goes on from a line that its reader does not see. */
static const char *const joints[] = {
    "and",  "or",   "but",   "nor",   "so",    "then",  "also",   "than",   "that",
    "of",   "by",   "for",   "with",  "from",  "in",    "on",     "at",     "to",
    "as",   "over", "under", "until", "since", "after", "before", "behind", "beyond",
    "like", "when", "where", "which", "who",   "whom",  "whose",  "them",   "such",
};
/* These hide who acts. */
static const char *const hidden[] = {
    "whoever", "whomever", "nobody", "somebody", "someone", "anybody", "everybody", "everyone",
};

static size_t word_len(const char *p)
{
	size_t n = 0;

	while (isalnum((unsigned char)p[n]) || p[n] == '_')
		n++;
	return n;
}

static bool is_one_of(const char *p, size_t n, const char *const *list, size_t nlist)
{
	for (size_t i = 0; i < nlist; i++)
		if (strlen(list[i]) == n && strncasecmp(list[i], p, n) == 0)
			return true;
	return false;
}

static bool is_balanced(const char *p)
{
	static const char open[] = "([{", close[] = ")]}";
	char waiting[16];
	size_t n = 0;
	bool quoted = false;

	for (; *p; p++) {
		const char *o = strchr(open, *p), *c = strchr(close, *p);

		quoted ^= *p == '"';
		if (o && n == sizeof(waiting))
			return false;
		if (o)
			waiting[n++] = close[o - open];
		else if (c && (n == 0 || waiting[--n] != *p))
			return false;
	}
	return n == 0 && !quoted;
}

const char *phrase_fault(const char *text)
{
	size_t n = strlen(text), words = 0, len;

	if (n == 0 || isspace((unsigned char)text[0]) || isspace((unsigned char)text[n - 1]))
		return "is empty, or has a blank at an end";
	if (strchr(",;:", text[n - 1]))
		return "ends in the middle";
	if (is_one_of(text, word_len(text), joints, ARRAY_LEN(joints)))
		return "begins with a word that continues another text";
	for (const char *p = text; *p; p += len ? len : 1) {
		len = word_len(p);
		words += len > 0;
		if (is_one_of(p, len, hidden, ARRAY_LEN(hidden)))
			return "hides who acts";
	}
	if (words < 2)
		return "is one word: say what it is";
	return is_balanced(text) ? NULL : "has brackets or quotes that do not match";
}
