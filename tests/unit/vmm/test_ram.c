/*
 * vmm/ram.h: memory of layers, sealed and mapped again, with this process as its own guest.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/macro.h"
#include "vmm/ram.h"

enum { TOP = 110, PAGEMAP = 111, LAYERS = 120, OTHER = 200, PAGE = INDEX_PAGE, SIZE = 32 << 20 };

static int new_top(void)
{
	int fd = memfd_create("top", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0 && ftruncate(fd, SIZE) == 0);
	return fd;
}

static void place(int fd, int slot)
{
	assert_true(fd >= 0 && dup2(fd, slot) >= 0);
	close(fd);
}

static void boot(struct ram *r)
{
	*r = (struct ram){.top_slot = TOP, .pagemap_slot = PAGEMAP, .layer_slot = LAYERS};
	place(new_top(), TOP);
	place(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), PAGEMAP);
	assert_int_equal(ram_boot(r, SIZE), 0);
}

/* As the host does it; the state as another process would load it. Returns the pages of the
 * layer. */
static uint64_t snapshot(struct ram *r, struct state_out *out, uint64_t *ret_live)
{
	uint64_t at = 0, pages = 0, live;
	struct extent x;
	char path[32];
	int ro;

	assert_int_equal(ram_collect(r, &live), 0);
	state_out_fini(out);
	ram_save(r, out);
	assert_int_equal(out->error, 0);
	while (ram_next_run(r, &at, &x))
		pages += x.n;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", TOP);
	ro = open(path, O_RDONLY | O_CLOEXEC);
	assert_int_equal(ram_seal(r, ro, new_top()), 0);
	/* The proof: nobody can write there any more. */
	assert_true(fcntl((int)(LAYERS + r->layers - 1), F_ADD_SEALS, F_SEAL_WRITE) == 0 ||
	            errno == EPERM /* opened for reading only: the host seals by its own fd */);
	if (ret_live)
		*ret_live = live;
	return pages;
}

/* A machine from that state: other tops, the same layers. */
static void restore(const struct ram *from, const struct state_out *out, struct ram *r)
{
	struct state_in in = {.buf = out->buf, .len = out->len};

	*r = (struct ram){.top_slot = OTHER, .pagemap_slot = PAGEMAP, .layer_slot = LAYERS};
	place(new_top(), OTHER);
	assert_int_equal(ram_restore(r, SIZE, from->layers, &in), 0);
	assert_int_equal(in.at, in.len);
}

static void a_first_snapshot_holds_what_was_written_and_both_go_their_ways(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0};
	struct ram r, child;

	boot(&r);
	r.mem.base[5 * PAGE] = 'p';
	r.mem.base[100 * PAGE] = 'q';
	assert_int_equal(snapshot(&r, &out, NULL), 2);
	assert_false(r.cold);
	restore(&r, &out, &child);
	assert_int_equal(child.mem.base[5 * PAGE], 'p');
	assert_int_equal(child.mem.base[6 * PAGE], 0);
	r.mem.base[5 * PAGE] = 'R';
	child.mem.base[5 * PAGE] = 'C';
	child.mem.base[6 * PAGE] = 'D';
	assert_int_equal(r.mem.base[5 * PAGE], 'R');
	assert_int_equal(r.mem.base[6 * PAGE], 0);
	assert_int_equal(child.mem.base[5 * PAGE], 'C');
	ram_fini(&child);
	ram_fini(&r);
}

static void zeros_stay_out_of_a_first_snapshot_but_for_small_gaps(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0};
	struct ram r, child;

	boot(&r);
	memset(r.mem.base, 'a', 1024 * PAGE); /* huge pages, where there are any */
	memset(r.mem.base + 100 * PAGE, 0, 4 * PAGE);
	memset(r.mem.base + 200 * PAGE, 0, 100 * PAGE);
	assert_int_equal(snapshot(&r, &out, NULL), 1024 - 100);
	restore(&r, &out, &child);
	assert_memory_equal(child.mem.base, r.mem.base, SIZE);
	r.mem.base[250 * PAGE] = 'b'; /* nothing is left of the huge page around it */
	assert_int_equal(snapshot(&r, &out, NULL), 1);
	ram_fini(&child);
	ram_fini(&r);
}

