/* Memory pools: the charge is what a pool has reserved on the device, not what was allocated from it. Managed
 * memory is charged wherever its pool prefers it, since its pages go where they are touched.
 *
 * A pool's row has the allocated bytes in `detail` and the charge in `bytes`: never less than `detail`, and
 * the reserved size as soon as the driver was queried.
 *
 * The graph memory of a device is such a pool too. In its row `detail` is what the graphs launched since the last
 * look may use together, and `owner` what the driver had reserved then. A look, at a synchronisation or for lack of
 * room, begins a new round if the driver holds less than was counted and no launch is in progress; `count` is 1 and the
 * launches and queries in progress. */
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

/* An allocation out of a pool was freed. */
void pgpu_pools_freed(const struct pgpu_holding *row);

/* The number of the current round of looks at graph memory. */
uint64_t pgpu_pools_graph_round(void);

/* Before a launch that may take `bytes` more of graph memory, for which `charged_bytes` are charged: the pool's row
 * takes them over. False: another round began, nothing is changed, and what the launch may take is to be computed
 * again. */
bool pgpu_pools_begin_graph(uint64_t pool, int gpu, uint64_t round, uint64_t bytes, uint64_t charged_bytes);

/* After that launch: charge what the driver has reserved beyond it; after a failed one (`bytes` not 0), give back. */
void pgpu_pools_end_graph(uint64_t pool, int gpu, uint64_t bytes);

/* Refund what one pool has given back to the driver. */
void pgpu_pools_settle_one(uint64_t pool);

/* The same for all pools of this process, if one may have slack. */
void pgpu_pools_settle_all(void);

/* Trim this process's pools on `gpu` to what is in use; true if memory was released. */
bool pgpu_pools_trim(int gpu);

#endif
