/* One 16-byte compare-and-swap, inline, so that no libatomic and no lock of its own stands behind it. */
#ifndef PGPU_METER_SWAP16_H
#define PGPU_METER_SWAP16_H

#include <stdbool.h>
#include <stdint.h>

struct pgpu_pair {
    uint64_t low;
    uint64_t high;
};

/* `at` is 16-byte aligned. A full barrier where it succeeds; it may fail for no reason. */
static inline bool pgpu_swap16(void *at, struct pgpu_pair expected, struct pgpu_pair wanted) {
#if defined(__x86_64__)
    bool swapped;
    __asm__ volatile("lock cmpxchg16b %[at]"
                     : [at] "+m"(*(struct pgpu_pair *)at), "=@ccz"(swapped), "+a"(expected.low),
                       "+d"(expected.high)
                     : "b"(wanted.low), "c"(wanted.high)
                     : "memory");
    return swapped;
#elif defined(__aarch64__)
    uint64_t low, high;
    uint32_t lost;
    __asm__ volatile("ldaxp %[low], %[high], [%[at]]"
                     : [low] "=&r"(low), [high] "=&r"(high)
                     : [at] "r"(at)
                     : "memory");
    if (low != expected.low || high != expected.high) {
        __asm__ volatile("clrex" ::: "memory");
        return false;
    }
    __asm__ volatile("stlxp %w[lost], %[low], %[high], [%[at]]\n\tdmb ish"
                     : [lost] "=&r"(lost)
                     : [low] "r"(wanted.low), [high] "r"(wanted.high), [at] "r"(at)
                     : "memory");
    return lost == 0;
#else
#error "the meter needs a 16-byte compare-and-swap"
#endif
}

#endif
