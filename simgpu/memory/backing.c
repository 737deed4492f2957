/* What lies behind device addresses: demand-zero pages that cost nothing until the client touches them, or
 * nothing. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memory/range.h"

#define PAGE_BYTES 4096u
#define CLASSES    48

/* Addresses without backing: powers of two from a range that no process maps, used again class by class. */
#define BARE_BASE 0x10000000000ull
#define BARE_END  0x500000000000ull

static struct {
    uintptr_t next;
    struct {
        uintptr_t *address;
        size_t count, capacity;
    } rest[CLASSES];
} bare = {.next = BARE_BASE};

static unsigned class_of(size_t bytes) {
    if (bytes <= 512) return 9;
    unsigned log2 = 64 - (unsigned)__builtin_clzll(bytes - 1);
    return log2 < CLASSES ? log2 : CLASSES - 1;
}

static uintptr_t bare_take(size_t bytes, size_t alignment) {
    unsigned log2 = class_of(bytes > alignment ? bytes : alignment);
    if (bare.rest[log2].count > 0) return bare.rest[log2].address[--bare.rest[log2].count];
    size_t unit = (size_t)1 << log2;
    uintptr_t start = sim_round_up(bare.next, unit);
    if (start + unit > BARE_END) return 0;
    bare.next = start + unit;
    return start;
}

static void bare_give(uintptr_t start, size_t bytes) {
    unsigned log2 = class_of(bytes);
    if (bare.rest[log2].count == bare.rest[log2].capacity) {
        size_t capacity = bare.rest[log2].capacity * 2 + 64;
        uintptr_t *grown = realloc(bare.rest[log2].address, capacity * sizeof(*grown));
        if (grown == NULL) return;
        bare.rest[log2].address = grown;
        bare.rest[log2].capacity = capacity;
    }
    bare.rest[log2].address[bare.rest[log2].count++] = start;
}

static void *map(size_t bytes) {
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* Map too much, then cut off what lies outside the alignment. */
static uintptr_t map_aligned(size_t bytes, size_t alignment) {
    char *at = map(bytes + alignment);
    if (at == MAP_FAILED) return 0;
    char *start = (char *)sim_round_up((uintptr_t)at, alignment);
    if (start > at) munmap(at, (size_t)(start - at));
    munmap(start + bytes, alignment - (size_t)(start - at));
    return (uintptr_t)start;
}

uintptr_t sim_backing_map(size_t bytes, size_t alignment) {
    if (!sim_driver.has_backing) return bare_take(bytes, alignment);
    bytes = sim_round_up(bytes, PAGE_BYTES);
    if (alignment > PAGE_BYTES) return map_aligned(bytes, alignment);
    void *at = map(bytes);
    return at == MAP_FAILED ? 0 : (uintptr_t)at;
}

void sim_backing_unmap(uintptr_t start, size_t bytes) {
    if (sim_driver.has_backing)
        munmap((void *)start, sim_round_up(bytes, PAGE_BYTES));
    else
        bare_give(start, bytes);
}

/* Only one of the two works on a mapping: the first on shared memory, the second on our own. */
static void drop_pages(uintptr_t first, uintptr_t last) {
    if (madvise((void *)first, last - first, MADV_REMOVE) == 0) return;
    if (madvise((void *)first, last - first, MADV_DONTNEED) != 0) memset((void *)first, 0, last - first);
}

void sim_backing_zero(uintptr_t start, size_t bytes) {
    uintptr_t first = sim_round_up(start, PAGE_BYTES), last = (start + bytes) / PAGE_BYTES * PAGE_BYTES;
    if (!sim_driver.has_backing) return;
    if (last <= first) {
        memset((void *)start, 0, bytes);
        return;
    }
    drop_pages(first, last);
    memset((void *)start, 0, first - start);
    memset((void *)last, 0, start + bytes - last);
}
