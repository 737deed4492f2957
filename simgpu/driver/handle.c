#include "driver/handle.h"

#include <string.h>
#include <sys/mman.h>

/* So many slots rest before the oldest is used again. */
#define RESTING 64

static void enter(struct sim_slab *slab) {
    if (!slab->is_guarded) pthread_mutex_lock(&slab->mutex);
}

static void leave(struct sim_slab *slab) {
    if (!slab->is_guarded) pthread_mutex_unlock(&slab->mutex);
}

static bool reserve_range(struct sim_slab *slab) {
    if (slab->base != NULL) return true;
    void *at = mmap(NULL, slab->slot_bytes * slab->capacity, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return false;
    slab->base = at;
    return true;
}

static struct sim_head *slot_at(const struct sim_slab *slab, uint32_t index) {
    return (struct sim_head *)(void *)(slab->base + index * slab->slot_bytes);
}

static struct sim_head *take_rested(struct sim_slab *slab) {
    struct sim_head *head = slot_at(slab, slab->first_free - 1);
    slab->first_free = head->next_free;
    if (slab->first_free == 0) slab->last_free = 0;
    slab->free_count--;
    return head;
}

static struct sim_head *take(struct sim_slab *slab) {
    if (!reserve_range(slab)) return NULL;
    if (slab->free_count > RESTING || (slab->free_count > 0 && slab->used == slab->capacity))
        return take_rested(slab);
    if (slab->used == slab->capacity) return NULL;
    struct sim_head *head = slot_at(slab, slab->used);
    __atomic_store_n(&slab->used, slab->used + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&slab->used_bytes, slab->used * slab->slot_bytes, __ATOMIC_RELEASE);
    return head;
}

void *sim_new(struct sim_slab *slab) {
    enter(slab);
    struct sim_head *head = take(slab);
    if (head != NULL) {
        memset(head + 1, 0, slab->slot_bytes - sizeof(*head));
        head->next_free = 0;
        __atomic_store_n(&head->is_live, 1, __ATOMIC_RELEASE);
    }
    leave(slab);
    return head;
}

void sim_delete(struct sim_slab *slab, void *object) {
    struct sim_head *head = object;
    enter(slab);
    uint32_t index = (uint32_t)(((char *)object - slab->base) / (ptrdiff_t)slab->slot_bytes);
    __atomic_store_n(&head->is_live, 0, __ATOMIC_RELEASE);
    if (slab->last_free != 0)
        slot_at(slab, slab->last_free - 1)->next_free = index + 1;
    else
        slab->first_free = index + 1;
    slab->last_free = index + 1;
    head->next_free = 0;
    slab->free_count++;
    leave(slab);
}

void *sim_at(struct sim_slab *slab, uint32_t index) {
    if (slab->base == NULL || index >= __atomic_load_n(&slab->used, __ATOMIC_ACQUIRE)) return NULL;
    struct sim_head *head = slot_at(slab, index);
    return __atomic_load_n(&head->is_live, __ATOMIC_ACQUIRE) ? head : NULL;
}
