/* Lanes: what one thread launches into one stream. The lanes of all threads are in one registry, so that a
 * thread that synchronises, reads measurements or ends a context can close a batch that another thread left
 * open.
 *
 * The owner holds a lane during a launch. Other threads (visitors) hold it while they close its batch, and
 * skip a lane that is held: no thread waits for another thread's launch. */
#ifndef PGPU_SHIM_LANES_H
#define PGPU_SHIM_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "time/batches.h"
#include "trace/trace.h"

/* The latest launch into a lane: most launches repeat it. */
struct pgpu_last {
    CUfunction function;
    CUgraphExec graph;
    uint32_t grid[3], block[3];
    uint64_t key; /* 0: none */
};

struct pgpu_lane {
    CUstream stream;
    CUcontext context; /* NULL: unused */
    uint64_t used_at_ns;
    uint64_t idle_at_ns;             /* when all that was launched into it should be done */
    uint64_t may_until_ns, may_word; /* until then launches are admitted without a check */
    uint32_t *open_mask;             /* owned by the registry, as are the next three */
    uint8_t at, holder;
    bool is_ended; /* its stream or context is gone, or about to be */
    int8_t gpu;
    bool is_per_thread;
    uint8_t kind; /* of stream */
    bool may_freely;
    struct pgpu_last last;
    struct pgpu_batch batch;
};

/* What the owner of the batches does before a stream gets a lane: `use` learns of the stream; `retire` closes
 * what the lane has open for its former stream, with the lane held. */
struct pgpu_lane_changes {
    void (*use)(CUstream stream, bool is_per_thread);
    void (*retire)(struct pgpu_lane *lane);
};

/* The calling thread's lane of a stream, or NULL: its place is unknown, or outside the lease. */
struct pgpu_lane *pgpu_lanes_find(const struct pgpu_trace_command *command,
                                  const struct pgpu_lane_changes *changes);

enum pgpu_holder { PGPU_UNHELD, PGPU_OWNER, PGPU_VISITOR };

static inline bool pgpu_lanes_try_hold(struct pgpu_lane *lane, enum pgpu_holder as) {
    uint8_t none = PGPU_UNHELD;
    return __atomic_compare_exchange_n(&lane->holder, &none, (uint8_t)as, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_RELAXED);
}

/* For lanes of the calling thread. */
void pgpu_lanes_await(struct pgpu_lane *lane);
static inline void pgpu_lanes_hold(struct pgpu_lane *lane) {
    if (__builtin_expect(!pgpu_lanes_try_hold(lane, PGPU_OWNER), 0)) pgpu_lanes_await(lane);
}
static inline void pgpu_lanes_release(struct pgpu_lane *lane) {
    __atomic_store_n(&lane->holder, PGPU_UNHELD, __ATOMIC_RELEASE);
}

/* A batch of the lane, which is held, was opened or closed. */
void pgpu_lanes_note(struct pgpu_lane *lane, bool is_open);

/* Hold each lane with an open batch in turn, skipping those that are held: lanes of this thread, of other
 * threads, of threads that have ended. */
enum pgpu_whose { PGPU_OWN = 1, PGPU_OTHERS = 2, PGPU_ORPHANS = 4 };
void pgpu_lanes_visit(unsigned owners, void (*visit)(struct pgpu_lane *lane));

/* Pass every lane of a stream (where that is NULL, of a context) to `visit` and mark it as ended. */
void pgpu_lanes_end(CUstream stream, CUcontext context, void (*visit)(struct pgpu_lane *lane));

/* Number of lanes that were used on a GPU since then. */
unsigned pgpu_lanes_used(int gpu, uint64_t since_ns);

/* Wait until no visitor holds a lane, 20 ms at most. */
void pgpu_lanes_outlast_visits(void);

/* Whether a lane is the calling thread's. */
bool pgpu_lanes_is_own(const struct pgpu_lane *lane);

void pgpu_lanes_after_fork_in_child(void);

#endif
