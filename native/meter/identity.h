/* The owner of a slot, and whether it still is the process that claimed it. Inside the meter only. */
#ifndef PGPU_METER_IDENTITY_H
#define PGPU_METER_IDENTITY_H

#include "meter.h"

/* Write this process's PID, start time and PID namespace into a slot. */
void pgpu_meter_sign(struct pgpu_usage_slot *slot);

/* In a child of a fork without handlers (raw clone, _Fork): start over, since mutex and mapping are the
 * parent's. */
void pgpu_meter_forget_if_forked(struct pgpu_meter *meter);

#endif
