/* Modules, libraries, and the functions and variables in them. A CUkernel and a CUfunction are the same
 * object, since the driver lets a kernel be launched as a function. */
#ifndef SIM_MODULE_H
#define SIM_MODULE_H

#include "context/context.h"
#include "launch/cost.h"

#define SIM_FUNCTION_ATTRIBUTES 32

struct sim_parameter {
    size_t offset, bytes;
};

struct CUfunc_st {
    struct sim_head head;
    CUmodule module;
    CUfunction next; /* of the same module */
    char *name;
    struct sim_cost *cost;
    struct sim_parameter *parameters;
    unsigned parameter_count;
    unsigned old_block[3], old_shared_bytes; /* as set by CUDA 2's calls before a launch */
    char *old_arguments;                     /* NULL: none were set */
    CUfunc_cache cache;                      /* preference of cuFuncSetCacheConfig */
    bool knows_parameters;                   /* false: the image does not contain them */
    int attribute[SIM_FUNCTION_ATTRIBUTES];
};

struct sim_variable {
    struct sim_variable *next;
    char *name;
    size_t bytes;
    CUdeviceptr address; /* 0 until requested */
    bool is_managed;
    char reference; /* 't' or 's': a texture's or surface's name instead of memory; 0: neither */
};

struct CUmod_st {
    struct sim_head head;
    CUcontext context;   /* NULL: it belongs to a library */
    CUlibrary library;   /* NULL: it was loaded into a context */
    bool knows_names;    /* false: any name is taken, since the image is compressed */
    CUcontext placed_in; /* where its variables have their memory; NULL: they have none */
    CUfunction functions;
    struct sim_variable *variables;
    char *directives; /* cost directives of PTX, one a line */
};

struct CUlib_st {
    struct sim_head head;
    CUmodule module;
};

extern SIM_INTERNAL struct sim_slab sim_modules, sim_functions, sim_libraries;

static inline bool sim_is_function(CUfunction function) {
    return function != NULL && sim_is_live(&sim_functions, function);
}

/* Read an image (PTX, cubin, fatbin) into a new module. Under sim_lock. */
CUresult sim_module_new(const void *image, CUcontext context, CUmodule *module);
/* Give its variables memory of a context's device, all or none: at the load of a module, at the first use of
 * a library unless CUDA_MODULE_LOADING=EAGER. Under sim_lock. */
CUresult sim_module_place(CUmodule module, CUcontext context);
bool sim_modules_are_eager(void);
void sim_module_delete(CUmodule module);
void sim_modules_delete_of(CUcontext context);
void sim_modules_move(CUcontext from, CUcontext to);
CUresult sim_module_read_file(const char *path, void **image);

/* The module's function or variable of this name. Under sim_lock. */
CUresult sim_module_function(CUmodule module, const char *name, CUfunction *function);
/* The module's own copy of the name of a texture or surface reference, or NULL. */
const char *sim_module_reference(CUmodule module, const char *name, bool is_surface);
void sim_references_delete_of(CUmodule module);
CUresult sim_module_variable(CUmodule module, const char *name, CUdeviceptr *address, size_t *bytes);

/* Entering what an image names. */
CUfunction sim_function_add(CUmodule module, const char *name, size_t name_length);
void sim_variable_add(CUmodule module, const char *name, size_t name_length, size_t bytes, bool is_managed);
void sim_reference_add(CUmodule module, const char *name, size_t name_length, bool is_surface);
/* Keep an argument for a launch of CUDA 2. */
bool sim_function_keep_argument(CUfunction function, size_t offset, const void *data, size_t bytes);
bool sim_parameter_add(CUfunction function, size_t bytes, size_t alignment);

CUresult sim_ptx_read(CUmodule module, const char *text);
CUresult sim_elf_read(CUmodule module, const void *image);

#endif
