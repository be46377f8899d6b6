/*
 * common/phrase.h - is this text understood without the line above it?
 * For descriptions that readers meet alone: --print-config, /docs, openapi.json and --help.
 */
#pragma once

/* NULL when the text stands alone, else why it does not. */
const char *phrase_fault(const char *text);
