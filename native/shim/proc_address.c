/* cuGetProcAddress: the real driver answers first, and the address it returns is replaced by the hook of the
 * same function, version and stream variant. */
#include <string.h>

#include "first_api.h"
#include "functions.h"
#include "hooks.h"

#define CUDA_FUNCTION(symbol, name, version, variant, class)                                                 \
    PGPU_IF_HOOKED(symbol, [PGPU_FUNCTION_##symbol] = (void *)symbol, [PGPU_FUNCTION_##symbol] = NULL),
static void *const hooks[] = {
#include "cuda_functions.def"
};
#undef CUDA_FUNCTION

/* The arguments of one call and the driver's answer. */
struct query {
    const char *name;
    int cuda_version;
    cuuint64_t flags;
    void *answer;
    /* Repeats the call for another version; NULL where the driver has none. */
    void *(*ask_driver)(const char *name, int cuda_version, cuuint64_t flags);
};

static bool is_named(enum pgpu_function function, const char *name) {
    return strcmp(pgpu_function_name(function), name) == 0;
}

/* By the returned address, which identifies version and variant best. */
static int choose_by_address(const char *name, bool is_per_thread, const void *real) {
    int chosen = -1;
    for (unsigned function = 0; function < PGPU_FUNCTION_COUNT; function++)
        if (__atomic_load_n(&pgpu_real[function], __ATOMIC_ACQUIRE) == real && is_named(function, name) &&
            (chosen < 0 || pgpu_function_is_per_thread(function) == is_per_thread))
            chosen = (int)function;
    return chosen;
}

/* The driver's dlsym table and its cuGetProcAddress table may hold different addresses of one function: take
 * the newest version that was requested and that the driver has. */
static int choose_by_version(const char *name, int cuda_version, bool is_per_thread) {
    int chosen = -1;
    for (unsigned function = 0; function < PGPU_FUNCTION_COUNT; function++) {
        int version = pgpu_function_version(function);
        bool fits = pgpu_function_is_per_thread(function) == is_per_thread && version <= cuda_version &&
                    is_named(function, name) && pgpu_driver_has(function);
        if (fits && (chosen < 0 || version >= pgpu_function_version(chosen))) chosen = (int)function;
    }
    return chosen;
}

/* The version that was chosen must be the function that the driver returned: one that is newer than this
 * table may take other arguments. */
static int choose_by_meaning(const struct query *query, bool is_per_thread) {
    int chosen = choose_by_version(query->name, query->cuda_version, is_per_thread);
    if (chosen < 0) return -1;
    void *known = query->ask_driver(query->name, pgpu_function_version(chosen), query->flags);
    return known == query->answer ? chosen : -1;
}

/* A name that contains its version, such as `cuMemAlloc_v2`; `cuMemAlloc` alone means every version. */
static int choose_by_symbol(const char *name) {
    for (unsigned function = 0; function < PGPU_FUNCTION_COUNT; function++)
        if (strcmp(pgpu_function_symbol(function), name) == 0 && !is_named(function, name))
            return (int)function;
    return -1;
}

static bool is_hooked_in_some_version(const char *name) {
    for (unsigned function = 0; function < PGPU_FUNCTION_COUNT; function++)
        if (hooks[function] != NULL && is_named(function, name)) return true;
    return false;
}

/* The hook or, of a function without one, the driver's answer. NULL for a version, newer than this table, of
 * a function that has a hook: its arguments and its effect on memory are unknown. */
static void *hook_of(const struct query *query) {
    bool is_per_thread = (query->flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    int chosen = choose_by_address(query->name, is_per_thread, query->answer);
    if (chosen < 0 && is_per_thread) chosen = choose_by_meaning(query, true);
    if (chosen < 0) chosen = choose_by_meaning(query, false);
    if (chosen < 0) chosen = choose_by_symbol(query->name);
    if (chosen >= 0) return hooks[chosen] == NULL ? query->answer : hooks[chosen];
    return is_hooked_in_some_version(query->name) ? NULL : query->answer;
}

/* False: the driver has the function in a version that the shim does not have. */
static bool replace(struct query query, void **found) {
    if (query.name == NULL || found == NULL || *found == NULL) return true;
    query.answer = *found;
    *found = hook_of(&query);
    return *found != NULL;
}

static void *ask_first(const char *name, int cuda_version, cuuint64_t flags) {
    void *found = NULL;
    PGPU_REAL(cuGetProcAddress)(name, &found, cuda_version, flags);
    return found;
}

static void *ask_second(const char *name, int cuda_version, cuuint64_t flags) {
    void *found = NULL;
    PGPU_REAL(cuGetProcAddress_v2)(name, &found, cuda_version, flags, NULL);
    return found;
}

PGPU_EXPORT CUresult cuGetProcAddress(const char *name, void **found, int cuda_version, cuuint64_t flags) {
    struct query query = {name, cuda_version, flags, NULL, ask_first};
    CUresult result = PGPU_REAL(cuGetProcAddress)(name, found, cuda_version, flags);
    if (result != CUDA_SUCCESS || replace(query, found)) return result;
    return CUDA_ERROR_NOT_FOUND;
}

PGPU_EXPORT CUresult cuGetProcAddress_v2(const char *name, void **found, int cuda_version, cuuint64_t flags,
                                         CUdriverProcAddressQueryResult *status) {
    struct query query = {name, cuda_version, flags, NULL, ask_second};
    CUresult result = PGPU_REAL(cuGetProcAddress_v2)(name, found, cuda_version, flags, status);
    if (result != CUDA_SUCCESS || replace(query, found)) return result;
    if (status != NULL) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return result;
}
