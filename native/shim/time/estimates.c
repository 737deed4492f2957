#include "time/estimates.h"

#include <string.h>

#include "time/gate.h"
#include "time/timing.h"

#define ROWS           1024u
#define PROBES         4u
#define FIRST_GUESS_NS 100000u
/* A launch waits this long for a first measurement; after that the kernel's time counts as at least this
 * long. */
#define PATIENCE_NS 200000000u
/* How long measurements without other jobs are used: a program's kernels change. */
#define LATELY_NS 2000000000u
#define LOOK_NS   200000u
/* Inverse weight of a new measurement in the moving average. */
#define INVERSE_WEIGHT 5
/* A job that seemed alone may have had a neighbour that was not published yet: a longer time than before has
 * less weight. */
#define INVERSE_DOUBT 20
/* Interval at which a kernel is measured by itself again: where shares depend on it, and elsewhere. */
#define OLD_NS          100000000u
#define OLD_UNSHARED_NS 1000000000u
/* After a time far off its estimate, a kernel is measured launch by launch for this time: four times as long
 * after each surprise, a quarter after as long without one. */
#define WATCHED_NS     10000000ull
#define MOST_SURPRISES 8u
/* The time of a kernel beside other jobs, by turns: a slow average, and how far it may be from the time
 * alone. */
#define INVERSE_BESIDE 16
#define MOST_APART     0.3

/* Words of one row are written separately: a reader in between gets the estimate of the former kernel. */
static struct row {
    uint64_t key;
    uint64_t estimate_ns;    /* 0: not measured yet */
    uint64_t measured_at_ns; /* when it was measured last, or when the first measurement began; 0: never */
    uint64_t
        alone_ns; /* like `estimate_ns`, of measurements without other jobs on the GPU; 0: there are none */
    uint64_t alone_at_ns; /* when the last of those was made */
    uint64_t beside_ns;   /* like `alone_ns`, of the part that was ours beside other jobs since then */
    uint64_t watched_until_ns;
    bool is_watched;
    uint8_t surprises; /* number of measurements far off the estimate */
    uint8_t samples;   /* two at most */
} rows[ROWS];
static uint64_t guess_ns = FIRST_GUESS_NS;

static bool is_last(const struct pgpu_work *work, const struct pgpu_last *last) {
    const struct pgpu_trace_command *command = &work->command;
    return command->function == last->function && work->graph == last->graph && last->key != 0 &&
           memcmp(command->grid, last->grid, sizeof(last->grid)) == 0 &&
           memcmp(command->block, last->block, sizeof(last->block)) == 0;
}

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    return hash ^ (hash >> 29);
}

static uint64_t make_key(const struct pgpu_work *work) {
    const struct pgpu_trace_command *command = &work->command;
    uint64_t hash = mix((uint64_t)command->function, (uint64_t)work->graph);
    if (work->graph == NULL) {
        hash = mix(hash, (uint64_t)command->grid[0] << 32 | command->grid[1]);
        hash = mix(hash, (uint64_t)command->grid[2] << 32 | command->block[0]);
        hash = mix(hash, (uint64_t)command->block[1] << 32 | command->block[2]);
    }
    return hash | 1;
}

/* Class of a copy's size: four classes for each doubling. */
static uint64_t key_of_copy(const struct pgpu_trace_command *command) {
    unsigned shift = command->bytes < 8 ? 0 : 61 - (unsigned)__builtin_clzll(command->bytes);
    return mix(mix(command->detail + 1, command->bytes >> shift), shift) | 1;
}

static uint64_t key_of(const struct pgpu_work *work) {
    if (work->command.kind == PGPU_TRACE_COPY) return key_of_copy(&work->command);
    struct pgpu_last *last = &work->lane->last;
    if (is_last(work, last)) return last->key;
    last->function = work->command.function;
    last->graph = work->graph;
    memcpy(last->grid, work->command.grid, sizeof(last->grid));
    memcpy(last->block, work->command.block, sizeof(last->block));
    return last->key = make_key(work);
}

