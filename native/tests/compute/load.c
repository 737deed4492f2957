/* A program that keeps a GPU busy, as configured by `key=value` arguments, and prints a summary as one line
 * of JSON:
 *
 *     mode=kernel|argument|graph|cooperative|copy|fill|within|unified  cost_ns=  grid=  streams=  threads=
 *     sync=N      wait for the GPU after every N launches; 0: never
 *     pause_us=N  sleep after each wait
 *     host_us=N   compute for so long between two launches
 *     on_ms=N off_ms=N  launch for so long, wait, and then leave the GPU idle for so long
 *     seconds=N   0: until standard input ends
 *     count=N     launches at most; 0: no bound
 *
 * `argument` launches one kernel whose argument is its time: three times a quarter of cost_ns, then a longer
 * one that keeps the mean. It prints `ready` before it begins. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

#define MOST_WORKERS   16
#define MOST_STREAMS   8
#define MOST_LATENCIES 65536
#define GRAPH_NODES    4
#define COPY_BYTES     (16u << 20)
#define FILL_BYTES     (512u << 20)
#define WITHIN_BYTES   (1u << 20)

static struct {
    const char *mode;
    uint64_t cost_ns, grid, streams, threads, sync, pause_us, host_us, on_ms, off_ms, seconds, count;
} asked = {.mode = "kernel", .cost_ns = 1000000, .grid = 100000, .streams = 1, .threads = 1, .sync = 1};

static bool is_over;
static uint64_t launched;
static uint64_t latencies_ns[MOST_LATENCIES];
static uint64_t latency_count;

static void read_word(const char *word) {
    struct {
        const char *name;
        uint64_t *value;
    } known[] = {{"cost_ns=", &asked.cost_ns}, {"grid=", &asked.grid},   {"streams=", &asked.streams},
                 {"threads=", &asked.threads}, {"sync=", &asked.sync},   {"pause_us=", &asked.pause_us},
                 {"host_us=", &asked.host_us}, {"on_ms=", &asked.on_ms}, {"off_ms=", &asked.off_ms},
                 {"seconds=", &asked.seconds}, {"count=", &asked.count}};
    if (strncmp(word, "mode=", 5) == 0) asked.mode = word + 5;
    for (unsigned at = 0; at < sizeof(known) / sizeof(known[0]); at++)
        if (strncmp(word, known[at].name, strlen(known[at].name)) == 0)
            *known[at].value = strtoull(strchr(word, '=') + 1, NULL, 10);
}

struct worker {
    CUstream stream[MOST_STREAMS];
    CUgraphExec graph;
    CUdeviceptr device;
    void *host;
};

static bool is_mode(const char *name) {
    return strcmp(asked.mode, name) == 0;
}

static void launch_kernel(CUstream stream, uint64_t cost_ns) {
    void *parameters[] = {&cost_ns};
    CALL(cuLaunchKernel, program_kernel, (unsigned)asked.grid, 1, 1, 128, 1, 1, 0, stream, parameters, NULL);
}

/* The launches of a worker, by number: their mean is the requested time. */
static uint64_t argument_ns(uint64_t number) {
    return number % 4 == 0 ? asked.cost_ns / 4 * 13 : asked.cost_ns / 4;
}

static void launch(struct worker *worker, CUstream stream, uint64_t number) {
    void *parameters[] = {&asked.cost_ns};
    if (is_mode("graph"))
        CALL(cuGraphLaunch, worker->graph, stream);
    else if (is_mode("cooperative"))
        CALL(cuLaunchCooperativeKernel, program_kernel, (unsigned)asked.grid, 1, 1, 128, 1, 1, 0, stream,
             parameters);
    else if (is_mode("copy"))
        CALL(cuMemcpyHtoDAsync_v2, worker->device, worker->host, COPY_BYTES, stream);
    else if (is_mode("fill"))
        CALL(cuMemsetD8Async, worker->device, 0, FILL_BYTES, stream);
    else if (is_mode("within"))
        CALL(cuMemcpyDtoDAsync_v2, worker->device, worker->device + FILL_BYTES, WITHIN_BYTES, stream);
    else if (is_mode("unified"))
        CALL(cuMemcpyAsync, worker->device, worker->device + FILL_BYTES, WITHIN_BYTES, stream);
    else
        launch_kernel(stream, is_mode("argument") ? argument_ns(number) : asked.cost_ns);
}

static void make_graph(struct worker *worker) {
    CUgraph graph;
    CALL(cuStreamBeginCapture_v2, worker->stream[0], CU_STREAM_CAPTURE_MODE_GLOBAL);
    for (unsigned node = 0; node < GRAPH_NODES; node++)
        launch_kernel(worker->stream[0], asked.cost_ns / GRAPH_NODES);
    CALL(cuStreamEndCapture, worker->stream[0], &graph);
    CALL(cuGraphInstantiateWithFlags, &worker->graph, graph, 0);
}

