/*
 * um/vmm_syscalls.c - what panda-vmm asks of the host, and nothing else
 */
#include "base/cleanup.h"
#include "um/um_internal.h"

static const struct jail_rule rules[] = {
    {"exit_group", {{0}}},
};

const struct jail_rules vmm_rules = {rules, ARRAY_LEN(rules)};
