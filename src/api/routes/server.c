/*
 * api/routes/server.c - about the server itself: is it there, which one is it, how busy is it
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "api/api.h"
#include "api/api_internal.h"
#include "api/logins.h"
#include "api/routes/routes.h"
#include "base/account.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/macro.h"
#include "base/shares.h"
#include "host/disk.h"
#include "host/disk_use.h"
#include "host/event.h"
#include "host/host.h"
#include "host/sandbox.h"
#include "http/server.h"
#include "machine/engine.h"
#include "template/depot.h"

/* Statuses we count one by one; the last one is the rest. */
static const int statuses[STATUSES_MAX] = {200, 201, 202, 204, 206, 101, 304, 400, 401, 403, 404,
                                           405, 409, 411, 413, 414, 416, 426, 429, 431, 499, 500,
                                           501, 502, 503, 504, 507, 408, 301, 302, 422, 0};

static const double le[DURATIONS] = {.001, .0025, .005, .01, .025, .05, .1, .25, 1, 5, 30, 300};

void stats_note(struct api *a, const struct route *route, int status, uint64_t took_us)
{
	struct route_stats *s = &a->stats[route ? (size_t)(route - routes) : nroutes];
	size_t i = 0, b = 0;

	while (i < STATUSES_MAX - 1 && statuses[i] != status)
		i++;
	s->status[i]++;
	while (b < DURATIONS && (double)took_us > le[b] * 1e6)
		b++;
	if (b < DURATIONS)
		s->bucket[b]++;
	s->sum_us += took_us;
	s->count++;
}

/* ---- metrics ---- */

static void head(FILE *t, const char *name, const char *type, const char *help)
{
	fprintf(t, "# HELP pandastack_%s %s\n# TYPE pandastack_%s %s\n", name, help, name, type);
}

static void counter(FILE *t, const char *name, const char *help, uint64_t n)
{
	head(t, name, "counter", help);
	fprintf(t, "pandastack_%s %" PRIu64 "\n", name, n);
}

static void gauge(FILE *t, const char *name, const char *help, uint64_t n)
{
	head(t, name, "gauge", help);
	fprintf(t, "pandastack_%s %" PRIu64 "\n", name, n);
}

static const char *path_of(size_t i)
{
	return i < nroutes ? routes[i].path : "none";
}

static const char *method_of(size_t i)
{
	return i < nroutes ? routes[i].method : "*";
}

static void say_requests(FILE *t, const struct api *a)
{
	head(t, "http_requests_total", "counter", "Requests by route and status.");
	for (size_t i = 0; i <= nroutes; i++)
		for (size_t k = 0; k < STATUSES_MAX; k++)
			if (a->stats[i].status[k])
				fprintf(t,
				        "pandastack_http_requests_total{method=\"%s\",route=\"%s\","
				        "status=\"%d\"} "
				        "%" PRIu64 "\n",
				        method_of(i), path_of(i), statuses[k],
				        a->stats[i].status[k]);
	head(t, "http_request_duration_seconds", "histogram",
	     "From the head of a request to the end of its reply, by route.");
	for (size_t i = 0; i <= nroutes; i++) {
		const struct route_stats *s = &a->stats[i];
		uint64_t sum = 0;

		if (!s->count)
			continue;
		for (size_t b = 0; b < DURATIONS; b++) {
			sum += s->bucket[b];
			fprintf(
			    t,
			    "pandastack_http_request_duration_seconds_bucket{method=\"%s\",route="
			    "\"%s\","
			    "le=\"%g\"} %" PRIu64 "\n",
			    method_of(i), path_of(i), le[b], sum);
		}
		fprintf(
		    t,
		    "pandastack_http_request_duration_seconds_bucket{method=\"%s\",route=\"%s\","
		    "le=\"+Inf\"} %" PRIu64 "\n",
		    method_of(i), path_of(i), s->count);
		fprintf(t,
		        "pandastack_http_request_duration_seconds_sum{method=\"%s\",route=\"%s\"} "
		        "%.6f\n",
		        method_of(i), path_of(i), (double)s->sum_us / 1e6);
		fprintf(
		    t,
		    "pandastack_http_request_duration_seconds_count{method=\"%s\",route=\"%s\"} "
		    "%" PRIu64 "\n",
		    method_of(i), path_of(i), s->count);
	}
}