static void a_later_snapshot_holds_what_was_written_since(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0};
	struct ram r, child;
	volatile uint8_t sink;

	boot(&r);
	memset(r.mem.base, 'a', 64 * PAGE);
	snapshot(&r, &out, NULL);
	for (unsigned i = 0; i < 64; i++) /* reading is no writing */
		sink = r.mem.base[i * PAGE];
	sink = r.mem.base[1000 * PAGE];
	(void)sink;
	r.mem.base[3 * PAGE] = 'b';                     /* a single one stays a private copy */
	memset(r.mem.base + 20 * PAGE, 'c', 16 * PAGE); /* many are mapped anew */
	r.mem.base[2000 * PAGE] = 'z';                  /* where there was nothing */
	assert_int_equal(snapshot(&r, &out, NULL), 18);
	restore(&r, &out, &child);
	assert_int_equal(child.mem.base[3 * PAGE], 'b');
	assert_int_equal(child.mem.base[3 * PAGE + 1], 'a');
	assert_int_equal(child.mem.base[20 * PAGE], 'c');
	assert_int_equal(child.mem.base[36 * PAGE], 'a');
	assert_int_equal(child.mem.base[2000 * PAGE], 'z');
	assert_memory_equal(child.mem.base, r.mem.base, SIZE);
	/* Only the private copies are saved again when nothing was written. */
	assert_true(snapshot(&r, &out, NULL) <= 2);
	ram_fini(&child);
	ram_fini(&r);
}

static void an_undone_snapshot_leaves_the_machine_as_it_was(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0};
	uint64_t live;
	struct ram r, child;

	boot(&r);
	r.mem.base[PAGE] = 'a';
	snapshot(&r, &out, NULL);
	r.mem.base[PAGE] = 'b';
	assert_int_equal(ram_collect(&r, &live), 0);
	ram_undo(&r);
	r.mem.base[PAGE] = 'c';
	snapshot(&r, &out, NULL);
	restore(&r, &out, &child);
	assert_int_equal(child.mem.base[PAGE], 'c');
	ram_fini(&child);
	ram_fini(&r);
}

static void a_long_chain_is_kept_short_and_nothing_is_lost(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0};
	uint64_t live = 0;
	struct ram r, child;

	boot(&r);
	memset(r.mem.base, 'a', 5000 * PAGE); /* a large one, which stays */
	for (unsigned i = 0; i < 80; i++) {
		unsigned before = r.layers;

		memset(r.mem.base + (100 + i) * PAGE, 'A' + (int)(i % 26), PAGE);
		snapshot(&r, &out, &live);
		assert_true(r.layers <= RAM_CHAIN_MAX + 1);
		assert_int_equal(__builtin_popcountll(live) + 1, r.layers);
		assert_int_equal(live >> before, 0);
		assert_true(i == 0 || live & 1);
	}
	restore(&r, &out, &child);
	for (unsigned i = 0; i < 80; i++)
		assert_int_equal(child.mem.base[(100 + i) * PAGE], 'A' + i % 26);
	assert_memory_equal(child.mem.base, r.mem.base, SIZE);
	ram_fini(&child);
	ram_fini(&r);
}

static void scattered_pages_become_few_pieces(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0};
	struct ram r, child;

	boot(&r);
	memset(r.mem.base, 'a', SIZE);
	snapshot(&r, &out, NULL);
	for (unsigned i = 0; i < SIZE / PAGE; i += 2)
		r.mem.base[i * PAGE] = 'b';
	assert_true(SIZE / PAGE / 2 < RAM_EXTENTS); /* not too many: as they are */
	assert_int_equal(snapshot(&r, &out, NULL), SIZE / PAGE / 2);
	restore(&r, &out, &child);
	assert_memory_equal(child.mem.base, r.mem.base, SIZE);
	ram_fini(&child);
	ram_fini(&r);
}

