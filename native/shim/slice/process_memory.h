/* What NVML reports as this process's memory: exact, whatever neighbours allocate. */
#ifndef PGPU_SHIM_PROCESS_MEMORY_H
#define PGPU_SHIM_PROCESS_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of `gpu` that the driver counts for this process. False: unknown (no NVML, no figure for a process, a
 * list with PIDs of another namespace). A system call or a few; the first call loads NVML. */
bool pgpu_process_memory_read(int gpu, uint64_t *bytes);

/* How far they exceed what this process has charged and the host has counted as overhead; 0: not at all.
 * Never too much: memory is charged before the driver takes it, and refunded after the driver has it back.
 * Too little while another thread allocates, or where charged memory is not on the device (managed memory).
 * False: unknown. */
bool pgpu_process_memory_uncharged(int gpu, uint64_t *bytes);

#endif
