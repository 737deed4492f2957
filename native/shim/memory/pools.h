/* Memory pools: the charge is what a pool has reserved on the device, not what was allocated from it. Managed
 * memory is charged wherever its pool prefers it, since its pages go where they are touched.
 *
 * A pool's row has the allocated bytes in `handed_out_bytes` and the charge in `bytes`: never less, and
 * the reserved size as soon as the driver was queried.
 *
 * The graph memory of a device is such a pool too. In its row `bytes` is what the driver has reserved, and
 * what launches in progress may add; `handed_out_bytes` bounds what the graphs that were launched may use
 * together; `count` is 1 and the launches and queries in progress; `pool_state` grows by 2 with each launch.
 */
#ifndef PGPU_SHIM_POOLS_H
#define PGPU_SHIM_POOLS_H

#include <stdbool.h>

#include "slice/charge.h"
#include "slice/holdings.h"

/* The pool of a device's graph memory, which has no handle. */
static inline uint64_t pgpu_pools_graph_key(CUdevice ordinal) {
    return (uint64_t)ordinal + 1;
}

/* What pooled memory of a kind is charged to: a GPU's index in charges, or PGPU_NO_GPU, which for a charged
 * kind means a GPU outside the lease. Only pinned memory of the host is never charged. */
int pgpu_pools_gpu_of(CUmemAllocationType type, const CUmemLocation *location, bool *is_charged);

/* Count `bytes` as allocated from a pool, and charge what its reservation has no room for. The row is made if
 * there is none. */
CUresult pgpu_pools_take(uint64_t pool, int gpu, uint64_t bytes, struct pgpu_charge *charge);

/* After the driver's grant: charge what the pool has reserved beyond the estimate. */
CUresult pgpu_pools_confirm(uint64_t pool, int gpu);

/* `bytes` were returned to the pool, which may keep them. */
void pgpu_pools_give(uint64_t pool, uint64_t bytes);

/* An allocation out of a pool was freed. */
void pgpu_pools_freed(const struct pgpu_holding *row);

/* The state of a device's graph memory. A new round begins when the driver holds none: then no graph's use is
 * counted. */
struct pgpu_graph_pool {
    uint64_t round, charged_bytes, bound_bytes, launches;
};
struct pgpu_graph_pool pgpu_pools_read_graph(uint64_t pool, int gpu);

/* Before a launch that raises the bound by `added_bytes`, and for which `charged_bytes` are charged. False:
 * the state is no longer the one that was seen, and nothing is changed. */
bool pgpu_pools_begin_graph(uint64_t pool, const struct pgpu_graph_pool *seen, uint64_t added_bytes,
                            uint64_t charged_bytes);

/* After it: the charge becomes what the driver has reserved. `added_bytes`: of a failed launch, else 0. */
void pgpu_pools_end_graph(uint64_t pool, int gpu, uint64_t added_bytes);

/* Refund what one pool has given back to the driver. */
void pgpu_pools_settle_one(uint64_t pool);

/* The same for all pools of this process, if one may have slack. */
void pgpu_pools_settle_all(void);

/* Trim this process's pools on `gpu` to what is in use; true if memory was released. */
bool pgpu_pools_trim(int gpu);

#endif