static void say_sandboxes(FILE *t, const struct host *h)
{
	const struct host_stats *s = &h->stats;
	uint64_t states[SANDBOX_STATES] = {0}, memory_mb = 0, sum = 0;

	for (const struct sandbox *sb = h->newest; sb; sb = sb->next) {
		states[sb->state]++;
		memory_mb += sb->pid ? sb->memory_mb : 0;
	}
	head(t, "sandboxes", "gauge", "Sandboxes by state.");
	for (size_t i = 0; i < SANDBOX_STATES; i++)
		fprintf(t, "pandastack_sandboxes{state=\"%s\"} %" PRIu64 "\n",
		        sandbox_state_record((enum sandbox_state)i), states[i]);
	gauge(t, "sandbox_memory_bytes", "Memory promised to sandboxes that run.", memory_mb << 20);
	gauge(t, "tenant_cpu_percent", "Percent of one cpu that a tenant may use; 0: no limit.",
	      h->config.tenant_cpu_percent);
	gauge(t, "sandbox_cpu_percent", "Percent of one cpu that a sandbox may use; 0: no limit.",
	      h->config.sandbox_cpu_percent);
	counter(t, "sandbox_creates_total", "Sandboxes created.", s->creates);
	counter(t, "sandbox_forks_total", "Children forked.", s->forks);
	counter(t, "sandbox_kills_total", "Sandboxes killed.", s->kills);
	counter(t, "sandbox_wakes_total", "Wake-ups.", s->wakes);
	counter(t, "hibernation_total", "Hibernations.", s->hibernations);
	counter(t, "sandbox_silences_total", "Agents that did not answer for too long.",
	        s->silences);
	counter(t, "sandbox_deaths_total", "Machines that ended by themselves.", s->deaths);
	counter(t, "sandbox_refused_total", "Creates refused for want of room.", s->refused);
	gauge(t, "records_log_bytes",
	      "Log of the records (panda.db-wal) after its last checkpoint.", s->records_log_bytes);
	head(t, "sandbox_boot_duration_seconds", "histogram",
	     "From the request to a running sandbox.");
	for (size_t i = 0; i < ARRAY_LEN(s->boot_bucket) - 1; i++) {
		sum += s->boot_bucket[i];
		fprintf(t,
		        "pandastack_sandbox_boot_duration_seconds_bucket{le=\"%g\"} %" PRIu64 "\n",
		        (double)((uint64_t)1 << i) / 1000, sum);
	}
	fprintf(t, "pandastack_sandbox_boot_duration_seconds_bucket{le=\"+Inf\"} %" PRIu64 "\n",
	        s->boot_us_count);
	fprintf(t, "pandastack_sandbox_boot_duration_seconds_sum %.6f\n",
	        (double)s->boot_us_sum / 1e6);
	fprintf(t, "pandastack_sandbox_boot_duration_seconds_count %" PRIu64 "\n",
	        s->boot_us_count);
}

static void say_disk(FILE *t, const struct host *h)
{
	const struct disk_watch *d = &h->disk;
	uint64_t holds[SANDBOX_HOLDS] = {0}, tenants = 0, largest = 0;

	for (const struct sandbox *sb = h->newest; sb; sb = sb->next)
		holds[sb->hold]++;
	if (d->free_bytes != UINT64_MAX)
		gauge(t, "disk_free_bytes", "Free bytes of the disk of the data directory.",
		      d->free_bytes);
	gauge(t, "disk_reserve_bytes", "Free bytes below which sandboxes that write are paused.",
	      h->config.disk_reserve);
	gauge(t, "disk_machines_bytes", "What the disks of machines take of it.", d->used_bytes);
	for (size_t i = 0; i < h->uses.n; i++) {
		tenants += h->uses.at[i].bytes;
		largest = MAX(largest, h->uses.at[i].bytes);
	}
	gauge(t, "disk_tenants_bytes", "What all that tenants have takes of it.", tenants);
	gauge(t, "disk_largest_tenant_bytes", "What the tenant that takes most has of that.",
	      largest);
	head(t, "sandboxes_held", "gauge", "Sandboxes that the host has paused, by reason.");
	for (size_t i = HOLD_NONE + 1; i < SANDBOX_HOLDS; i++)
		fprintf(t, "pandastack_sandboxes_held{reason=\"%s\"} %" PRIu64 "\n",
		        sandbox_hold_name((enum sandbox_hold)i), holds[i]);
	counter(t, "disk_holds_total", "Sandboxes paused because the disk was nearly full.",
	        d->holds);
	counter(t, "disk_overruns_total",
	        "Sandboxes paused because they held more than their disk.", d->overruns);
	counter(t, "disk_ends_total", "Machines ended because they wrote all the same.", d->ends);
}

