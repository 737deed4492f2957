#include "time/batches.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "cancellation.h"
#include "clock.h"
#include "functions.h"
#include "meter_abi.h"

#define SPARE       512u
#define CHUNK_BYTES 65536u

/* A closed batch. `batch` comes first, so that both have one address. */
struct node {
    struct pgpu_batch batch;
    struct node *next;
};

/* In the order in which they were closed. */
struct queue {
    struct node *first, *last;
};

static pthread_mutex_t leaf = PTHREAD_MUTEX_INITIALIZER;
static struct queue queues[PGPU_MAX_GPUS];
static struct node *unused;
static struct spare {
    CUevent start, end;
    CUcontext context;
} spares[SPARE];
static unsigned spare_count;
static unsigned left[PGPU_MAX_GPUS];
static struct {
    uint64_t estimate_ns; /* estimates of all unfinished batches */
    uint64_t since_ns;    /* when the first of it began, at the earliest */
} queued[PGPU_MAX_GPUS];

/* A pair may lack its second event, which was kept. */
static void take_spare(CUcontext context, CUevent *start, CUevent *end) {
    int before = pgpu_lock_leaf(&leaf);
    for (unsigned at = spare_count; at > 0; at--) {
        if (spares[at - 1].context != context) continue;
        *start = spares[at - 1].start;
        *end = spares[at - 1].end;
        spares[at - 1] = spares[--spare_count];
        break;
    }
    pgpu_unlock_leaf(&leaf, before);
}

static bool make_pair(CUevent *start, CUevent *end) {
    if (*start == NULL && PGPU_REAL(cuEventCreate)(start, CU_EVENT_DEFAULT) != CUDA_SUCCESS) *start = NULL;
    if (*start == NULL || *end != NULL) return *start != NULL;
    if (PGPU_REAL(cuEventCreate)(end, CU_EVENT_DEFAULT) == CUDA_SUCCESS) return true;
    PGPU_REAL(cuEventDestroy_v2)(*start);
    *start = *end = NULL;
    return false;
}

/* Events are made in the current context, which need not be the stream's. */
void pgpu_batches_take_events(CUcontext context, CUevent *start, CUevent *end) {
    CUcontext current = NULL, popped;
    *start = *end = NULL;
    take_spare(context, start, end);
    if (*start != NULL && *end != NULL) return;
    PGPU_REAL(cuCtxGetCurrent)(&current);
    bool is_elsewhere = current != context && PGPU_REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
    make_pair(start, end);
    if (is_elsewhere) PGPU_REAL(cuCtxPopCurrent_v2)(&popped);
}

/* Not from malloc: a program's own malloc may launch work. */
static struct node *make_nodes(void) {
    struct node *chunk = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (chunk == MAP_FAILED) return NULL;
    unsigned count = CHUNK_BYTES / sizeof(*chunk);
    for (unsigned at = 1; at + 1 < count; at++)
        chunk[at].next = &chunk[at + 1];
    int before = pgpu_lock_leaf(&leaf);
    chunk[count - 1].next = unused;
    unused = &chunk[1];
    pgpu_unlock_leaf(&leaf, before);
    return chunk;
}

static struct node *take_node(void) {
    int before = pgpu_lock_leaf(&leaf);
    struct node *node = unused;
    if (node != NULL) unused = node->next;
    pgpu_unlock_leaf(&leaf, before);
    return node != NULL ? node : make_nodes();
}

static void append(struct queue *queue, struct node *node) {
    node->next = NULL;
    if (queue->last == NULL)
        queue->first = node;
    else
        queue->last->next = node;
    queue->last = node;
}

