/* The client side of the simulated MPS: at cuInit, and while the process lives.
 *
 * Without a daemon at CUDA_MPS_PIPE_DIRECTORY a program silently runs without MPS, as with NVIDIA's driver:
 * CU_DEVICE_ATTRIBUTE_MPS_ENABLED, or the daemon's list of clients, shows which is the case. */
#include "mps/mps.h"

#include <ctype.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/driver.h"
#include "mps/mps_limit.h"
#include "mps/mps_wire.h"

struct sim_mps sim_mps;

static int line_fd = -1; /* to the server; -1: this process is no client */
static uint32_t percentage = MPS_WHOLE;
static uint64_t held_bytes[SIM_MAX_GPUS];

/* One question at a time, answered by what the watching thread reads. */
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER, answering = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_answer = PTHREAD_COND_INITIALIZER;
static bool is_answered, is_over;
static CUresult answer;

static void name_command(char command[MPS_COMMAND_BYTES]) {
    FILE *file = fopen("/proc/self/cmdline", "re");
    if (file == NULL) return;
    size_t length = fread(command, 1, MPS_COMMAND_BYTES - 1, file);
    command[length] = '\0'; /* the first word ends at its own zero */
    fclose(file);
}

static uint32_t bits_of_devices(void) {
    uint32_t bits = 0;
    for (int i = 0; i < sim_driver.device_count; i++)
        bits |= 1u << sim_driver.gpu_of_device[i];
    return bits;
}

static bool exchange(int fd, struct mps_message *message) {
    *message = (struct mps_message){.word = MPS_HELLO, .gpus = bits_of_devices()};
    name_command(message->command);
    if (!mps_send(fd, message, -1)) return false;
    return mps_receive(fd, message, NULL, 0) == MPS_GOT && message->word == MPS_WELCOME;
}

static int count_of(const uint8_t gpu_list[SIM_MAX_GPUS]) {
    int count = 0;
    while (count < (int)SIM_MAX_GPUS && gpu_list[count] != MPS_SERVER_GPU_NONE)
        count++;
    return count;
}

static bool has(const uint8_t gpu_list[SIM_MAX_GPUS], unsigned gpu) {
    return memchr(gpu_list, (int)gpu, (size_t)count_of(gpu_list)) != NULL;
}

/* Ordinals in a client's CUDA_VISIBLE_DEVICES count the server's devices. */
static int by_server_ordinals(const char *visible, const uint8_t gpu_list[SIM_MAX_GPUS], unsigned *gpus) {
    int count = 0, most = count_of(gpu_list);
    for (const char *at = visible; count < most && isdigit((unsigned char)*at); at++) {
        char *end;
        long ordinal = strtol(at, &end, 10);
        if (ordinal >= most || (*end != ',' && *end != '\0')) break;
        gpus[count++] = gpu_list[ordinal];
        if (*end == '\0') break;
        at = end;
    }
    return count;
}

static void see_servers_devices(const uint8_t gpu_list[SIM_MAX_GPUS]) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    unsigned *gpus = sim_driver.gpu_of_device;
    int count = 0;
    if (visible == NULL) {
        for (; count < count_of(gpu_list); count++)
            gpus[count] = gpu_list[count];
    } else if (isdigit((unsigned char)visible[strspn(visible, " \t")])) {
        count = by_server_ordinals(visible + strspn(visible, " \t"), gpu_list, gpus);
    } else {
        for (int i = 0; i < sim_driver.device_count; i++)
            if (has(gpu_list, gpus[i])) gpus[count++] = gpus[i];
    }
    sim_driver.device_count = count;
}

/* A client may only lower what the daemon set; an entry that names a GPU which this process cannot see, or
 * none, takes every memory limit away, the daemon's too. */
static void set_limits(const struct mps_message *welcome) {
    const char *wanted = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
               *list = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    uint32_t tenths;
    percentage = welcome->percentage;
    if (wanted != NULL && mps_parse_percentage(wanted, &tenths) && tenths < percentage) percentage = tenths;
    if (percentage < MPS_WHOLE) sim_mps.active_thread_percentage = percentage < 10 ? 1 : percentage / 10;
    memcpy(sim_mps.pinned_limit_bytes, welcome->limit_bytes, sizeof(sim_mps.pinned_limit_bytes));
    if (list != NULL && !mps_apply_limits(list, &sim_driver.config, sim_driver.gpu_of_device,
                                          sim_driver.device_count, sim_mps.pinned_limit_bytes))
        memset(sim_mps.pinned_limit_bytes, 0, sizeof(sim_mps.pinned_limit_bytes));
}

