#include "pools.h"

#include "charge.h"

void pgpu_pools_freed(const struct pgpu_holding *row) {
    pgpu_charge_refund(row->gpu, row->bytes);
}

bool pgpu_pools_settle(int gpu) {
    (void)gpu;
    return false;
}
