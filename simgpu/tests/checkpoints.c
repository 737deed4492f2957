/* Checkpoints of another process, and of the own one. The second process is forked before CUDA starts. */
#include "cases.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS 1000000ull

/* What both see: how far the other is, and what it read. */
struct seen {
    unsigned launched, is_told_to_end;
    unsigned pattern_is_there;
    unsigned long long address;
};
static struct seen *seen;
static pid_t other;

static void begin_other(void (*act)(void)) {
    seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(seen != MAP_FAILED);
    other = fork();
    if (other != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a case that fails leaves no process behind */
    act();
    _exit(0);
}

static void end_other(void) {
    int status = 1;
    __atomic_store_n(&seen->is_told_to_end, 1, __ATOMIC_SEQ_CST);
    CHECK(waitpid(other, &status, 0) == other && status == 0);
}

static void until_launched(unsigned count) {
    while (__atomic_load_n(&seen->launched, __ATOMIC_SEQ_CST) < count)
        usleep(1000);
}

/* Launches until a message ends it; then its memory must be what it was. */
static void work(void) {
    unsigned char back[64];
    test_begin();
    CUdeviceptr memory = test_memory(256 * MIB);
    seen->address = memory;
    OK(cuMemsetD8_v2(memory, 0x5a, 4096));
    while (!__atomic_load_n(&seen->is_told_to_end, __ATOMIC_SEQ_CST)) {
        test_spin(NULL, MS);
        OK(cuCtxSynchronize());
        __atomic_add_fetch(&seen->launched, 1, __ATOMIC_SEQ_CST);
    }
    OK(cuMemcpyDtoH_v2(back, memory, sizeof(back)));
    for (unsigned i = 0; i < sizeof(back); i++)
        CHECK(back[i] == 0x5a);
    OK(cuMemFree_v2(memory));
}

static CUprocessState state_of(int pid) {
    CUprocessState state = CU_PROCESS_STATE_FAILED;
    OK(cuCheckpointProcessGetState(pid, &state));
    return state;
}

static void until_it_works(void) {
    until_launched(1);
    test_begin();
}

static void checkpoint_other(void) {
    CUcheckpointLockArgs lock = {.timeoutMs = 5000};
    OK(cuCheckpointProcessLock(other, &lock));
    OK(cuCheckpointProcessCheckpoint(other, NULL));
}

static void resume_other(void) {
    OK(cuCheckpointProcessRestore(other, NULL));
    OK(cuCheckpointProcessUnlock(other, NULL));
}

static void memory_moves_to_the_host_and_back(void) {
    begin_other(work);
    until_it_works();
    size_t before = test_used_bytes();
    CHECK(before >= 256 * MIB + 2 * CONTEXT_BYTES);
    CHECK(state_of(other) == CU_PROCESS_STATE_RUNNING);
    checkpoint_other();
    CHECK(state_of(other) == CU_PROCESS_STATE_CHECKPOINTED);
    CHECK(test_used_bytes() == CONTEXT_BYTES);
    unsigned launched = __atomic_load_n(&seen->launched, __ATOMIC_SEQ_CST);
    OK(cuMemFree_v2(test_memory(GPU_BYTES - 2 * CONTEXT_BYTES)));
    CHECK(__atomic_load_n(&seen->launched, __ATOMIC_SEQ_CST) == launched);
    resume_other();
    CHECK(state_of(other) == CU_PROCESS_STATE_RUNNING);
    CHECK(test_used_bytes() == before);
    until_launched(launched + 2);
    end_other();
}

static void each_step_has_its_state(void) {
    begin_other(work);
    until_it_works();
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock(other, NULL));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessCheckpoint(other, NULL));
    OK(cuCheckpointProcessLock(other, NULL));
    CHECK(state_of(other) == CU_PROCESS_STATE_LOCKED);
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessLock(other, NULL));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessRestore(other, NULL));
    OK(cuCheckpointProcessCheckpoint(other, NULL));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuCheckpointProcessUnlock(other, NULL));
    resume_other();
    end_other();
}

static void who_finds_no_room_stays_where_it_is(void) {
    begin_other(work);
    until_it_works();
    checkpoint_other();
    CUdeviceptr taken = test_memory(GPU_BYTES - 2 * CONTEXT_BYTES);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuCheckpointProcessRestore(other, NULL));
    CHECK(state_of(other) == CU_PROCESS_STATE_CHECKPOINTED);
    OK(cuMemFree_v2(taken));
    resume_other();
    end_other();
}

static void work_long(void) {
    test_begin();
    test_spin(NULL, 400 * MS);
    __atomic_add_fetch(&seen->launched, 1, __ATOMIC_SEQ_CST);
    OK(cuCtxSynchronize());
    while (!__atomic_load_n(&seen->is_told_to_end, __ATOMIC_SEQ_CST))
        usleep(1000);
    OK(cuCtxSynchronize());
}

static void a_lock_waits_for_work_in_flight_as_long_as_it_may(void) {
    begin_other(work_long);
    until_launched(1);
    CUcheckpointLockArgs lock = {.timeoutMs = 20};
    EXPECT(CUDA_ERROR_NOT_READY, cuCheckpointProcessLock(other, &lock));
    CHECK(state_of(other) == CU_PROCESS_STATE_RUNNING);
    OK(cuCheckpointProcessLock(other, NULL));
    OK(cuCheckpointProcessUnlock(other, NULL));
    end_other();
}

