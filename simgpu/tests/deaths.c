/* Processes that are killed at any moment: the others go on, and get what the dead had. A process that uses
 * the driver is forked before the driver starts. */
#include "cases.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MS          1000000ull
#define VICTIMS     3
#define SURVIVORS   2
#define KILLS       120
#define DEADLINE_NS (45000 * MS)

/* Kernels that each has seen the end of. */
static uint64_t *ended;

static unsigned sleeps;

/* The driver's, counted. */
__attribute__((visibility("default"))) int nanosleep(const struct timespec *time, struct timespec *left) {
    __atomic_fetch_add(&sleeps, 1, __ATOMIC_RELAXED);
    return (int)syscall(SYS_nanosleep, time, left);
}

static pid_t begin_process(void (*act)(unsigned index), unsigned index) {
    pid_t process = fork();
    CHECK(process >= 0);
    if (process != 0) return process;
    act(index);
    _exit(0);
}

static void kill_process(pid_t process) {
    kill(process, SIGKILL);
    CHECK(waitpid(process, NULL, 0) == process);
}

static uint64_t ended_by(unsigned index) {
    return __atomic_load_n(&ended[index], __ATOMIC_RELAXED);
}

static void await_kernels(unsigned index, uint64_t count) {
    uint64_t until_ns = test_now_ns() + DEADLINE_NS;
    const struct timespec pause = {.tv_nsec = 100000};
    while (ended_by(index) < count) {
        CHECK(test_now_ns() < until_ns);
        nanosleep(&pause, NULL);
    }
}

/* Kernels for ever; every other process has managed memory, more of it than the device has for all. */
static void launch_for_ever(unsigned index) {
    CUdeviceptr address;
    test_begin();
    if (index % 2 == 1) OK(cuMemAllocManaged(&address, 350 * MIB, CU_MEM_ATTACH_GLOBAL));
    for (uint64_t i = 0;; i++) {
        test_spin(NULL, 1009 + 613 * (i % 50));
        test_spin(NULL, 1009);
        OK(cuCtxSynchronize());
        __atomic_fetch_add(&ended[index], 1, __ATOMIC_RELAXED);
    }
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

/* Somewhere in its start, or in its kernels. */
static void kill_at_some_moment(pid_t victim, unsigned index, uint64_t *random) {
    const struct timespec moment = {.tv_nsec = (long)(next_random(random) % (2 * MS))};
    if (next_random(random) % 4 != 0) await_kernels(index, ended_by(index) + 1);
    nanosleep(&moment, NULL);
    kill_process(victim);
}

static void await_survivors(void) {
    for (unsigned index = 0; index < SURVIVORS; index++)
        await_kernels(index, ended_by(index) + 3);
}

static void kernels_of_survivors_end_whoever_is_killed_when(void) {
    pid_t process[SURVIVORS + VICTIMS];
    uint64_t random = 11;
    ended = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(ended != MAP_FAILED);
    for (unsigned i = 0; i < SURVIVORS + VICTIMS; i++)
        process[i] = begin_process(launch_for_ever, i);
    for (unsigned kills = 0; kills < KILLS; kills++) {
        unsigned index = SURVIVORS + kills % VICTIMS;
        kill_at_some_moment(process[index], index, &random);
        process[index] = begin_process(launch_for_ever, index);
        if (kills % 10 == 0) await_survivors();
    }
    for (unsigned i = SURVIVORS; i < SURVIVORS + VICTIMS; i++)
        kill_process(process[i]);
    await_survivors();
    for (unsigned i = 0; i < SURVIVORS; i++)
        kill_process(process[i]);
}

/* The slot's new owner would wait for itself. */
static void the_account_that_a_slot_s_former_owner_held_is_free(void) {
    char path[4096];
    const uint32_t first_slot = 1;
    snprintf(path, sizeof(path), "%s/turns", getenv("PGPU_SIMGPU_DIR"));
    int fd = open(path, O_RDWR | O_CREAT, 0666);
    CHECK(fd >= 0 && pwrite(fd, &first_slot, sizeof(first_slot), 0) == sizeof(first_slot));
    close(fd);
    test_begin();
    CHECK(sleeps < 10);
}

static void hold_most_of_the_memory(unsigned index) {
    test_begin();
    test_memory(800 * MIB);
    __atomic_store_n(&ended[index], 1, __ATOMIC_RELAXED);
    pause();
}

static void pages_come_in_where_the_memory_of_the_dead_was(void) {
    CUdeviceptr address;
    ended = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(ended != MAP_FAILED);
    pid_t holder = begin_process(hold_most_of_the_memory, 0);
    await_kernels(0, 1);
    test_begin();
    kill_process(holder);
    OK(cuMemAllocManaged(&address, 600 * MIB, CU_MEM_ATTACH_GLOBAL));
    for (unsigned i = 0; i < 8; i++)
        test_spin(NULL, MS);
    OK(cuCtxSynchronize());
    size_t used_bytes = test_used_bytes() - TEST_MODULE_BYTES;
    CHECK(used_bytes > CONTEXT_BYTES + 590 * MIB && used_bytes <= CONTEXT_BYTES + 600 * MIB);
}

CASES({"kernels_of_survivors_end_whoever_is_killed_when", kernels_of_survivors_end_whoever_is_killed_when},
      {"the_account_that_a_slot_s_former_owner_held_is_free",
       the_account_that_a_slot_s_former_owner_held_is_free},
      {"pages_come_in_where_the_memory_of_the_dead_was", pages_come_in_where_the_memory_of_the_dead_was});
