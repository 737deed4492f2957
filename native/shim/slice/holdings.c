#include "slice/holdings.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "slice/slice.h"
#include "trace/trace_log.h"

#define FIRST_CAPACITY 1024u /* a power of two */

/* Open addressing with linear probing, at most half full; removal shifts the run back, so there are no
 * tombstones. */
static struct {
    pthread_mutex_t leaf;
    struct pgpu_holding *rows;
    uint64_t capacity;
    uint64_t used;
} table = {.leaf = PTHREAD_MUTEX_INITIALIZER};

static uint64_t home_of(enum pgpu_kind kind, uint64_t key, uint64_t capacity) {
    uint64_t mixed = (key ^ ((uint64_t)kind << 56)) * 0x9e3779b97f4a7c15ull;
    return (mixed ^ (mixed >> 32)) & (capacity - 1);
}

static uint64_t next_of(uint64_t at) {
    return (at + 1) & (table.capacity - 1);
}

/* The row, or the empty place where it would go. */
static struct pgpu_holding *seek(enum pgpu_kind kind, uint64_t key) {
    uint64_t at = home_of(kind, key, table.capacity);
    while (table.rows[at].kind != PGPU_KIND_NONE &&
           (table.rows[at].kind != kind || table.rows[at].key != key))
        at = next_of(at);
    return &table.rows[at];
}

