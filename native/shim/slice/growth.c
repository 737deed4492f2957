#include "slice/growth.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#include "cancellation.h"
#include "clock.h"
#include "slice/report.h"
#include "slice/slice.h"

#define FIRST_PAUSE_NS   100000ull
#define LONGEST_PAUSE_NS 5000000ull

/* An agent that died is replaced within a second or two; a guard that died, within ten. */
#define MOST_SILENCE_NS 30000000000ull

/* A process that holds less than a tenth of what it is shown holds none yet; half of it or more is what it
 * sees. */
#define HOLDS_NONE_PART 10u
#define TAKES_IT_PART   2u

/* What this thread's last allocation wished for, if it was refused so that the program frees what it caches.
 * PyTorch allocates as much again in the same thread, however long the freeing took. 0 once an allocation has
 * succeeded. */
static _Thread_local uint64_t freed_first_bytes;

/* By GPU: the free memory that the process was shown while it held none; 0 from when it has taken it. */
static uint64_t shown_bytes[PGPU_MAX_GPUS];

static uint64_t load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static struct pgpu_usage_gpu *shared_of(unsigned gpu) {
    return &pgpu_slice_meter.usage->gpu[gpu];
}

static uint64_t answer_of(unsigned gpu) {
    return load(&pgpu_slice_limit()->gpu[gpu].growth_answer);
}

static uint64_t sequence_of(uint64_t word) {
    return word >> PGPU_GROWTH_SEQUENCE_SHIFT;
}

static uint64_t verdict_of(uint64_t answer) {
    return answer & PGPU_GROWTH_VERDICT_MASK;
}

static bool answers(uint64_t answer, uint64_t wish) {
    uint64_t newer_by = (sequence_of(answer) - sequence_of(wish)) & PGPU_GROWTH_SEQUENCE_MASK;
    return verdict_of(answer) != 0 && newer_by <= PGPU_GROWTH_SEQUENCE_MASK / 2;
}

static bool is_final(uint64_t answer) {
    return verdict_of(answer) == PGPU_GROWTH_GRANTED || verdict_of(answer) == PGPU_GROWTH_REFUSED;
}

static uint64_t pages_of(uint64_t bytes) {
    uint64_t pages = bytes / PGPU_GROWTH_PAGE_BYTES + 1;
    return pages < PGPU_GROWTH_PAGES_MASK ? pages : PGPU_GROWTH_PAGES_MASK;
}

static uint64_t with_next_sequence(uint64_t before, uint64_t pages) {
    uint64_t sequence = (sequence_of(before) + 1) & PGPU_GROWTH_SEQUENCE_MASK;
    return sequence << PGPU_GROWTH_SEQUENCE_SHIFT | pages;
}

/* Several threads and processes may wish at a time: a wish that has no final answer yet is included in the
 * next. */
