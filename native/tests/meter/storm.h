/* A storm over one usage file: processes that reserve and refund, and die at any moment, while what should be
 * counted is written down beside it. */
#ifndef PGPU_STORM_H
#define PGPU_STORM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "meter.h"
#include "fault_points.h"

#define STORM_GPUS        2
#define STORM_UNIT        4096ull
#define STORM_LIMIT       (48 * STORM_UNIT)
#define STORM_MAX_WORKERS 64
#define STORM_FORKING     (-1)

enum storm_arm { STORM_UNARMED, STORM_KILL_AT_POINT, STORM_STOP_AT_POINT };

/* One worker's side of the book, kept apart from the meter. */
struct storm_worker {
    _Atomic pid_t pid;       /* 0: none runs */
    _Atomic pid_t child_pid; /* forked by the worker and still alive; 0: none, STORM_FORKING: perhaps one */
    _Atomic bool is_paused;
    _Atomic int64_t expected_bytes[STORM_GPUS]; /* what finished operations add up to */
    _Atomic int64_t in_flight_bytes[STORM_GPUS];
    _Atomic uint64_t operations;
    _Atomic uint64_t largest_loops; /* reads the total in one operation */
    _Atomic uint64_t largest_cpu_ns;
    enum storm_arm arm;
    enum pgpu_meter_point point;
    unsigned point_countdown;
    unsigned seed;
    bool forks;
    uint64_t stop_after_operations; /* 0: never */
};

struct storm_book {
    _Atomic bool pauses;
    _Atomic uint64_t over_limit; /* times a total above the limit was seen */
    _Atomic uint64_t reached[PGPU_POINT_COUNT];
    _Atomic int64_t checked_bytes[STORM_GPUS];
    struct storm_worker worker[STORM_MAX_WORKERS];
};

extern struct storm_book *storm_book;
extern struct storm_worker *storm_self;

/* Run as a worker until death. */
_Noreturn void storm_work(const char *usage_path, struct storm_worker *worker);

/* Take back what the dead left, in a process of its own, and note the totals in `checked_bytes`. */
bool storm_reap(const char *usage_path);

#endif
