/* How long kernels and graphs take, by what was measured of them: a moving average for each kernel and shape
 * and for each graph. Rows are lost to newer ones where the table is full; then a guess stands in. */
#ifndef PGPU_SHIM_ESTIMATES_H
#define PGPU_SHIM_ESTIMATES_H

#include <stdbool.h>
#include <stdint.h>

struct pgpu_work;

/* The row of a work, its estimate in nanoseconds, whether it was measured, and whether it is watched. */
uint32_t pgpu_estimates_find(struct pgpu_work *work);

/* It surprised: each launch of it is measured for a while. And that while may be over. */
void pgpu_estimates_watch(uint32_t row, uint64_t now_ns);
void pgpu_estimates_trust(uint32_t row, uint64_t now_ns);

/* Whether its last measurement by itself is long ago. */
bool pgpu_estimates_is_old(uint32_t row, uint64_t now_ns);

/* How long to wait for the first measurement of a row; 0: it is there, or none is under way. Never so long
 * that a kernel which waits for what its program does next could stop it. */
uint64_t pgpu_estimates_wait_ns(uint32_t row, uint64_t now_ns);

/* Its first measurement begins. */
void pgpu_estimates_expect(uint32_t row, uint64_t now_ns);

/* It took `measured_ns`; the second function: without work of other jobs in flight. */
void pgpu_estimates_update(uint32_t row, uint64_t measured_ns, uint64_t now_ns);
void pgpu_estimates_update_alone(uint32_t row, uint64_t measured_ns, uint64_t now_ns);

/* Its recent time without work of other jobs in flight; 0: there is none. */
uint64_t pgpu_estimates_alone_ns(uint32_t row, uint64_t now_ns);

/* Beside others it took so long. False: that is not what it took alone, which is forgotten. */
bool pgpu_estimates_agree(uint32_t row, uint64_t measured_ns);

#endif
