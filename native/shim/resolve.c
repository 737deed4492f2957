/* Loading the limit file and the real driver on the first call. No lock is held meanwhile: threads that
 * arrive together load the same library and publish the same addresses. */
#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include "functions.h"
#include "slice/report.h"
#include "slice/slice.h"

const struct pgpu_limit *pgpu_slice_published_limit;

/* The functions that are published in place of the driver's: all but cuInit where CUDA is refused, cuInit
 * itself, and a function that the driver does not have. */
static CUresult refuse(void) {
    return CUDA_ERROR_NOT_INITIALIZED;
}
static CUresult refuse_init(void) {
    return CUDA_ERROR_NOT_PERMITTED;
}
static CUresult lack(void) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void publish(enum pgpu_function function, void *real) {
    __atomic_store_n(&pgpu_real[function], real, __ATOMIC_RELEASE);
}

static void refuse_all(const char *why, const char *subject) {
    pgpu_report_refusal(why, subject);
    for (unsigned function = 0; function < PGPU_FUNCTION_COUNT; function++)
        publish(function, function == PGPU_FUNCTION_cuInit ? (void *)refuse_init : (void *)refuse);
}

static bool open_limit(void) {
    const struct pgpu_limit *limit = NULL;
    enum pgpu_limit_status status = pgpu_limit_open((const void *)refuse, &limit);
    if (status != PGPU_LIMIT_OK) {
        refuse_all(pgpu_limit_explain(status), NULL);
        return false;
    }
    /* The first mapping wins. Those of threads that arrived together stay mapped: another thread may read
     * them. */
    const struct pgpu_limit *none = NULL;
    __atomic_compare_exchange_n(&pgpu_slice_published_limit, &none, limit, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    return true;
}

/* dlopen matches an absolute path by inode, not by SONAME, so it returns the shim only where the path leads
 * to the shim's own file. */
static void *open_driver(void) {
    const char *path = pgpu_slice_limit()->real_cuda_path;
    void *driver = path[0] == '/' ? dlopen(path, RTLD_LOCAL | RTLD_NOW) : NULL;
    if (driver == NULL) {
        refuse_all("the real driver cannot be loaded", path);
        return NULL;
    }
    if (dlsym(driver, "cuInit") == (void *)cuInit) {
        refuse_all("the real driver's path leads back to pgpu", path);
        return NULL;
    }
    return driver;
}

static void load(void) {
    if (!open_limit()) return;
    void *driver = open_driver();
    if (driver == NULL) return;
    for (unsigned function = 0; function < PGPU_FUNCTION_COUNT; function++) {
        void *real = dlsym(driver, pgpu_function_symbol(function));
        publish(function, real == NULL ? (void *)lack : real);
    }
}

void *pgpu_resolve(enum pgpu_function function) {
    load();
    return __atomic_load_n(&pgpu_real[function], __ATOMIC_ACQUIRE);
}

/* Called by stubs.S, which has the slot's address and not its number. */
void *pgpu_resolve_slot(void **slot) __attribute__((visibility("hidden")));
void *pgpu_resolve_slot(void **slot) {
    return pgpu_resolve((enum pgpu_function)(slot - pgpu_real));
}

bool pgpu_driver_has(enum pgpu_function function) {
    void *real = pgpu_real_of(function);
    return real != (void *)lack && real != (void *)refuse;
}
