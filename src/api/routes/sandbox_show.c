/*
 * api/routes/sandbox_show.c - a sandbox as the API shows it
 */
#include <string.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/streams/sse.h"
#include "host/disk.h"
#include "host/host.h"
#include "host/sandbox.h"

static json_t *show_metadata(const json_t *m)
{
	json_t *out = json_object();
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)m, key, v) {
		if (strncmp(key, "secret.", 7) != 0)
			json_object_set(out, key, v);
	}
	return out;
}

static json_t *text_or_null(const char *s)
{
	return *s ? json_string(s) : json_null();
}

json_t *show_sandbox(struct host *h, const struct sandbox *sb)
{
	const struct sandbox_spec *s = &sb->spec;
	uint64_t expires = sandbox_expires_ms(sb);
	const char *mac;
	char address[16];
	json_t *j;

	host_address(sb, address, &mac);
	j = json_pack("{s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:i, s:s, s:i, s:s, s:o}",
	              "id", sb->id, "template", s->template, "cpu", (int)sb->cpu, "memory_mb",
	              (int)sb->memory_mb, "disk_gb", (int)sb->disk_gb, "status",
	              sandbox_state_name(sb->state), "guest_ip", address, "host_tap", "", "mac",
	              mac, "vsock_cid", 0, "from_snapshot", s->from_snapshot, "boot_ms",
	              (int)sb->boot_ms, "boot_mode", sb->boot_mode ? sb->boot_mode : "",
	              "created_at", json_time(sb->created_ms));

	if (!j)
		return NULL;
	json_object_set_new(j, "isolation", json_string(sb->isolation));
	json_object_set_new(j, "runner", json_string(sb->runner ? sb->runner : "shell"));
	json_object_set_new(j, "persistent", json_boolean(s->persistent));
	json_object_set_new(j, "checkpoints", json_string(s->checkpoints ? "auto" : "off"));
	json_object_set_new(j, "ttl_seconds", s->ttl_s < 0 ? json_null() : json_integer(s->ttl_s));
	json_object_set_new(j, "expires_at", expires ? json_time(expires) : json_null());
	json_object_set_new(j, "parent_id", text_or_null(sb->parent));
	json_object_set_new(j, "fork_tree_id", text_or_null(sb->tree));
	json_object_set_new(j, "metadata", show_metadata(s->metadata));
	json_object_set_new(j, "volumes", volume_mounts_json(s->volumes));
	json_object_set_new(j, "egress_allowlist", egress_list(s->egress));
	json_object_set_new(j, "preview_name", json_string(sb->preview));
	if (sb->state == SANDBOX_FAILED)
		json_object_set_new(j, "end_reason", json_text(sb->end, strlen(sb->end)));
	if (disk_hold_text(sb))
		json_object_set_new(j, "status_detail", json_string(disk_hold_text(sb)));
	else if (sb->silent)
		json_object_set_new(j, "status_detail", json_string("its agent does not answer"));
	return j;
}
