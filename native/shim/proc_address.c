/* cuGetProcAddress: the real driver answers first, and what it hands out is wrapped. */
#include <stdbool.h>

#include "functions.h"
#include "table.h"

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

/* False: the driver has it, in a version that the shim knows nothing of. */
static bool wrap(struct pgpu_question question, void **found) {
    if (question.name == NULL || found == NULL || *found == NULL) return true;
    question.answer = *found;
    *found = pgpu_table_wrap(&question);
    return *found != NULL;
}

PGPU_EXPORT CUresult cuGetProcAddress(const char *name, void **found, int cuda_version, cuuint64_t flags) {
    struct pgpu_question question = {name, cuda_version, flags, NULL, ask_first};
    CUresult result = PGPU_REAL(cuGetProcAddress)(name, found, cuda_version, flags);
    if (result != CUDA_SUCCESS || wrap(question, found)) return result;
    return CUDA_ERROR_NOT_FOUND;
}

PGPU_EXPORT CUresult cuGetProcAddress_v2(const char *name, void **found, int cuda_version, cuuint64_t flags,
                                         CUdriverProcAddressQueryResult *status) {
    struct pgpu_question question = {name, cuda_version, flags, NULL, ask_second};
    CUresult result = PGPU_REAL(cuGetProcAddress_v2)(name, found, cuda_version, flags, status);
    if (result != CUDA_SUCCESS || wrap(question, found)) return result;
    if (status != NULL) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return result;
}
