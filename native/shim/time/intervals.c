#include "time/intervals.h"

#include <string.h>

#include "clock.h"

static void remove_at(struct pgpu_intervals *intervals, unsigned at) {
    intervals->count--;
    memmove(&intervals->part[at], &intervals->part[at + 1],
            (intervals->count - at) * sizeof(intervals->part[0]));
}

static void insert(struct pgpu_intervals *intervals, uint64_t from_ns, uint64_t to_ns) {
    unsigned at = 0;
    if (intervals->count == PGPU_INTERVALS) remove_at(intervals, 0);
    while (at < intervals->count && intervals->part[at].from_ns < from_ns)
        at++;
    memmove(&intervals->part[at + 1], &intervals->part[at],
            (intervals->count - at) * sizeof(intervals->part[0]));
    intervals->part[at].from_ns = from_ns;
    intervals->part[at].to_ns = to_ns;
    intervals->count++;
}

/* Those that it touches become one with it. */
uint64_t pgpu_intervals_add(struct pgpu_intervals *intervals, uint64_t from_ns, uint64_t to_ns) {
    uint64_t fresh_ns = to_ns - from_ns;
    for (unsigned at = 0; at < intervals->count;) {
        uint64_t part_from_ns = intervals->part[at].from_ns, part_to_ns = intervals->part[at].to_ns;
        if (part_to_ns < from_ns || part_from_ns > to_ns) {
            at++;
            continue;
        }
        uint64_t shared_from_ns = pgpu_most_ns(part_from_ns, from_ns),
                 shared_to_ns = pgpu_least_ns(part_to_ns, to_ns);
        fresh_ns -= pgpu_least_ns(shared_to_ns - shared_from_ns, fresh_ns);
        from_ns = pgpu_least_ns(part_from_ns, from_ns);
        to_ns = pgpu_most_ns(part_to_ns, to_ns);
        remove_at(intervals, at);
    }
    insert(intervals, from_ns, to_ns);
    return fresh_ns;
}
