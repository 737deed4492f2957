/* The log of a profiled job: what its processes do on the GPU. It follows the slots in the usage file, so
 * every delivery of that file delivers the log. Only slices made for profiling have room for it, and it is
 * written only with PGPU_LIMIT_TRACES.
 *
 * The host writes the header's first words before the job begins. A record's place is claimed by one atomic
 * addition and its `kind` is stored last: a death at any point leaves at most one record without a kind. No
 * process waits for another. A full log goes on counting, by kernel and shape, and counts the records that it
 * has no room for. The host reads with pread and bounds checks and trusts no value.
 *
 * Times are CLOCK_MONOTONIC in nanoseconds, those of the GPU too: each context has an anchor, an event whose
 * time was measured on both clocks. */
#ifndef PGPU_TRACE_ABI_H
#define PGPU_TRACE_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "meter_abi.h"

#define PGPU_TRACE_ABI        1u
#define PGPU_TRACE_MAGIC      0x4543415254555047ull /* "GPUTRACE" */
#define PGPU_TRACE_OFFSET     0x100000ll            /* in the usage file */
#define PGPU_TRACE_MAX_SHAPES 2048u
#define PGPU_TRACE_NAME_BYTES 384u

enum pgpu_trace_kind {
    PGPU_TRACE_NOTHING, /* claimed, and never written */
    PGPU_TRACE_PROCESS, /* `bytes`: its pid. The slot's former owner is dead and its memory is gone */
    PGPU_TRACE_CONTEXT, /* `bytes`: of it; the rest is its GPU's: `detail` multiprocessors, `shape` threads
                         * that one holds, `stream` bytes of L2, `duration_ns` bytes of memory a second; 0
                         * unknown */
    PGPU_TRACE_KERNEL,
    PGPU_TRACE_GRAPH,  /* `bytes`: nodes, 0 unknown */
    PGPU_TRACE_COPY,   /* `detail`: enum pgpu_trace_direction */
    PGPU_TRACE_MEMORY, /* `detail`: enum pgpu_trace_memory; `bytes`: all of that kind that the process has now
                        */
};

enum pgpu_trace_direction {
    PGPU_TRACE_ELSEWHERE, /* unknown */
    PGPU_TRACE_HOST_TO_DEVICE,
    PGPU_TRACE_DEVICE_TO_HOST,
    PGPU_TRACE_DEVICE_TO_DEVICE,
    PGPU_TRACE_PEER_TO_PEER,
    PGPU_TRACE_FILL,
};

enum pgpu_trace_memory {
    PGPU_TRACE_LINEAR,
    PGPU_TRACE_MANAGED,
    PGPU_TRACE_ARRAY,
    PGPU_TRACE_EXTERNAL, /* of other processes and interfaces */
    PGPU_TRACE_CONTEXTS,
    PGPU_TRACE_PHYSICAL, /* cuMemCreate */
    PGPU_TRACE_POOL,     /* pools, and the memory of graphs */
    PGPU_TRACE_LIMITS,   /* stacks, heap, printf buffer */
    PGPU_TRACE_MEMORY_KINDS,
};

#define PGPU_TRACE_CARVED 1u /* flag of a kernel: the L1 carve-out of the limit file was applied */

struct pgpu_trace_record {
    uint32_t kind; /* stored last */
    uint16_t slot; /* of the usage file: which process */
    uint8_t gpu;   /* index in the limit file */
    uint8_t flags;
    uint32_t shape; /* kernels: row of `shapes` + 1; 0: no row was free */
    uint32_t detail;
    uint64_t at_ns;    /* time of the call on the host */
    uint64_t start_ns; /* on the GPU; stored after the duration; 0: never measured */
    uint64_t duration_ns;
    uint64_t stream;
    uint64_t bytes;
    uint64_t context;
};
static_assert(offsetof(struct pgpu_trace_record, shape) == 8, "layout");
static_assert(offsetof(struct pgpu_trace_record, at_ns) == 16, "layout");
static_assert(sizeof(struct pgpu_trace_record) == 64, "layout");

/* All launches of one kernel with one grid, block and amount of dynamic shared memory. */
struct pgpu_trace_shape {
    uint64_t key;      /* hash of all that; 0: free */
    uint32_t is_ready; /* what follows up to `launches` is written */
    uint32_t name_length;
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t dynamic_shared_bytes;
    uint32_t static_shared_bytes;
    uint32_t registers;     /* of a thread */
    uint32_t blocks_per_sm; /* that one multiprocessor holds at once; 0 unknown */
    uint64_t launches;
    uint64_t measured; /* launches with a known duration */
    uint64_t total_ns;
    uint64_t shortest_ns; /* + 1; 0: none was measured */
    uint64_t longest_ns;
    uint64_t reserved[2];
    char name[PGPU_TRACE_NAME_BYTES];
};
static_assert(offsetof(struct pgpu_trace_shape, grid) == 16, "layout");
static_assert(offsetof(struct pgpu_trace_shape, launches) == 56, "layout");
static_assert(offsetof(struct pgpu_trace_shape, name) == 112, "layout");
static_assert(sizeof(struct pgpu_trace_shape) == 496, "layout");

struct pgpu_trace {
    uint64_t magic; /* these three are the host's */
    uint32_t abi;
    uint32_t record_capacity;
    uint64_t claimed;        /* records that were claimed; those past the capacity were dropped */
    uint64_t unmeasured;     /* kernels, graphs and copies without a duration */
    uint64_t without_shape;  /* launches that found no free row */
    uint64_t self_ns;        /* time that the job's threads spent on this log */
    uint64_t self_calls;     /* by so many calls */
    uint64_t measured_calls; /* of these, so many had events around them */
    uint64_t reserved[504];
    struct pgpu_trace_shape shape[PGPU_TRACE_MAX_SHAPES];
    struct pgpu_trace_record record[];
};
static_assert(offsetof(struct pgpu_trace, claimed) == 16, "layout");
static_assert(offsetof(struct pgpu_trace, shape) == 4096, "layout");
static_assert(offsetof(struct pgpu_trace, record) == 4096 + 496 * 2048, "layout");
static_assert(PGPU_TRACE_OFFSET >= sizeof(struct pgpu_usage), "behind the slots");

#endif
