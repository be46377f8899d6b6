#include "host/preview.h"

#include <string.h>

#include "base/dict.h"
#include "base/err.h"
#include "base/log.h"
#include "base/random.h"
#include "host/event.h"
#include "host/host.h"
#include "host/host_internal.h"
#include "host/sandbox.h"

static const char letters[] = "abcdefghijklmnopqrstuvwxyz234567";

void preview_name_new(char ret[PREVIEW_NAME + 1])
{
	unsigned char random[PREVIEW_NAME];

	random_fill(random, sizeof(random));
	for (size_t i = 0; i < PREVIEW_NAME; i++)
		ret[i] = letters[random[i] % 32];
	ret[PREVIEW_NAME] = 0;
}

bool preview_name_valid(const char *name)
{
	return strlen(name) == PREVIEW_NAME && strspn(name, letters) == PREVIEW_NAME;
}

struct sandbox *preview_find(struct host *h, const char *name)
{
	struct sandbox *sb = dict_get(h->by_preview, name);

	return sb && sb->state != SANDBOX_KILLING ? sb : NULL;
}

static int set_name(struct host *h, struct sandbox *sb, const char *name)
{
	dict_del(h->by_preview, sb->preview);
	memcpy(sb->preview, name, sizeof(sb->preview));
	return dict_put(h->by_preview, sb->preview, sb);
}

int preview_rotate(struct host *h, struct sandbox *sb, struct err *e)
{
	char had[PREVIEW_NAME + 1], name[PREVIEW_NAME + 1];
	int r;

	memcpy(had, sb->preview, sizeof(had));
	preview_name_new(name);
	sb->preview_epoch++;
	r = set_name(h, sb, name) < 0 ? err_nomem(e) : record_update(sb, e);
	if (r < 0) {
		sb->preview_epoch--;
		if (set_name(h, sb, had) < 0)
			log_warn("a preview name is not found until the next start sandbox=%s",
			         sb->id);
		return r;
	}
	event_emit(&h->events, sb->tenant, sb->id, "sandbox.preview_rotated", NULL);
	return 0;
}
