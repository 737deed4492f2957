/* The lesser and the greater of two times: moments of one clock, or durations. */
#ifndef PGPU_SHIM_NANOSECONDS_H
#define PGPU_SHIM_NANOSECONDS_H

#include <stdint.h>

static inline uint64_t pgpu_least_ns(uint64_t a_ns, uint64_t b_ns) {
    return a_ns < b_ns ? a_ns : b_ns;
}

static inline uint64_t pgpu_most_ns(uint64_t a_ns, uint64_t b_ns) {
    return a_ns > b_ns ? a_ns : b_ns;
}

#endif