bool pgpu_batches_put(const struct pgpu_batch *batch) {
    struct node *node = take_node();
    if (node == NULL) return false;
    node->batch = *batch;
    int before = pgpu_lock_leaf(&leaf);
    append(&queues[batch->gpu], node);
    if (__atomic_fetch_add(&left[batch->gpu], 1, __ATOMIC_RELAXED) == 0)
        __atomic_store_n(&queued[batch->gpu].since_ns, batch->begun_at_ns, __ATOMIC_RELAXED);
    __atomic_fetch_add(&queued[batch->gpu].estimate_ns, batch->estimate_ns, __ATOMIC_RELAXED);
    pgpu_unlock_leaf(&leaf, before);
    return true;
}

struct pgpu_batch *pgpu_batches_next(int gpu, struct pgpu_batch *former) {
    int before = pgpu_lock_leaf(&leaf);
    struct node *node = former == NULL ? queues[gpu].first : ((struct node *)(void *)former)->next;
    pgpu_unlock_leaf(&leaf, before);
    return node == NULL ? NULL : &node->batch;
}

void pgpu_batches_give_events(const struct pgpu_batch *batch) {
    if (batch->start == NULL) return;
    int before = pgpu_lock_leaf(&leaf);
    bool has_room = spare_count < SPARE;
    if (has_room) spares[spare_count++] = (struct spare){batch->start, batch->end, batch->context};
    pgpu_unlock_leaf(&leaf, before);
    if (has_room) return;
    PGPU_REAL(cuEventDestroy_v2)(batch->start);
    if (batch->end != NULL) PGPU_REAL(cuEventDestroy_v2)(batch->end);
}

static void take_out(struct queue *queue, struct node *node) {
    struct node **link = &queue->first, *former = NULL;
    for (; *link != node; link = &(*link)->next)
        former = *link;
    *link = node->next;
    if (queue->last == node) queue->last = former;
}

void pgpu_batches_finish(struct pgpu_batch *batch) {
    struct node *node = (struct node *)(void *)batch;
    pgpu_batches_give_events(batch);
    int before = pgpu_lock_leaf(&leaf);
    take_out(&queues[batch->gpu], node);
    __atomic_fetch_sub(&left[batch->gpu], 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&queued[batch->gpu].estimate_ns, batch->estimate_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&queued[batch->gpu].since_ns, pgpu_now_ns(), __ATOMIC_RELAXED);
    node->next = unused;
    unused = node;
    pgpu_unlock_leaf(&leaf, before);
}

unsigned pgpu_batches_left(int gpu) {
    return __atomic_load_n(&left[gpu], __ATOMIC_RELAXED);
}

uint64_t pgpu_batches_queued_ns(int gpu, uint64_t now_ns) {
    uint64_t estimate_ns = __atomic_load_n(&queued[gpu].estimate_ns, __ATOMIC_RELAXED);
    uint64_t since_ns = __atomic_load_n(&queued[gpu].since_ns, __ATOMIC_RELAXED);
    if (pgpu_batches_left(gpu) == 0 || now_ns <= since_ns) return estimate_ns;
    return estimate_ns > now_ns - since_ns ? estimate_ns - (now_ns - since_ns) : 0;
}

static void drop_spares(CUcontext context) {
    unsigned kept = 0;
    for (unsigned at = 0; at < spare_count; at++)
        if (spares[at].context != context) spares[kept++] = spares[at];
    spare_count = kept;
}

void pgpu_batches_end_context(CUcontext context) {
    int before = pgpu_lock_leaf(&leaf);
    drop_spares(context);
    pgpu_unlock_leaf(&leaf, before);
}

static int state_before_fork;

void pgpu_batches_before_fork(void) {
    state_before_fork = pgpu_lock_leaf(&leaf);
}

void pgpu_batches_after_fork(bool is_child) {
    if (!is_child) {
        pgpu_unlock_leaf(&leaf, state_before_fork);
        return;
    }
    spare_count = 0;
    memset(queues, 0, sizeof(queues));
    unused = NULL;
    memset(left, 0, sizeof(left));
    memset(queued, 0, sizeof(queued));
    pthread_mutex_init(&leaf, NULL);
    pgpu_cancellation_restore(state_before_fork);
}
