/* Two processes on one GPU, of which the second is forked before CUDA starts. */
#include "cases.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MS          1000000ull
#define DEADLINE_NS (20000 * MS)

static unsigned sleeps;
static CUcontext context;

/* The driver's, counted. */
__attribute__((visibility("default"))) int nanosleep(const struct timespec *time, struct timespec *left) {
    __atomic_fetch_add(&sleeps, 1, __ATOMIC_RELAXED);
    return clock_nanosleep(CLOCK_MONOTONIC, 0, time, left);
}

/* A process in the first slot, with so much work in flight; it ends with this one. */
static pid_t begin_neighbour(uint64_t work_ns) {
    int ready[2];
    char byte = 0;
    CHECK(pipe(ready) == 0);
    pid_t process = fork();
    CHECK(process >= 0);
    if (process == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        test_begin();
        if (work_ns > 0) test_spin(NULL, work_ns);
        CHECK(write(ready[1], &byte, 1) == 1);
        pause();
        _exit(0);
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    return process;
}

static void end_neighbour(pid_t process) {
    kill(process, SIGKILL);
    CHECK(waitpid(process, NULL, 0) == process);
}

/* The word in the file `turns` with the holder of the first GPU's account: 1 + its slot. */
static uint32_t *holder_of_account(void) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/turns", getenv("PGPU_SIMGPU_DIR"));
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    uint32_t *holder = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(holder != MAP_FAILED);
    close(fd);
    return holder;
}

static void *launch(void *unused) {
    OK(cuCtxSetCurrent(context));
    test_spin(NULL, 1000);
    pthread_testcancel();
    return unused;
}

/* Before the account is taken: any other thread that launches in its process would wait for ever. */
static void a_thread_that_is_cancelled_while_it_launches_leaves_the_others_free(void) {
    pthread_t thread;
    void *outcome;
    pid_t neighbour = begin_neighbour(0);
    context = test_begin();
    test_function("spin");
    uint32_t *holder = holder_of_account();
    __atomic_store_n(holder, 1, __ATOMIC_SEQ_CST);
    unsigned before = __atomic_load_n(&sleeps, __ATOMIC_RELAXED);
    uint64_t until_ns = test_now_ns() + DEADLINE_NS;
    CHECK(pthread_create(&thread, NULL, launch, NULL) == 0);
    while (__atomic_load_n(&sleeps, __ATOMIC_RELAXED) == before)
        CHECK(test_now_ns() < until_ns);
    pthread_cancel(thread);
    __atomic_store_n(holder, 0, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(thread, &outcome) == 0 && outcome == PTHREAD_CANCELED);
    test_spin(NULL, 1000);
    OK(cuCtxSynchronize());
    end_neighbour(neighbour);
}

static void an_event_of_a_whole_context_is_over_once_the_context_was_waited_for(void) {
    CUevent event;
    pid_t neighbour = begin_neighbour(2000 * MS);
    test_begin();
    OK(cuEventCreate(&event, 0));
    for (unsigned i = 0; i < 20; i++) {
        OK(cuCtxRecordEvent(NULL, event));
        OK(cuCtxSynchronize());
        OK(cuEventQuery(event));
    }
    end_neighbour(neighbour);
}

CASES({"a_thread_that_is_cancelled_while_it_launches_leaves_the_others_free",
       a_thread_that_is_cancelled_while_it_launches_leaves_the_others_free},
      {"an_event_of_a_whole_context_is_over_once_the_context_was_waited_for",
       an_event_of_a_whole_context_is_over_once_the_context_was_waited_for});
