/*
 * What a guest finds when it starts: the kernel (x86/load.h), the first MiB (x86/boot.h), its cpu
 * (x86/cpuid.h), and the small devices (serial.h, host.h). And the state file (state.h).
 */
#include <asm/bootparam.h>
#include <elf.h>
#include <errno.h>
#include <linux/serial_reg.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "vmm/host.h"
#include "vmm/serial.h"
#include "vmm/state.h"
#include "vmm/x86/boot.h"
#include "vmm/x86/cpuid.h"
#include "vmm/x86/load.h"

enum { MEMORY = 32 << 20 };

static struct mem memory(void)
{
	struct mem m = {.size = MEMORY};

	m.base = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(m.base != MAP_FAILED);
	return m;
}

/* --- the kernel */

struct file {
	Elf64_Ehdr h;
	Elf64_Phdr p[2];
	char data[16];
};

static int read_file(void *arg, void *buf, size_t n, uint64_t off)
{
	if (off > sizeof(struct file) || n > sizeof(struct file) - off)
		return -ENODATA;
	memcpy(buf, (char *)arg + off, n);
	return 0;
}

static struct file a_kernel(void)
{
	struct file f = {
	    .h = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB},
	          .e_machine = EM_X86_64,
	          .e_phentsize = sizeof(Elf64_Phdr),
	          .e_phnum = 2,
	          .e_phoff = offsetof(struct file, p),
	          .e_entry = 0x1000004},
	    .p = {{.p_type = PT_LOAD,
	           .p_paddr = 0x1000000,
	           .p_filesz = 16,
	           .p_memsz = 4096,
	           .p_offset = offsetof(struct file, data)},
	          {.p_type = PT_NOTE}},
	    .data = "kernel",
	};

	return f;
}

static int load(struct mem *m, struct file *f, struct loaded *ret)
{
	return load_kernel(m, &(struct load_source){read_file, f}, ret);
}

static void a_kernel_is_where_it_wants_to_be(void **state)
{
	struct file f = a_kernel();
	struct mem m = memory();
	struct loaded k;

	assert_int_equal(load(&m, &f, &k), 0);
	assert_int_equal(k.entry, 0x1000004);
	assert_int_equal(k.code_len, 0); /* nothing in it is said to be code */
	assert_string_equal((char *)m.base + 0x1000000, "kernel");
	munmap(m.base, MEMORY);
}

static void its_code_is_what_is_executed_and_not_written(void **state)
{
	struct file f = a_kernel();
	struct mem m = memory();
	struct loaded k;

	f.p[0].p_flags = PF_R | PF_X;
	f.p[1] = f.p[0];
	f.p[1].p_paddr = 0x1400000;
	f.p[1].p_memsz = 8192;
	assert_int_equal(load(&m, &f, &k), 0);
	assert_int_equal(k.code, 0x1400000); /* the larger one of two */
	assert_int_equal(k.code_len, 8192);
	f.p[1].p_flags |= PF_W;
	assert_int_equal(load(&m, &f, &k), 0);
	assert_int_equal(k.code, 0x1000000);
	assert_int_equal(k.code_len, 4096);
	munmap(m.base, MEMORY);
}

static void a_kernel_that_does_not_fit_is_refused(void **state)
{
	struct mem m = memory();
	struct loaded k;
	struct file f;

#define REFUSED(change, why)                             \
	do {                                             \
		f = a_kernel();                          \
		change;                                  \
		assert_int_equal(load(&m, &f, &k), why); \
	} while (0)
	REFUSED(f.h.e_ident[0] = 'M', -ENOEXEC);
	REFUSED(f.h.e_ident[EI_CLASS] = ELFCLASS32, -ENOEXEC);
	REFUSED(f.h.e_machine = EM_386, -ENOEXEC);
	REFUSED(f.h.e_phnum = 0, -ENOEXEC);
	REFUSED(f.h.e_phnum = 1000, -ENOEXEC);
	REFUSED(f.h.e_phentsize = 8, -ENOEXEC);
	REFUSED(f.h.e_phoff = UINT64_MAX - 8, -ENOEXEC);
	REFUSED(f.h.e_phoff = 1 << 20, -ENODATA);
	REFUSED(f.h.e_entry = 0x2000000, -ENOEXEC);
	REFUSED(f.p[0].p_paddr = 0x1000, -ENOEXEC); /* the first MiB is ours */
	REFUSED(f.p[0].p_paddr = MEMORY - 8, -ENOSPC);
	REFUSED(f.p[0].p_paddr = UINT64_MAX - 8, -ENOSPC);
	REFUSED(f.p[0].p_memsz = UINT64_MAX, -ENOSPC);
	REFUSED(f.p[0].p_filesz = 8192, -ENOEXEC);
	REFUSED(f.p[0].p_offset = 1 << 20, -ENODATA);
	munmap(m.base, MEMORY);
}