static void released_memory_is_zeros_and_not_saved(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0};
	struct ram r;

	boot(&r);
	memset(r.mem.base, 'a', 256 * PAGE);
	ram_release(&r, 128 * PAGE, 64 * PAGE);
	assert_int_equal(r.mem.base[128 * PAGE], 0);
	assert_int_equal(snapshot(&r, &out, NULL), 192);
	ram_release(&r, 0, 64 * PAGE);
	assert_int_equal(r.mem.base[0], 0);
	assert_int_equal(r.mem.base[64 * PAGE], 'a');
	/* Nonsense is ignored. */
	ram_release(&r, SIZE - PAGE, 64 * PAGE);
	ram_release(&r, 100, 64 * PAGE);
	ram_release(&r, UINT64_MAX - PAGE + 1, 64 * PAGE);
	assert_int_equal(r.mem.base[64 * PAGE], 'a');
	ram_fini(&r);
}

static void memory_of_another_number_of_layers_is_refused(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0};
	struct ram r, child = {.top_slot = OTHER, .pagemap_slot = PAGEMAP, .layer_slot = LAYERS};
	struct state_in in;

	boot(&r);
	r.mem.base[0] = 1;
	snapshot(&r, &out, NULL);
	in = (struct state_in){.buf = out.buf, .len = out.len};
	assert_int_equal(ram_restore(&child, SIZE, 0, &in), -EBADMSG);
	ram_fini(&child);
	child.mem = (struct mem){0};
	in.at = 0;
	assert_int_equal(ram_restore(&child, SIZE + 100, 1, &in), -EINVAL);
	ram_fini(&r);
}

/* Whether this process has a copy of its own of that page, by what the host says. */
static bool is_copy(const struct ram *r, uint64_t page)
{
	uint64_t pm;

	assert_int_equal(pread(PAGEMAP, &pm, sizeof(pm),
	                       (off_t)(((uintptr_t)r->mem.base / PAGE + page) * sizeof(pm))),
	                 sizeof(pm));
	return pm >> 63 & 1 && !(pm >> 61 & 1);
}

static void what_was_written_last_is_copied_before_anybody_asks(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0};
	struct ram r, child;

	boot(&r);
	memset(r.mem.base, 'a', (RAM_AHEAD_PAGES + 1) * PAGE);
	snapshot(&r, &out, NULL);
	restore(&r, &out, &child); /* all of it is its newest layer: nothing is known */
	assert_false(is_copy(&child, 5));
	ram_fini(&child);
	r.mem.base[5 * PAGE] = 'b';
	r.mem.base[2000 * PAGE] = 'z';
	snapshot(&r, &out, NULL);
	restore(&r, &out, &child);
	assert_true(is_copy(&child, 5));
	assert_true(is_copy(&child, 2000));
	assert_false(is_copy(&child, 6));
	assert_memory_equal(child.mem.base, r.mem.base, SIZE);
	child.mem.base[5 * PAGE] = 'c';
	assert_int_equal(r.mem.base[5 * PAGE], 'b');
	ram_fini(&child);
	memset(r.mem.base, 'd', (RAM_AHEAD_PAGES + 1) * PAGE); /* too much to be of use */
	snapshot(&r, &out, NULL);
	restore(&r, &out, &child);
	assert_false(is_copy(&child, 5));
	ram_fini(&child);
	ram_fini(&r);
}

enum { MIB = 1 << 20, HUGE = 2 * MIB / PAGE };

static void code_is_one_piece_with_its_zeros_and_stays_what_it_is(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0};
	struct ram r, child;

	boot(&r);
	ram_set_code(&r, 5 * MIB, 8 * MIB); /* not whole huge pages: from the first that is */
	assert_int_equal(r.code, 3 * HUGE);
	assert_int_equal(r.code_pages, 4 * HUGE);
	memset(r.mem.base + 6 * MIB, 'k', MIB);
	assert_int_equal(snapshot(&r, &out, NULL), 4 * HUGE);
	restore(&r, &out, &child);
	assert_int_equal(child.code, 3 * HUGE);
	assert_int_equal(child.code_pages, 4 * HUGE);
	assert_memory_equal(child.mem.base, r.mem.base, SIZE);
	/* A kernel may patch itself: that page is its own, and the next in line has it, too. */
	child.mem.base[7 * MIB] = 'p';
	assert_int_equal(r.mem.base[7 * MIB], 0);
	r.mem.base[6 * MIB] = 'q';
	assert_int_equal(child.mem.base[6 * MIB], 'k');
	ram_fini(&child);
	assert_int_equal(snapshot(&r, &out, NULL), 1);
	restore(&r, &out, &child);
	assert_memory_equal(child.mem.base, r.mem.base, SIZE);
	ram_fini(&child);
	ram_fini(&r);
}

