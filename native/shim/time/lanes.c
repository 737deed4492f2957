#include "time/lanes.h"

#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>

#include "brief_wait.h"
#include "cancellation.h"
#include "clock.h"
#include "functions.h"
#include "time/streams.h"

#define LANES  16u
#define PROBES 4u
/* A visitor may block in the driver behind work that only the waiting thread can complete, hence the bound.
 */
#define MOST_OUTLAST_NS 20000000ull

enum state { FREE, OWNED, ORPHAN };

/* The lanes of one thread. Blocks are reused by later threads and never unmapped, so the list is read without
 * a lock. */
struct block {
    struct block *next;
    uint32_t state;
    uint32_t open_mask;
    struct pgpu_lane lane[LANES];
};

static struct block *blocks;
static __thread struct block *own;

static struct block *first_block(void) {
    return __atomic_load_n(&blocks, __ATOMIC_ACQUIRE);
}

/* Visitors leave soon. A launch that was cancelled inside the driver leaves its lane held for good. */
void pgpu_lanes_await(struct pgpu_lane *lane) {
    unsigned looks = 0;
    while (!pgpu_lanes_try_hold(lane, PGPU_OWNER)) {
        if (__atomic_load_n(&lane->holder, __ATOMIC_RELAXED) == PGPU_OWNER) return;
        pgpu_wait_briefly(&looks);
    }
}

void pgpu_lanes_note(struct pgpu_lane *lane, bool is_open) {
    if (is_open)
        __atomic_fetch_or(lane->open_mask, 1u << lane->at, __ATOMIC_RELAXED);
    else
        __atomic_fetch_and(lane->open_mask, ~(1u << lane->at), __ATOMIC_RELAXED);
}

/* Batches that the thread left open are closed by other threads, since the driver may have freed the thread's
 * state by now. */
static void end_thread(void *given) {
    struct block *block = given;
    for (unsigned at = 0; at < LANES; at++)
        if (__atomic_load_n(&block->lane[at].holder, __ATOMIC_RELAXED) == PGPU_OWNER)
            pgpu_lanes_release(&block->lane[at]);
    own = NULL;
    __atomic_store_n(&block->state, ORPHAN, __ATOMIC_RELEASE);
}

static pthread_key_t ending;
static pthread_once_t ending_once = PTHREAD_ONCE_INIT;
static bool has_ending;

static void make_ending(void) {
    has_ending = pthread_key_create(&ending, end_thread) == 0;
}

/* A block of an ended thread, without an open batch. */
static struct block *take_used(void) {
    for (struct block *block = first_block(); block != NULL; block = block->next) {
        uint32_t orphan = ORPHAN;
        if (__atomic_load_n(&block->open_mask, __ATOMIC_ACQUIRE) == 0 &&
            __atomic_compare_exchange_n(&block->state, &orphan, OWNED, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED))
            return block;
    }
    return NULL;
}

