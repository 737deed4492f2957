/* Checkpoints: the requester and the process that carries them out. The file `checkpoints` of the state
 * directory has one entry for each slot of `memory`. The requester holds a lock on the entry, which is
 * released when it dies, writes the operation and increments `request`; the restore thread of the slot's
 * process carries it out and sets `answer` to the same number. Either may be killed at any moment: a state
 * belongs to the process and ends with it, and an abandoned request is finished or, where it would wait,
 * given up. */
#ifndef SIM_CHECKPOINT_H
#define SIM_CHECKPOINT_H

#include "meter_abi.h"
#include "state/state.h"

enum sim_checkpoint_operation {
    SIM_CHECKPOINT_LOCK = 1,
    SIM_CHECKPOINT_SAVE,
    SIM_CHECKPOINT_RESTORE,
    SIM_CHECKPOINT_UNLOCK,
};

struct sim_checkpoint_slot {
    uint64_t owner;     /* sim_checkpoint_owner; 0: no thread listens yet */
    uint32_t state;     /* CUprocessState */
    uint32_t thread_id; /* of the restore thread, in its own PID namespace */
    uint32_t request, answer;
    uint32_t operation, timeout_ms; /* 0: as long as it takes */
    uint32_t result;                /* CUresult of the last request */
    uint32_t askers; /* latest holder of the entry's lock: a change means that the requester has ended */
    uint32_t reserved[6];
};
_Static_assert(sizeof(struct sim_checkpoint_slot) == 64, "one cache line each");

struct sim_checkpoints {
    struct sim_checkpoint_slot slot[PGPU_MAX_SLOTS];
};

/* Open and map the file; -1 on failure. The descriptor is for the entries' locks. */
int sim_checkpoints_open(const char *directory, struct sim_checkpoints **checkpoints);

/* A number that distinguishes a slot's owner from its former ones. */
static inline uint64_t sim_checkpoint_owner(uint64_t pid, uint64_t start_ticks, uint64_t pid_namespace) {
    return (pid << 32 ^ start_ticks << 8 ^ pid_namespace) | 1u;
}

/* Start the thread that obeys, at cuInit; without it the process cannot be checkpointed. */
void sim_restore_thread_start(void);

/* Device memory was shared with another process, or had from one: it cannot be moved from now on. */
void sim_checkpoint_refuse_shared(void);

#endif
