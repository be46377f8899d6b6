#include "vmm/x86/load.h"

#include <elf.h>
#include <errno.h>

#include "vmm/mem.h"

enum { SEGMENTS_MAX = 32 };

#define LOAD_FROM (1ull << 20)

static int load_segment(const struct mem *m, const struct load_source *s, const Elf64_Phdr *p)
{
	void *to;
	int r;

	if (p->p_filesz > p->p_memsz || p->p_paddr < LOAD_FROM)
		return -ENOEXEC;
	if (p->p_memsz == 0)
		return 0;
	to = mem_at(m, p->p_paddr, p->p_memsz);
	if (!to)
		return -ENOSPC;
	r = p->p_filesz ? s->read(s->arg, to, p->p_filesz, p->p_offset) : 0;
	return r; /* the rest is zeros already: memory is new */
}

int load_kernel(const struct mem *m, const struct load_source *s, struct loaded *ret)
{
	struct loaded k = {0};
	bool entry = false;
	Elf64_Phdr p;
	Elf64_Ehdr h;
	int r;

	r = s->read(s->arg, &h, sizeof(h), 0);
	if (r < 0)
		return r;
	if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64 ||
	    h.e_ident[EI_DATA] != ELFDATA2LSB || h.e_machine != EM_X86_64 ||
	    h.e_phentsize != sizeof(p) || h.e_phnum == 0 || h.e_phnum > SEGMENTS_MAX ||
	    h.e_phoff > UINT64_MAX / 2)
		return -ENOEXEC;
	for (unsigned i = 0; i < h.e_phnum; i++) {
		r = s->read(s->arg, &p, sizeof(p), h.e_phoff + i * sizeof(p));
		if (r < 0)
			return r;
		if (p.p_type != PT_LOAD)
			continue;
		r = load_segment(m, s, &p);
		if (r < 0)
			return r;
		if (h.e_entry >= p.p_paddr && h.e_entry - p.p_paddr < p.p_memsz)
			entry = true;
		if ((p.p_flags & (PF_X | PF_W)) == PF_X && p.p_memsz > k.code_len) {
			k.code = p.p_paddr;
			k.code_len = p.p_memsz;
		}
	}
	if (!entry)
		return -ENOEXEC;
	k.entry = h.e_entry;
	*ret = k;
	return 0;
}
