/*
 * vmm/ram.h - guest memory made of layers
 * At a cold boot memory is anonymous, in huge pages where the host has them. From the first
 * snapshot on, and in every restored machine, it is MAP_PRIVATE over sealed layers: what the guest
 * writes, the host copies, and /proc/self/pagemap tells which pages those are. Only a snapshot
 * writes to the top. Fds are slots (control.h). The index: 0 is a page of zeros, i + 1 a page of
 * layer i.
 *
 * A restored guest meets each of its pages with a fault, and one that it writes with up to three.
 * Two things spare it most of them, and neither changes a byte: a newest layer of few pages,
 * those that were written last, is copied before the guest runs; and the kernel's code, which
 * no machine writes, becomes huge pages of the layer's file, shared by all machines that map it,
 * where the host can do that.
 *
 * A snapshot, with no vcpu running: ram_collect(), then ram_save() into a state file, then
 * ram_seal(), or ram_undo() when something else went wrong.
 */
#pragma once
#include "vmm/index.h"
#include "vmm/mem.h"
#include "vmm/state.h"

enum {
	RAM_CHAIN_MAX = 24, /* from here on the top takes over what small old layers hold */
	RAM_SMALL_PAGES = 4096,
	RAM_EXTENTS = 16384, /* more pieces than this are joined by copying what is between them */
	RAM_AHEAD_PAGES = 1024, /* a newest layer of more than this is not what was written last */
	RAM_REMAP_PAGES = 8,    /* shorter runs stay private copies: a mapping costs more */
};

struct ram {
	struct mem mem;
	struct page_index index, next; /* next: while a snapshot is taken */
	unsigned layers;               /* sealed */
	unsigned layer_slot, top_slot, pagemap_slot;
	uint8_t ahead;             /* the layer that was copied ahead, as in the index; 0: none */
	uint64_t code, code_pages; /* whole huge pages of the kernel's code; may be none */
	uint64_t dead;             /* of the snapshot: old layers whose content is in the top now */
	bool cold;                 /* no snapshot was taken yet */
};

#define RAM_CODE_MAX ((uint64_t)64 << 20)

int ram_boot(struct ram *r, uint64_t size);
/*
 * Where a kernel was loaded that will not write there, nor in what is left of the last huge page.
 * Nonsense is ignored.
 */
void ram_set_code(struct ram *r, uint64_t gpa, uint64_t len);

/* Maps what ram_save() wrote: needs r's slots. -EBADMSG. layers is how many the caller has. */
int ram_restore(struct ram *r, uint64_t size, unsigned layers, struct state_in *s);
/* The runs that ram_restore() copied ahead, from *at on; 0 when there are no more. */
int ram_next_ahead(const struct ram *r, uint64_t *at, struct extent *ret);
/* Of ram_restore(): where the code is, if it is written down. r's memory has its size. -EBADMSG. */
int ram_load_code(struct ram *r, struct state_in *s);
void ram_fini(struct ram *r);

/* The content of [gpa, gpa + len) does not matter to the guest any more. Whole pages, or
 * ignored. */
void ram_release(struct ram *r, uint64_t gpa, uint64_t len);

/*
 * All that changed is in the top. *ret_live: the older layers that are still needed. -E2BIG: too
 * scattered, or too many layers.
 */
int ram_collect(struct ram *r, uint64_t *ret_live);
void ram_save(const struct ram *r, struct state_out *s);
/* The runs of the collected layer, to be given to the process that asked: run by run from
 * *at on. */
int ram_next_run(const struct ram *r, uint64_t *at, struct extent *ret);
/* The top becomes the newest sealed layer, read through ro; next is the new top. Both fds are
 * taken. */
int ram_seal(struct ram *r, int ro, int next);
void ram_undo(struct ram *r);