static void code_that_is_nowhere_is_none(void **state)
{
	struct ram r;

	boot(&r);
	ram_set_code(&r, SIZE - MIB, 2 * MIB);
	ram_set_code(&r, UINT64_MAX - MIB, 2 * MIB);
	ram_set_code(&r, 0, 0);
	ram_set_code(&r, MIB, MIB); /* no whole one */
	assert_int_equal(r.code_pages, 0);
	ram_fini(&r);
}

static void a_place_of_code_that_cannot_be_is_refused(void **state)
{
	static const struct {
		uint64_t start, pages;
		int r;
	} cases[] = {
	    {0, 0, 0},
	    {HUGE, 2 * HUGE, 0},
	    {0, SIZE / PAGE, 0},
	    {1, HUGE, -EBADMSG},
	    {0, HUGE - 1, -EBADMSG},
	    {HUGE, SIZE / PAGE, -EBADMSG},
	    {SIZE / PAGE, HUGE, -EBADMSG},
	    {UINT64_MAX - HUGE + 1, HUGE, -EBADMSG},
	    {HUGE, UINT64_MAX - HUGE + 1, -EBADMSG},
	};
	struct ram r = {.mem = {.size = SIZE}};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		AUTO(state_out_fini) struct state_out out = {0};
		struct state_in in;

		state_put(&out, STATE_CODE, &cases[i], 2 * sizeof(uint64_t));
		in = (struct state_in){.buf = out.buf, .len = out.len};
		r.code_pages = 0;
		assert_int_equal(ram_load_code(&r, &in), cases[i].r);
		assert_int_equal(r.code_pages, cases[i].r ? 0 : cases[i].pages);
		in.at = 0;
		in.len -= 8; /* cut short */
		r.code_pages = 0;
		assert_int_equal(ram_load_code(&r, &in), 0);
		assert_int_equal(r.code_pages, 0);
		assert_int_equal(in.at, 0); /* whoever comes next finds it, and does not want it */
	}
	r.mem.size = 4 * RAM_CODE_MAX;
	{
		AUTO(state_out_fini) struct state_out out = {0};
		const uint64_t huge[] = {0, RAM_CODE_MAX / PAGE + HUGE};
		struct state_in in;

		state_put(&out, STATE_CODE, huge, sizeof(huge));
		in = (struct state_in){.buf = out.buf, .len = out.len};
		assert_int_equal(ram_load_code(&r, &in), -EBADMSG);
	}
}

static void an_older_state_says_nothing_of_code(void **state)
{
	AUTO(state_out_fini) struct state_out out = {0}, old = {0};
	struct ram r, child;

	boot(&r);
	memset(r.mem.base, 'a', 20 * PAGE);
	snapshot(&r, &out, NULL);
	state_put(&old, STATE_EXTENTS, &(struct extent){.start = 0, .n = 20, .what = 1},
	          sizeof(struct extent));
	restore(&r, &old, &child);
	assert_int_equal(child.code_pages, 0);
	assert_memory_equal(child.mem.base, r.mem.base, SIZE);
	ram_fini(&child);
	ram_fini(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_first_snapshot_holds_what_was_written_and_both_go_their_ways),
	    cmocka_unit_test(zeros_stay_out_of_a_first_snapshot_but_for_small_gaps),
	    cmocka_unit_test(a_later_snapshot_holds_what_was_written_since),
	    cmocka_unit_test(an_undone_snapshot_leaves_the_machine_as_it_was),
	    cmocka_unit_test(a_long_chain_is_kept_short_and_nothing_is_lost),
	    cmocka_unit_test(scattered_pages_become_few_pieces),
	    cmocka_unit_test(released_memory_is_zeros_and_not_saved),
	    cmocka_unit_test(memory_of_another_number_of_layers_is_refused),
	    cmocka_unit_test(what_was_written_last_is_copied_before_anybody_asks),
	    cmocka_unit_test(code_is_one_piece_with_its_zeros_and_stays_what_it_is),
	    cmocka_unit_test(code_that_is_nowhere_is_none),
	    cmocka_unit_test(a_place_of_code_that_cannot_be_is_refused),
	    cmocka_unit_test(an_older_state_says_nothing_of_code),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
