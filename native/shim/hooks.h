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
/* contexts */
#define PGPU_HOOKED_cuCtxAttach                  PGPU_YES
#define PGPU_HOOKED_cuCtxCreate                  PGPU_YES
#define PGPU_HOOKED_cuCtxCreate_v2               PGPU_YES
#define PGPU_HOOKED_cuCtxCreate_v3               PGPU_YES
#define PGPU_HOOKED_cuCtxCreate_v4               PGPU_YES
#define PGPU_HOOKED_cuCtxDestroy                 PGPU_YES
#define PGPU_HOOKED_cuCtxDestroy_v2              PGPU_YES
#define PGPU_HOOKED_cuCtxDetach                  PGPU_YES
#define PGPU_HOOKED_cuDevicePrimaryCtxRelease    PGPU_YES
#define PGPU_HOOKED_cuDevicePrimaryCtxRelease_v2 PGPU_YES
#define PGPU_HOOKED_cuDevicePrimaryCtxReset      PGPU_YES
#define PGPU_HOOKED_cuDevicePrimaryCtxReset_v2   PGPU_YES
#define PGPU_HOOKED_cuDevicePrimaryCtxRetain     PGPU_YES
#define PGPU_HOOKED_cuGLCtxCreate                PGPU_YES
#define PGPU_HOOKED_cuGLCtxCreate_v2             PGPU_YES
#define PGPU_HOOKED_cuGreenCtxCreate             PGPU_YES
#define PGPU_HOOKED_cuGreenCtxDestroy            PGPU_YES
#define PGPU_HOOKED_cuVDPAUCtxCreate             PGPU_YES
#define PGPU_HOOKED_cuVDPAUCtxCreate_v2          PGPU_YES
/* limits */
#define PGPU_HOOKED_cuCtxSetLimit PGPU_YES
/* modules */
#define PGPU_HOOKED_cuLibraryLoadData     PGPU_YES
#define PGPU_HOOKED_cuLibraryLoadFromFile PGPU_YES
#define PGPU_HOOKED_cuModuleLoad          PGPU_YES
#define PGPU_HOOKED_cuModuleLoadData      PGPU_YES
#define PGPU_HOOKED_cuModuleLoadDataEx    PGPU_YES
#define PGPU_HOOKED_cuModuleLoadFatBinary PGPU_YES
/* vmm */
#define PGPU_HOOKED_cuMemCreate                    PGPU_YES
#define PGPU_HOOKED_cuMemExportToShareableHandle   PGPU_YES
#define PGPU_HOOKED_cuMemGetHandleForAddressRange  PGPU_YES
#define PGPU_HOOKED_cuMemImportFromShareableHandle PGPU_YES
#define PGPU_HOOKED_cuMemMap                       PGPU_YES
#define PGPU_HOOKED_cuMemMapArrayAsync             PGPU_YES
#define PGPU_HOOKED_cuMemMapArrayAsync_ptsz        PGPU_YES
#define PGPU_HOOKED_cuMemRelease                   PGPU_YES
#define PGPU_HOOKED_cuMemRetainAllocationHandle    PGPU_YES
#define PGPU_HOOKED_cuMemUnmap                     PGPU_YES
#define PGPU_HOOKED_cuMulticastBindAddr            PGPU_YES
#define PGPU_HOOKED_cuMulticastBindAddr_v2         PGPU_YES
#define PGPU_HOOKED_cuMulticastBindMem             PGPU_YES
#define PGPU_HOOKED_cuMulticastBindMem_v2          PGPU_YES
#define PGPU_HOOKED_cuMulticastCreate              PGPU_YES
#define PGPU_HOOKED_cuMulticastUnbind              PGPU_YES
/* pools */
#define PGPU_HOOKED_cuCtxSynchronize             PGPU_YES
#define PGPU_HOOKED_cuCtxSynchronize_v2          PGPU_YES
#define PGPU_HOOKED_cuEventSynchronize           PGPU_YES
#define PGPU_HOOKED_cuMemAllocAsync              PGPU_YES
#define PGPU_HOOKED_cuMemAllocAsync_ptsz         PGPU_YES
#define PGPU_HOOKED_cuMemAllocFromPoolAsync      PGPU_YES
#define PGPU_HOOKED_cuMemAllocFromPoolAsync_ptsz PGPU_YES
#define PGPU_HOOKED_cuMemFreeAsync               PGPU_YES
#define PGPU_HOOKED_cuMemFreeAsync_ptsz          PGPU_YES
#define PGPU_HOOKED_cuMemPoolCreate              PGPU_YES
#define PGPU_HOOKED_cuMemPoolDestroy             PGPU_YES
#define PGPU_HOOKED_cuMemPoolSetAttribute        PGPU_YES
#define PGPU_HOOKED_cuMemPoolTrimTo              PGPU_YES
#define PGPU_HOOKED_cuStreamSynchronize          PGPU_YES
#define PGPU_HOOKED_cuStreamSynchronize_ptsz     PGPU_YES
/* arrays */
#define PGPU_HOOKED_cuArray3DCreate         PGPU_YES
#define PGPU_HOOKED_cuArray3DCreate_v2      PGPU_YES
#define PGPU_HOOKED_cuArrayCreate           PGPU_YES
#define PGPU_HOOKED_cuArrayCreate_v2        PGPU_YES
#define PGPU_HOOKED_cuArrayDestroy          PGPU_YES
#define PGPU_HOOKED_cuMipmappedArrayCreate  PGPU_YES
#define PGPU_HOOKED_cuMipmappedArrayDestroy PGPU_YES
/* graphs */
#define PGPU_HOOKED_cuDeviceGraphMemTrim              PGPU_YES
#define PGPU_HOOKED_cuGraphExecDestroy                PGPU_YES
#define PGPU_HOOKED_cuGraphInstantiate                PGPU_YES
#define PGPU_HOOKED_cuGraphInstantiate_v2             PGPU_YES
#define PGPU_HOOKED_cuGraphInstantiateWithFlags       PGPU_YES
#define PGPU_HOOKED_cuGraphInstantiateWithParams      PGPU_YES
#define PGPU_HOOKED_cuGraphInstantiateWithParams_ptsz PGPU_YES
/* sharing */
#define PGPU_HOOKED_cuDestroyExternalMemory PGPU_YES
#define PGPU_HOOKED_cuImportExternalMemory  PGPU_YES
#define PGPU_HOOKED_cuIpcCloseMemHandle     PGPU_YES
#define PGPU_HOOKED_cuIpcOpenMemHandle      PGPU_YES
#define PGPU_HOOKED_cuIpcOpenMemHandle_v2   PGPU_YES
#define PGPU_HOOKED_cuMemPoolImportPointer  PGPU_YES
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
