/* CLOCK_MONOTONIC in nanoseconds, and the lesser and the greater of two times. */
#ifndef PGPU_SHIM_CLOCK_H
#define PGPU_SHIM_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t pgpu_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static inline uint64_t pgpu_least_ns(uint64_t a_ns, uint64_t b_ns) {
    return a_ns < b_ns ? a_ns : b_ns;
}

static inline uint64_t pgpu_most_ns(uint64_t a_ns, uint64_t b_ns) {
    return a_ns > b_ns ? a_ns : b_ns;
}

#endif
