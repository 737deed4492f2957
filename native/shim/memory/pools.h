/* Memory pools: the charge is what a pool has reserved on the device, not what was allocated from it. Managed
 * memory is charged wherever its pool prefers it, since its pages go where they are touched.
 *
 * A pool's row has the allocated bytes in `detail` and the charge in `bytes`: never less than `detail`, and
 * the reserved size as soon as the driver was queried. The graph memory of a device is such a pool too; its
 * `owner` has the bytes of destroyed executable graphs whose allocations may still exist. */
#ifndef PGPU_SHIM_POOLS_H
#define PGPU_SHIM_POOLS_H

#include <stdbool.h>

#include "slice/charge.h"
#include "slice/holdings.h"

/* The pool of a device's graph memory, which has no handle. */
static inline uint64_t pgpu_pools_graph_key(CUdevice ordinal) {
    return (uint64_t)ordinal + 1;
}

/* What pooled memory of a kind is charged to: a GPU's index in charges, or PGPU_NO_GPU, which for a charged kind
 * means a GPU outside the lease. Only pinned memory of the host is never charged. */
int pgpu_pools_gpu_of(CUmemAllocationType type, const CUmemLocation *location, bool *is_charged);

/* Count `bytes` as allocated from a pool, and charge what its reservation has no room for. The row is made if
 * there is none. */
CUresult pgpu_pools_take(uint64_t pool, int gpu, uint64_t bytes, struct pgpu_charge *charge);

/* After the driver's grant: charge what the pool has reserved beyond the estimate. */
CUresult pgpu_pools_confirm(uint64_t pool, int gpu);

/* `bytes` were returned to the pool, which may keep them. */
void pgpu_pools_give(uint64_t pool, uint64_t bytes);

/* An executable graph was destroyed; the part of its `bytes` that the driver still counts stays charged. */
void pgpu_pools_orphan(uint64_t pool, uint64_t bytes);

/* An allocation out of a pool was freed. */
void pgpu_pools_freed(const struct pgpu_holding *row);

/* Refund what one pool has given back to the driver. */
void pgpu_pools_settle_one(uint64_t pool);

/* The same for all pools of this process, if one may have slack. */
void pgpu_pools_settle_all(void);

/* Trim this process's pools on `gpu` to what is in use; true if memory was released. */
bool pgpu_pools_trim(int gpu);

#endif
