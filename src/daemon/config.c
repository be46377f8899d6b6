#include "daemon/config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/io.h"
#include "base/log.h"
#include "base/macro.h"

enum kind {
	TEXT,
	NUMBER,
	LONG_NUMBER,
	FLAG,
	LISTEN,
	LOG,    /* what log_filter_parse() reads */
	EGRESS, /* off, list, open */
};

/* The kind of a key follows from the type of its member. */
#define KIND_OF(member) \
	_Generic((member), const char *: TEXT, bool: FLAG, unsigned: NUMBER, \
	         int64_t: LONG_NUMBER, uint64_t: LONG_NUMBER)
#define MEMBER_IN(m, shift) KIND_OF(((struct config *)NULL)->m), offsetof(struct config, m), shift
#define MEMBER(m)           MEMBER_IN(m, 0)
#define BYTES_IN_MB(m)      MEMBER_IN(m, 20) /* the key says MiB, the room counts bytes */

static const struct key {
	const char *name;
	enum kind kind;
	size_t at;
	unsigned shift;        /* the member has what the key says << shift */
	const char *otherwise; /* NULL: nothing */
	int64_t min, max;
	const char *what;
} keys[] = {
    {"listen", LISTEN, 0, 0, "127.0.0.1:8080", 0, 0,
     "address and port to listen on, or unix:/path; the key may be repeated"},
    {"data_dir", MEMBER(host.data_dir), "/var/lib/pandad", 0, 0,
     "directory of records, templates, snapshots and volumes"},
    {"run_dir", MEMBER(host.run_dir), "/run/pandad", 0, 0,
     "directory of the sockets and disks of running machines"},
    {"engine", MEMBER(engines.engine), "auto", 0, 0,
     "engine of sandboxes whose template names none: kvm, um, or auto (kvm if the host has it: "
     "panda doctor)"},
    {"kernel", MEMBER(engines.kernel), "/usr/lib/panda/panda-um", 0, 0,
     "guest kernel of engine um, a program"},
    {"vmm", MEMBER(engines.vmm), "/usr/lib/panda/panda-vmm", 0, 0,
     "monitor of engine kvm, a program"},
    {"vmlinux", MEMBER(engines.vmlinux), "/usr/lib/panda/panda-vmlinux", 0, 0,
     "guest kernel of engine kvm"},
    {"upper_image", MEMBER(host.upper_image), "/usr/lib/panda/upper.img", 0, 0,
     "empty ext4 file system that every machine starts to write on"},
    {"cgroup_parent", MEMBER(engines.cgroup_parent), "pandad", 0, 0,
     "control group above those of the machines; each pandad of a host needs its own"},
    {"cpu_weight", MEMBER(engines.share.cpu_weight), "100", 1, 10000,
     "cpu weight of all sandboxes together, against the other control groups of the host, each of "
     "which has 100 by default; tenants weigh the same among each other"},
    {"io_weight", MEMBER(engines.share.io_weight), "0", 0, 1000,
     "the same for disks, if the host's can do it (io.weight, or bfq), which then tenants share "
     "evenly, too; 0: disks are not shared out"},
    {"tenant_cpu_percent", MEMBER(host.tenant_cpu_percent), "0", 0, 100000,
     "cpu that the sandboxes and builds of one tenant may use together, in percent of one cpu; 0: "
     "no limit"},
    {"sandbox_cpu_percent", MEMBER(host.sandbox_cpu_percent), "0", 0, 100000,
     "cpu that one sandbox may use, in percent of one cpu; 0: no limit"},
    {"tls_cert", MEMBER(http.tls_cert), NULL, 0, 0,
     "PEM file of the certificate; with it and tls_key, pandad serves only TLS"},
    {"tls_key", MEMBER(http.tls_key), NULL, 0, 0, "PEM file of the private key of tls_cert"},
    {"preview_suffix", MEMBER(api.preview_suffix), "localhost", 0, 0,
     "suffix of host names for ports: <port>-<name>.<suffix> leads to a port of a sandbox"},
    {"preview", MEMBER(api.preview), "declared", 0, 0,
     "ports that visitors without a token or a signed link reach by host name: declared ones, off "
     "(none), or open (all ports, also by the id of the sandbox)"},
    {"public_url", MEMBER(api.public_url), NULL, 0, 0,
     "URL at which clients reach this server; links begin with it"},
    {"network", MEMBER(host.network), "yes", 0, 0,
     "yes: guests reach the internet, as far as their egress policy allows"},
    {"egress_deny", MEMBER(host.net.egress_deny), "no", 0, 0,
     "yes: a sandbox without an egress_allowlist reaches nothing"},
    {"egress_max", EGRESS, offsetof(struct config, host.net.egress_max), 0, "open", 0, 0,
     "the most that a sandbox may reach, whatever it asks for: off (nothing), list (what an "
     "egress_allowlist names) or open"},
    {"egress_closed", MEMBER(host.net.egress_closed), NULL, 0, 0,
     "IPv4 networks, with spaces between them, that no sandbox reaches, whatever its "
     "egress_allowlist says; private ranges and this host are closed anyway"},
    {"net_pool", MEMBER(host.net.pool), NULL, 0, 0,
     "addresses between the host and its sandboxes (10.200.0.0/16 when not set)"},
    {"wan", MEMBER(host.net.wan), NULL, 0, 0,
     "network interface that leads to the internet (that of the default route when not set)"},
    {"resolver", MEMBER(host.net.resolvers), NULL, 0, 0,
     "name servers, with spaces between them (those of /etc/resolv.conf when not set)"},
    {"net_connections", MEMBER(host.net.conns_max), "512", 1, 65536,
     "connections that one sandbox may have at once; a sandbox may ask for fewer"},
    {"net_up_kbit", MEMBER(host.net.up_kbit), "0", 0, 100000000,
     "kbit/s that one sandbox may send; a sandbox may ask for less; 0: no limit"},
    {"net_down_kbit", MEMBER(host.net.down_kbit), "0", 0, 100000000,
     "kbit/s that one sandbox may receive; a sandbox may ask for less; 0: no limit"},
    {"sandboxes_max", MEMBER(host.sandboxes_max), "4096", 1, 16384,
     "number of sandboxes this host takes; pandad refuses to create more"},
    {"memory_reserve_mb", BYTES_IN_MB(host.memory_reserve), "1024", 1, 1 << 24,
     "MiB of memory the host keeps free; pandad refuses to create sandboxes that would take them"},
    {"disk_reserve_mb", BYTES_IN_MB(host.disk_reserve), "1024", 1, 1 << 30,
     "MiB of disk the host keeps free; below that pandad refuses to create sandboxes and pauses "
     "those that write"},
    {"idle_seconds", MEMBER(host.idle_s), "900", 1, 1 << 30,
     "seconds without a request after which a sandbox ends that has no ttl and is not persistent"},
    {"silent_seconds", MEMBER(host.silent_s), "20", 1, 3600,
     "seconds without an answer after which pandad takes the agent of a sandbox to hang"},
    {"build_seconds", MEMBER(host.build_s), "1200", 1, 7 * 86400,
     "seconds after which pandad ends a build of a template"},
    {"compress_hibernated", MEMBER(host.compress_hibernated), "no", 0, 0,
     "yes: memory of hibernated sandboxes is compressed (zstd): less disk, slower to wake"},
    {"compress_snapshots", MEMBER(host.compress_snapshots), "no", 0, 0,
     "yes: memory of snapshots is compressed (zstd); sandboxes from one snapshot then share no "
     "memory"},
    {"snapshots_keep", MEMBER(host.snapshots_keep), "0", 0, 1000000,
     "how many snapshots without a name pandad keeps of each sandbox, the newest ones; 0: all"},
    {"snapshots_max_age_seconds", MEMBER(host.snapshots_max_age_s), "0", 0, 1 << 30,
     "how long pandad keeps a snapshot without a name, in seconds; 0: for ever"},
    {"snapshots_total_mb", BYTES_IN_MB(host.snapshots_total), "0", 0, 1 << 30,
     "MiB of snapshots one tenant may have; above that pandad deletes its oldest ones without a "
     "name; 0: no limit"},
    {"import_keys", MEMBER(host.import_keys), NULL, 0, 0,
     "file with the keys of hosts whose exported snapshots tenants may import, each in a line as "
     "in archive_key.pub of the data directory there (only this host's own when not set)"},
    {"import_max_mb", BYTES_IN_MB(host.import_max), "65536", 1, 1 << 18,
     "MiB that an exported snapshot may have that is imported"},
    {"machine_memory_max_mb", BYTES_IN_MB(host.machine_memory_max), "65536", 16, 1 << 18,
     "MiB of memory one machine may have; pandad refuses to start or import a larger one"},
    {"machine_disk_max_mb", BYTES_IN_MB(host.machine_disk_max), "65536", 16, 1 << 18,
     "MiB that a disk of one machine may have; pandad refuses to start or import a larger one"},
    {"tenant_disk_percent", MEMBER(host.tenant_disk_percent), "80", 0, 100,
     "percent of the disk of data_dir that each tenant may take, unless its token has a quota of "
     "disk_mb; above that pandad makes nothing more for it; 0: no limit"},
    {"prepare_ahead", MEMBER(host.prepare_ahead), "8", 1, 256,
     "how many machine processes pandad starts ahead, before a sandbox needs them"},
    {"threads", MEMBER(host.threads), "8", 1, 256,
     "threads for work that blocks, such as reading disks; there may be up to 128 while some wait, "
     "and one tenant has at most three quarters of those that others leave it"},
    {"connections_max", MEMBER(http.conns_max), "8192", 1, 1 << 20,
     "connections that clients may have open at once"},
    {"rate_per_second", MEMBER(api.rate_per_s), "0", 0, 1 << 24,
     "requests that one tenant may make in a second; 0: no limit"},
    {"rate_burst", MEMBER(api.rate_burst), "0", 0, 1 << 24,
     "requests that one tenant may make in one burst; 0: one"},
    {"held_mb", BYTES_IN_MB(api.held), "512", 16, 1 << 20,
     "MiB that pandad holds for clients: requests that are not whole yet, output that is "
     "collected, "
     "answers that are not read; above that it cuts the connection that holds most"},
    {"held_mb_per_tenant", BYTES_IN_MB(api.held_per_tenant), "128", 16, 1 << 20,
     "MiB that pandad holds for clients of one tenant; above that it refuses requests with status "
     "429, truncates output, and cuts clients that do not read"},
    {"events_kept", MEMBER(host.events.kept), "100000", 1000, 1 << 30,
     "events on record of all tenants, and as many of the network; above that the oldest go, of "
     "the "
     "tenant that has most"},
    {"events_kept_per_tenant", MEMBER(host.events.kept_per_tenant), "10000", 100, 1 << 30,
     "events on record of one tenant, and as many of the network; above that its oldest go"},
    {"net_events_per_second", MEMBER(host.events.net_per_s), "400", 1, 1 << 20,
     "events of the network that pandad takes in a second from all sandboxes; more are only "
     "counted "
     "(net.dropped)"},
    {"net_events_per_second_per_tenant", MEMBER(host.events.net_per_s_per_tenant), "100", 1,
     1 << 20,
     "events of the network that pandad takes in a second from all sandboxes of one tenant; more "
     "are only counted (net.dropped)"},
    {"audit_kept", MEMBER(api.audit_kept), "200000", 1000, 1 << 30,
     "changes in the audit log of all tenants; above that the oldest go, of the tenant that has "
     "most"},
    {"audit_kept_per_tenant", MEMBER(api.audit_kept_per_tenant), "50000", 100, 1 << 30,
     "changes in the audit log of one tenant; above that its oldest go"},
    {"connections_per_address", MEMBER(http.conns_per_addr_max), "2048", 0, 1 << 20,
     "connections that one address may have open at once (64 bits of IPv6 are one address); 0: no "
     "limit"},
    {"failed_logins_per_minute", MEMBER(api.failed_logins_per_minute), "60", 0, 1 << 20,
     "requests without a valid token that one address may make in a minute, before the next one is "
     "refused with status 429; 0: no limit"},
    {"proxies", MEMBER(http.proxies), "127.0.0.0/8 ::1", 0, 0,
     "addresses and ranges of reverse proxies, with spaces between them: limits per address do not "
     "count what comes from there, or from a unix socket"},
    {"log", LOG, offsetof(struct config, log), 0, "info", 0, 0,
     "words with commas between them: error, warn, info (life events) or debug (requests and "
     "operations, too); ROOM=LEVEL for one directory of src/; sandbox=ID for one sandbox"},
    {"metrics_token", MEMBER(api.metrics_token), "no", 0, 0,
     "yes: /metrics needs a token, as all else does; no: who reaches this server reads it"},
    {"allowed_origins", MEMBER(api.allowed_origins), NULL, 0, 0,
     "web pages, as https://app.example with spaces between them, that may use MCP and stub_auth "
     "as this server's own pages do"},
    {"stub_auth", MEMBER(api.stub_auth), "no", 0, 0,
     "yes, for development: a request from this host without a token is taken as an admin's"},
    {"weak_jail", MEMBER(weak_jail), "no", 0, 0,
     "yes, for development: machines start even if this host lacks parts of the jail (panda "
     "doctor)"},
};

