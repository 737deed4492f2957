/* The files of the other jobs on the board, as they were read last. Read, never mapped: a job may cut its own
 * short. The caller holds neighbours.c's lock. */
#ifndef PGPU_SHIM_NEIGHBOUR_FILES_H
#define PGPU_SHIM_NEIGHBOUR_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "board_abi.h"

/* The part of the time in which a job recently had work in flight, and its busy time as of the last read. */
struct pgpu_engagement {
    uint64_t at_ns, busy_ns;
    double part;
};

/* One other job that may use a GPU of ours, and its busy time when our window began. */
struct pgpu_other {
    char name[PGPU_BOARD_NAME_BYTES];
    uint64_t begun_busy_ns[PGPU_MAX_GPUS];
    struct pgpu_engagement engagement[PGPU_MAX_GPUS];
    bool is_listed, is_read;
    struct pgpu_board board;
};

/* Read the files again if that is due. With up to 500 files this takes a tenth of a thread's time at most. */
void pgpu_neighbour_files_refresh(uint64_t now_ns);

/* Interval between reads. */
uint64_t pgpu_neighbour_files_each_ns(void);

/* When they were read last. */
uint64_t pgpu_neighbour_files_seen_ns(void);

/* Whether the board could not be read in full, or has a file of another version. */
bool pgpu_neighbour_files_are_unknown(void);

unsigned pgpu_neighbour_files_count(void);
struct pgpu_other *pgpu_neighbour_files_at(unsigned index);

void pgpu_neighbour_files_forget(void);

#endif
