/* A count of bytes per GPU that many processes share and that stays right when any of them dies.
 *
 * The shim counts a slice with it, the simulated driver a device. It is independent of CUDA and never waits
 * for another process: every lock is tried once, and every loop ends when the others make progress. The
 * protocol is in docs/decisions/0003-liveness-of-slice-two-open-file-description-locks.md. */
#ifndef PGPU_METER_H
#define PGPU_METER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "meter_abi.h"

enum pgpu_meter_status {
    PGPU_METER_OK,
    PGPU_METER_REFUSED,     /* the limit would be passed */
    PGPU_METER_NOT_CLAIMED, /* never claimed, or this process was forked from the one that claimed */
    PGPU_METER_UNREADABLE,  /* the usage file cannot be opened, grown or mapped */
    PGPU_METER_GARBLED,     /* it is no usage file */
    PGPU_METER_NEWER,       /* its layout is newer than this library */
    PGPU_METER_LOCKS_LOST,  /* its filesystem forgets a lock when a descriptor is closed (overlayfs does) */
    PGPU_METER_FULL,        /* every slot is taken */
};

/* A phrase for a message, such as "every slot is taken". */
const char *pgpu_meter_explain(enum pgpu_meter_status status);

/* One slot of one usage file, held by this process. Give it static storage and PGPU_METER_INIT. */
struct pgpu_meter {
    struct pgpu_usage *usage; /* NULL unless claimed */
    uint32_t *same_process;   /* a page that reads zero in a forked child */
    unsigned slot;
    unsigned gpu_count;
    pthread_mutex_t leaf; /* between this process's threads; nothing is called under it but the kernel */
    char path[PGPU_PATH_BYTES];
};
#define PGPU_METER_INIT {.leaf = PTHREAD_MUTEX_INITIALIZER}

/* Take a slot. An empty file is grown first. Does nothing if this process has its slot already.
 * `gpu_count` bounds the GPUs that this process recovers and may count: 1..PGPU_MAX_GPUS. */
enum pgpu_meter_status pgpu_meter_claim(struct pgpu_meter *meter, const char *path, unsigned gpu_count);

/* Whether this very process (not its parent) holds a slot. */
static inline bool pgpu_meter_is_claimed(const struct pgpu_meter *meter) {
    return __atomic_load_n(&meter->usage, __ATOMIC_ACQUIRE) != NULL &&
           __atomic_load_n(meter->same_process, __ATOMIC_RELAXED) == 1;
}

/* Whether the slot is a parent's, and this process was made in a way that runs no atfork handlers. */
bool pgpu_meter_is_forked(const struct pgpu_meter *meter);

/* Count `bytes` more unless the total would pass `limit_bytes`; if it does not fit, the bytes of dead
 * processes are taken back first. `reaped` (may be NULL) is set if that happened: the driver may still be
 * freeing their memory. */
enum pgpu_meter_status pgpu_meter_reserve(struct pgpu_meter *meter, unsigned gpu, uint64_t bytes,
                                          uint64_t limit_bytes, bool *reaped);

/* The same, and a refusal is not counted. */
enum pgpu_meter_status pgpu_meter_try_reserve(struct pgpu_meter *meter, unsigned gpu, uint64_t bytes,
                                              uint64_t limit_bytes, bool *reaped);

/* Count a refusal of `bytes`. */
void pgpu_meter_note_limit_refusal(struct pgpu_meter *meter, unsigned gpu, uint64_t bytes);

/* Count `bytes` less; never more than this process has reserved. */
void pgpu_meter_refund(struct pgpu_meter *meter, unsigned gpu, uint64_t bytes);

/* Count an allocation inside the limit that failed because the device was full. */
void pgpu_meter_note_device_refusal(struct pgpu_meter *meter, unsigned gpu);

/* Take back what dead processes left on `gpu`. */
bool pgpu_meter_reap(struct pgpu_meter *meter, unsigned gpu);

/* Whether any process did so within the last `within_ns`: the driver may still be cleaning up. */
bool pgpu_meter_was_reaped(const struct pgpu_meter *meter, unsigned gpu, uint64_t within_ns);

/* Bytes that all slots have reserved, or that this process has; 0 unless claimed. */
uint64_t pgpu_meter_total_bytes(const struct pgpu_meter *meter, unsigned gpu);
uint64_t pgpu_meter_own_bytes(const struct pgpu_meter *meter, unsigned gpu);

/* For pthread_atfork: the slot stays with the parent; the child has none and may claim one. */
void pgpu_meter_before_fork(struct pgpu_meter *meter);
void pgpu_meter_after_fork_in_parent(struct pgpu_meter *meter);
void pgpu_meter_after_fork_in_child(struct pgpu_meter *meter);

#endif
