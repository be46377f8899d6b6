/*
 * vmm/x86/boot.h - what a Linux finds in the first MiB when it is entered in 64-bit mode
 * No firmware: a zero page with memory map and command line, page tables that map the first GiB
 * to itself, a GDT, and an MP table that names cpus, the I/O APIC and the ISA interrupts.
 */
#pragma once
#include "vmm/mem.h"

enum {
	BOOT_GDT = 0x500,
	BOOT_ZERO_PAGE = 0x7000,
	BOOT_STACK = 0x8ff0,
	BOOT_PML4 = 0x9000,
	BOOT_PDPT = 0xa000,
	BOOT_PD = 0xb000,
	BOOT_CMDLINE = 0x20000,
	BOOT_CMDLINE_MAX = 2048,
	BOOT_EBDA = 0x9fc00, /* the MP table; memory for the guest ends here, below 1 MiB */
	BOOT_CS = 0x10,
	BOOT_DS = 0x18,
};

#define BOOT_IOAPIC 0xfec00000u
#define BOOT_LAPIC  0xfee00000u

struct boot_spec {
	const char *cmdline;
	unsigned cpus;
};

/* -E2BIG: the command line is too long. m has at least MEM_MIN bytes. */
int boot_setup(const struct mem *m, const struct boot_spec *s);
