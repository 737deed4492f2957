/* The one list of functions that the shim changes. Every other export is a tail jump to the real driver.
 *
 * A name that stands here and is written nowhere does not link; a hook that is written and does not stand
 * here collides with its own tail jump. The rest of the library is expanded from this list and
 * native/api/cuda_functions.def. */
#ifndef PGPU_SHIM_HOOKS_H
#define PGPU_SHIM_HOOKS_H

/* resolve */
#define PGPU_HOOKED_cuInit              PGPU_YES
#define PGPU_HOOKED_cuGetProcAddress    PGPU_YES
#define PGPU_HOOKED_cuGetProcAddress_v2 PGPU_YES
/* memory */
#define PGPU_HOOKED_cuMemAlloc         PGPU_YES
#define PGPU_HOOKED_cuMemAlloc_v2      PGPU_YES
#define PGPU_HOOKED_cuMemAllocManaged  PGPU_YES
#define PGPU_HOOKED_cuMemAllocPitch    PGPU_YES
#define PGPU_HOOKED_cuMemAllocPitch_v2 PGPU_YES
#define PGPU_HOOKED_cuMemFree          PGPU_YES
#define PGPU_HOOKED_cuMemFree_v2       PGPU_YES
/* query */
#define PGPU_HOOKED_cuDeviceTotalMem    PGPU_YES
#define PGPU_HOOKED_cuDeviceTotalMem_v2 PGPU_YES
#define PGPU_HOOKED_cuMemGetInfo        PGPU_YES
#define PGPU_HOOKED_cuMemGetInfo_v2     PGPU_YES

/* PGPU_IF_HOOKED(cuInit, this, that): `this` for a function of the list. PGPU_YES shifts the arguments by
 * one. */
#define PGPU_YES                            ~,
#define PGPU_IF_HOOKED(function, yes, no)   PGPU_CHOOSE_(PGPU_HOOKED_##function, yes, no)
#define PGPU_CHOOSE_(probe, yes, no)        PGPU_THIRD_(probe yes, no, ~)
#define PGPU_THIRD_(...)                    PGPU_SECOND_OF_(__VA_ARGS__)
#define PGPU_SECOND_OF_(first, second, ...) second

#endif
