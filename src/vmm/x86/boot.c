#include "vmm/x86/boot.h"

#include <asm/bootparam.h>
#include <errno.h>

#include "vmm/mem.h"

enum {
	E820_RAM = 1,
	E820_RESERVED = 2,
	ISA_IRQS = 16,
};

/* Intel's MP specification 1.4. All of it is bytes; checksums make the sum of a table zero. */
struct mp_pointer {
	char signature[4];
	uint32_t table;
	uint8_t length, version, checksum, features[5];
} __attribute__((packed));

struct mp_header {
	char signature[4];
	uint16_t length;
	uint8_t version, checksum;
	char oem[8], product[12];
	uint32_t oem_table;
	uint16_t oem_size, entries;
	uint32_t lapic;
	uint32_t reserved;
} __attribute__((packed));

struct mp_cpu {
	uint8_t type, apic_id, apic_version, flags;
	uint32_t signature, features, reserved[2];
} __attribute__((packed));

struct mp_bus {
	uint8_t type, id;
	char name[6];
} __attribute__((packed));

struct mp_ioapic {
	uint8_t type, id, version, flags;
	uint32_t address;
} __attribute__((packed));

struct mp_irq {
	uint8_t type, kind;
	uint16_t flags;
	uint8_t from_bus, from_irq, to_apic, to_pin;
} __attribute__((packed));

struct mp_table {
	struct mp_pointer pointer;
	struct mp_header header;
	uint8_t entries[];
};

static uint8_t checksum(const void *p, size_t n)
{
	const uint8_t *b = p;
	uint8_t sum = 0;

	while (n--)
		sum += *b++;
	return (uint8_t)-sum;
}

struct mp_writer {
	uint8_t *at;
	uint16_t entries;
};

static void add(struct mp_writer *w, const void *p, size_t n)
{
	memcpy(w->at, p, n);
	w->at += n;
	w->entries++;
}

static void mp_table(const struct mem *m, unsigned cpus)
{
	struct mp_table *t = mem_at(m, BOOT_EBDA, 1024);
	struct mp_writer w = {.at = t->entries};
	struct mp_header h = {.signature = "PCMP",
	                      .version = 4,
	                      .oem = "PANDA   ",
	                      .product = "PANDA-VMM   ",
	                      .lapic = BOOT_LAPIC};
	struct mp_pointer p = {.signature = "_MP_",
	                       .table = BOOT_EBDA + sizeof(p),
	                       .length = 1,
	                       .version = 4};

	for (unsigned i = 0; i < cpus; i++)
		add(&w, &(struct mp_cpu){0, (uint8_t)i, 0x14, i ? 1 : 3, 0x600, 0x201, {0}},
		    sizeof(struct mp_cpu));
	add(&w, &(struct mp_bus){1, 0, "ISA   "}, sizeof(struct mp_bus));
	add(&w, &(struct mp_ioapic){2, (uint8_t)cpus, 0x11, 1, BOOT_IOAPIC},
	    sizeof(struct mp_ioapic));
	for (unsigned i = 0; i < ISA_IRQS; i++)
		add(&w, &(struct mp_irq){3, 0, 0, 0, (uint8_t)i, (uint8_t)cpus, (uint8_t)i},
		    sizeof(struct mp_irq));
	/* Local interrupts: ExtINT to LINT0 of all, NMI to LINT1 of all. */
	add(&w, &(struct mp_irq){4, 3, 0, 0, 0, 0xff, 0}, sizeof(struct mp_irq));
	add(&w, &(struct mp_irq){4, 1, 0, 0, 0, 0xff, 1}, sizeof(struct mp_irq));
	h.length = (uint16_t)(w.at - (uint8_t *)&t->header);
	h.entries = w.entries;
	memcpy(&t->header, &h, sizeof(h));
	t->header.checksum = checksum(&t->header, h.length);
	p.checksum = checksum(&p, sizeof(p));
	memcpy(&t->pointer, &p, sizeof(p));
}

static void page_tables(const struct mem *m)
{
	uint64_t *pml4 = mem_at(m, BOOT_PML4, 4096), *pdpt = mem_at(m, BOOT_PDPT, 4096),
		 *pd = mem_at(m, BOOT_PD, 4096);

	pml4[0] = BOOT_PDPT | 3;
	pdpt[0] = BOOT_PD | 3;
	for (uint64_t i = 0; i < 512; i++)
		pd[i] = i << 21 | 0x83; /* present, writable, 2 MiB */
}

static void gdt(const struct mem *m)
{
	/* null, null, code64, data: as the boot protocol numbers them */
	static const uint64_t entries[] = {0, 0, 0x00af9b000000ffff, 0x00cf93000000ffff};

	memcpy(mem_at(m, BOOT_GDT, sizeof(entries)), entries, sizeof(entries));
}

static void add_e820(struct boot_params *b, uint64_t from, uint64_t to, uint32_t type)
{
	if (to > from)
		b->e820_table[b->e820_entries++] = (struct boot_e820_entry){from, to - from, type};
}

int boot_setup(const struct mem *m, const struct boot_spec *s)
{
	struct boot_params *b = mem_at(m, BOOT_ZERO_PAGE, sizeof(*b));
	size_t n = strlen(s->cmdline);

	if (n >= BOOT_CMDLINE_MAX)
		return -E2BIG;
	memcpy(mem_at(m, BOOT_CMDLINE, n + 1), s->cmdline, n + 1);
	memset(b, 0, sizeof(*b));
	b->hdr.boot_flag = 0xaa55;
	b->hdr.header = 0x53726448; /* "HdrS" */
	b->hdr.version = 0x020f;
	b->hdr.type_of_loader = 0xff;
	b->hdr.kernel_alignment = 0x1000000;
	b->hdr.cmd_line_ptr = BOOT_CMDLINE;
	b->hdr.cmdline_size = (uint32_t)n;
	add_e820(b, 0, BOOT_EBDA, E820_RAM);
	add_e820(b, BOOT_EBDA, 0x100000, E820_RESERVED);
	add_e820(b, 0x100000, mem_low(m), E820_RAM);
	add_e820(b, MEM_HIGH, MEM_HIGH + m->size - mem_low(m), E820_RAM);
	page_tables(m);
	gdt(m);
	mp_table(m, s->cpus);
	return 0;
}
