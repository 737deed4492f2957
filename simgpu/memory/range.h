/* Ranges of addresses that the driver allocated or that were registered, in an ordered tree: the range of a
 * pointer is found in logarithmic time, and a pointer into none is an error instead of a crash. All under
 * sim_lock. */
#ifndef SIM_RANGE_H
#define SIM_RANGE_H

#include "context/context.h"

enum sim_range_kind {
    SIM_DEVICE, /* cuMemAlloc and its like */
    SIM_POOLED, /* stream-ordered */
    SIM_MANAGED,
    SIM_PINNED,      /* host memory that the driver made */
    SIM_REGISTERED,  /* host memory that was registered */
    SIM_RESERVATION, /* addresses without memory (VMM) */
    SIM_MAPPING,     /* memory inside a reservation (VMM) */
    SIM_IMPORTED,    /* another process's or interface's memory, counted there */
    SIM_GLOBAL,      /* a module's variable */
};

struct sim_range {
    struct sim_head head;
    struct sim_range *left, *right;
    uint32_t priority;
    enum sim_range_kind kind;
    uintptr_t start;
    size_t bytes;         /* as requested */
    size_t backed_bytes;  /* mapped behind it */
    size_t charged_bytes; /* counted on the device */
    size_t pooled_bytes;  /* counted in `pool` */
    size_t paged_bytes;   /* managed, and on the device as far as it is resident */
    unsigned gpu;
    CUcontext context; /* NULL: it outlives contexts */
    CUdevice device;
    unsigned flags;
    uint64_t buffer_id;
    uintptr_t handle; /* of VMM memory or external memory */
    CUmemoryPool pool;
    size_t offset;      /* into that handle */
    bool is_accessible; /* VMM: cuMemSetAccess was called */
    bool syncs_copies;
    bool is_managed;          /* of a module's variable, or out of a managed pool */
    void *source;             /* what an imported range was opened from */
    struct sim_advice *hints; /* advice about managed memory; NULL: none */
};

struct sim_tree {
    struct sim_range *root;
};

extern struct sim_tree sim_ranges;   /* everything but mappings */
extern struct sim_tree sim_mappings; /* what cuMemMap put into reservations */

struct sim_range *sim_range_new(enum sim_range_kind kind, uintptr_t start, size_t bytes);
/* Take it out of its tree and forget it. */
void sim_range_delete(struct sim_range *range);
/* The range that holds an address, or NULL. */
struct sim_range *sim_range_at(const struct sim_tree *tree, uintptr_t address);
/* The range that begins there, or NULL. */
struct sim_range *sim_range_from(const struct sim_tree *tree, uintptr_t start);
/* The first range that begins at or after an address, or NULL. */
struct sim_range *sim_range_after(const struct sim_tree *tree, uintptr_t address);
/* The memory behind an address: an allocation or a mapping, never a bare reservation. */
struct sim_range *sim_memory_at(uintptr_t address);
static inline bool sim_is_managed(const struct sim_range *range) {
    return range->kind == SIM_MANAGED || range->is_managed;
}

/* Whether [address, address + bytes) is memory of the driver; adjoining mappings count as one. */
bool sim_is_device_memory(uintptr_t address, size_t bytes);

/* Forget the hints of a range. */
void sim_advices_end(struct sim_range *range);

/* Give back memory, charge and entry of an allocation. */
void sim_range_free(struct sim_range *range);
/* Free all that was allocated in a context. */
void sim_ranges_delete_of(CUcontext context);
void sim_ranges_move(CUcontext from, CUcontext to);

/* Demand-zero memory of whole pages, or bare addresses where there is no backing; 0: none left. */
uintptr_t sim_backing_map(size_t bytes, size_t alignment);
void sim_backing_unmap(uintptr_t start, size_t bytes);
/* Read as zero again, without a touch. */
void sim_backing_zero(uintptr_t start, size_t bytes);

static inline size_t sim_round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

#endif
