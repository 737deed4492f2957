/* CUDA arrays and mipmaps: memory in a shape. */
#ifndef SIM_ARRAY_H
#define SIM_ARRAY_H

#include "memory/range.h"

struct CUarray_st {
    struct sim_head head;
    CUcontext context;
    CUmipmappedArray mipmap; /* not NULL: a level of it */
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    size_t element_bytes, row_bytes, rows, slices;
    uintptr_t start;
    size_t bytes, backed_bytes; /* 0 backed: another owns the memory */
};

#define SIM_MOST_LEVELS 32

struct CUmipmappedArray_st {
    struct sim_head head;
    CUcontext context;
    unsigned level_count;
    CUarray level[SIM_MOST_LEVELS];
    size_t bytes;
};

extern struct sim_slab sim_arrays;

static inline bool sim_is_array(CUarray array) {
    return array != NULL && sim_is_live(&sim_arrays, array);
}

bool sim_is_mipmap(CUmipmappedArray mipmap);
void sim_arrays_delete_of(CUcontext context);
void sim_arrays_move(CUcontext from, CUcontext to);

#endif
