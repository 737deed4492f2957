/* Memory pools: what counts is what a pool has reserved, not what is handed out of it. */
#ifndef PGPU_SHIM_POOLS_H
#define PGPU_SHIM_POOLS_H

#include <stdbool.h>

#include "holdings.h"

/* An allocation out of a pool was freed; the pool may keep its memory. */
void pgpu_pools_freed(const struct pgpu_holding *row);

/* Refund what this process's pools have given back to the driver since; true if there was any on `gpu`. */
bool pgpu_pools_settle(int gpu);

#endif
