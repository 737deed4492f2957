/* A program that launches in one of the ways that are hard to measure, by its first word; each function
 * describes its way. It has its kernel measured as a short one first, prints `ready`, and goes on until it is
 * killed, or ends by itself with 0. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"

#define SHORT_NS 1000u
#define LONG_NS  5000000u

static CUstream stream, other_stream;
static CUdeviceptr word;

static void launch_of(CUfunction function, unsigned grid, CUstream into, uint64_t ns) {
    void *parameters[] = {&ns};
    CALL(cuLaunchKernel, function, grid, 1, 1, 128, 1, 1, 0, into, parameters, NULL);
}

static void launch(CUstream into, uint64_t ns) {
    launch_of(program_kernel, 1000, into, ns);
}

/* What it does between launching and waiting is not the GPU's time, but nor is it all that there is. */
static void pause_between(void) {
    launch(stream, LONG_NS);
    launch(stream, LONG_NS);
    program_sleep_us(300);
    CALL(cuStreamSynchronize, stream);
}

/* One kernel in one shape, seldom long. */
static void vary_in(CUstream into) {
    for (unsigned at = 0; at < 8; at++) {
        launch(into, 10 * SHORT_NS);
        program_sleep_us(30);
    }
    launch(into, 4ull * LONG_NS);
    CALL(cuStreamSynchronize, into);
}

static void vary(void) {
    vary_in(stream);
}

static void vary_in_legacy(void) {
    vary_in(CU_STREAM_LEGACY);
}

static void vary_in_own(void) {
    vary_in(CU_STREAM_PER_THREAD);
}

/* The same all at once: the short ones are a batch already when the long one comes. */
static void hide_in_legacy(void) {
    for (unsigned at = 0; at < 20; at++)
        launch(NULL, SHORT_NS);
    launch(NULL, 4ull * LONG_NS);
    CALL(cuCtxSynchronize);
}

static void wait_for(void) {
    launch(stream, LONG_NS);
    CALL(cuStreamSynchronize, stream);
}

/* Another stream waits meanwhile, for a value that is never written, with more batches behind it than are
 * read at once. */
static void block_another(void) {
    CALL(cuStreamWaitValue32_v2, other_stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ);
    for (unsigned at = 0; at < 20; at++) {
        launch(other_stream, SHORT_NS);
        ASK(cuStreamQuery, stream);
    }
}

/* The context is let go of, and is still held. */
static void release(void) {
    CUcontext same;
    launch(stream, LONG_NS);
    CALL(cuDevicePrimaryCtxRetain, &same, 0);
    CALL(cuDevicePrimaryCtxRelease_v2, 0);
    CALL(cuStreamSynchronize, stream);
}

static void *launch_once(void *unused) {
    CALL(cuCtxSetCurrent, program_context);
    launch(stream, LONG_NS);
    return unused;
}

/* Small ones and a long one, into a stream that only this thread can name. */
static void *launch_in_own(void *unused) {
    CALL(cuCtxSetCurrent, program_context);
    for (unsigned at = 0; at < 20; at++)
        launch(CU_STREAM_PER_THREAD, SHORT_NS);
    launch(CU_STREAM_PER_THREAD, LONG_NS);
    return unused;
}

/* The thread that launched ends, and another thread waits. */
static void wait_after(void *(*launcher)(void *)) {
    pthread_t thread;
    pthread_create(&thread, NULL, launcher, NULL);
    pthread_join(thread, NULL);
    CALL(cuCtxSynchronize);
}

static void launch_in_threads(void) {
    wait_after(launch_once);
}

static void launch_in_own_of_threads(void) {
    wait_after(launch_in_own);
}

static void *make_streams(void *unused) {
    CUstream made;
    CALL(cuCtxSetCurrent, program_context);
    for (;;) {
        CALL(cuStreamCreate, &made, CU_STREAM_NON_BLOCKING);
        CALL(cuStreamDestroy_v2, made);
        program_sleep_us(50);
    }
    return unused;
}