CUresult sim_mps_join(void) {
    struct mps_message message;
    int fd = mps_connect(mps_place(), "control");
    if (fd < 0) return CUDA_SUCCESS;
    CUresult result = exchange(fd, &message) ? (CUresult)message.result : CUDA_ERROR_MPS_CONNECTION_FAILED;
    if (result != CUDA_SUCCESS) {
        close(fd);
        return result;
    }
    see_servers_devices(message.gpu_list);
    set_limits(&message);
    sim_mps.server = message.server;
    line_fd = fd;
    return sim_driver.device_count > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static void report(CUresult result, bool ends) {
    pthread_mutex_lock(&answering);
    is_answered = true;
    is_over |= ends;
    answer = result;
    pthread_cond_signal(&has_answer);
    pthread_mutex_unlock(&answering);
}

static void *watch(void *unused) {
    struct mps_message message;
    for (;;) {
        enum mps_received received = mps_receive(line_fd, &message, NULL, 0);
        if (received == MPS_GOT && message.word == MPS_ANSWER) {
            report((CUresult)message.result, false);
            continue;
        }
        bool is_fault = received == MPS_GOT && message.word == MPS_FAULT && message.result > 1;
        CUresult fault = is_fault ? (CUresult)message.result : CUDA_ERROR_MPS_RPC_FAILURE;
        sim_fail(fault);
        report(fault, true);
        if (!is_fault) return unused;
    }
}

void sim_mps_watch(void) {
    pthread_t thread;
    pthread_attr_t detached;
    sigset_t all, before;
    if (line_fd < 0) return;
    sigfillset(&all);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's signals are none of this thread's */
    if (pthread_create(&thread, &detached, watch, NULL) != 0) sim_fail(CUDA_ERROR_MPS_CONNECTION_FAILED);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
}

static CUresult await_answer(void) {
    pthread_mutex_lock(&answering);
    while (!is_answered && !is_over)
        pthread_cond_wait(&has_answer, &answering);
    CUresult result = answer;
    pthread_mutex_unlock(&answering);
    return result;
}

CUresult sim_mps_open(unsigned gpu) {
    struct mps_message message = {.word = MPS_OPEN, .gpu = gpu};
    if (line_fd < 0) return CUDA_SUCCESS;
    pthread_mutex_lock(&asking);
    pthread_mutex_lock(&answering);
    is_answered = false;
    pthread_mutex_unlock(&answering);
    CUresult result = mps_send(line_fd, &message, -1) ? await_answer() : CUDA_ERROR_MPS_RPC_FAILURE;
    pthread_mutex_unlock(&asking);
    return result;
}

void sim_mps_close(unsigned gpu) {
    struct mps_message message = {.word = MPS_CLOSE, .gpu = gpu};
    if (line_fd >= 0) mps_send(line_fd, &message, -1);
}

void sim_mps_report(CUresult fault) {
    struct mps_message message = {.word = MPS_FAULT, .result = (int32_t)fault};
    if (line_fd >= 0) mps_send(line_fd, &message, -1);
}

bool sim_mps_reserve(unsigned gpu, uint64_t bytes) {
    uint64_t limit_bytes = sim_mps.pinned_limit_bytes[gpu];
    uint64_t sum_bytes = __atomic_add_fetch(&held_bytes[gpu], bytes, __ATOMIC_RELAXED);
    if (limit_bytes == 0 || sum_bytes <= limit_bytes) return true;
    sim_mps_refund(gpu, bytes);
    return false;
}

void sim_mps_refund(unsigned gpu, uint64_t bytes) {
    __atomic_fetch_sub(&held_bytes[gpu], bytes, __ATOMIC_RELAXED);
}

uint64_t sim_mps_free_bytes(unsigned gpu, uint64_t free_bytes) {
    uint64_t limit_bytes = sim_mps.pinned_limit_bytes[gpu];
    uint64_t held = __atomic_load_n(&held_bytes[gpu], __ATOMIC_RELAXED);
    if (limit_bytes == 0) return free_bytes;
    uint64_t left_bytes = held < limit_bytes ? limit_bytes - held : 0;
    return left_bytes < free_bytes ? left_bytes : free_bytes;
}

/* Whole pairs of multiprocessors, rounded down, as seen on hardware: half of 188 is 94, a quarter 46, three
 * quarters 140. */
unsigned sim_mps_sm_count(const struct sim_gpu *gpu) {
    if (sim_mps.server == 0 || percentage >= MPS_WHOLE) return (unsigned)gpu->sm_count;
    unsigned allowed = (unsigned)(gpu->sm_count * percentage / MPS_WHOLE) & ~1u;
    return allowed < 2 ? 2 : allowed;
}
