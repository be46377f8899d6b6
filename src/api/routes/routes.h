/*
 * api/routes/routes.h - the handlers: each answers one or more routes of api/routes.c
 * A handler runs on the loop thread and answers now, or holds its call and answers later. Each is
 * declared under the file that has it; tools/check-handlers compares.
 */
#pragma once
#include "api/api.h"

typedef void handler(struct call *c);

/* routes/sandboxes.c */
handler sandbox_create, sandbox_list, sandbox_get, sandbox_delete, sandbox_pause;
handler sandbox_resume, sandbox_hibernate, sandbox_wake, sandbox_lifecycle;
handler sandbox_set_lifecycle, sandbox_egress, sandbox_set_egress;

/* routes/usage.c */
handler sandbox_metrics;

/* routes/forks.c */
handler sandbox_fork, sandbox_fork_tree, sandbox_promote;

/* routes/snapshots.c */
handler snapshot_create, snapshot_list, snapshot_get, snapshot_remove;

/* routes/checkpoints.c */
handler checkpoint_create, checkpoint_list, checkpoint_remove, sandbox_rewind;

/* routes/diff.c */
handler sandbox_diff, sandbox_merge;

/* routes/race.c */
handler sandbox_race;

/* routes/archives.c */
handler snapshot_import, snapshot_export;

/* routes/commands.c */
handler exec_run, exec_stream;

/* routes/detached.c */
handler execs_start, execs_list, execs_get, execs_output, execs_stdin, execs_signal;

/* routes/terminals.c */
handler terminal_pty, terminal_ssh;

/* routes/command_socket.c */
handler terminal_exec_ws;

/* routes/files.c */
handler files_read, files_write, file_delete, files_stat, files_mkdir, files_rename, files_chmod;
handler files_symlink;

/* routes/directories.c */
handler files_dir, file_watch;

/* routes/code.c */
handler repl_once, repl_languages, repl_run, repl_run_stream;

/* routes/sessions.c */
handler repl_create, repl_list, repl_interrupt, repl_delete;

/* routes/ports.c */
handler ports_list, ports_declare, ports_remove, preview_token, preview_new_name;

/* routes/preview.c */
handler proxy_port, proxy_signed;

/* routes/tunnels.c */
handler tunnel_port, tunnel_ssh;

/* routes/logs.c */
handler logs_get, events_sandbox, events_all, audit_list;

/* routes/boot_stats.c */
handler boot_stats;

/* routes/volumes.c */
handler volumes_create, volumes_list, volumes_get, volumes_resize, volume_snapshots_create;
handler volume_snapshots_list, sandbox_volumes_list, sandbox_volumes_attach;
handler sandbox_volumes_detach, volumes_delete;

/* routes/templates.c */
handler sandbox_save_template, templates_list, templates_get, templates_delete;

/* routes/builds.c */
handler templates_build, builds_list, builds_get, builds_delete, builds_logs;

/* routes/tokens.c */
handler me_get, tokens_list, tokens_create, tokens_delete, tokens_rotate;

/* routes/mcp.c */
handler mcp_sandbox, mcp_all;

/* routes/server.c */
handler meta_health, meta_version, meta_metrics, meta_openapi, meta_reference;