static void hold_managed(void) {
    CUdeviceptr memory;
    test_begin();
    OK(cuMemAllocManaged(&memory, MIB, CU_MEM_ATTACH_GLOBAL));
    seen->launched = 1;
    while (!__atomic_load_n(&seen->is_told_to_end, __ATOMIC_SEQ_CST))
        usleep(1000);
    OK(cuMemFree_v2(memory));
}

static void hold_shared(void) {
    CUipcMemHandle handle;
    test_begin();
    OK(cuIpcGetMemHandle(&handle, test_memory(MIB)));
    seen->launched = 1;
    while (!__atomic_load_n(&seen->is_told_to_end, __ATOMIC_SEQ_CST))
        usleep(1000);
}

static void refused(void (*act)(void)) {
    begin_other(act);
    until_launched(1);
    OK(cuCheckpointProcessLock(other, NULL));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuCheckpointProcessCheckpoint(other, NULL));
    CHECK(state_of(other) == CU_PROCESS_STATE_LOCKED);
    OK(cuCheckpointProcessUnlock(other, NULL));
    end_other();
}

static void managed_memory_stays(void) {
    refused(hold_managed);
}

static void shared_memory_stays(void) {
    refused(hold_shared);
}

static void a_process_that_is_killed_leaves_nothing(void) {
    begin_other(work);
    until_launched(1);
    checkpoint_other();
    CHECK(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
    CUprocessState state;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetState(other, &state));
    begin_other(work);
    until_it_works();
    CHECK(test_used_bytes() == 256 * MIB + 2 * CONTEXT_BYTES + TEST_MODULE_BYTES);
    CHECK(state_of(other) == CU_PROCESS_STATE_RUNNING);
    end_other();
}

static void an_asker_that_is_killed_leaves_nobody_locked(void) {
    begin_other(work_long);
    until_launched(1);
    pid_t target = other, asker = fork();
    if (asker == 0) _exit((int)cuCheckpointProcessLock(target, NULL));
    usleep(50000);
    CHECK(kill(asker, SIGKILL) == 0 && waitpid(asker, NULL, 0) == asker);
    OK(cuCheckpointProcessLock(target, NULL));
    OK(cuCheckpointProcessUnlock(target, NULL));
    end_other();
}

static void *lock_own(void *result) {
    *(CUresult *)result = cuCheckpointProcessLock(getpid(), NULL);
    return NULL;
}

static void a_process_may_checkpoint_itself(void) {
    pthread_t thread;
    CUresult result;
    test_begin();
    CHECK(pthread_create(&thread, NULL, lock_own, &result) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(result == CUDA_SUCCESS && state_of(getpid()) == CU_PROCESS_STATE_LOCKED);
    OK(cuCheckpointProcessCheckpoint(getpid(), NULL));
    OK(cuCheckpointProcessRestore(getpid(), NULL));
    OK(cuCheckpointProcessUnlock(getpid(), NULL));
    CHECK(test_used_bytes() == CONTEXT_BYTES);
}

static void wrong_words_are_refused(void) {
    CUprocessState state;
    CUcheckpointLockArgs lock = {.reserved0 = 1};
    CUcheckpointGpuPair pair = {.oldUuid = {.bytes = {1}}, .newUuid = {.bytes = {2}}};
    CUcheckpointRestoreArgs restore = {.gpuPairs = &pair, .gpuPairsCount = 1};
    CUcheckpointCustomStorageInfo *storage;
    CUcheckpointCheckpointArgs custom = {.customStorageInfo_out = &storage};
    EXPECT(CUDA_ERROR_OPERATING_SYSTEM, cuCheckpointProcessGetState(getpid(), &state));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetState(0, &state));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessGetState(getpid(), NULL));
    test_begin();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCheckpointProcessLock(getpid(), &lock));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuCheckpointProcessRestore(getpid(), &restore));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuCheckpointProcessCheckpoint(getpid(), &custom));
}

static void the_restore_thread_is_named(void) {
    int thread = 0;
    test_begin();
    OK(cuCheckpointProcessGetState(getpid(), &(CUprocessState){0}));
    OK(cuCheckpointProcessGetRestoreThreadId(getpid(), &thread));
    CHECK(thread > 0 && thread != getpid());
}

CASES({"memory_moves_to_the_host_and_back", memory_moves_to_the_host_and_back},
      {"each_step_has_its_state", each_step_has_its_state},
      {"who_finds_no_room_stays_where_it_is", who_finds_no_room_stays_where_it_is},
      {"a_lock_waits_for_work_in_flight_as_long_as_it_may",
       a_lock_waits_for_work_in_flight_as_long_as_it_may},
      {"managed_memory_stays", managed_memory_stays}, {"shared_memory_stays", shared_memory_stays},
      {"a_process_that_is_killed_leaves_nothing", a_process_that_is_killed_leaves_nothing},
      {"an_asker_that_is_killed_leaves_nobody_locked", an_asker_that_is_killed_leaves_nobody_locked},
      {"a_process_may_checkpoint_itself", a_process_may_checkpoint_itself},
      {"wrong_words_are_refused", wrong_words_are_refused},
      {"the_restore_thread_is_named", the_restore_thread_is_named});
