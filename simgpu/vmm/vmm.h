/* Physical memory as virtual memory management has it: it lives until the last of its handles and mappings is
 * gone. */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include "memory/range.h"

#define SIM_GRANULE_BYTES (2u << 20)

struct sim_physical {
    struct sim_head head;
    bool is_on_host;  /* not counted on any device */
    bool is_imported; /* counted by its exporter */
    unsigned gpu;
    CUdevice device;
    size_t bytes;
    CUmemAllocationProp properties;
    unsigned handle_count, mapping_count;
    int file;       /* backing; -1: none */
    bool owns_file; /* else `file` is the process's one file and the memory lies at `file_offset` */
    uint64_t file_offset;
    unsigned team_size;           /* of a multicast object, else 0 */
    uint32_t team;                /* bit d: device d is in it */
    struct sim_binding *bindings; /* what stands at its addresses */
};

extern struct sim_slab sim_physicals;

static inline struct sim_physical *sim_physical_of(CUmemGenericAllocationHandle handle) {
    struct sim_physical *physical = (struct sim_physical *)(uintptr_t)handle;
    bool is_live = physical != NULL && sim_is_live(&sim_physicals, physical);
    return is_live && physical->handle_count > 0 ? physical : NULL;
}

/* All under sim_lock. */
CUresult sim_physical_new(const CUmemAllocationProp *properties, size_t bytes, struct sim_physical **made);
/* End it if nothing holds it any more. */
void sim_physical_settle(struct sim_physical *physical);
/* Put bytes of a file behind it. `wants_own_file`: it will be exported. */
bool sim_physical_back(struct sim_physical *physical, bool wants_own_file);
void sim_physical_unback(struct sim_physical *physical);
/* Map part of it at a fixed address, or take it away and leave bare addresses. */
bool sim_physical_map(const struct sim_physical *physical, uintptr_t at, size_t bytes, size_t offset);
void sim_address_clear(uintptr_t at, size_t bytes);
/* The same for a multicast object; and forget what is bound to it. */
bool sim_multicast_map(const struct sim_physical *object, uintptr_t at, size_t bytes, size_t offset);
void sim_multicast_end(struct sim_physical *object);

#endif