/* For a kernel without a measurement: the latest measurement of any, or the time since its first launch. */
static uint64_t guess(uint32_t row, uint64_t now_ns) {
    uint64_t began_ns = __atomic_load_n(&rows[row].measured_at_ns, __ATOMIC_RELAXED);
    if (began_ns != 0 && now_ns >= began_ns + PATIENCE_NS) return PATIENCE_NS;
    return __atomic_load_n(&guess_ns, __ATOMIC_RELAXED);
}

/* The key is stored last, with release: a reader that finds it finds the other words cleared. */
static void clear(struct row *row, uint64_t key) {
    __atomic_store_n(&row->estimate_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&row->measured_at_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&row->alone_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&row->is_watched, false, __ATOMIC_RELAXED);
    __atomic_store_n(&row->watched_until_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&row->surprises, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&row->samples, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&row->key, key, __ATOMIC_RELEASE);
}

uint32_t pgpu_estimates_find(struct pgpu_work *work) {
    uint64_t key = key_of(work);
    uint32_t first = (uint32_t)(key >> 32) % ROWS, at = first;
    for (uint32_t probe = 0; probe < PROBES; probe++) {
        at = (first + probe) % ROWS;
        uint64_t found = __atomic_load_n(&rows[at].key, __ATOMIC_RELAXED);
        if (found == key || found == 0) break;
    }
    if (__atomic_load_n(&rows[at].key, __ATOMIC_RELAXED) != key) clear(&rows[at], key);
    uint64_t known_ns = __atomic_load_n(&rows[at].estimate_ns, __ATOMIC_RELAXED);
    work->is_known = known_ns != 0;
    work->is_watched = __atomic_load_n(&rows[at].is_watched, __ATOMIC_RELAXED);
    work->estimate_ns = known_ns != 0 ? known_ns : guess(at, work->now_ns);
    return at;
}

static uint8_t surprises_of(const struct row *row, uint64_t now_ns) {
    uint8_t surprises = __atomic_load_n(&row->surprises, __ATOMIC_RELAXED);
    uint64_t until_ns = __atomic_load_n(&row->watched_until_ns, __ATOMIC_RELAXED);
    bool was_good = until_ns != 0 && now_ns > until_ns + (WATCHED_NS << (2 * surprises));
    if (was_good) return surprises == 0 ? 0 : (uint8_t)(surprises - 1);
    return until_ns == 0 || surprises == MOST_SURPRISES ? surprises : (uint8_t)(surprises + 1);
}

void pgpu_estimates_watch(uint32_t at, uint64_t now_ns) {
    struct row *row = &rows[at];
    if (__atomic_load_n(&row->is_watched, __ATOMIC_RELAXED)) return;
    uint8_t surprises = surprises_of(row, now_ns);
    __atomic_store_n(&row->surprises, surprises, __ATOMIC_RELAXED);
    __atomic_store_n(&row->watched_until_ns, now_ns + (WATCHED_NS << (2 * surprises)), __ATOMIC_RELAXED);
    __atomic_store_n(&row->is_watched, true, __ATOMIC_RELAXED);
}

void pgpu_estimates_trust(uint32_t row, uint64_t now_ns) {
    if (now_ns > __atomic_load_n(&rows[row].watched_until_ns, __ATOMIC_RELAXED))
        __atomic_store_n(&rows[row].is_watched, false, __ATOMIC_RELAXED);
}

bool pgpu_estimates_is_old(uint32_t row, uint64_t now_ns, bool is_exact) {
    uint64_t at_ns = __atomic_load_n(&rows[row].measured_at_ns, __ATOMIC_RELAXED);
    return now_ns > at_ns + (is_exact ? OLD_NS : OLD_UNSHARED_NS) ||
           __atomic_load_n(&rows[row].samples, __ATOMIC_RELAXED) < 2;
}