static const struct key *key_of(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (!strcmp(keys[i].name, name))
			return &keys[i];
	return NULL;
}

static int set_text(const char **at, const char *value)
{
	char *copy = strdup(value);

	if (!copy)
		return -ENOMEM;
	free((char *)*at);
	*at = copy;
	return 0;
}

static int set_listen(struct config *c, const char *value, struct err *e)
{
	if (c->nlisten == LISTEN_MAX)
		return err_set(e, E2BIG, "bad_config", "listen: at most %d addresses", LISTEN_MAX);
	if (set_text(&c->listen[c->nlisten], value) < 0)
		return err_nomem(e);
	c->nlisten++;
	return 0;
}

static int set_number(const struct key *k, void *at, const char *value, struct err *e)
{
	char *end;
	long long n;

	errno = 0;
	n = strtoll(value, &end, 10);
	if (errno || end == value || *end || n < k->min || n > k->max)
		return err_set(e, EINVAL, "bad_config",
		               "%s: '%.40s' is not a number from %lld to %lld", k->name, value,
		               (long long)k->min, (long long)k->max);
	if (k->kind == NUMBER)
		*(unsigned *)at = (unsigned)n << k->shift;
	else
		*(uint64_t *)at = (uint64_t)n << k->shift;
	return 0;
}

