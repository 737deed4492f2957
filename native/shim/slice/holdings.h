/* What this process holds on its GPUs: one row for each allocation, found by its handle in constant time. */
#ifndef PGPU_SHIM_HOLDINGS_H
#define PGPU_SHIM_HOLDINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "meter_abi.h"

enum pgpu_kind {
    PGPU_KIND_NONE,
    PGPU_KIND_MEMORY,        /* a device pointer */
    PGPU_KIND_ARRAY,         /* an array or a mipmapped array */
    PGPU_KIND_EXTERNAL,      /* imported memory of another interface */
    PGPU_KIND_CONTEXT,       /* a context that was created, or a primary one (by ordinal) */
    PGPU_KIND_ALLOCATION,    /* physical memory of cuMemCreate, by a number of our own */
    PGPU_KIND_HANDLE,        /* a handle of such memory */
    PGPU_KIND_MAPPING,       /* an address range over such memory */
    PGPU_KIND_POOL,          /* a memory pool, or the memory of a device's graphs */
    PGPU_KIND_GRAPH,         /* an executable graph that allocates: its bytes, for which nothing is charged */
    PGPU_KIND_GRAPH_USE,     /* what launches of one graph, or into one stream, may use */
    PGPU_KIND_LIMIT,         /* what a context takes beyond its own bytes for a limit that was raised */
    PGPU_KIND_BINDING,       /* physical memory bound to a multicast object, by a number of our own */
    PGPU_KIND_EXPORT,        /* physical memory that a descriptor keeps, by the byte that is locked in it */
    PGPU_KIND_NODES,         /* how many an executable graph has, where that is traced */
    PGPU_KIND_MODULE,        /* what a module, or a library in one context, has on the device */
    PGPU_KIND_UNLOADED,      /* a module or library that was unloaded because it had no room */
    PGPU_KIND_DEFERRED_FREE, /* memory that is freed on a stream, by the event recorded behind the free */
};

/* Each kind has words of its own, one behind the other in one union: only those of the row's kind mean
 * anything. */
struct pgpu_holding {
    uint64_t key;
    union {
        uint64_t bytes; /* charged for this row */
        uint64_t bound; /* of a binding, for which nothing is charged: the allocation */
    };
    union {
        struct {              /* what a context takes with it: memory, arrays, limits, modules, … */
            uint64_t context; /* 0: none does */
            union {
                uint64_t pool;      /* MEMORY: that it was allocated from, or 0 */
                uint64_t value;     /* LIMIT */
                uint64_t module;    /* MODULE: handle of the module or library */
                uint64_t is_paused; /* DEFERRED_FREE: its event may not be queried */
            };
        };
        struct { /* HANDLE, MAPPING, EXPORT */
            uint64_t allocation;
            uint64_t mapped_bytes; /* MAPPING */
        };
        struct { /* BINDING */
            uint64_t object, offset;
        };
        struct { /* POOL */
            uint64_t pool_state;
            uint64_t handed_out_bytes;
        };
        struct { /* GRAPH */
            uint64_t unfreed;
            CUdevice graph_ordinal;
        };
        struct { /* GRAPH_USE */
            uint64_t round, used_bytes;
        };
        uint64_t role;    /* ALLOCATION */
        uint64_t primary; /* CONTEXT: the handle of a primary one, once the driver returned it */
        CUdevice ordinal; /* CONTEXT: of a green one */
        uint64_t nodes;   /* NODES */
    };
    uint32_t count; /* references */
    uint8_t kind;
    int8_t gpu;        /* as of its charge */
    bool is_converted; /* managed memory that its program takes for ordinary memory */
    bool is_managed;   /* managed memory that the program allocated as such */
};

/* Whether a row can be added; checked before the driver is called, so that every grant gets a row. */
bool pgpu_holdings_have_room(void);

/* Add a row, or replace the one with its kind and key. False: no memory for the table; the charge then stays.
 */
bool pgpu_holdings_put(const struct pgpu_holding *holding);

/* Copy a row out; false if there is none. */
bool pgpu_holdings_find(enum pgpu_kind kind, uint64_t key, struct pgpu_holding *found);

/* Remove a row and copy it out; false if there is none. */
bool pgpu_holdings_take(enum pgpu_kind kind, uint64_t key, struct pgpu_holding *taken);

/* Add a row, or one more reference to the row with its kind and key. True: it is new. */
bool pgpu_holdings_join(const struct pgpu_holding *holding);

/* Add to a row's count and return the new one, removing the row at zero; -1 if there is none. `after` may be
 * NULL. */
int64_t pgpu_holdings_count(enum pgpu_kind kind, uint64_t key, int change, struct pgpu_holding *after);

/* Change a row in place; false if there is none. `edit` runs under the table's mutex and calls nothing. */
bool pgpu_holdings_edit(enum pgpu_kind kind, uint64_t key, void (*edit)(struct pgpu_holding *, void *),
                        void *context);

/* The same for every row of `kind` that a context takes with it. */
void pgpu_holdings_edit_owned(enum pgpu_kind kind, uint64_t owner,
                              void (*edit)(struct pgpu_holding *, void *), void *context);

/* Remove every row of `kind` that a context takes with it, adding its bytes to `bytes[gpu]`. */
void pgpu_holdings_take_owned(enum pgpu_kind kind, uint64_t owner, uint64_t bytes[PGPU_MAX_GPUS]);

/* Call `visit` for a copy of each row of `kind` until it returns true; the table is not locked meanwhile. */
bool pgpu_holdings_visit(enum pgpu_kind kind, bool (*visit)(const struct pgpu_holding *, void *),
                         void *context);

/* The rows of a parent are not its child's. */
void pgpu_holdings_before_fork(void);
void pgpu_holdings_after_fork(bool is_child);

#endif
