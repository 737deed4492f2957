/* Linking at run time. PTX is all that the simulated driver can read, so linking is putting texts behind each
 * other; machine code, objects and libraries are refused rather than dropped. */
#include <stdlib.h>
#include <string.h>

#include "module/module.h"

struct CUlinkState_st {
    struct sim_head head;
    char *text;
    size_t bytes;
    bool is_complete;
};

static struct sim_slab links = SIM_SLAB(struct CUlinkState_st, 64, 1u << 14);

static CUresult check(CUlinkState link) {
    return link != NULL && sim_is_live(&links, link) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

SIM_EXPORT CUresult cuLinkCreate_v2(unsigned int option_count, CUjit_option *options, void **values,
                                    CUlinkState *link) {
    SIM_ENTER_CONTEXT(context);
    (void)context;
    if (link == NULL || (option_count > 0 && (options == NULL || values == NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    *link = sim_new(&links);
    return *link == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLinkCreate(unsigned int option_count, CUjit_option *options, void **values,
                                 CUlinkState *link) {
    return cuLinkCreate_v2(option_count, options, values, link);
}

static CUresult check_type(CUjitInputType type) {
    if ((unsigned)type >= CU_JIT_NUM_INPUT_TYPES) return CUDA_ERROR_INVALID_VALUE;
    return type == CU_JIT_INPUT_PTX ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* A text that no module could be made of is refused where it is added. */
static CUresult check_text(const char *text) {
    CUmodule module;
    SIM_LOCKED();
    CUresult result = sim_module_new(text, NULL, &module);
    if (result != CUDA_SUCCESS) return result == CUDA_ERROR_OUT_OF_MEMORY ? result : CUDA_ERROR_INVALID_PTX;
    sim_module_delete(module);
    return CUDA_SUCCESS;
}

/* The text need not end with a zero. */
static CUresult append(CUlinkState link, const char *data, size_t bytes) {
    size_t length = strnlen(data, bytes);
    char *grown = realloc(link->text, link->bytes + length + 2);
    if (grown == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    link->text = grown;
    memcpy(grown + link->bytes, data, length);
    memcpy(grown + link->bytes + length, "\n", 2);
    CUresult result = check_text(grown + link->bytes);
    if (result == CUDA_SUCCESS)
        link->bytes += length + 1;
    else
        grown[link->bytes] = '\0';
    return result;
}

SIM_EXPORT CUresult cuLinkAddData_v2(CUlinkState link, CUjitInputType type, void *data, size_t bytes,
                                     const char *name, unsigned int option_count, CUjit_option *options,
                                     void **values) {
    SIM_ENTER();
    (void)name; /* for messages */
    SIM_TRY(check(link));
    if (data == NULL || bytes == 0 || link->is_complete) return CUDA_ERROR_INVALID_VALUE;
    if (option_count > 0 && (options == NULL || values == NULL)) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_type(type));
    return append(link, data, bytes);
}

SIM_EXPORT CUresult cuLinkAddData(CUlinkState link, CUjitInputType type, void *data, size_t bytes,
                                  const char *name, unsigned int option_count, CUjit_option *options,
                                  void **values) {
    return cuLinkAddData_v2(link, type, data, bytes, name, option_count, options, values);
}

SIM_EXPORT CUresult cuLinkAddFile_v2(CUlinkState link, CUjitInputType type, const char *path,
                                     unsigned int option_count, CUjit_option *options, void **values) {
    SIM_ENTER();
    void *data;
    SIM_TRY(check(link));
    if (path == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_type(type));
    SIM_TRY(sim_module_read_file(path, &data));
    CUresult result = cuLinkAddData_v2(link, type, data, strlen(data), path, option_count, options, values);
    free(data);
    return result;
}

SIM_EXPORT CUresult cuLinkAddFile(CUlinkState link, CUjitInputType type, const char *path,
                                  unsigned int option_count, CUjit_option *options, void **values) {
    return cuLinkAddFile_v2(link, type, path, option_count, options, values);
}

/* The image belongs to the link and ends with it. */
SIM_EXPORT CUresult cuLinkComplete(CUlinkState link, void **image, size_t *bytes) {
    SIM_ENTER();
    SIM_TRY(check(link));
    if (image == NULL || link->bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    link->is_complete = true;
    *image = link->text;
    if (bytes != NULL) *bytes = link->bytes + 1;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuLinkDestroy(CUlinkState link) {
    SIM_ENTER();
    SIM_TRY(check(link));
    free(link->text);
    sim_delete(&links, link);
    return CUDA_SUCCESS;
}
