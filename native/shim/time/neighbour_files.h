/* The files of the other jobs on the board, as they were read last. Read, never mapped: a job may cut its own
 * short. The caller holds neighbours.c's lock. */
#ifndef PGPU_SHIM_NEIGHBOUR_FILES_H
#define PGPU_SHIM_NEIGHBOUR_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "board_abi.h"

/* The part of the time by which a total has recently grown, and the total as of the last read. */
struct pgpu_average {
    uint64_t total_ns;
    double part;
};

/* How a job's time with work in flight has grown, by the GPU's events and by the host's clock, and its GPU
 * time. */
struct pgpu_engagement {
    uint64_t at_ns; /* of the last read */
    struct pgpu_average busy, occupied, used;
};

/* A job's time with work in flight: in turns with others, in bursts shorter than a turn, and all of it from
 * the launches on. */
struct pgpu_flight_times {
    uint64_t turns_ns, whole_ns, queued_ns;
};

/* One other job that may use a GPU of ours, and its times when our window began. */
struct pgpu_other {
    char name[PGPU_BOARD_NAME_BYTES];
    uint64_t user; /* the digits of its owner */
    struct pgpu_flight_times begun[PGPU_MAX_GPUS];
    struct pgpu_engagement engagement[PGPU_MAX_GPUS];
    bool is_listed, is_read;
    struct pgpu_board board;
};

/* Read the files again if that is due. With up to 500 files this takes a tenth of a thread's time at most.
 * `is_urgent`: more often, where it is fast, up to an eighth of its time. */
void pgpu_neighbour_files_refresh(uint64_t now_ns, bool is_urgent);

/* When they were read last. */
uint64_t pgpu_neighbour_files_seen_ns(void);

/* Whether the board could not be read in full, or has a file of another version. */
bool pgpu_neighbour_files_are_unknown(void);

/* The digits of our own job's owner; 0 until the board was listed. */
uint64_t pgpu_neighbour_files_own_user(void);

unsigned pgpu_neighbour_files_count(void);
struct pgpu_other *pgpu_neighbour_files_at(unsigned index);

void pgpu_neighbour_files_forget(void);

#endif