/* --- the first MiB */

static uint8_t sum(const uint8_t *p, size_t n)
{
	uint8_t s = 0;

	while (n--)
		s += *p++;
	return s;
}

static void the_guest_finds_its_memory_cpus_and_command_line(void **state)
{
	struct mem m = memory();
	const struct boot_params *b = (void *)(m.base + BOOT_ZERO_PAGE);
	const uint8_t *mp = m.base + BOOT_EBDA;
	char line[BOOT_CMDLINE_MAX + 8];
	uint16_t length, entries;

	assert_int_equal(boot_setup(&m, &(struct boot_spec){.cmdline = "root=/dev/vda", .cpus = 3}),
	                 0);
	assert_string_equal((char *)m.base + b->hdr.cmd_line_ptr, "root=/dev/vda");
	assert_int_equal(b->e820_entries, 3);
	assert_int_equal(b->e820_table[2].addr + b->e820_table[2].size, MEMORY);
	assert_memory_equal(mp, "_MP_", 4);
	assert_int_equal(sum(mp, 16), 0);
	assert_memory_equal(mp + 16, "PCMP", 4);
	memcpy(&length, mp + 20, 2);
	memcpy(&entries, mp + 16 + 34, 2);
	assert_int_equal(sum(mp + 16, length), 0);
	assert_int_equal(entries, 3 + 1 + 1 + 16 + 2);
	assert_true(16 + length <= 1024);
	memset(line, 'x', sizeof(line));
	line[sizeof(line) - 1] = 0;
	assert_int_equal(boot_setup(&m, &(struct boot_spec){.cmdline = line, .cpus = 1}), -E2BIG);
	munmap(m.base, MEMORY);
}

static void memory_above_the_hole_goes_on_at_4_gib(void **state)
{
	struct mem m = {.base = (uint8_t *)0x10000, .size = MEM_HOLE + 8192};

	assert_ptr_equal(mem_at(&m, MEM_HOLE - 1, 1), m.base + MEM_HOLE - 1);
	assert_null(mem_at(&m, MEM_HOLE - 1, 2)); /* not across the hole */
	assert_null(mem_at(&m, MEM_HOLE, 1));
	assert_null(mem_at(&m, MEM_HIGH - 1, 1));
	assert_ptr_equal(mem_at(&m, MEM_HIGH, 8192), m.base + MEM_HOLE);
	assert_null(mem_at(&m, MEM_HIGH, 8193));
	assert_null(mem_at(&m, MEM_HIGH + 8192, 1));
	assert_null(mem_at(&m, 0, 0));
}

/* --- its cpu */

static struct cpuid a_host(void)
{
	struct cpuid c = {.head.nent = 0};
	const struct kvm_cpuid_entry2 e[] = {
	    {.function = 0, .eax = 0x20, .ebx = 1, .ecx = 2, .edx = 3},
	    {.function = 1, .ecx = 0xffffffff, .edx = 0xffffffff},
	    {.function = 7, .flags = 1, .ebx = 0xffffffff, .ecx = ~0u, .edx = ~0u},
	    {.function = 0xd, .flags = 1, .eax = 0xffffffff},
	    {.function = 0xd, .index = 1, .flags = 1, .eax = 0xf},
	    {.function = 0xd, .index = 2, .flags = 1, .eax = 256},
	    {.function = 0xd, .index = 18, .flags = 1, .eax = 8192},
	    {.function = 0xa, .eax = 77},
	    {.function = 0x40000001, .eax = ~0u},
	    {.function = 0x80000001, .ecx = ~0u, .edx = ~0u},
	    {.function = 0x80000008, .eax = 0x3030},
	    {.function = 0x8000000a, .eax = 1},
	};

	for (size_t i = 0; i < ARRAY_LEN(e); i++)
		c.entry[c.head.nent++] = e[i];
	return c;
}

static struct kvm_cpuid_entry2 *leaf(struct cpuid *c, uint32_t function, uint32_t index)
{
	for (unsigned i = 0; i < c->head.nent; i++)
		if (c->entry[i].function == function && c->entry[i].index == index)
			return &c->entry[i];
	return NULL;
}

