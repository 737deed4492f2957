#include "functions.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/* All texts are one block and each is found by its offset: 690 pointers would cost as many relocations in
 * every program that loads the shim. */
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
static_assert(sizeof(texts) <= UINT16_MAX, "offsets are 16 bits wide");

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

const char *pgpu_function_symbol(enum pgpu_function function) {
    return (const char *)&texts + rows[function].symbol_at;
}

const char *pgpu_function_name(enum pgpu_function function) {
    return (const char *)&texts + rows[function].name_at;
}

int pgpu_function_version(enum pgpu_function function) {
    return rows[function].version;
}

bool pgpu_function_is_per_thread(enum pgpu_function function) {
    return rows[function].variant != PLAIN;
}
