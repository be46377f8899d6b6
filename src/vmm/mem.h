/*
 * vmm/mem.h - guest memory: where it is, and that a guest's numbers stay inside
 * RAM is one range of our addresses. The guest sees it from 0 on, but for a hole below 4 GiB where
 * devices live: what does not fit below the hole continues at 4 GiB.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define MEM_HOLE  0xd0000000ull /* devices from here */
#define MEM_HIGH  0x100000000ull
#define MEM_MIN   (32ull << 20)
#define MEM_LIMIT (256ull << 30)

struct mem {
	uint8_t *base;
	uint64_t size;
};

/* How much of it lies below the hole. */
static inline uint64_t mem_low(const struct mem *m)
{
	return m->size < MEM_HOLE ? m->size : MEM_HOLE;
}

/* len bytes at this guest address, or NULL when they are not all RAM. len 0 is never RAM. */
static inline void *mem_at(const struct mem *m, uint64_t gpa, uint64_t len)
{
	uint64_t low = mem_low(m), high = m->size - low;

	if (len == 0)
		return NULL;
	if (gpa < low)
		return len <= low - gpa ? m->base + gpa : NULL;
	if (gpa < MEM_HIGH || gpa - MEM_HIGH >= high)
		return NULL;
	gpa -= MEM_HIGH;
	return len <= high - gpa ? m->base + low + gpa : NULL;
}

/*
 * The guest may write there at this very moment: what is read is read once, into a copy that no
 * compiler reads again.
 */
static inline uint16_t mem_load16(const void *p)
{
	return __atomic_load_n((const uint16_t *)p, __ATOMIC_ACQUIRE);
}

static inline void mem_store16(void *p, uint16_t v)
{
	__atomic_store_n((uint16_t *)p, v, __ATOMIC_RELEASE);
}

static inline void mem_copy_in(void *to, const void *from, size_t n)
{
	memcpy(to, from, n);
	__asm__ volatile("" ::: "memory");
}
