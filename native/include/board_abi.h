/* GPU time as the jobs of one machine publish it to each other, so that a share can be lent while it is idle.
 *
 * Each job has one file, which its processes write. The files of all jobs lie in one directory, which every
 * job sees read-only. What a job writes decides what others may borrow. A forged file takes at most 6 % of
 * what fair jobs are entitled to (the part that context switches cost); of the time with another job's work
 * in flight it counts as one process's turns at most. So where k jobs share a GPU, one more gets at most (1 +
 * k) / 0.97 times its share, strict or not. Where time is divided between users, no file takes any of a
 * user's part (docs/decisions/0085). The host reads the files with pread and bounds checks, as it reads a
 * usage file. Every word is changed by aligned atomic operations without a lock; a death at any point leaves
 * old figures and never torn ones.
 *
 * In the job's view (beside the usage file): `time`, its own file, read-write; `board/`, the directory of
 * all, read-only. Times are CLOCK_MONOTONIC in nanoseconds. */
#ifndef PGPU_BOARD_ABI_H
#define PGPU_BOARD_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "meter_abi.h"

#define PGPU_BOARD_ABI 2u
/* Of a file's name, which the host gives it: 8 hexadecimal digits that are the same for all jobs of one user,
 * 16 random ones, and for each GPU of the job a dash and the first four bytes of its UUID. */
#define PGPU_BOARD_USER_DIGITS 8
#define PGPU_BOARD_NAME_BYTES  (24 + 9 * PGPU_MAX_GPUS + 8)
#define PGPU_BOARD_MAGIC       0x454d495455555047ull /* "GPUUTIME" */

/* One GPU of one job. All its processes share it: times are of whichever comes first or last of them. What
 * each process has in flight stands in its slot of the usage file, which dies with it. */
struct pgpu_board_gpu {
    uint8_t uuid[16];
    uint64_t share_word;    /* the limit file's `compute`, as the job applies it */
    uint64_t wanted_ns;     /* when a process last had something to launch or in flight; 0: never */
    uint64_t busy_since_ns; /* since when something of any process is in flight; 0: nothing is */
    uint64_t busy_until_ns; /* when the last of it should be done */
    uint64_t busy_ns;       /* time with something in flight, until busy_since_ns */
    uint64_t used_ns;       /* GPU time, measured */
    uint64_t waited_ns;     /* time that launches were held back */
    uint64_t launches;      /* kernels, graphs and copies */
    uint64_t budget_ns;     /* GPU time that may be used now, two's complement: below zero is debt */
    uint64_t refilled_ns;   /* when the budget last grew */
    uint64_t lacked_ns;     /* when a launch last waited for the budget; 0: never */
    /* Like busy_since_ns and busy_ns: until the host has found that the work is done. */
    uint64_t occupied_since_ns, occupied_ns;
    uint64_t queued_ns; /* like busy_ns, from the launch on: a GPU gives others their turns first */
};
static_assert(offsetof(struct pgpu_board_gpu, lacked_ns) == 96, "layout");
static_assert(offsetof(struct pgpu_board_gpu, busy_since_ns) == 32, "layout");
static_assert(offsetof(struct pgpu_board_gpu, busy_until_ns) == 40, "layout");
static_assert(offsetof(struct pgpu_board_gpu, used_ns) == 56, "layout");
static_assert(offsetof(struct pgpu_board_gpu, refilled_ns) == 88, "layout");
static_assert(sizeof(struct pgpu_board_gpu) == 128, "layout");

#define PGPU_BOARD_COUNT_SHIFT 56u
#define PGPU_BOARD_SINCE_MASK  ((1ull << PGPU_BOARD_COUNT_SHIFT) - 1)

/* All zero is a valid beginning; the host makes the file at its full size. */
struct pgpu_board {
    uint64_t magic; /* 0 until a process of the job has entered */
    uint32_t abi;
    uint32_t gpu_count;
    uint64_t owed; /* a bit for each GPU on which the budget was spent since no other user wanted it */
    uint64_t reserved[13];
    struct pgpu_board_gpu gpu[PGPU_MAX_GPUS]; /* in the limit file's order */
    /* Of each GPU's busy_ns, bursts no longer than a time slice: they were over before others had a turn. */
    uint64_t whole_ns[PGPU_MAX_GPUS];
    /* Of each GPU, what queued_ns lacks: how many processes have something in flight, above the sum of the
     * times since when, in microseconds. */
    uint64_t in_flight[PGPU_MAX_GPUS];
    uint8_t reserved_to_page[4096 - 128 - (128 + 8 + 8) * PGPU_MAX_GPUS];
};
static_assert(offsetof(struct pgpu_board, gpu) == 128, "layout");
static_assert(offsetof(struct pgpu_board, whole_ns) == 128 + 128 * PGPU_MAX_GPUS, "layout");
static_assert(sizeof(struct pgpu_board) == 4096, "layout");

#endif
