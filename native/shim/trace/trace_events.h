/* Pairs of events around commands, from which durations are read once the GPU has passed them. */
#ifndef PGPU_SHIM_TRACE_EVENTS_H
#define PGPU_SHIM_TRACE_EVENTS_H

#include "trace/trace.h"

/* Record the first event; NULL where no pair is free or the driver refuses one. */
struct pgpu_trace_pair *pgpu_trace_pair_open(const struct pgpu_trace_command *command);

/* Record the second event. `record` may be NULL: the shape's row gets the duration all the same. */
void pgpu_trace_pair_close(struct pgpu_trace_pair *pair, const struct pgpu_trace_command *command,
                           struct pgpu_trace_record *record, uint32_t shape);

/* The command was refused. */
void pgpu_trace_pair_drop(struct pgpu_trace_pair *pair);

/* Forget all events without a call to the driver: a forked child has none. */
void pgpu_trace_forget_events(void);

#endif
