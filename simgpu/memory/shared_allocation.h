/* Allocations that other processes open by name: their pages move into a file of the state directory. A
 * process that maps it holds a lock on it that ends with the mapping, so a file without a lock is left over.
 */
#ifndef SIM_SHARED_ALLOCATION_H
#define SIM_SHARED_ALLOCATION_H

#include "memory/range.h"

#define SIM_SHARE_NAME_BYTES   32
#define SIM_SHARE_MEMORY_MAGIC 0x53494d47u
#define SIM_SHARE_EVENT_MAGIC  0x53494d45u

/* What travels to the other process, in the 64 bytes of CUDA's handles. */
struct sim_share_ticket {
    uint32_t magic, gpu;
    uint64_t bytes;
    uint64_t address; /* in the exporter */
    uint64_t reserved;
    char name[SIM_SHARE_NAME_BYTES];
};

_Static_assert(sizeof(struct sim_share_ticket) == 64, "fits CUDA's handles");

/* Under sim_lock. Share an allocation, or find how it is shared already. */
CUresult sim_share(struct sim_range *range, struct sim_share_ticket *ticket);
/* Map what a ticket names; opened twice, it is the same range. */
CUresult sim_share_open(const struct sim_share_ticket *ticket, struct sim_range **range);
/* Undo one opening. */
void sim_share_close(struct sim_range *range);
/* Before a shared allocation's addresses go. */
void sim_share_end(struct sim_range *range);
/* Remove files that a dead process left. */
void sim_share_sweep(void);

/* A new file of this process, or another's by its name; -1: none. Keep it mapped, since its lock lives as
 * long. */
int sim_share_file_make(char name[SIM_SHARE_NAME_BYTES], size_t bytes);
int sim_share_file_open(const char name[SIM_SHARE_NAME_BYTES]);
void sim_share_file_remove(const char name[SIM_SHARE_NAME_BYTES]);

#endif
