/* Advice about managed memory, page by page: preferred location, accessing devices, last prefetch. It is
 * returned by queries and has no other effect: residency.h counts the bytes on a device, without addresses.
 */
#ifndef SIM_ADVICE_H
#define SIM_ADVICE_H

#include "memory/range.h"

/* Pages of a range with the same advice; a list in the order of addresses fills the range. */
struct sim_advice {
    struct sim_advice *next;
    uintptr_t start, end;
    bool is_read_mostly;
    bool is_used_by_host;
    uint32_t used_by;        /* bit d: device d */
    CUmemLocation preferred; /* of type NONE: not set */
    CUmemLocation prefetched;
};

/* The first hint of [start, start + bytes), split so that the span begins and ends with one; NULL: no host
 * memory. Under sim_lock, as all of these. */
struct sim_advice *sim_advices_split(struct sim_range *range, uintptr_t start, size_t bytes);
/* The advice for an address, or NULL where there is none. */
const struct sim_advice *sim_advice_at(const struct sim_range *range, uintptr_t address);
/* The managed range that holds all of a span, or NULL. */
struct sim_range *sim_managed_at(CUdeviceptr address, size_t bytes);

#endif
