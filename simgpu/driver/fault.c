#include "driver/fault.h"

#include <stdlib.h>

#include "driver/driver.h"
#include "mps/mps.h"

unsigned sim_fault_at_launch;

void sim_fault_read(void) {
    const char *text = getenv("PGPU_SIMGPU_FAULT_AT_LAUNCH");
    if (text != NULL) sim_fault_at_launch = (unsigned)strtoul(text, NULL, 10);
}

void sim_fault_count(void) {
    static unsigned count;
    if (__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) != sim_fault_at_launch) return;
    sim_fail(CUDA_ERROR_ILLEGAL_ADDRESS);
    sim_mps_report(CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* The first error stays. */
void sim_fail(CUresult error) {
    uint32_t ready = SIM_READY;
    struct sim_process *process = __atomic_load_n(&sim_process, __ATOMIC_ACQUIRE);
    if (process != NULL)
        __atomic_compare_exchange_n(&process->state, &ready, (uint32_t)error, false, __ATOMIC_RELEASE,
                                    __ATOMIC_RELAXED);
}
