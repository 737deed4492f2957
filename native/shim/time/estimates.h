/* How long kernels and graphs take, from measurements: a moving average for each kernel and shape and for
 * each graph. Where the table is full a new row replaces an old one; then a guess is used. */
#ifndef PGPU_SHIM_ESTIMATES_H
#define PGPU_SHIM_ESTIMATES_H

#include <stdbool.h>
#include <stdint.h>

struct pgpu_work;

/* Set the work's row, its estimate in nanoseconds, whether it was measured, and whether it is watched. */
uint32_t pgpu_estimates_find(struct pgpu_work *work);

/* Its time was far off: measure each launch of it for a while. The second function ends that when the time is
 * over. */
void pgpu_estimates_watch(uint32_t row, uint64_t now_ns);
void pgpu_estimates_trust(uint32_t row, uint64_t now_ns);

/* Whether its last measurement by itself is too old. */
bool pgpu_estimates_is_old(uint32_t row, uint64_t now_ns, bool is_exact);

/* How long to wait for the first measurement of a row; 0: there is one, or none has begun. Bounded, so that a
 * kernel that waits for a later action of its program is not blocked for good. */
uint64_t pgpu_estimates_wait_ns(uint32_t row, uint64_t now_ns);

/* Its first measurement begins. */
void pgpu_estimates_expect(uint32_t row, uint64_t now_ns);

/* It took `measured_ns`; the second function: without work of other jobs in flight. */
void pgpu_estimates_update(uint32_t row, uint64_t measured_ns, uint64_t now_ns);
void pgpu_estimates_update_alone(uint32_t row, uint64_t measured_ns, uint64_t now_ns);

/* Its recent time without work of other jobs in flight; 0: there is none. */
uint64_t pgpu_estimates_alone_ns(uint32_t row, uint64_t now_ns);

/* It took this long beside other jobs. False: that does not agree with its time alone, which is dropped. */
bool pgpu_estimates_agree(uint32_t row, uint64_t measured_ns);

#endif