static void make_worker(struct worker *worker) {
    CALL(cuCtxSetCurrent, program_context);
    for (unsigned at = 0; at < asked.streams; at++)
        CALL(cuStreamCreate, &worker->stream[at], CU_STREAM_NON_BLOCKING);
    if (is_mode("graph")) make_graph(worker);
    if (is_mode("fill") || is_mode("within") || is_mode("unified"))
        CALL(cuMemAlloc_v2, &worker->device, 2ull * FILL_BYTES);
    if (!is_mode("copy")) return;
    CALL(cuMemAlloc_v2, &worker->device, COPY_BYTES);
    CALL(cuMemAllocHost_v2, &worker->host, COPY_BYTES);
}

static void note_latency(uint64_t ns) {
    uint64_t at = __atomic_fetch_add(&latency_count, 1, __ATOMIC_RELAXED);
    latencies_ns[at % MOST_LATENCIES] = ns;
}

static void wait_for_gpu(struct worker *worker, uint64_t began_ns) {
    for (unsigned at = 0; at < asked.streams; at++)
        CALL(cuStreamSynchronize, worker->stream[at]);
    note_latency(program_now_ns() - began_ns);
    if (asked.pause_us > 0) program_sleep_us(asked.pause_us);
}

static void compute(uint64_t us) {
    uint64_t until_ns = program_now_ns() + us * 1000;
    while (program_now_ns() < until_ns) {
    }
}

/* Leave the GPU alone, every now and then. */
static void leave_alone(struct worker *worker, uint64_t *came_at_ns) {
    if (asked.off_ms == 0 || program_now_ns() < *came_at_ns + asked.on_ms * 1000000) return;
    for (unsigned at = 0; at < asked.streams; at++)
        CALL(cuStreamSynchronize, worker->stream[at]);
    program_sleep_us(asked.off_ms * 1000);
    *came_at_ns = program_now_ns();
}

static bool goes_on(uint64_t end_ns) {
    if (__atomic_load_n(&is_over, __ATOMIC_RELAXED) || program_now_ns() >= end_ns) return false;
    return asked.count == 0 || __atomic_load_n(&launched, __ATOMIC_RELAXED) < asked.count;
}

static uint64_t end_ns;

static void *work(void *given) {
    struct worker *worker = given;
    CALL(cuCtxSetCurrent, program_context);
    uint64_t began_ns = program_now_ns(), came_at_ns = began_ns;
    for (uint64_t mine = 1; goes_on(end_ns); mine++) {
        if (asked.sync != 0 && (mine - 1) % asked.sync == 0) began_ns = program_now_ns();
        launch(worker, worker->stream[mine % asked.streams], mine);
        __atomic_fetch_add(&launched, 1, __ATOMIC_RELAXED);
        if (asked.sync != 0 && mine % asked.sync == 0) wait_for_gpu(worker, began_ns);
        if (asked.host_us > 0) compute(asked.host_us);
        leave_alone(worker, &came_at_ns);
    }
    return NULL;
}

static void *watch_input(void *unused) {
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    __atomic_store_n(&is_over, true, __ATOMIC_RELAXED);
    return unused;
}

static int by_size(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static void report(uint64_t lasted_ns) {
    uint64_t kept = latency_count < MOST_LATENCIES ? latency_count : MOST_LATENCIES;
    qsort(latencies_ns, kept, sizeof(latencies_ns[0]), by_size);
    uint64_t p50 = kept == 0 ? 0 : latencies_ns[kept / 2],
             p99 = kept == 0 ? 0 : latencies_ns[kept * 99 / 100];
    printf("{\"launched\": %llu, \"lasted_ns\": %llu, \"p50_ns\": %llu, \"p99_ns\": %llu}\n",
           (unsigned long long)launched, (unsigned long long)lasted_ns, (unsigned long long)p50,
           (unsigned long long)p99);
    fflush(stdout);
}

int main(int count, char **words) {
    static struct worker workers[MOST_WORKERS];
    pthread_t threads[MOST_WORKERS], watcher;
    for (int at = 1; at < count; at++)
        read_word(words[at]);
    if (asked.threads > MOST_WORKERS || asked.streams > MOST_STREAMS || asked.streams == 0) return 2;
    program_begin();
    for (unsigned at = 0; at < asked.threads; at++)
        make_worker(&workers[at]);
    puts("ready");
    fflush(stdout);
    uint64_t from_ns = program_now_ns();
    end_ns = asked.seconds == 0 ? UINT64_MAX : from_ns + asked.seconds * 1000000000u;
    if (asked.seconds == 0) pthread_create(&watcher, NULL, watch_input, NULL);
    for (unsigned at = 0; at < asked.threads; at++)
        pthread_create(&threads[at], NULL, work, &workers[at]);
    for (unsigned at = 0; at < asked.threads; at++)
        pthread_join(threads[at], NULL);
    report(program_now_ns() - from_ns);
    return 0;
}