static void say_process(FILE *t, const struct api *a)
{
	autofree char *statm = NULL;
	unsigned long size = 0, rss = 0;
	size_t n;

	if (io_read_file(AT_FDCWD, "/proc/self/statm", 4096, &statm, &n) == 0 &&
	    sscanf(statm, "%lu %lu", &size, &rss) == 2)
		gauge(t, "process_resident_memory_bytes", "Resident memory of pandad.",
		      (uint64_t)rss * (uint64_t)sysconf(_SC_PAGESIZE));
	gauge(t, "uptime_seconds", "Since pandad started.", (mono_ms() - a->started_ms) / 1000);
}

static uint64_t tenants_refused(const struct api *a)
{
	uint64_t n = 0;

	for (const struct tenant *t = a->tenants; t; t = t->next)
		n += t->held.refused;
	return n;
}

static void say_door(FILE *t, struct call *c)
{
	struct http_stats s = http_server_stats(c->req);

	gauge(t, "http_connections", "Connections that are open.", s.conns);
	counter(t, "http_connections_refused_total", "Connections for which there was no place.",
	        s.refused);
	counter(t, "http_connections_closed_idle_total",
	        "Idle connections that made place for another.", s.closed_idle);
	counter(t, "http_connections_cut_total", "Connections for which too much was held.", s.cut);
	gauge(t, "held_bytes", "Bytes held for clients: bodies, output, answers.",
	      c->api->held.held);
	gauge(t, "held_bytes_max", "The most that was held since pandad started.",
	      c->api->held.most);
	counter(t, "held_refused_total",
	        "Times that this host had no room for more bytes held for clients.",
	        c->api->held.refused);
	counter(t, "held_tenants_refused_total", "The same for the limit of a tenant.",
	        tenants_refused(c->api));
	counter(t, "http_requests_waited_total",
	        "Requests that waited for their turn behind others of their connection.", s.waited);
	counter(t, "logins_failed_total", "Requests without a valid token.",
	        c->api->logins->failures);
	counter(t, "logins_refused_total",
	        "Requests refused because their address had too many without a valid token.",
	        c->api->logins->refusals);
}

static void say_records(FILE *t, const struct api *a)
{
	const struct events *es = &a->host->events;

	gauge(t, "audit_entries", "Entries of the audit log on record.", a->audit.shares.n);
	gauge(t, "events", "Events on record, without those of the network.", es->life.n);
	gauge(t, "net_events", "Events of the network on record.", es->net.n);
	counter(t, "net_events_dropped_total",
	        "Events of the network above the rate of their tenant or of the host.",
	        es->net_dropped);
}

void meta_metrics(struct call *c)
{
	char *text = NULL;
	size_t n = 0;
	FILE *t = open_memstream(&text, &n);

	if (t) {
		say_requests(t, c->api);
		say_sandboxes(t, c->host);
		say_door(t, c);
		say_records(t, c->api);
		say_disk(t, c->host);
		say_process(t, c->api);
	}
	if (!t || fclose(t) != 0)
		call_fail(c, ENOMEM, "no_memory", "no memory for the metrics");
	else
		call_text(c, 200, "text/plain; version=0.0.4; charset=utf-8", text, n);
	free(text);
}

/* ---- the rest ---- */

void meta_health(struct call *c)
{
	if (c->host->depot.closing)
		call_json(c, 503, json_pack("{s:s}", "status", "shutting_down"));
	else
		call_json(c, 200,
		          json_pack("{s:s, s:I, s:I}", "status", "ok", "sandboxes",
		                    (json_int_t)c->host->count, "uptime_seconds",
		                    (json_int_t)((mono_ms() - c->api->started_ms) / 1000)));
}

void meta_version(struct call *c)
{
	struct utsname u = {0};

	uname(&u);
	call_json(c, 200,
	          json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "service", "pandad", "semver",
	                    PANDA_VERSION, "commit", PANDA_COMMIT, "os", u.sysname, "arch",
	                    u.machine, "engine", c->host->engines->list[0].name, "isolation",
	                    c->host->engines->list[0].isolation));
}

void meta_openapi(struct call *c)
{
	call_text(c, 200, "application/json", c->api->openapi, c->api->openapi_len);
}

void meta_reference(struct call *c)
{
	call_text(c, 200, "text/html; charset=utf-8", c->api->reference, c->api->reference_len);
}
