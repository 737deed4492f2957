/* Modules as the driver keeps them. */
#include "module/module.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "managed/residency.h"
#include "memory/range.h"

#define FATBIN_MAGIC         0xBA55ED50u
#define FATBIN_WRAPPER_MAGIC 0x466243B1u
/* A compressed image does not contain the size of a variable. */
#define UNKNOWN_VARIABLE_BYTES 65536u
#define UNIT_BYTES             512u

struct sim_slab sim_modules = SIM_SLAB(struct CUmod_st, 128, 1u << 18);
struct sim_slab sim_functions = SIM_SLAB(struct CUfunc_st, 512, 1u << 20);
struct sim_slab sim_libraries = SIM_SLAB(struct CUlib_st, 64, 1u << 18);

static void set_attributes(CUfunction function) {
    function->attribute[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
    function->attribute[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
    function->attribute[CU_FUNC_ATTRIBUTE_PTX_VERSION] = 80;
    function->attribute[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 80;
    function->attribute[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = 49152;
    function->attribute[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1;
}

CUfunction sim_function_add(CUmodule module, const char *name, size_t name_length) {
    char *copy = strndup(name, name_length);
    struct sim_cost *cost = malloc(sizeof(*cost));
    CUfunction function = copy == NULL || cost == NULL ? NULL : sim_new(&sim_functions);
    if (function == NULL) {
        free(copy);
        free(cost);
        return NULL;
    }
    *cost = sim_cost_of(module->directives, copy);
    function->name = copy;
    function->module = module;
    function->cost = cost;
    function->next = module->functions;
    set_attributes(function);
    module->functions = function;
    return function;
}

#define OLD_ARGUMENT_BYTES 4096u

bool sim_function_keep_argument(CUfunction function, size_t offset, const void *data, size_t bytes) {
    if (function->old_arguments == NULL) function->old_arguments = calloc(1, OLD_ARGUMENT_BYTES);
    if (function->old_arguments == NULL) return false;
    memcpy(function->old_arguments + offset, data, bytes);
    return true;
}

bool sim_parameter_add(CUfunction function, size_t bytes, size_t alignment) {
    unsigned count = function->parameter_count;
    struct sim_parameter *grown = realloc(function->parameters, (count + 1) * sizeof(*grown));
    if (grown == NULL) return false;
    size_t end = count == 0 ? 0 : grown[count - 1].offset + grown[count - 1].bytes;
    grown[count] = (struct sim_parameter){.offset = sim_round_up(end, alignment), .bytes = bytes};
    function->parameters = grown;
    function->parameter_count = count + 1;
    return true;
}

void sim_variable_add(CUmodule module, const char *name, size_t name_length, size_t bytes, bool is_managed) {
    struct sim_variable *variable = calloc(1, sizeof(*variable));
    char *copy = strndup(name, name_length);
    if (variable == NULL || copy == NULL) {
        free(variable);
        free(copy);
        return;
    }
    *variable = (struct sim_variable){
        .next = module->variables, .name = copy, .bytes = bytes, .is_managed = is_managed};
    module->variables = variable;
}

void sim_reference_add(CUmodule module, const char *name, size_t name_length, bool is_surface) {
    struct sim_variable *before = module->variables;
    sim_variable_add(module, name, name_length, 0, false);
    if (module->variables != before) module->variables->reference = is_surface ? 's' : 't';
}

static bool is_text(const char *image) {
    for (const char *at = image; *at != '\0'; at++)
        if ((unsigned char)*at < ' ' && strchr("\t\r\n\f\v", *at) == NULL) return false;
    return *image != '\0';
}

static CUresult read_image(CUmodule module, const void *image) {
    uint32_t magic;
    if (is_text(image)) return sim_ptx_read(module, image);
    memcpy(&magic, image, sizeof(magic));
    if (memcmp(image, ELFMAG, SELFMAG) == 0) return sim_elf_read(module, image);
    bool is_fatbin = magic == FATBIN_MAGIC || magic == FATBIN_WRAPPER_MAGIC;
    return is_fatbin ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

CUresult sim_module_new(const void *image, CUcontext context, CUmodule *module) {
    CUmodule made = sim_new(&sim_modules);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    made->context = context;
    CUresult result = read_image(made, image);
    if (result == CUDA_SUCCESS)
        *module = made;
    else
        sim_module_delete(made);
    return result;
}

/* Like an allocation of the context's device, managed or not. */
static CUresult charge(const struct sim_gpu *gpu, unsigned index, struct sim_range *range, size_t bytes) {
    bool is_paged = range->is_managed && sim_residency_pages(gpu);
    SIM_TRY(is_paged ? sim_residency_add(index, bytes) : sim_device_reserve(index, bytes));
    *(is_paged ? &range->paged_bytes : &range->charged_bytes) = bytes;
    return CUDA_SUCCESS;
}

static CUresult place(struct sim_variable *variable, CUcontext context) {
    size_t bytes = sim_round_up(variable->bytes, UNIT_BYTES);
    uintptr_t start = sim_backing_map(bytes, UNIT_BYTES);
    struct sim_range *range = start == 0 ? NULL : sim_range_new(SIM_GLOBAL, start, variable->bytes);
    if (range == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    range->backed_bytes = bytes;
    range->gpu = context->gpu;
    range->device = context->device;
    range->is_managed = variable->is_managed;
    CUresult result = charge(&sim_driver.config.gpu[context->gpu], context->gpu, range, bytes);
    if (result == CUDA_SUCCESS)
        variable->address = start;
    else
        sim_range_free(range);
    return result;
}

static void displace(CUmodule module) {
    for (struct sim_variable *variable = module->variables; variable != NULL; variable = variable->next) {
        if (variable->address != 0) sim_range_free(sim_range_from(&sim_ranges, variable->address));
        variable->address = 0;
    }
    module->placed_in = NULL;
}

CUresult sim_module_place(CUmodule module, CUcontext context) {
    if (module->placed_in != NULL) return CUDA_SUCCESS;
    for (struct sim_variable *variable = module->variables; variable != NULL; variable = variable->next) {
        if (variable->reference != 0 || variable->address != 0) continue;
        CUresult result = place(variable, context);
        if (result != CUDA_SUCCESS) {
            displace(module);
            return result;
        }
    }
    module->placed_in = context;
    return CUDA_SUCCESS;
}

bool sim_modules_are_eager(void) {
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return mode != NULL && strcmp(mode, "EAGER") == 0;
}

static void delete_variables(CUmodule module) {
    displace(module);
    for (struct sim_variable *variable = module->variables, *next; variable != NULL; variable = next) {
        next = variable->next;
        free(variable->name);
        free(variable);
    }
}

void sim_module_delete(CUmodule module) {
    for (CUfunction function = module->functions, next; function != NULL; function = next) {
        next = function->next;
        free(function->name);
        free(function->cost);
        free(function->parameters);
        free(function->old_arguments);
        sim_delete(&sim_functions, function);
    }
    sim_references_delete_of(module);
    delete_variables(module);
    free(module->directives);
    sim_delete(&sim_modules, module);
}

void sim_modules_delete_of(CUcontext context) {
    for (uint32_t i = 0; i < sim_modules.used; i++) {
        CUmodule module = sim_at(&sim_modules, i);
        if (module == NULL || module->placed_in != context) continue;
        if (module->context == context)
            sim_module_delete(module);
        else
            displace(module);
    }
}

void sim_modules_move(CUcontext from, CUcontext to) {
    for (uint32_t i = 0; i < sim_modules.used; i++) {
        CUmodule module = sim_at(&sim_modules, i);
        if (module != NULL && module->context == from) module->context = to;
        if (module != NULL && module->placed_in == from) module->placed_in = to;
    }
}

CUresult sim_module_read_file(const char *path, void **image) {
    FILE *file = fopen(path, "re");
    if (file == NULL) return CUDA_ERROR_FILE_NOT_FOUND;
    long bytes = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    *image = bytes < 0 ? NULL : calloc(1, (size_t)bytes + 8);
    bool is_read = *image != NULL && fseek(file, 0, SEEK_SET) == 0 &&
                   fread(*image, 1, (size_t)bytes, file) == (size_t)bytes;
    fclose(file);
    if (is_read) return CUDA_SUCCESS;
    free(*image);
    return CUDA_ERROR_INVALID_IMAGE;
}

CUresult sim_module_function(CUmodule module, const char *name, CUfunction *function) {
    *function = module->functions;
    while (*function != NULL && strcmp((*function)->name, name) != 0)
        *function = (*function)->next;
    if (*function != NULL) return CUDA_SUCCESS;
    if (module->knows_names) return CUDA_ERROR_NOT_FOUND;
    *function = sim_function_add(module, name, strlen(name));
    return *function == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static struct sim_variable *find(CUmodule module, const char *name, char reference) {
    struct sim_variable *variable = module->variables;
    while (variable != NULL && (variable->reference != reference || strcmp(variable->name, name) != 0))
        variable = variable->next;
    return variable;
}

static struct sim_variable *find_variable(CUmodule module, const char *name) {
    return find(module, name, 0);
}

const char *sim_module_reference(CUmodule module, const char *name, bool is_surface) {
    char kind = is_surface ? 's' : 't';
    struct sim_variable *found = find(module, name, kind);
    if (found == NULL && !module->knows_names) {
        sim_reference_add(module, name, strlen(name), is_surface);
        found = find(module, name, kind);
    }
    return found == NULL ? NULL : found->name;
}

CUresult sim_module_variable(CUmodule module, const char *name, CUdeviceptr *address, size_t *bytes) {
    struct sim_variable *variable = find_variable(module, name);
    if (variable == NULL && !module->knows_names) {
        sim_variable_add(module, name, strlen(name), UNKNOWN_VARIABLE_BYTES, false);
        variable = find_variable(module, name);
    }
    if (variable == NULL) return CUDA_ERROR_NOT_FOUND;
    CUcontext context = module->context;
    if (context == NULL) SIM_TRY(sim_current_context(&context));
    SIM_TRY(sim_module_place(module, context));
    if (variable->address == 0) SIM_TRY(place(variable, context));
    if (address != NULL) *address = variable->address;
    if (bytes != NULL) *bytes = variable->bytes;
    return CUDA_SUCCESS;
}
