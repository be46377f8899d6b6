/*
 * cli/commands.h - every subcommand; the order of help and completion is in commands.c
 */
#pragma once
#include "cli/cli.h"

extern const struct cli_command command_run, command_create, command_ls, command_get, command_exec,
    command_ps, command_shell, command_cp, command_fork, command_snapshot, command_hibernate,
    command_wake, command_pause, command_resume, command_kill, command_logs, command_ports,
    command_url, command_volume, command_template, command_token, command_events, command_tree,
    command_top, command_me, command_mcp, command_checkpoints, command_rewind, command_diff,
    command_merge, command_race, command_promote, command_doctor, command_completion,
    command_version, command_ssh, command_ssh_proxy, command_port_forward, command_set,
    command_egress;

/* template_build.c */
int cmd_template_build(struct cli *c);
int cmd_template_import(struct cli *c);
int cmd_template_save(struct cli *c);
int cmd_template_builds(struct cli *c);
int cmd_template_logs(struct cli *c);