/* Straight from the kernel: malloc may be the application's own, and it may be in the middle of it. */
static struct pgpu_holding *map_rows(uint64_t capacity) {
    void *rows = mmap(NULL, capacity * sizeof(struct pgpu_holding), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return rows == MAP_FAILED ? NULL : rows;
}

static bool grow(void) {
    struct pgpu_holding *old_rows = table.rows;
    uint64_t old_capacity = table.capacity;
    uint64_t capacity = old_capacity == 0 ? FIRST_CAPACITY : old_capacity * 2;
    struct pgpu_holding *rows = map_rows(capacity);
    if (rows == NULL) return false;
    table.rows = rows;
    table.capacity = capacity;
    for (uint64_t at = 0; at < old_capacity; at++)
        if (old_rows[at].kind != PGPU_KIND_NONE) *seek(old_rows[at].kind, old_rows[at].key) = old_rows[at];
    if (old_rows != NULL) munmap(old_rows, old_capacity * sizeof(struct pgpu_holding));
    return true;
}

/* Set while the next row might need a larger table. */
static bool is_tight = true;

static bool is_half_empty(void) {
    return (table.used + 1) * 2 <= table.capacity;
}

/* What a profile calls the memory of a row. Of the other kinds none is charged for itself: a pool's row
 * stands for what was handed out of it. */
static bool is_traced(const struct pgpu_holding *row, enum pgpu_trace_memory *kind) {
    switch ((enum pgpu_kind)row->kind) {
    case PGPU_KIND_MEMORY:
        *kind = row->is_managed || row->is_converted ? PGPU_TRACE_MANAGED : PGPU_TRACE_LINEAR;
        return row->pool == 0;
    case PGPU_KIND_DEFERRED_FREE:
        *kind = PGPU_TRACE_LINEAR;
        return true;
    case PGPU_KIND_ARRAY:
        *kind = PGPU_TRACE_ARRAY;
        return true;
    case PGPU_KIND_EXTERNAL:
        *kind = PGPU_TRACE_EXTERNAL;
        return true;
    case PGPU_KIND_CONTEXT:
        *kind = PGPU_TRACE_CONTEXTS;
        return true;
    case PGPU_KIND_ALLOCATION:
        *kind = PGPU_TRACE_PHYSICAL;
        return true;
    case PGPU_KIND_POOL:
        *kind = PGPU_TRACE_POOL;
        return true;
    case PGPU_KIND_LIMIT:
        *kind = PGPU_TRACE_LIMITS;
        return true;
    default:
        return false;
    }
}

/* Write the change from `before` to `row` into the trace; either may be NULL. */
static void trace(const struct pgpu_holding *before, const struct pgpu_holding *row) {
    enum pgpu_trace_memory kind;
    if (!pgpu_trace_is_on()) return;
    const struct pgpu_holding *either = row != NULL ? row : before;
    if (!is_traced(either, &kind)) return;
    uint64_t bytes = row == NULL ? 0 : row->bytes;
    pgpu_trace_memory(either->gpu, kind, bytes - (before == NULL ? 0 : before->bytes));
}

/* Where the kernel has no memory for a larger table, the other half takes the rows that were promised. */
static bool has_room(void) {
    return is_half_empty() || grow() || table.used + 2 <= table.capacity;
}

static void add_row(struct pgpu_holding *place, const struct pgpu_holding *row) {
    *place = *row;
    trace(NULL, row);
    table.used++;
    __atomic_store_n(&is_tight, !is_half_empty(), __ATOMIC_RELAXED);
}

/* A child made without atfork handlers (a raw clone) has a copy of its parent's table, and perhaps of a
 * locked mutex that no thread will unlock: the table counts as empty there. The same holds before the process
 * has a slot. */
static bool lock(void) {
    if (!pgpu_meter_is_claimed(&pgpu_slice_meter)) return false;
    pthread_mutex_lock(&table.leaf);
    return true;
}

static void unlock(void) {
    pthread_mutex_unlock(&table.leaf);
}

bool pgpu_holdings_have_room(void) {
    if (!__atomic_load_n(&is_tight, __ATOMIC_RELAXED)) return true;
    if (!lock()) return false;
    bool fits = is_half_empty() || grow();
    unlock();
    return fits;
}

/* Move back whatever in the run behind `hole` may not stay behind an empty place. */
static void remove_row(struct pgpu_holding *row) {
    trace(row, NULL);
    uint64_t hole = (uint64_t)(row - table.rows);
    uint64_t mask = table.capacity - 1;
    for (uint64_t at = next_of(hole); table.rows[at].kind != PGPU_KIND_NONE; at = next_of(at)) {
        uint64_t home = home_of(table.rows[at].kind, table.rows[at].key, table.capacity);
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        table.rows[hole] = table.rows[at];
        hole = at;
    }
    table.rows[hole].kind = PGPU_KIND_NONE;
    table.used--;
}

static struct pgpu_holding *find(enum pgpu_kind kind, uint64_t key) {
    if (table.capacity == 0) return NULL;
    struct pgpu_holding *row = seek(kind, key);
    return row->kind == PGPU_KIND_NONE ? NULL : row;
}

bool pgpu_holdings_put(const struct pgpu_holding *holding) {
    if (!lock()) return false;
    bool fits = has_room();
    if (fits) {
        struct pgpu_holding *row = seek(holding->kind, holding->key);
        if (row->kind == PGPU_KIND_NONE) {
            add_row(row, holding);
        } else {
            trace(row, holding);
            *row = *holding;
        }
    }
    unlock();
    return fits;
}

bool pgpu_holdings_find(enum pgpu_kind kind, uint64_t key, struct pgpu_holding *found) {
    if (!lock()) return false;
    struct pgpu_holding *row = find(kind, key);
    if (row != NULL) *found = *row;
    unlock();
    return row != NULL;
}

bool pgpu_holdings_take(enum pgpu_kind kind, uint64_t key, struct pgpu_holding *taken) {
    if (!lock()) return false;
    struct pgpu_holding *row = find(kind, key);
    if (row != NULL) {
        *taken = *row;
        remove_row(row);
    }
    unlock();
    return row != NULL;
}

int64_t pgpu_holdings_count(enum pgpu_kind kind, uint64_t key, int change, struct pgpu_holding *after) {
    int64_t count = -1;
    if (!lock()) return count;
    struct pgpu_holding *row = find(kind, key);
    if (row != NULL) {
        row->count += (uint32_t)change;
        count = row->count;
        if (after != NULL) *after = *row;
        if (count == 0) remove_row(row);
    }
    unlock();
    return count;
}

bool pgpu_holdings_join(const struct pgpu_holding *holding) {
    if (!lock()) return false;
    struct pgpu_holding *row = find(holding->kind, holding->key);
    bool is_new = row == NULL;
    if (!is_new)
        row->count++;
    else if (has_room())
        add_row(seek(holding->kind, holding->key), holding);
    unlock();
    return is_new;
}

static void change(struct pgpu_holding *row, void (*edit)(struct pgpu_holding *, void *), void *context) {
    struct pgpu_holding before = *row;
    edit(row, context);
    trace(&before, row);
}

bool pgpu_holdings_edit(enum pgpu_kind kind, uint64_t key, void (*edit)(struct pgpu_holding *, void *),
                        void *context) {
    if (!lock()) return false;
    struct pgpu_holding *row = find(kind, key);
    if (row != NULL) change(row, edit, context);
    unlock();
    return row != NULL;
}

/* A place after which a run begins, so that a removal while we walk on moves no row past us. */
static uint64_t some_empty_place(void) {
    uint64_t at = 0;
    while (table.rows[at].kind != PGPU_KIND_NONE)
        at++;
    return at;
}

static bool is_owned(const struct pgpu_holding *row, enum pgpu_kind kind, uint64_t owner) {
    return row->kind == kind && row->context == owner;
}

static void take_owned(enum pgpu_kind kind, uint64_t owner, uint64_t bytes[PGPU_MAX_GPUS]) {
    uint64_t at = some_empty_place();
    for (uint64_t step = 0; step < table.capacity; step++, at = next_of(at)) {
        while (is_owned(&table.rows[at], kind, owner)) {
            bytes[table.rows[at].gpu] += table.rows[at].bytes;
            remove_row(&table.rows[at]);
        }
    }
}

void pgpu_holdings_edit_owned(enum pgpu_kind kind, uint64_t owner,
                              void (*edit)(struct pgpu_holding *, void *), void *context) {
    if (!lock()) return;
    for (uint64_t at = 0; at < table.capacity; at++)
        if (is_owned(&table.rows[at], kind, owner)) change(&table.rows[at], edit, context);
    unlock();
}

void pgpu_holdings_take_owned(enum pgpu_kind kind, uint64_t owner, uint64_t bytes[PGPU_MAX_GPUS]) {
    if (!lock()) return;
    if (table.capacity != 0) take_owned(kind, owner, bytes);
    unlock();
}

/* One row of `kind` at or after `*at`, which is moved past it. */
static bool next_row(enum pgpu_kind kind, uint64_t *at, struct pgpu_holding *found) {
    bool is_found = false;
    if (!lock()) return false;
    while (!is_found && *at < table.capacity) {
        is_found = table.rows[*at].kind == kind;
        if (is_found) *found = table.rows[*at];
        ++*at;
    }
    unlock();
    return is_found;
}

bool pgpu_holdings_visit(enum pgpu_kind kind, bool (*visit)(const struct pgpu_holding *, void *),
                         void *context) {
    struct pgpu_holding found;
    uint64_t at = 0;
    while (next_row(kind, &at, &found))
        if (visit(&found, context)) return true;
    return false;
}

void pgpu_holdings_before_fork(void) {
    pthread_mutex_lock(&table.leaf);
}

void pgpu_holdings_after_fork(bool is_child) {
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    if (!is_child) {
        pthread_mutex_unlock(&table.leaf);
        return;
    }
    memcpy(&table.leaf, &fresh, sizeof(fresh));
    if (table.rows != NULL) munmap(table.rows, table.capacity * sizeof(struct pgpu_holding));
    table.rows = NULL;
    table.capacity = table.used = 0;
    __atomic_store_n(&is_tight, true, __ATOMIC_RELAXED);
}
