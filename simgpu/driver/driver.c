/* cuInit and what it leaves behind. */
#include "driver/driver.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checkpoint/checkpoint.h"
#include "time/clock.h"
#include "mps/mps.h"
#include "time/turn_account.h"
#include "memory/shared_allocation.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

struct sim_driver sim_driver;
struct sim_process *sim_process;

static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;
/* Recursive: what checks an address may be called by what holds the lock already. */
static pthread_mutex_t object_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void sim_lock(void) {
    pthread_mutex_lock(&object_mutex);
}

void sim_unlock(void) {
    pthread_mutex_unlock(&object_mutex);
}

void sim_log(const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    fprintf(stderr, "simulated NVIDIA driver: %s\n", line);
}

unsigned sim_fault_at_launch;

static void read_fault(void) {
    const char *text = getenv("PGPU_SIMGPU_FAULT_AT_LAUNCH");
    if (text != NULL) sim_fault_at_launch = (unsigned)strtoul(text, NULL, 10);
}

void sim_fault_count(void) {
    static unsigned count;
    if (__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) != sim_fault_at_launch) return;
    sim_fail(CUDA_ERROR_ILLEGAL_ADDRESS);
    sim_mps_report(CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* The first error stays. */
void sim_fail(CUresult error) {
    uint32_t ready = SIM_READY;
    struct sim_process *process = __atomic_load_n(&sim_process, __ATOMIC_ACQUIRE);
    if (process != NULL)
        __atomic_compare_exchange_n(&process->state, &ready, (uint32_t)error, false, __ATOMIC_RELEASE,
                                    __ATOMIC_RELAXED);
}

static struct sim_process *make_process_page(void) {
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return NULL;
    madvise(page, 4096, MADV_WIPEONFORK);
    return page;
}

static bool wants_backing(void) {
    const char *wanted = getenv("PGPU_SIMGPU_BACKING");
    return wanted == NULL || strcmp(wanted, "none") != 0;
}

static bool load_state(struct sim_driver *driver, char *problem, size_t problem_bytes) {
    if (!sim_state_directory(driver->directory)) {
        snprintf(problem, problem_bytes,
                 "no state directory: set PGPU_SIMGPU_DIR to one that holds gpus.conf");
        return false;
    }
    if (!sim_config_read(driver->directory, &driver->config, problem, problem_bytes)) return false;
    if (!sim_device_claim(driver->directory, driver->config.device_count, problem, problem_bytes))
        return false;
    driver->activity = sim_activity_map(driver->directory);
    bool is_mapped = driver->activity != NULL && sim_turn_account_start(driver->directory);
    if (!is_mapped) snprintf(problem, problem_bytes, "cannot map %s/activity and turns", driver->directory);
    return is_mapped;
}

static CUresult start(void) {
    char problem[400];
    if (!load_state(&sim_driver, problem, sizeof(problem))) {
        sim_log("%s", problem);
        return CUDA_ERROR_NO_DEVICE;
    }
    sim_driver.has_backing = wants_backing();
    sim_driver.device_count =
        sim_visible_gpus(&sim_driver.config, getenv("CUDA_VISIBLE_DEVICES"), sim_driver.gpu_of_device);
    if (sim_driver.device_count == 0) return CUDA_ERROR_NO_DEVICE;
    SIM_TRY(sim_mps_join());
    read_fault();
    sim_clock_start();
    sim_share_sweep();
    return CUDA_SUCCESS;
}

static CUresult init_once(void) {
    if (sim_is_ready()) return sim_outcome();
    if (sim_process != NULL) return CUDA_ERROR_NOT_INITIALIZED; /* the page was wiped by a fork */
    struct sim_process *page = make_process_page();
    if (page == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = start();
    if (result != CUDA_SUCCESS) {
        munmap(page, 4096);
        return result;
    }
    page->state = SIM_READY;
    __atomic_store_n(&sim_process, page, __ATOMIC_RELEASE);
    sim_mps_watch();
    sim_restore_thread_start();
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuInit(unsigned int flags) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    /* In a forked child the mutex may be locked by a thread that does not exist there, so the child does not
     * wait for it. */
    if (__atomic_load_n(&sim_process, __ATOMIC_ACQUIRE) != NULL && !sim_is_ready())
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&init_mutex);
    CUresult result = init_once();
    pthread_mutex_unlock(&init_mutex);
    return result;
}

SIM_EXPORT CUresult cuDriverGetVersion(int *version) {
    if (version == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (sim_driver.config.cuda_version != 0) {
        *version = (int)sim_driver.config.cuda_version;
        return CUDA_SUCCESS;
    }
    /* The real driver answers before cuInit too. */
    char problem[400], directory[SIM_PATH_BYTES];
    struct sim_config config;
    bool is_read =
        sim_state_directory(directory) && sim_config_read(directory, &config, problem, sizeof(problem));
    *version = is_read ? (int)config.cuda_version : 13000;
    return CUDA_SUCCESS;
}