static void a_guest_sees_its_baseline_and_nothing_beyond(void **state)
{
	struct cpuid host = a_host(), guest;
	const char *name;

	assert_int_equal(cpuid_make(&host, NULL, 4, &guest, &name), 0);
	assert_string_equal(name, "panda-v4");
	assert_null(leaf(&guest, 0x8000000a, 0));        /* no virtualization inside */
	assert_null(leaf(&guest, 0xa, 0));               /* no counters */
	assert_null(leaf(&guest, 0xd, 18));              /* no state that is not saved */
	assert_false(leaf(&guest, 1, 0)->ecx & 1u << 5); /* nor vmx */
	assert_true(leaf(&guest, 1, 0)->ecx & 1u << 31);
	assert_int_equal(leaf(&guest, 0xb, 1)->ebx, 4);
	cpuid_for(&guest, 3);
	assert_int_equal(leaf(&guest, 1, 0)->ebx >> 24, 3);
	assert_int_equal(leaf(&guest, 0xb, 0)->edx, 3);

	leaf(&host, 7, 0)->ebx = 1u << 3 | 1u << 5 | 1u << 8;
	assert_int_equal(cpuid_make(&host, NULL, 1, &guest, &name), 0);
	assert_string_equal(name, "panda-v3");
	leaf(&host, 7, 0)->ebx = 0;
	assert_int_equal(cpuid_make(&host, NULL, 1, &guest, &name), 0);
	assert_string_equal(name, "panda-v2");
	assert_null(leaf(&guest, 0xd, 0)); /* and no extended state */
	assert_int_equal(cpuid_make(&host, "panda-v3", 1, &guest, &name), -EOPNOTSUPP);
	leaf(&host, 1, 0)->ecx = 0;
	assert_int_equal(cpuid_make(&host, NULL, 1, &guest, &name), -EOPNOTSUPP);
}

static void a_guest_goes_on_only_where_nothing_is_missing(void **state)
{
	struct cpuid host = a_host(), guest;
	const char *name;

	assert_int_equal(cpuid_make(&host, "panda-v3", 2, &guest, &name), 0);
	assert_int_equal(cpuid_fits(&guest, &host), 0);
	leaf(&host, 7, 0)->ebx = 0x005c27ab; /* without AVX-512: never seen, not missed */
	assert_int_equal(cpuid_make(&host, NULL, 2, &guest, &name), 0);
	assert_int_equal(cpuid_fits(&guest, &host), 0);
	leaf(&host, 7, 0)->ebx &= ~(1u << 5);
	assert_int_equal(cpuid_fits(&guest, &host), -EOPNOTSUPP);
	/* Nor with what nobody was ever shown, though the host has it. */
	host = a_host();
	leaf(&guest, 0x80000001, 0)->ecx |= 1u << 2; /* SVM */
	assert_int_equal(cpuid_fits(&guest, &host), -EBADMSG);
	leaf(&guest, 0x80000001, 0)->ecx &= ~(1u << 2);
	guest.entry[guest.head.nent++] = (struct kvm_cpuid_entry2){.function = 0xa};
	assert_int_equal(cpuid_fits(&guest, &host), -EBADMSG);
	guest.head.nent--;
	assert_int_equal(cpuid_fits(&guest, &host), 0);
	leaf(&host, 0, 0)->ebx = 99; /* another maker */
	assert_int_equal(cpuid_fits(&guest, &host), -EOPNOTSUPP);
	host = a_host();
	leaf(&host, 0xd, 0)->eax = 3;
	assert_int_equal(cpuid_fits(&guest, &host), -EOPNOTSUPP);
}

/* --- small devices */

static char said[8];
static unsigned nr_said, nr_irqs;

static void say(void *arg, uint8_t byte)
{
	said[nr_said++ % sizeof(said)] = (char)byte;
}

static void irq(void *arg, unsigned nr)
{
	nr_irqs++;
}

static void the_console_is_written_and_asked_for_interrupts(void **state)
{
	struct serial s = {.out = say, .interrupt = irq}, other = {.out = say};
	AUTO(state_out_fini) struct state_out out = {0};
	struct state_in in;

	nr_said = nr_irqs = 0;
	serial_write(&s, UART_TX, 'h');
	assert_int_equal(said[0], 'h');
	assert_int_equal(nr_irqs, 0);
	serial_write(&s, UART_IER, UART_IER_THRI);
	assert_int_equal(nr_irqs, 1);
	assert_int_equal(serial_read(&s, UART_IIR) & 0xf, UART_IIR_THRI);
	assert_int_equal(serial_read(&s, UART_IIR) & 0xf, UART_IIR_NO_INT);
	serial_write(&s, UART_LCR, UART_LCR_DLAB);
	serial_write(&s, UART_DLL, 7); /* the speed, not the console */
	assert_int_equal(nr_said, 1);
	assert_int_equal(serial_read(&s, UART_DLL), 7);
	serial_save(&s, &out);
	in = (struct state_in){.buf = out.buf, .len = out.len};
	assert_int_equal(serial_load(&other, &in), 0);
	assert_int_equal(serial_read(&other, UART_DLL), 7);
	for (unsigned port = 0; port < 16; port++)
		for (unsigned v = 0; v < 256; v++) {
			serial_write(&s, port, (uint8_t)v);
			serial_read(&s, port);
		}
}

