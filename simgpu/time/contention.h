/* How fast the clients of one MPS server run beside each other. Pure. */
#ifndef SIM_CONTENTION_H
#define SIM_CONTENTION_H

#include "time/demand.h"

#define SIM_MOST_TOGETHER 64

/* For each of at most SIM_MOST_TOGETHER clients: its speed as a part of what it has alone, above 0 and at
 * most 1. */
void sim_contention_rates(const struct sim_gpu *gpu, const struct sim_demand *demand, unsigned count,
                          double *rate);

#endif
