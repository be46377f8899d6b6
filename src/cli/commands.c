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
    &command_run,       &command_create,     &command_ls,           &command_get,
    &command_set,       &command_egress,     &command_kill,

    &command_exec,      &command_ps,         &command_shell,        &command_cp,
    &command_ssh,       &command_ssh_proxy,

    &command_fork,      &command_tree,       &command_diff,         &command_merge,
    &command_race,      &command_promote,    &command_pause,        &command_resume,
    &command_hibernate, &command_wake,       &command_rewind,       &command_checkpoints,

    &command_snapshot,  &command_volume,     &command_template,

    &command_ports,     &command_url,        &command_port_forward,

    &command_logs,      &command_events,     &command_top,

    &command_token,     &command_me,         &command_mcp,          &command_machine,
    &command_doctor,    &command_completion, &command_version,      NULL,
};

const struct cli_chapter cli_chapters[] = {
    {"Sandboxes", &command_run},
    {"Inside a sandbox", &command_exec},
    {"Forks and moments", &command_fork},
    {"What stays", &command_snapshot},
    {"Ports", &command_ports},
    {"What happens", &command_logs},
    {"Server and tools", &command_token},
    {0},
};

/* docker's, kubectl's and git's words. stop and start lose nothing: they hibernate and wake. */
const struct cli_alias cli_aliases[] = {
    {"attach", "shell", NULL},    {"build", "template", "build"},  {"delete", "kill", NULL},
    {"images", "template", "ls"}, {"inspect", "get", NULL},        {"list", "ls", NULL},
    {"rm", "kill", NULL},         {"snapshots", "snapshot", "ls"}, {"start", "wake", NULL},
    {"stats", "top", NULL},       {"stop", "hibernate", NULL},     {"templates", "template", "ls"},
    {"tokens", "token", "ls"},    {"volumes", "volume", "ls"},     {0},
};