static uint64_t a_time(void)
{
	return 0x1122334455667788;
}

static void the_host_page_tells_generation_and_time(void **state)
{
	struct host_page h = {.generation = {1, 2, 3, 4}, .wall_ns = a_time};

	assert_int_equal(host_read(&h, 0, 4), HOST_MAGIC);
	assert_int_equal(host_read(&h, 0x1c, 4), 4);
	assert_int_equal(host_read(&h, 0x20, 4), 0x55667788);
	assert_int_equal(host_read(&h, 0x24, 4), 0x11223344);
	assert_int_equal(host_read(&h, 0x10, 8), 0);
	assert_int_equal(host_read(&h, 0x11, 4), 0);
	assert_int_equal(host_read(&h, 0xfffc, 4), 0);
	assert_int_equal(host_write(&h, 8, 4, 1), HOST_POWER_OFF);
	assert_int_equal(host_write(&h, 8, 4, 99), HOST_NOTHING);
	assert_int_equal(host_write(&h, 8, 8, 1), HOST_NOTHING);
	assert_int_equal(host_write(&h, 0, 4, 1), HOST_NOTHING);
}

/* --- the state file */

static void records_come_back_in_order_or_not_at_all(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0};
	struct state_in in;
	uint8_t three[3];
	uint32_t v;
	const void *p;
	size_t n;

	state_put(&out, STATE_HEAD, "abc", 3);
	state_put(&out, STATE_MSRS, &(uint32_t[]){1, 2, 3}, 12);
	state_put(&out, STATE_END, NULL, 0);
	in = (struct state_in){.buf = out.buf, .len = out.len};
	assert_int_equal(state_get(&in, STATE_END, NULL, 0), -EBADMSG);
	assert_int_equal(state_get(&in, STATE_HEAD, &v, sizeof(v)), -EBADMSG);
	assert_int_equal(state_get(&in, STATE_HEAD, three, 3), 0);
	assert_memory_equal(three, "abc", 3);
	assert_int_equal(state_items(&in, STATE_MSRS, 8, 10, &p, &n), -EBADMSG);
	assert_int_equal(state_items(&in, STATE_MSRS, 4, 2, &p, &n), -EBADMSG);
	assert_int_equal(state_items(&in, STATE_MSRS, 4, 3, &p, &n), 0);
	assert_int_equal(n, 3);
	assert_int_equal((uintptr_t)p % 8, 0);
	assert_int_equal(state_get(&in, STATE_END, NULL, 0), 0);
	assert_int_equal(state_get(&in, STATE_END, NULL, 0), -EBADMSG);
	for (in.len = 0; in.len < out.len; in.len++) { /* cut anywhere */
		in.at = 0;
		while (state_items(&in, STATE_HEAD, 1, 100, &p, &n) == 0 ||
		       state_items(&in, STATE_MSRS, 1, 100, &p, &n) == 0)
			assert_true((const unsigned char *)p + n <= in.buf + in.len);
	}
	assert_null(state_room(&out, STATE_HEAD, STATE_MAX));
	assert_int_equal(out.error, -EFBIG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_kernel_is_where_it_wants_to_be),
	    cmocka_unit_test(its_code_is_what_is_executed_and_not_written),
	    cmocka_unit_test(a_kernel_that_does_not_fit_is_refused),
	    cmocka_unit_test(the_guest_finds_its_memory_cpus_and_command_line),
	    cmocka_unit_test(memory_above_the_hole_goes_on_at_4_gib),
	    cmocka_unit_test(a_guest_sees_its_baseline_and_nothing_beyond),
	    cmocka_unit_test(a_guest_goes_on_only_where_nothing_is_missing),
	    cmocka_unit_test(the_console_is_written_and_asked_for_interrupts),
	    cmocka_unit_test(the_host_page_tells_generation_and_time),
	    cmocka_unit_test(records_come_back_in_order_or_not_at_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
