/* A treap: a search tree by address, a heap by a random number, so it stays shallow whatever the order of
 * calls. */
#include "memory/range.h"

#include <stdlib.h>

#include "pool/pool.h"
#include "managed/residency.h"
#include "memory/shared_allocation.h"

static struct sim_slab slab = SIM_SLAB_WITH(struct sim_range, 256, 1u << 22, true);
struct sim_tree sim_ranges, sim_mappings;

static uint32_t next_random(void) {
    static uint32_t state = 2463534242u;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static void split(struct sim_range *tree, uintptr_t start, struct sim_range **below,
                  struct sim_range **above) {
    if (tree == NULL) {
        *below = *above = NULL;
    } else if (tree->start < start) {
        split(tree->right, start, &tree->right, above);
        *below = tree;
    } else {
        split(tree->left, start, below, &tree->left);
        *above = tree;
    }
}

static struct sim_range *merge(struct sim_range *below, struct sim_range *above) {
    if (below == NULL) return above;
    if (above == NULL) return below;
    if (below->priority > above->priority) {
        below->right = merge(below->right, above);
        return below;
    }
    above->left = merge(below, above->left);
    return above;
}

static void insert(struct sim_tree *tree, struct sim_range *range) {
    struct sim_range **at = &tree->root;
    while (*at != NULL && (*at)->priority >= range->priority)
        at = range->start < (*at)->start ? &(*at)->left : &(*at)->right;
    split(*at, range->start, &range->left, &range->right);
    *at = range;
}

static void take_out(struct sim_tree *tree, struct sim_range *range) {
    struct sim_range **at = &tree->root;
    while (*at != range)
        at = range->start < (*at)->start ? &(*at)->left : &(*at)->right;
    *at = merge(range->left, range->right);
}

static struct sim_tree *tree_of(enum sim_range_kind kind) {
    return kind == SIM_MAPPING ? &sim_mappings : &sim_ranges;
}

struct sim_range *sim_range_new(enum sim_range_kind kind, uintptr_t start, size_t bytes) {
    static uint64_t last_id;
    struct sim_range *range = sim_new(&slab);
    if (range == NULL) return NULL;
    range->kind = kind;
    range->start = start;
    range->bytes = bytes;
    range->priority = next_random();
    range->buffer_id = ++last_id;
    insert(tree_of(kind), range);
    return range;
}

void sim_range_delete(struct sim_range *range) {
    take_out(tree_of(range->kind), range);
    sim_delete(&slab, range);
}

/* The last range that begins at or before an address. */
static struct sim_range *before(const struct sim_tree *tree, uintptr_t address) {
    struct sim_range *found = NULL;
    for (struct sim_range *at = tree->root; at != NULL;) {
        if (at->start <= address) found = at;
        at = at->start <= address ? at->right : at->left;
    }
    return found;
}

struct sim_range *sim_range_at(const struct sim_tree *tree, uintptr_t address) {
    struct sim_range *range = before(tree, address);
    return range != NULL && address - range->start < range->bytes ? range : NULL;
}

struct sim_range *sim_range_from(const struct sim_tree *tree, uintptr_t start) {
    struct sim_range *range = before(tree, start);
    return range != NULL && range->start == start ? range : NULL;
}

struct sim_range *sim_range_after(const struct sim_tree *tree, uintptr_t address) {
    struct sim_range *found = NULL;
    for (struct sim_range *at = tree->root; at != NULL;) {
        if (at->start >= address) found = at;
        at = at->start >= address ? at->left : at->right;
    }
    return found;
}

struct sim_range *sim_memory_at(uintptr_t address) {
    struct sim_range *range = sim_range_at(&sim_ranges, address);
    return range != NULL && range->kind == SIM_RESERVATION ? sim_range_at(&sim_mappings, address) : range;
}

bool sim_is_device_memory(uintptr_t address, size_t bytes) {
    for (;;) {
        struct sim_range *range = sim_memory_at(address);
        if (range == NULL) return false;
        size_t left = range->bytes - (address - range->start);
        if (bytes <= left) return true;
        if (range->kind != SIM_MAPPING) return false;
        address += left;
        bytes -= left;
    }
}

void sim_range_free(struct sim_range *range) {
    unsigned gpu = range->gpu;
    size_t charged_bytes = range->charged_bytes, paged_bytes = range->paged_bytes;
    sim_share_end(range);
    sim_advices_end(range);
    if (range->kind == SIM_PINNED) free((void *)range->start);
    if (range->backed_bytes > 0)
        sim_backing_unmap(range->start, range->backed_bytes);
    else if (range->kind == SIM_POOLED)
        sim_backing_zero(range->start, range->pooled_bytes); /* its addresses belong to a graph */
    sim_range_delete(range);
    if (charged_bytes > 0) sim_device_refund(gpu, charged_bytes);
    if (paged_bytes > 0) sim_residency_remove(gpu, paged_bytes);
}

static bool is_of(const struct sim_range *range, CUcontext context) {
    return range->context == context && range->kind != SIM_MAPPING && range->kind != SIM_RESERVATION;
}

void sim_ranges_delete_of(CUcontext context) {
    for (uint32_t i = 0; i < slab.used; i++) {
        struct sim_range *range = sim_at(&slab, i);
        if (range == NULL || !is_of(range, context)) continue;
        if (range->kind == SIM_POOLED)
            sim_pool_free(range);
        else
            sim_range_free(range);
    }
}

void sim_ranges_move(CUcontext from, CUcontext to) {
    for (uint32_t i = 0; i < slab.used; i++) {
        struct sim_range *range = sim_at(&slab, i);
        if (range != NULL && range->context == from) range->context = to;
    }
}
