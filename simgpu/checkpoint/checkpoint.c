/* The calls that checkpoint another process. They need no cuInit: each request is carried out by the process
 * itself. */
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver/driver.h"
#include "lock.h"
#include "visible_pid.h"
#include "state/futex.h"

#define LOOK_MS 20

/* One process, as seen by the caller of these functions. */
struct target {
    struct sim_checkpoints *checkpoints;
    struct sim_checkpoint_slot *slot;
    unsigned index;
    uint64_t owner;
    int fd;     /* of `checkpoints` */
    int memory; /* of `memory`, whose locks show which processes are alive */
};

static bool is_zero(const void *bytes, size_t count) {
    const char *byte = bytes;
    while (count > 0 && *byte == 0)
        byte++, count--;
    return count == 0;
}

static const struct pgpu_reader_slot *slot_of(const struct pgpu_reader_view *view, unsigned pid) {
    for (unsigned i = 0; i < view->slot_count; i++)
        if (view->slot[i].is_alive && pgpu_visible_pid(&view->slot[i]) == pid) return &view->slot[i];
    return NULL;
}

/* Which slot is the process's, and since when. r580 answers OPERATING_SYSTEM of a process without CUDA. */
static CUresult find(const char *directory, int pid, struct target *target) {
    char path[SIM_PATH_BYTES];
    struct pgpu_reader_view *view = malloc(sizeof(*view));
    CUresult result = view == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
    if (view != NULL && sim_state_path(directory, "memory", path) &&
        pgpu_reader_read(path, view) == PGPU_METER_OK) {
        const struct pgpu_reader_slot *found = slot_of(view, (unsigned)pid);
        if (found != NULL) {
            target->index = found->slot;
            target->owner = sim_checkpoint_owner(found->pid, found->start_time_ticks, found->pid_namespace);
            result = CUDA_SUCCESS;
        }
    }
    free(view);
    return result;
}

