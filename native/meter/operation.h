/* One change of one GPU's total by one slot, and its repair after a death. Inside the meter only. */
#ifndef PGPU_METER_OPERATION_H
#define PGPU_METER_OPERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "meter_abi.h"

/* The caller holds A(slot) and is alone in its process. False: the total would have passed `limit_bytes`. */
bool pgpu_meter_operate(struct pgpu_usage *usage, unsigned slot, unsigned gpu, int64_t delta_bytes,
                        uint64_t limit_bytes);

/* The caller holds A(slot), and B(slot) is free: complete the operation that its last owner began, and take
 * back the rest. */
void pgpu_meter_recover(struct pgpu_usage *usage, unsigned slot, unsigned gpu);

/* By CLOCK_MONOTONIC, which all processes of a machine share. */
uint64_t pgpu_meter_now_ns(void);

/* Count a refusal, and what the total would have become. */
void pgpu_meter_note_refusal(struct pgpu_usage *usage, unsigned gpu, uint64_t bytes);

/* Before a dead process's bytes become free: record that the driver may still be freeing its memory. */
void pgpu_meter_note_reap(struct pgpu_usage *usage, unsigned gpu);

/* What a slot holds, in bytes; exact only for the holder of A(slot). */
uint64_t pgpu_meter_entry_bytes(const struct pgpu_usage_entry *entry);

/* Whether a slot may have something to take back. */
bool pgpu_meter_entry_is_empty(const struct pgpu_usage_entry *entry);

#endif
