#include "table.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "first_api.h"
#include "hooks.h"

/* Texts lie in one block and are found by offset: 690 pointers would be as many relocations in every exec. */
static const struct {
#define CUDA_FUNCTION(symbol, name, version, variant, class)                                                 \
    char symbol##_[sizeof(#symbol)], symbol##_name[sizeof(name)];
#include "cuda_functions.def"
#undef CUDA_FUNCTION
} texts = {
#define CUDA_FUNCTION(symbol, name, version, variant, class) #symbol, name,
#include "cuda_functions.def"
#undef CUDA_FUNCTION
};

enum { PLAIN, PTDS, PTSZ };

static const struct row {
    uint16_t symbol_at;
    uint16_t name_at;
    uint16_t version;
    uint16_t variant;
} rows[] = {
#define CUDA_FUNCTION(symbol, name, version, variant, class)                                                 \
    {offsetof(__typeof__(texts), symbol##_), offsetof(__typeof__(texts), symbol##_name), version, variant},
#include "cuda_functions.def"
#undef CUDA_FUNCTION
};
static_assert(sizeof(texts) <= UINT16_MAX, "offsets are 16 bits wide");

#define CUDA_FUNCTION(symbol, name, version, variant, class)                                                 \
    PGPU_IF_HOOKED(symbol, [PGPU_FUNCTION_##symbol] = (void *)symbol, [PGPU_FUNCTION_##symbol] = NULL),
static void *const hooks[] = {
#include "cuda_functions.def"
};
#undef CUDA_FUNCTION

const char *pgpu_table_symbol(enum pgpu_function function) {
    return (const char *)&texts + rows[function].symbol_at;
}

static const char *name_of(enum pgpu_function function) {
    return (const char *)&texts + rows[function].name_at;
}

static bool is_named(enum pgpu_function function, const char *name) {
    return strcmp(name_of(function), name) == 0;
}

static bool is_variant(enum pgpu_function function, bool is_per_thread) {
    return (rows[function].variant != PLAIN) == is_per_thread;
}

static void *real_of(enum pgpu_function function) {
    return __atomic_load_n(&pgpu_real[function], __ATOMIC_ACQUIRE);
}

/* The real driver's own answer tells version and variant best. */
static int choose_by_address(const char *name, bool is_per_thread, const void *real) {
    int chosen = -1;
    for (unsigned function = 0; function < PGPU_FUNCTION_COUNT; function++)
        if (real_of(function) == real && is_named(function, name) &&
            (chosen < 0 || is_variant(function, is_per_thread)))
            chosen = (int)function;
    return chosen;
}

/* Where the driver's two tables differ, the newest version that was asked for and that it has is meant. */
static int choose_by_version(const char *name, int cuda_version, bool is_per_thread) {
    int chosen = -1;
    for (unsigned function = 0; function < PGPU_FUNCTION_COUNT; function++) {
        bool fits = is_variant(function, is_per_thread) && rows[function].version <= cuda_version &&
                    is_named(function, name) && pgpu_driver_has(function);
        if (fits && (chosen < 0 || rows[function].version >= rows[chosen].version)) chosen = (int)function;
    }
    return chosen;
}

/* And only where it is the same function: a version that is newer than ours has other arguments. */
static int choose_by_meaning(const struct pgpu_question *question, bool is_per_thread) {
    int chosen = choose_by_version(question->name, question->cuda_version, is_per_thread);
    if (chosen < 0) return -1;
    void *known = question->ask_driver(question->name, rows[chosen].version, question->flags);
    return known == question->answer ? chosen : -1;
}

/* A name that already carries its version, such as `cuMemAlloc_v2`; `cuMemAlloc` means every version. */
static int choose_by_symbol(const char *name) {
    for (unsigned function = 0; function < PGPU_FUNCTION_COUNT; function++)
        if (strcmp(pgpu_table_symbol(function), name) == 0 && !is_named(function, name)) return (int)function;
    return -1;
}

static bool is_hooked_in_some_version(const char *name) {
    for (unsigned function = 0; function < PGPU_FUNCTION_COUNT; function++)
        if (hooks[function] != NULL && is_named(function, name)) return true;
    return false;
}

void *pgpu_table_wrap(const struct pgpu_question *question) {
    bool is_per_thread = (question->flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    int chosen = choose_by_address(question->name, is_per_thread, question->answer);
    if (chosen < 0 && is_per_thread) chosen = choose_by_meaning(question, true);
    if (chosen < 0) chosen = choose_by_meaning(question, false);
    if (chosen < 0) chosen = choose_by_symbol(question->name);
    if (chosen >= 0) return hooks[chosen] == NULL ? question->answer : hooks[chosen];
    return is_hooked_in_some_version(question->name) ? NULL : question->answer;
}