/* Another thread ends streams all the while. */
static void end_streams(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, make_streams, NULL);
}

static void wait_late(void) {
    launch(stream, LONG_NS);
    program_sleep_us(150);
    CALL(cuStreamSynchronize, stream);
}

/* Small kernels, far apart: the GPU is idle most of the time. */
static void launch_far_apart(void) {
    launch(stream, 2 * SHORT_NS);
    program_sleep_us(10);
}

/* A kernel in the legacy default stream, a wait in one blocking stream, and in another the write that it is
 * for: correct, as long as nothing else comes into the default stream. The streams are made when the first
 * kernel is under way. */
static void cross_streams(void) {
    CUstream waiting = NULL, writing = NULL;
    for (unsigned round = 1; round <= 20; round++) {
        launch(NULL, SHORT_NS);
        if (round == 1) CALL(cuStreamCreate, &waiting, CU_STREAM_DEFAULT);
        if (round == 1) CALL(cuStreamCreate, &writing, CU_STREAM_DEFAULT);
        CALL(cuStreamWaitValue32_v2, waiting, word, round, CU_STREAM_WAIT_VALUE_GEQ);
        ASK(cuStreamQuery, writing);
        launch(writing, SHORT_NS);
        CALL(cuStreamWriteValue32_v2, writing, word, round, 0);
        CALL(cuStreamSynchronize, waiting);
    }
    exit(0);
}

static void *make_contexts(void *is_over) {
    CUcontext made;
    for (unsigned round = 0; round < 100; round++) {
        CALL(cuCtxCreate_v2, &made, 0, 0);
        CUfunction function = program_load_kernel();
        for (unsigned at = 0; at < 6; at++)
            launch_of(function, 1 + at, NULL, 100 * SHORT_NS);
        ASK(cuStreamQuery, NULL);
        CALL(cuCtxDestroy_v2, made);
    }
    __atomic_store_n((int *)is_over, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* A thread ends contexts with work in flight while another polls its own work. */
static void end_contexts(void) {
    int is_over = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, make_contexts, &is_over);
    while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST))
        ASK(cuStreamQuery, stream);
    pthread_join(thread, NULL);
    exit(0);
}

static void nothing(void) {}

static const struct way {
    const char *name;
    void (*begin)(void);
    void (*go_on)(void);
} ways[] = {{"pauses", nothing, pause_between},
            {"varies", nothing, vary},
            {"blocks", block_another, wait_for},
            {"releases", nothing, release},
            {"threads", nothing, launch_in_threads},
            {"ends-streams", end_streams, wait_late},
            {"far-apart", nothing, launch_far_apart},
            {"crosses", nothing, cross_streams},
            {"ends-contexts", nothing, end_contexts},
            {"waits", nothing, wait_for},
            {"varies-in-legacy", nothing, vary_in_legacy},
            {"varies-in-own", nothing, vary_in_own},
            {"hides-in-legacy", nothing, hide_in_legacy},
            {"threads-in-own", nothing, launch_in_own_of_threads}};

static const struct way *way_of(const char *name) {
    for (unsigned at = 0; at < sizeof(ways) / sizeof(ways[0]); at++)
        if (strcmp(ways[at].name, name) == 0) return &ways[at];
    exit(2);
}

static void begin(void) {
    program_begin();
    CALL(cuMemAlloc_v2, &word, sizeof(uint32_t));
    CALL(cuMemsetD32_v2, word, 0, 1);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuStreamCreate, &other_stream, CU_STREAM_NON_BLOCKING);
}

static void measure_short(void) {
    for (unsigned at = 0; at < 5; at++) {
        launch(stream, SHORT_NS);
        CALL(cuStreamSynchronize, stream);
        program_sleep_us(1000);
    }
}

int main(int count, char **words) {
    if (count < 2) return 2;
    const struct way *way = way_of(words[1]);
    begin();
    measure_short();
    way->begin();
    puts("ready");
    fflush(stdout);
    if (count > 2) getchar();
    for (;;)
        way->go_on();
}
