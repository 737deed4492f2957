#include "managed/advice.h"

#include <stdlib.h>

#define PAGE_BYTES ((uintptr_t)4096)

struct sim_range *sim_managed_at(CUdeviceptr address, size_t bytes) {
    struct sim_range *range = sim_range_at(&sim_ranges, address);
    if (range == NULL || !sim_is_managed(range)) return NULL;
    return bytes > 0 && bytes <= range->bytes - (address - range->start) ? range : NULL;
}

const struct sim_advice *sim_advice_at(const struct sim_range *range, uintptr_t address) {
    const struct sim_advice *hint = range->hints;
    while (hint != NULL && hint->end <= address)
        hint = hint->next;
    return hint;
}

static bool begin(struct sim_range *range) {
    if (range->hints != NULL) return true;
    range->hints = calloc(1, sizeof(*range->hints));
    if (range->hints == NULL) return false;
    range->hints->start = range->start;
    range->hints->end = sim_round_up(range->start + range->bytes, PAGE_BYTES);
    return true;
}

/* The hint that begins at a page, split off from the one before if need be. */
static struct sim_advice *split_at(struct sim_range *range, uintptr_t page) {
    struct sim_advice *hint = range->hints;
    while (hint != NULL && hint->end <= page)
        hint = hint->next;
    if (hint == NULL || hint->start == page) return hint;
    struct sim_advice *second = malloc(sizeof(*second));
    if (second == NULL) return NULL;
    *second = *hint;
    second->start = hint->end = page;
    return hint->next = second;
}

struct sim_advice *sim_advices_split(struct sim_range *range, uintptr_t start, size_t bytes) {
    uintptr_t last = sim_round_up(start + bytes, PAGE_BYTES);
    if (!begin(range)) return NULL;
    struct sim_advice *first = split_at(range, start & ~(PAGE_BYTES - 1));
    bool reaches_end = last >= sim_round_up(range->start + range->bytes, PAGE_BYTES);
    return reaches_end || split_at(range, last) != NULL ? first : NULL;
}

void sim_advices_end(struct sim_range *range) {
    for (struct sim_advice *hint = range->hints, *next; hint != NULL; hint = next) {
        next = hint->next;
        free(hint);
    }
    range->hints = NULL;
}