int config_set(struct config *c, const char *key, const char *value, struct err *e)
{
	const struct key *k = key_of(key);
	void *at;

	if (!k)
		return err_set(e, EINVAL, "bad_config",
		               "there is no key '%.40s': 'pandad --print-config' shows all", key);
	at = (char *)c + k->at;
	switch (k->kind) {
	case LISTEN:
		return set_listen(c, value, e);
	case EGRESS:
		if (strcmp(value, "off") != 0 && strcmp(value, "list") != 0 &&
		    strcmp(value, "open") != 0)
			return err_set(e, EINVAL, "bad_config",
			               "%s: '%.40s' is not off, list or open", key, value);
		return set_text(at, value) < 0 ? err_nomem(e) : 0;
	case LOG:
		if (log_filter_parse(value, &(struct log_filter){0}, e) < 0)
			return -EINVAL;
		/* fall through */
	case TEXT:
		return set_text(at, value) < 0 ? err_nomem(e) : 0;
	case NUMBER:
	case LONG_NUMBER:
		return set_number(k, at, value, e);
	default:
		if (strcmp(value, "yes") != 0 && strcmp(value, "no") != 0)
			return err_set(e, EINVAL, "bad_config", "%s: '%.40s' is neither yes nor no",
			               key, value);
		*(bool *)at = value[0] == 'y';
		return 0;
	}
}

