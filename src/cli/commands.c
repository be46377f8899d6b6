/*
 * cli/commands.c - the table of subcommands: dispatch, help and completion all read it
 */
#include "cli/commands.h"

#include "cli/cli.h"

static const struct cli_command command_machine = {
    .name = "machine",
    .what = "boot, ask, fork, save and stop machines, without a daemon",
    .raw = cmd_machine,
    .local = true,
};

const struct cli_command *const cli_commands[] = {
    &command_run,          &command_create,     &command_ls,      &command_get,
    &command_exec,         &command_ps,         &command_shell,   &command_ssh,
    &command_ssh_proxy,    &command_cp,         &command_fork,    &command_tree,
    &command_checkpoints,  &command_rewind,     &command_diff,    &command_merge,
    &command_race,         &command_promote,    &command_pause,   &command_resume,
    &command_hibernate,    &command_wake,       &command_kill,    &command_snapshot,
    &command_volume,       &command_template,   &command_ports,   &command_url,
    &command_port_forward, &command_logs,       &command_events,  &command_top,
    &command_token,        &command_me,         &command_mcp,     &command_machine,
    &command_doctor,       &command_completion, &command_version, NULL,
};
