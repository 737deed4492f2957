/* Errors that stick: after one every CUDA call of the process answers it, until the process is gone. */
#ifndef SIM_FAULT_H
#define SIM_FAULT_H

#include "cuda_abi.h"

/* PGPU_SIMGPU_FAULT_AT_LAUNCH: the n-th kernel launch of this process, counted from 1, touches memory that is
 * not its own. 0: none does. */
extern __attribute__((visibility("hidden"))) unsigned sim_fault_at_launch;

void sim_fault_read(void);
/* Count a launch. */
void sim_fault_count(void);

#endif
