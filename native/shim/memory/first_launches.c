#include "memory/first_launches.h"

#include "memory/loading.h"
#include "slice/slice.h"

#define BUCKETS 1024u /* a power of two */
#define PLACES  4u

/* Without a lock: `function` is stored last and cleared first. */
struct entry {
    uint64_t function; /* 0: free; BUSY while `owner` is stored */
    uint64_t owner;    /* its module or library, an even number; plus LAUNCHED */
};
#define BUSY     1u
#define LAUNCHED 1u

static bool is_launched(const struct entry *entry) {
    return (__atomic_load_n(&entry->owner, __ATOMIC_RELAXED) & LAUNCHED) != 0;
}

static struct entry entries[BUCKETS][PLACES];

static struct entry *bucket_of(CUfunction function) {
    uint64_t mixed = (uint64_t)function * 0x9e3779b97f4a7c15ull;
    return entries[(mixed >> 32) & (BUCKETS - 1)];
}

static struct entry *find(CUfunction function) {
    struct entry *bucket = bucket_of(function);
    for (unsigned place = 0; place < PLACES; place++)
        if (__atomic_load_n(&bucket[place].function, __ATOMIC_ACQUIRE) == (uint64_t)function)
            return &bucket[place];
    return NULL;
}

static bool takes(struct entry *entry, CUfunction function, uint64_t owner, uint64_t before) {
    if (!__atomic_compare_exchange_n(&entry->function, &before, BUSY, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return false;
    __atomic_store_n(&entry->owner, owner, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->function, (uint64_t)function, __ATOMIC_RELEASE);
    __atomic_fetch_add(&pgpu_slice_launch_duties, 1, __ATOMIC_RELEASE);
    return true;
}

/* In a full bucket one that was launched makes room; if none was, the host counts what this one loads. */
bool pgpu_first_launches_add(CUfunction function, uint64_t owner) {
    struct entry *bucket = bucket_of(function);
    if (find(function) != NULL) return false;
    for (unsigned place = 0; place < PLACES; place++)
        if (takes(&bucket[place], function, owner, 0)) return true;
    for (unsigned place = 0; place < PLACES; place++) {
        uint64_t before = __atomic_load_n(&bucket[place].function, __ATOMIC_ACQUIRE);
        if (before != BUSY && is_launched(&bucket[place]) && takes(&bucket[place], function, owner, before))
            return true;
    }
    return true;
}

bool pgpu_first_launches_has(CUfunction function) {
    const struct entry *entry = find(function);
    return entry != NULL && !is_launched(entry);
}

/* False: another thread ended its wait, and what it loads is charged. */
static bool ends_wait(struct entry *entry, uint64_t *owner) {
    *owner = __atomic_fetch_or(&entry->owner, LAUNCHED, __ATOMIC_RELAXED);
    if ((*owner & LAUNCHED) != 0) return false;
    __atomic_fetch_sub(&pgpu_slice_launch_duties, 1, __ATOMIC_RELEASE);
    return true;
}

void pgpu_first_launches_finish(CUfunction function) {
    struct entry *entry = find(function);
    uint64_t owner;
    if (entry == NULL || !ends_wait(entry, &owner)) return;
    struct pgpu_loading here = pgpu_loading_begin();
    struct pgpu_loaded loaded = pgpu_loading_end(&here);
    if (loaded.bytes > 0 && loaded.is_proven) pgpu_loading_charge(&here, owner, loaded.bytes);
}

void pgpu_first_launches_forget(uint64_t owner) {
    for (size_t i = 0; i < BUCKETS * PLACES; i++) {
        struct entry *entry = &entries[i / PLACES][i % PLACES];
        uint64_t found = __atomic_load_n(&entry->owner, __ATOMIC_RELAXED);
        if ((found & ~(uint64_t)LAUNCHED) != owner) continue;
        if (__atomic_exchange_n(&entry->function, 0, __ATOMIC_ACQ_REL) != 0) ends_wait(entry, &found);
    }
}
