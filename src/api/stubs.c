/*
 * api/stubs.c - answers of what is being written; each goes when the real one lands
 */
#include <errno.h>

#include "api/api.h"

#define STUB(name)                                                                \
	__attribute__((weak)) void name(struct call *c)                           \
	{                                                                         \
		call_fail(c, ENOSYS, "not_implemented", "not there yet: " #name); \
	}

STUB(sandbox_create)
STUB(sandbox_list)
STUB(sandbox_get)
STUB(sandbox_delete)
STUB(sandbox_pause)
STUB(sandbox_resume)
STUB(sandbox_hibernate)
STUB(sandbox_wake)
STUB(sandbox_lifecycle)
STUB(sandbox_set_lifecycle)
STUB(sandbox_metrics)
STUB(sandbox_fork)
STUB(sandbox_fork_tree)
STUB(sandbox_promote)
STUB(snapshot_create)
STUB(snapshot_list)
STUB(snapshot_get)
STUB(snapshot_remove)
STUB(exec_run)
STUB(exec_stream)
STUB(execs_start)
STUB(execs_list)
STUB(execs_get)
STUB(execs_output)
STUB(execs_stdin)
STUB(execs_signal)
STUB(terminal_pty)
STUB(terminal_ssh)
STUB(terminal_exec_ws)
STUB(file_read)
STUB(file_write)
STUB(file_delete)
STUB(file_dir)
STUB(file_stat)
STUB(file_mkdir)
STUB(file_rename)
STUB(file_chmod)
STUB(file_symlink)
STUB(file_watch)
STUB(repl_once)
STUB(repl_languages)
STUB(repl_create)
STUB(repl_list)
STUB(repl_run)
STUB(repl_run_stream)
STUB(repl_interrupt)
STUB(repl_delete)
STUB(ports_list)
STUB(ports_declare)
STUB(ports_remove)
STUB(proxy_port)
STUB(preview_token)
STUB(proxy_signed)
STUB(logs_get)
STUB(events_sandbox)
STUB(events_all)
STUB(audit_list)
STUB(boot_stats)
STUB(volumes_create)
STUB(volumes_list)
STUB(volumes_get)
STUB(volumes_delete)
STUB(templates_list)
STUB(templates_build)
STUB(builds_list)
STUB(builds_get)
STUB(builds_logs)
STUB(templates_get)
STUB(templates_delete)
STUB(me_get)
STUB(tokens_list)
STUB(tokens_create)
STUB(tokens_delete)
STUB(mcp_sandbox)
STUB(mcp_all)
STUB(meta_health)
STUB(meta_version)
STUB(meta_metrics)
STUB(meta_openapi)
STUB(meta_reference)

__attribute__((weak)) bool proxy_by_host(struct api *a, struct http_req *r)
{
	(void)a;
	(void)r;
	return false;
}

__attribute__((weak)) json_t *api_openapi(void)
{
	return json_object();
}

__attribute__((weak)) char *api_reference(void)
{
	return calloc(1, 1);
}