static uint64_t put_wish(unsigned gpu, uint64_t bytes) {
    uint64_t *word = &shared_of(gpu)->growth_wish;
    uint64_t seen = load(word), next;
    do {
        uint64_t answer = answer_of(gpu), open_pages = seen & PGPU_GROWTH_PAGES_MASK;
        if (is_final(answer) && answers(answer, seen)) open_pages = 0;
        uint64_t total_bytes = pgpu_meter_total_bytes(&pgpu_slice_meter, gpu);
        uint64_t pages = open_pages != 0 ? open_pages + pages_of(bytes) : pages_of(total_bytes + bytes);
        if (pages > PGPU_GROWTH_PAGES_MASK) pages = PGPU_GROWTH_PAGES_MASK;
        next = with_next_sequence(seen, pages);
    } while (!__atomic_compare_exchange_n(word, &seen, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return next;
}

static void withdraw(unsigned gpu, uint64_t wish) {
    uint64_t nothing = with_next_sequence(wish, 0);
    __atomic_compare_exchange_n(&shared_of(gpu)->growth_wish, &wish, nothing, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
}

/* By pwrite, since inotify does not report stores to a mapping. Where it fails the host finds the wish within
 * a second. */
static void ring(void) {
    static const uint64_t rung = 1;
    int fd = open(pgpu_slice_meter.path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return;
    ssize_t ignored = pwrite(fd, &rung, sizeof(rung), offsetof(struct pgpu_usage, growth_bell));
    (void)ignored;
    close(fd);
}

static bool fits(unsigned gpu, uint64_t bytes) {
    uint64_t limit_bytes = pgpu_limit_bytes(pgpu_slice_limit(), gpu);
    uint64_t total_bytes = pgpu_meter_total_bytes(&pgpu_slice_meter, gpu);
    return total_bytes <= limit_bytes && bytes <= limit_bytes - total_bytes;
}

static void pause_for(uint64_t *pause_ns) {
    struct timespec pause = {.tv_nsec = (long)*pause_ns};
    nanosleep(&pause, NULL);
    *pause_ns = pgpu_least_ns(*pause_ns * 2, LONGEST_PAUSE_NS);
}

/* PyTorch's allocator is loaded, and this is not what it asks for after it has freed. */
static bool may_free_first(uint64_t bytes) {
    if (freed_first_bytes == bytes) return false;
    void *allocator = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    if (allocator != NULL) dlclose(allocator);
    freed_first_bytes = allocator != NULL ? bytes : 0;
    return allocator != NULL;
}

static enum pgpu_growth await(unsigned gpu, uint64_t bytes, uint64_t wish, bool may_wait) {
    uint64_t pause_ns = FIRST_PAUSE_NS, heard_ns = pgpu_now_ns(), heard = answer_of(gpu);
    bool has_begun_to_wait = false;
    while (pgpu_now_ns() - heard_ns < MOST_SILENCE_NS) {
        uint64_t answer = answer_of(gpu);
        if (answer != heard) heard_ns = pgpu_now_ns();
        heard = answer;
        if (answers(answer, wish) && is_final(answer))
            return verdict_of(answer) == PGPU_GROWTH_GRANTED ? PGPU_GROWTH_IS_LARGER : PGPU_GROWTH_IS_NOT;
        if (fits(gpu, bytes)) {
            withdraw(gpu, wish);
            return PGPU_GROWTH_IS_LARGER;
        }
        if (answers(answer, wish) && !has_begun_to_wait) {
            has_begun_to_wait = true;
            bool frees_first = may_wait && may_free_first(bytes);
            if (!may_wait || frees_first) {
                withdraw(gpu, wish);
                return frees_first ? PGPU_GROWTH_AFTER_FREEING : PGPU_GROWTH_IS_NOT;
            }
            pgpu_report_growth(pgpu_meter_total_bytes(&pgpu_slice_meter, gpu) + bytes,
                               pgpu_limit_shown_bytes(pgpu_slice_limit(), gpu), true);
        }
        pause_for(&pause_ns);
    }
    withdraw(gpu, wish);
    return PGPU_GROWTH_IS_NOT;
}

enum pgpu_growth pgpu_growth_wish(unsigned gpu, uint64_t bytes, bool may_wait) {
    if (!pgpu_limit_grows(pgpu_slice_limit())) return PGPU_GROWTH_IS_NOT;
    if (bytes >= PGPU_GROWTH_PAGES_MASK * PGPU_GROWTH_PAGE_BYTES / 2) return PGPU_GROWTH_IS_NOT;
    int before = pgpu_cancellation_defer(); /* the caller may have counted the bytes elsewhere already */
    uint64_t wish = put_wish(gpu, bytes);
    ring();
    enum pgpu_growth growth = await(gpu, bytes, wish, may_wait);
    if (growth == PGPU_GROWTH_IS_NOT)
        pgpu_report_growth(pgpu_meter_total_bytes(&pgpu_slice_meter, gpu) + bytes,
                           pgpu_limit_shown_bytes(pgpu_slice_limit(), gpu), false);
    pgpu_cancellation_restore(before);
    return growth;
}

/* Contexts not included. */
static uint64_t own_bytes(unsigned gpu) {
    uint64_t held_bytes = pgpu_meter_own_bytes(&pgpu_slice_meter, gpu);
    uint64_t context_bytes = pgpu_slice_context_bytes((int)gpu);
    return held_bytes > context_bytes ? held_bytes - context_bytes : 0;
}

void pgpu_growth_note_shown(unsigned gpu, uint64_t free_bytes) {
    if (pgpu_meter_is_claimed(&pgpu_slice_meter) && own_bytes(gpu) < free_bytes / HOLDS_NONE_PART)
        __atomic_store_n(&shown_bytes[gpu], free_bytes, __ATOMIC_RELAXED);
}

void pgpu_growth_note_taken(unsigned gpu) {
    freed_first_bytes = 0;
    uint64_t free_bytes = __atomic_load_n(&shown_bytes[gpu], __ATOMIC_RELAXED);
    if (free_bytes == 0 || own_bytes(gpu) < free_bytes / TAKES_IT_PART) return;
    __atomic_store_n(&shown_bytes[gpu], 0, __ATOMIC_RELAXED);
    __atomic_store_n(&pgpu_slice_meter.usage->slot[pgpu_slice_meter.slot].sizes_itself, 1, __ATOMIC_RELAXED);
}
