/*
 * daemon/config.h - the one file that says how this pandad works
 * Lines of `key = value`; '#' begins a comment. Every key has a default that suits one plain host.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

enum {
	LISTEN_MAX = 8,
};

struct config {
	char *listen[LISTEN_MAX]; /* "127.0.0.1:8080", "[::1]:8080", "unix:/path" */
	size_t nlisten;
	char *data_dir, *run_dir, *engine, *kernel, *vmm, *vmlinux, *upper_image, *cgroup_parent;
	char *tls_cert, *tls_key, *preview_suffix, *public_url;
	char *log;                       /* as log_filter_parse() reads it */
	char *net_pool, *wan, *resolver; /* resolver: one address, or several with spaces between */
	int64_t sandboxes_max, memory_reserve_mb, disk_reserve_mb, idle_seconds, silent_seconds,
	    build_seconds, prepare_ahead, threads, rate_per_second, rate_burst, connections_max,
	    snapshots_keep, snapshots_max_age_seconds, snapshots_total_mb;
	int64_t net_connections, net_up_kbit, net_down_kbit;
	bool stub_auth, weak_jail, network, egress_deny, compress_hibernated, compress_snapshots;
};

int config_default(struct config *c);
/* One "key=value", as in the file. Kind: bad_config; the text names the key and what it takes. */
int config_set(struct config *c, const char *key, const char *value, struct err *e);
int config_read(struct config *c, const char *path, struct err *e);
void config_fini(struct config *c);
/* All keys with what they mean, in the form of a file. */
void config_print(const struct config *c, FILE *to);