uint64_t pgpu_estimates_wait_ns(uint32_t row, uint64_t now_ns) {
    uint64_t began_ns = __atomic_load_n(&rows[row].measured_at_ns, __ATOMIC_RELAXED);
    bool is_known = __atomic_load_n(&rows[row].estimate_ns, __ATOMIC_RELAXED) != 0;
    return is_known || began_ns == 0 || now_ns >= began_ns + PATIENCE_NS ? 0 : LOOK_NS;
}

void pgpu_estimates_expect(uint32_t row, uint64_t now_ns) {
    __atomic_store_n(&rows[row].measured_at_ns, now_ns, __ATOMIC_RELAXED);
}

static uint64_t towards(uint64_t from_ns, uint64_t to_ns) {
    int64_t step_ns = ((int64_t)to_ns - (int64_t)from_ns) / INVERSE_WEIGHT;
    return (uint64_t)((int64_t)from_ns + step_ns);
}

static void set_alone(struct row *row, uint64_t alone_ns) {
    __atomic_store_n(&row->alone_ns, alone_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&row->beside_ns, alone_ns, __ATOMIC_RELAXED);
}

void pgpu_estimates_update_alone(uint32_t row, uint64_t measured_ns, uint64_t now_ns) {
    uint64_t was_ns = __atomic_load_n(&rows[row].alone_ns, __ATOMIC_RELAXED);
    uint64_t next_ns = was_ns == 0 ? measured_ns : towards(was_ns, measured_ns);
    if (__atomic_load_n(&rows[row].samples, __ATOMIC_RELAXED) < 2)
        next_ns = measured_ns;
    else if (was_ns != 0 && measured_ns > was_ns)
        next_ns = was_ns + (measured_ns - was_ns) / INVERSE_DOUBT;
    set_alone(&rows[row], next_ns == 0 ? 1 : next_ns);
    __atomic_store_n(&rows[row].alone_at_ns, now_ns, __ATOMIC_RELAXED);
}

uint64_t pgpu_estimates_alone_ns(uint32_t row, uint64_t now_ns) {
    uint64_t at_ns = __atomic_load_n(&rows[row].alone_at_ns, __ATOMIC_RELAXED);
    return now_ns < at_ns + LATELY_NS ? __atomic_load_n(&rows[row].alone_ns, __ATOMIC_RELAXED) : 0;
}

bool pgpu_estimates_agree(uint32_t row, uint64_t measured_ns) {
    double alone_ns = (double)__atomic_load_n(&rows[row].alone_ns, __ATOMIC_RELAXED);
    double beside_ns = (double)__atomic_load_n(&rows[row].beside_ns, __ATOMIC_RELAXED);
    beside_ns += ((double)measured_ns - beside_ns) / INVERSE_BESIDE;
    __atomic_store_n(&rows[row].beside_ns, (uint64_t)beside_ns, __ATOMIC_RELAXED);
    bool is_near = beside_ns > alone_ns * (1 - MOST_APART) && beside_ns < alone_ns * (1 + MOST_APART);
    if (!is_near) set_alone(&rows[row], 0);
    return is_near;
}

/* The first launch may load its function, which takes long and is no GPU work: the second one counts. */
void pgpu_estimates_update(uint32_t row, uint64_t measured_ns, uint64_t now_ns) {
    uint64_t was_ns = __atomic_load_n(&rows[row].estimate_ns, __ATOMIC_RELAXED);
    uint8_t samples = __atomic_load_n(&rows[row].samples, __ATOMIC_RELAXED);
    uint64_t next_ns = samples < 2 ? measured_ns : towards(was_ns, measured_ns);
    __atomic_store_n(&rows[row].estimate_ns, next_ns == 0 ? 1 : next_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&rows[row].measured_at_ns, now_ns, __ATOMIC_RELAXED);
    uint64_t guess = __atomic_load_n(&guess_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&guess_ns, towards(guess, measured_ns), __ATOMIC_RELAXED);
    if (samples < 2) __atomic_store_n(&rows[row].samples, (uint8_t)(samples + 1), __ATOMIC_RELAXED);
}