int config_default(struct config *c)
{
	int r = 0;

	*c = (struct config){.nlisten = 0};
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(keys); i++)
		if (keys[i].otherwise && keys[i].kind != LISTEN)
			r = config_set(c, keys[i].name, keys[i].otherwise, NULL);
	return r;
}

static char *trim(char *s)
{
	size_t n;

	while (isspace((unsigned char)*s))
		s++;
	n = strlen(s);
	while (n && isspace((unsigned char)s[n - 1]))
		s[--n] = 0;
	return s;
}

int config_read(struct config *c, const char *path, struct err *e)
{
	autofree char *text = NULL;
	char *line, *next;
	unsigned number = 0;
	int r = io_read_file(AT_FDCWD, path, 1 << 20, &text, NULL);

	if (r < 0)
		return err_set(e, -r, "bad_config", "cannot read %s: %s", path, strerror(-r));
	for (line = text; line && *line; line = next) {
		char *equals;

		number++;
		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		line[strcspn(line, "#")] = 0;
		line = trim(line);
		if (!*line)
			continue;
		equals = strchr(line, '=');
		if (!equals)
			return err_set(e, EINVAL, "bad_config", "%s:%u: a line is 'key = value'",
			               path, number);
		*equals = 0;
		r = config_set(c, trim(line), trim(equals + 1), e);
		if (r < 0)
			return err_prefix(e, "%s:%u", path, number);
	}
	return 0;
}

void config_fini(struct config *c)
{
	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		if (keys[i].kind == TEXT || keys[i].kind == LOG || keys[i].kind == EGRESS)
			free(*(char **)((char *)c + keys[i].at));
	for (size_t i = 0; i < c->nlisten; i++)
		free((char *)c->listen[i]);
}

void config_print(const struct config *c, FILE *to)
{
	for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
		const struct key *k = &keys[i];
		const void *at = (const char *)c + k->at;
		const char *text;

		fprintf(to, "# %s\n", k->what);
		switch (k->kind) {
		case LISTEN:
			for (size_t n = 0; n < c->nlisten; n++)
				fprintf(to, "listen = %s\n", c->listen[n]);
			if (!c->nlisten)
				fprintf(to, "listen = %s\n", k->otherwise);
			break;
		case TEXT:
		case LOG:
		case EGRESS:
			text = *(const char *const *)at;
			fprintf(to, "%s%s = %s\n", text ? "" : "#", k->name, text ? text : "");
			break;
		case NUMBER:
			fprintf(to, "%s = %u\n", k->name, *(const unsigned *)at >> k->shift);
			break;
		case LONG_NUMBER:
			fprintf(to, "%s = %" PRIu64 "\n", k->name,
			        *(const uint64_t *)at >> k->shift);
			break;
		default:
			fprintf(to, "%s = %s\n", k->name, *(const bool *)at ? "yes" : "no");
		}
	}
}