static CUresult open_files(const char *directory, struct target *target) {
    target->fd = sim_checkpoints_open(directory, &target->checkpoints);
    if (target->fd < 0) return CUDA_ERROR_NOT_INITIALIZED;
    target->slot = &target->checkpoints->slot[target->index];
    target->memory = sim_shared_open(directory, "memory", 0);
    return target->memory < 0 ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

static bool is_there(const struct target *target) {
    return __atomic_load_n(&target->slot->owner, __ATOMIC_SEQ_CST) == target->owner &&
           pgpu_is_locked(target->memory, PGPU_LOCK_ALIVE + target->index);
}

static void let_go(struct target *target) {
    if (target->checkpoints != NULL) munmap(target->checkpoints, sizeof(*target->checkpoints));
    if (target->memory >= 0) close(target->memory);
    if (target->fd >= 0) close(target->fd);
}

/* A caller that may send the process signals may checkpoint it. */
static CUresult find_process(int pid, struct target *target) {
    char directory[SIM_PATH_BYTES];
    if (pid <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (kill(pid, 0) != 0) return errno == EPERM ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_VALUE;
    if (!sim_state_directory(directory)) return CUDA_ERROR_NOT_INITIALIZED;
    SIM_TRY(find(directory, pid, target));
    SIM_TRY(open_files(directory, target));
    return is_there(target) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static const struct target NOBODY = {.fd = -1, .memory = -1};

/* One requester at a time; a request of a dead one is finished first. */
static CUresult begin(const struct target *target) {
    while (!pgpu_try_lock(target->fd, PGPU_LOCK_ALIVE + target->index)) {
        if (!is_there(target)) return CUDA_ERROR_NOT_INITIALIZED;
        usleep(LOOK_MS * 100);
    }
    __atomic_add_fetch(&target->slot->askers, 1, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

static CUresult await(const struct target *target, uint32_t request) {
    for (;;) {
        uint32_t answer = __atomic_load_n(&target->slot->answer, __ATOMIC_SEQ_CST);
        if (answer == request) return CUDA_SUCCESS;
        if (!is_there(target)) return CUDA_ERROR_NOT_INITIALIZED;
        sim_wait_while(&target->slot->answer, answer, LOOK_MS);
    }
}

static CUresult demand(const struct target *target, enum sim_checkpoint_operation operation,
                       unsigned timeout_ms) {
    struct sim_checkpoint_slot *slot = target->slot;
    SIM_TRY(begin(target));
    SIM_TRY(await(target, __atomic_load_n(&slot->request, __ATOMIC_SEQ_CST)));
    slot->operation = operation;
    slot->timeout_ms = timeout_ms;
    uint32_t request = __atomic_add_fetch(&slot->request, 1, __ATOMIC_SEQ_CST);
    sim_wait_end(&slot->request);
    SIM_TRY(await(target, request));
    return (CUresult)slot->result;
}

static CUresult perform(int pid, enum sim_checkpoint_operation operation, unsigned timeout_ms) {
    struct target target = NOBODY;
    CUresult result = find_process(pid, &target);
    if (result == CUDA_SUCCESS) result = demand(&target, operation, timeout_ms);
    let_go(&target);
    return result;
}

SIM_EXPORT CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state) {
    struct target target = NOBODY;
    if (state == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = find_process(pid, &target);
    if (result == CUDA_SUCCESS)
        *state = (CUprocessState)__atomic_load_n(&target.slot->state, __ATOMIC_SEQ_CST);
    let_go(&target);
    return result;
}

SIM_EXPORT CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
    if (args != NULL && (args->reserved0 != 0 || !is_zero(args->reserved1, sizeof(args->reserved1))))
        return CUDA_ERROR_INVALID_VALUE;
    return perform(pid, SIM_CHECKPOINT_LOCK, args == NULL ? 0 : args->timeoutMs);
}

SIM_EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
    if (args != NULL && !is_zero(args->reserved, sizeof(args->reserved))) return CUDA_ERROR_INVALID_VALUE;
    if (args != NULL && args->customStorageInfo_out != NULL) return CUDA_ERROR_NOT_SUPPORTED;
    return perform(pid, SIM_CHECKPOINT_SAVE, 0);
}

/* A process goes back to the GPUs that it was on: every pair must name one twice. */
static CUresult check_pairs(const CUcheckpointRestoreArgs *args) {
    if (args->gpuPairsCount > 0 && args->gpuPairs == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < args->gpuPairsCount; i++)
        if (memcmp(&args->gpuPairs[i].oldUuid, &args->gpuPairs[i].newUuid, sizeof(CUuuid)) != 0)
            return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
    if (args != NULL && !is_zero(args->reserved, sizeof(args->reserved))) return CUDA_ERROR_INVALID_VALUE;
    if (args != NULL && args->customStorageInfo_out != NULL) return CUDA_ERROR_NOT_SUPPORTED;
    if (args != NULL) SIM_TRY(check_pairs(args));
    return perform(pid, SIM_CHECKPOINT_RESTORE, 0);
}

SIM_EXPORT CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
    if (args != NULL && !is_zero(args, sizeof(*args))) return CUDA_ERROR_INVALID_VALUE;
    return perform(pid, SIM_CHECKPOINT_UNLOCK, 0);
}

/* The last number of a thread's line `NSpid:` is what its own namespace calls it. */
static long inner_id(int pid, const char *thread) {
    char path[64 + 256], line[256];
    long id = -1;
    snprintf(path, sizeof(path), "/proc/%d/task/%s/status", pid, thread);
    FILE *status = fopen(path, "re");
    while (status != NULL && fgets(line, sizeof(line), status) != NULL) {
        char *last = strncmp(line, "NSpid:", 6) == 0 ? strrchr(line, '\t') : NULL;
        if (last != NULL) id = strtol(last, NULL, 10);
    }
    if (status != NULL) fclose(status);
    return id;
}

static int visible_thread(int pid, long wanted) {
    char path[64];
    int found = 0;
    snprintf(path, sizeof(path), "/proc/%d/task", pid);
    DIR *threads = opendir(path);
    for (struct dirent *each; threads != NULL && found == 0 && (each = readdir(threads)) != NULL;)
        if (each->d_name[0] != '.' && inner_id(pid, each->d_name) == wanted) found = atoi(each->d_name);
    if (threads != NULL) closedir(threads);
    return found;
}

/* It may have been started a moment ago. */
static long thread_of(const struct target *target) {
    uint32_t id;
    while ((id = __atomic_load_n(&target->slot->thread_id, __ATOMIC_SEQ_CST)) == 0 && is_there(target))
        usleep(LOOK_MS * 100);
    return id;
}

SIM_EXPORT CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *thread_id) {
    struct target target = NOBODY;
    if (thread_id == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = find_process(pid, &target);
    if (result == CUDA_SUCCESS) *thread_id = visible_thread(pid, thread_of(&target));
    let_go(&target);
    return result == CUDA_SUCCESS && *thread_id == 0 ? CUDA_ERROR_NOT_SUPPORTED : result;
}
