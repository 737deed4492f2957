/* Handles that can be checked: all objects of a kind lie in one reserved range of addresses, so a client's
 * pointer is validated before it is dereferenced. A destroyed slot is reused as late as possible, so that a
 * stale handle is detected instead of taken for a new object. */
#ifndef SIM_HANDLE_H
#define SIM_HANDLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of what other files of the driver use: reached without a detour through the table of symbols. */
#define SIM_INTERNAL __attribute__((visibility("hidden")))

/* The first member of every object. */
struct sim_head {
    uint32_t is_live;
    uint32_t next_free; /* index + 1 of the next free slot */
};

struct sim_slab {
    const size_t slot_bytes; /* a power of two */
    const uint32_t capacity;
    char *base;
    uint32_t used;     /* slots ever handed out */
    size_t used_bytes; /* the range that they cover, for a fast check of a handle */
    uint32_t first_free, last_free, free_count;
    pthread_mutex_t mutex;
    const bool is_guarded; /* its users hold sim_lock already, so the mutex is left alone */
};

#define SIM_SLAB_WITH(type, bytes, count, guarded)                                                           \
    {.slot_bytes = (bytes) + 0 * sizeof(char[sizeof(type) <= (bytes) ? 1 : -1]),                             \
     .capacity = (count),                                                                                    \
     .mutex = PTHREAD_MUTEX_INITIALIZER,                                                                     \
     .is_guarded = (guarded)}
#define SIM_SLAB(type, bytes, count) SIM_SLAB_WITH(type, bytes, count, false)

/* A zeroed live object, or NULL. */
void *sim_new(struct sim_slab *slab);
void sim_delete(struct sim_slab *slab, void *object);

/* The live object with this index, or NULL: for walking over all of a kind. */
void *sim_at(struct sim_slab *slab, uint32_t index);

static inline bool sim_is_live(const struct sim_slab *slab, const void *object) {
    uintptr_t offset = (uintptr_t)object - (uintptr_t)slab->base;
    /* Nothing is covered before the first object is made, so the base needs no check of its own. */
    if (offset >= __atomic_load_n(&slab->used_bytes, __ATOMIC_ACQUIRE)) return false;
    if ((offset & (slab->slot_bytes - 1)) != 0) return false;
    return __atomic_load_n(&((const struct sim_head *)object)->is_live, __ATOMIC_ACQUIRE) != 0;
}

#endif
