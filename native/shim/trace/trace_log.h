/* The log behind the usage file of a profiled job (trace_abi.h): mapping it, writing records, and what the
 * process holds of each kind of memory. Off unless the limit file turns it on, and then a check costs one
 * comparison. */
#ifndef PGPU_SHIM_TRACE_LOG_H
#define PGPU_SHIM_TRACE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "slice/slice.h"
#include "trace_abi.h"

extern struct pgpu_trace *pgpu_trace_published; /* NULL: off */

static inline struct pgpu_trace *pgpu_trace_log(void) {
    return __atomic_load_n(&pgpu_trace_published, __ATOMIC_ACQUIRE);
}

static inline bool pgpu_trace_is_on(void) {
    return __builtin_expect(pgpu_trace_log() != NULL, 0);
}

/* Map the log where the limit file has the trace on; once a slot was claimed. */
void pgpu_trace_enter(void);

/* Write nothing from here on, and forget what the process holds. */
void pgpu_trace_stop(void);

/* Write a record; NULL where the log is full. Its duration may be stored later. */
struct pgpu_trace_record *pgpu_trace_write(const struct pgpu_trace_record *record);

/* A context that has no record yet; `bytes` were charged for it. */
void pgpu_trace_context(const struct pgpu_place *place, uint64_t bytes);

/* The process holds `change` bytes more of a kind (two's complement). Takes no lock, so it may run under any.
 */
void pgpu_trace_memory(int gpu, enum pgpu_trace_memory kind, uint64_t change);

/* Add to a counter of the log. */
void pgpu_trace_count(uint64_t *word, uint64_t more);

#endif
