/* This process's settings from a simulated MPS control daemon; all zero without one.
 *
 * Clients of one server run on a GPU together; processes without a server, and servers, take turns. */
#ifndef SIM_MPS_H
#define SIM_MPS_H

#include "cuda_abi.h"
#include "state/state.h"

struct sim_mps {
    uint64_t server;                           /* the same for all clients of one server, never 0 for them */
    unsigned active_thread_percentage;         /* 1..100 of the multiprocessors; 0: no limit */
    uint64_t pinned_limit_bytes[SIM_MAX_GPUS]; /* of this process; 0: none */
};

extern __attribute__((visibility("hidden"))) struct sim_mps sim_mps;

/* At cuInit, once the devices are read: become a client where a control daemon listens, and see its server's
 * devices. Waits for a server that is starting, or that serves another user's clients. */
CUresult sim_mps_join(void);
/* From here on the server's end is noticed. */
void sim_mps_watch(void);

/* Whether one more context may be made on a GPU. Queries the server. */
CUresult sim_mps_open(unsigned gpu);
void sim_mps_close(unsigned gpu);

/* Report a fault to the server that only the end of this process repairs. */
void sim_mps_report(CUresult fault);

/* Keep this process's device memory below its pinned limit. */
bool sim_mps_reserve(unsigned gpu, uint64_t bytes);
void sim_mps_refund(unsigned gpu, uint64_t bytes);
/* What the limit leaves of `free_bytes`. */
uint64_t sim_mps_free_bytes(unsigned gpu, uint64_t free_bytes);

/* Multiprocessors that this process may use. */
unsigned sim_mps_sm_count(const struct sim_gpu *gpu);

#endif