static struct block *make_block(void) {
    struct block *block =
        mmap(NULL, sizeof(*block), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return NULL;
    block->state = OWNED;
    for (unsigned at = 0; at < LANES; at++) {
        block->lane[at].open_mask = &block->open_mask;
        block->lane[at].at = (uint8_t)at;
    }
    block->next = first_block();
    while (!__atomic_compare_exchange_n(&blocks, &block->next, block, true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED)) {
    }
    return block;
}

static struct block *begin_thread(void) {
    pthread_once(&ending_once, make_ending);
    own = take_used();
    if (own == NULL) own = make_block();
    if (own != NULL && has_ending) pthread_setspecific(ending, own);
    return own;
}

static bool is_lane_of(const struct pgpu_lane *lane, const struct pgpu_trace_command *command,
                       CUcontext context) {
    return lane->stream == command->stream && lane->is_per_thread == command->is_per_thread &&
           lane->context != NULL && !__atomic_load_n(&lane->is_ended, __ATOMIC_RELAXED) &&
           (context == NULL || lane->context == context);
}

static unsigned home_of(CUstream stream) {
    return (unsigned)(((uint64_t)(uintptr_t)stream * 0x9e3779b97f4a7c15ull) >> 60) % LANES;
}

/* Written by another thread while it closes the lane's batch. */
static uint64_t used_at_ns(const struct pgpu_lane *lane) {
    return __atomic_load_n(&lane->used_at_ns, __ATOMIC_RELAXED);
}

static struct pgpu_lane *least_used(struct block *block, unsigned home) {
    struct pgpu_lane *found = &block->lane[home];
    for (unsigned probe = 1; probe < PROBES; probe++) {
        struct pgpu_lane *lane = &block->lane[(home + probe) % LANES];
        if (used_at_ns(lane) < used_at_ns(found)) found = lane;
    }
    return found;
}

static void make_lane(struct pgpu_lane *lane, const struct pgpu_trace_command *command,
                      const struct pgpu_place *place) {
    __atomic_store_n(&lane->stream, command->stream, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->context, place->context, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->gpu, (int8_t)place->gpu, __ATOMIC_RELAXED);
    lane->is_per_thread = command->is_per_thread;
    lane->kind = (uint8_t)pgpu_streams_kind(command->stream, command->is_per_thread);
    lane->idle_at_ns = lane->may_until_ns = lane->may_word = 0;
    lane->last.key = 0;
    __atomic_store_n(&lane->is_ended, false, __ATOMIC_RELAXED);
}

/* False: its owner is within a launch, or was cancelled there. */
static bool hold_to_visit(struct pgpu_lane *lane) {
    unsigned looks = 0;
    while (!pgpu_lanes_try_hold(lane, PGPU_VISITOR)) {
        if (__atomic_load_n(&lane->holder, __ATOMIC_RELAXED) == PGPU_OWNER) return false;
        pgpu_wait_briefly(&looks);
    }
    return true;
}

static struct pgpu_lane *give_lane(const struct pgpu_trace_command *command,
                                   const struct pgpu_lane_changes *changes) {
    struct pgpu_place place;
    /* The driver does not report the context of some streams; a launch needs the current one. */
    if (pgpu_slice_of_stream(command->stream, command->is_per_thread, &place) != CUDA_SUCCESS &&
        pgpu_slice_current(&place) != CUDA_SUCCESS)
        return NULL;
    if (place.gpu == PGPU_NO_GPU || (own == NULL && begin_thread() == NULL)) return NULL;
    changes->use(command->stream, command->is_per_thread);
    struct pgpu_lane *lane = least_used(own, home_of(command->stream));
    int before = pgpu_cancellation_defer();
    hold_to_visit(lane);
    changes->retire(lane);
    make_lane(lane, command, &place);
    pgpu_lanes_release(lane);
    pgpu_cancellation_restore(before);
    return lane;
}

struct pgpu_lane *pgpu_lanes_find(const struct pgpu_trace_command *command,
                                  const struct pgpu_lane_changes *changes) {
    CUcontext context = NULL;
    if (pgpu_is_default_stream(command->stream) && !pgpu_slice_has_one_context() &&
        (PGPU_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context == NULL))
        return NULL;
    unsigned home = home_of(command->stream);
    for (unsigned probe = 0; own != NULL && probe < PROBES; probe++) {
        struct pgpu_lane *lane = &own->lane[(home + probe) % LANES];
        if (is_lane_of(lane, command, context)) return lane;
    }
    return give_lane(command, changes);
}

static unsigned ownership_of(const struct block *block) {
    if (block == own) return PGPU_OWN;
    return __atomic_load_n(&block->state, __ATOMIC_ACQUIRE) == OWNED ? PGPU_OTHERS : PGPU_ORPHANS;
}

static void visit_block(struct block *block, void (*visit)(struct pgpu_lane *lane)) {
    uint32_t open = __atomic_load_n(&block->open_mask, __ATOMIC_ACQUIRE);
    for (unsigned at = 0; open != 0; at++, open >>= 1) {
        if ((open & 1) == 0 || !pgpu_lanes_try_hold(&block->lane[at], PGPU_VISITOR)) continue;
        visit(&block->lane[at]);
        pgpu_lanes_release(&block->lane[at]);
    }
}

void pgpu_lanes_visit(unsigned wanted, void (*visit)(struct pgpu_lane *lane)) {
    if (wanted == PGPU_OWN && own == NULL) return;
    int before = pgpu_cancellation_defer();
    struct block *block = wanted == PGPU_OWN ? own : first_block();
    for (; block != NULL; block = wanted == PGPU_OWN ? NULL : block->next)
        if ((ownership_of(block) & wanted) != 0) visit_block(block, visit);
    pgpu_cancellation_restore(before);
}

/* Launching into a stream or context that ends is an error of the program; the thread finds that the lane has
 * ended. */
static void end_lane(struct pgpu_lane *lane, void (*visit)(struct pgpu_lane *lane)) {
    __atomic_store_n(&lane->is_ended, true, __ATOMIC_SEQ_CST);
    if (!hold_to_visit(lane)) return;
    visit(lane);
    pgpu_lanes_release(lane);
}

/* Its thread may be assigning it to another stream. */
static bool is_in(const struct pgpu_lane *lane, CUstream stream, CUcontext context) {
    CUcontext its_context = __atomic_load_n(&lane->context, __ATOMIC_RELAXED);
    if (stream == NULL) return its_context == context;
    return its_context != NULL && __atomic_load_n(&lane->stream, __ATOMIC_RELAXED) == stream;
}

void pgpu_lanes_end(CUstream stream, CUcontext context, void (*visit)(struct pgpu_lane *lane)) {
    int before = pgpu_cancellation_defer();
    for (struct block *block = first_block(); block != NULL; block = block->next)
        for (unsigned at = 0; at < LANES; at++) {
            if (is_in(&block->lane[at], stream, context)) end_lane(&block->lane[at], visit);
        }
    pgpu_cancellation_restore(before);
}

unsigned pgpu_lanes_used(int gpu, uint64_t since_ns) {
    unsigned count = 0;
    for (struct block *block = first_block(); block != NULL; block = block->next)
        for (unsigned at = 0; at < LANES; at++)
            count += used_at_ns(&block->lane[at]) >= since_ns &&
                     __atomic_load_n(&block->lane[at].gpu, __ATOMIC_RELAXED) == gpu;
    return count;
}

void pgpu_lanes_outlast_visits(void) {
    uint64_t until_ns = pgpu_now_ns() + MOST_OUTLAST_NS;
    unsigned looks = 0;
    for (struct block *block = first_block(); block != NULL; block = block->next)
        for (unsigned at = 0; at < LANES; at++)
            while (__atomic_load_n(&block->lane[at].holder, __ATOMIC_SEQ_CST) == PGPU_VISITOR &&
                   pgpu_now_ns() < until_ns)
                pgpu_wait_briefly(&looks);
}

bool pgpu_lanes_is_own(const struct pgpu_lane *lane) {
    return own != NULL && lane->open_mask == &own->open_mask;
}

void pgpu_lanes_after_fork_in_child(void) {
    blocks = NULL;
    own = NULL;
}
