"""The class of each driver function, written by hand: it allocates, frees, copies, launches, reports memory, or none of these.

Names are base names, without ABI suffix: every version and per-thread-stream variant of a function is in its class. A
function that hands out a handle and is in no class is an error, so that no allocating function of a new header is missed.
"""

from collections.abc import Sequence

from tools.api.headers import Function

CHARGE = frozenset({
    # ordinary memory
    "cuMemAlloc", "cuMemAllocPitch", "cuMemAllocManaged",
    # stream-ordered
    "cuMemAllocAsync", "cuMemAllocFromPoolAsync",
    # virtual memory management: a mapping keeps what its handle brought
    "cuMemCreate", "cuMemMap", "cuMemMapArrayAsync", "cuMemImportFromShareableHandle", "cuMemRetainAllocationHandle",
    "cuMulticastBindMem", "cuMulticastBindAddr", "cuMulticastCreate",
    "cuLogicalEndpointBindMem", "cuLogicalEndpointBindAddr",
    # arrays
    "cuArrayCreate", "cuArray3DCreate", "cuMipmappedArrayCreate",
    # memory of others
    "cuImportExternalMemory", "cuIpcOpenMemHandle", "cuMemPoolImportPointer", "cuMemPoolImportFromShareableHandle",
    # contexts
    "cuCtxCreate", "cuCtxAttach", "cuDevicePrimaryCtxRetain", "cuGreenCtxCreate", "cuCtxFromGreenCtx", "cuGLCtxCreate",
    "cuVDPAUCtxCreate",
    # pools keep what was freed into them
    "cuMemPoolCreate",
    # graphs with allocation nodes
    "cuGraphAddMemAllocNode", "cuGraphAddNode", "cuGraphInstantiate", "cuGraphInstantiateWithFlags",
    "cuGraphInstantiateWithParams", "cuGraphUpload",
    # code and variables, of which much comes with the first use
    "cuModuleLoad", "cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuLibraryLoadData",
    "cuLibraryLoadFromFile", "cuModuleGetFunction", "cuModuleGetGlobal", "cuLibraryGetGlobal",
    "cuLibraryGetKernel", "cuLibraryGetManaged", "cuLibraryGetModule", "cuKernelGetFunction",
})  # fmt: skip
"""Takes or keeps device memory."""

REFUND = frozenset({
    "cuMemFree", "cuMemFreeAsync", "cuMemRelease", "cuMemUnmap", "cuArrayDestroy", "cuMipmappedArrayDestroy",
    "cuDestroyExternalMemory", "cuIpcCloseMemHandle", "cuCtxDestroy", "cuCtxDetach", "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset", "cuGreenCtxDestroy", "cuMemPoolDestroy", "cuMemPoolTrimTo", "cuMemPoolSetAttribute",
    "cuDeviceGraphMemTrim", "cuGraphExecDestroy", "cuGraphDestroy", "cuModuleUnload", "cuLibraryUnload",
    "cuMulticastUnbind", "cuLogicalEndpointUnbind", "cuLogicalEndpointDestroy", "cuGraphAddMemFreeNode",
})  # fmt: skip
"""Frees device memory, or may."""

LAUNCH = frozenset({
    "cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync", "cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel",
    "cuLaunchCooperativeKernelMultiDevice", "cuGraphLaunch",
})  # fmt: skip
"""Makes the device compute. A graph may allocate too."""

COPY = frozenset({
    "cuMemcpy", "cuMemcpyAsync", "cuMemcpy2D", "cuMemcpy2DAsync", "cuMemcpy2DUnaligned", "cuMemcpy3D", "cuMemcpy3DAsync",
    "cuMemcpy3DBatchAsync", "cuMemcpy3DPeer", "cuMemcpy3DPeerAsync", "cuMemcpy3DWithAttributesAsync", "cuMemcpyAtoA",
    "cuMemcpyAtoD", "cuMemcpyAtoH", "cuMemcpyAtoHAsync", "cuMemcpyBatchAsync", "cuMemcpyDtoA", "cuMemcpyDtoD",
    "cuMemcpyDtoDAsync", "cuMemcpyDtoH", "cuMemcpyDtoHAsync", "cuMemcpyHtoA", "cuMemcpyHtoAAsync", "cuMemcpyHtoD",
    "cuMemcpyHtoDAsync", "cuMemcpyPeer", "cuMemcpyPeerAsync", "cuMemcpyWithAttributesAsync",
    "cuMemsetD16", "cuMemsetD16Async", "cuMemsetD2D16", "cuMemsetD2D16Async", "cuMemsetD2D32", "cuMemsetD2D32Async",
    "cuMemsetD2D8", "cuMemsetD2D8Async", "cuMemsetD32", "cuMemsetD32Async", "cuMemsetD8", "cuMemsetD8Async",
    "cuMemPrefetchAsync", "cuMemPrefetchBatchAsync", "cuMemDiscardAndPrefetchBatchAsync",
    "cuMemBatchDecompressAsync", "cuFabricCpyBatchAsync",
})  # fmt: skip
"""Moves or fills memory on the device."""

QUERY = frozenset({
    "cuMemGetInfo", "cuDeviceTotalMem", "cuMemPoolGetAttribute", "cuDeviceGetGraphMemAttribute",
    "cuDeviceSetGraphMemAttribute",
})  # fmt: skip
"""Reports how much memory exists or is used."""

PASS_THOUGH_IT_HANDS_OUT_A_HANDLE = frozenset({
    # host memory: it is the container's RAM, not the device's
    "cuMemAllocHost", "cuMemHostAlloc", "cuMemHostGetDevicePointer", "cuMemHostRegister",
    # addresses, not memory
    "cuMemAddressReserve", "cuMemGetAddressRange", "cuIpcGetMemHandle", "cuTexRefGetAddress",
    "cuGraphicsResourceGetMappedPointer", "cuMulticastGetGranularity",
    # views of memory that was charged when it was made
    "cuArrayGetPlane", "cuMipmappedArrayGetLevel", "cuExternalMemoryGetMappedBuffer",
    "cuExternalMemoryGetMappedMipmappedArray", "cuGraphicsSubResourceGetMappedArray",
    "cuGraphicsResourceGetMappedMipmappedArray", "cuSurfRefGetArray", "cuTexRefGetArray", "cuTexRefGetMipmappedArray",
    # a graphics interface's buffers, which are that interface's own memory
    "cuGLMapBufferObject", "cuGLMapBufferObjectAsync",
    # answers about what exists
    "cuCtxGetCurrent", "cuCtxPopCurrent", "cuStreamGetCtx", "cuDeviceGetMemPool", "cuDeviceGetDefaultMemPool",
    "cuMemGetDefaultMemPool", "cuMemGetMemPool", "cuFuncGetModule", "cuKernelGetLibrary",
    "cuModuleEnumerateFunctions", "cuStreamGetGreenCtx", "cuStreamGetCaptureInfo", "cuStreamGetDevResource",
    "cuGraphKernelNodeGetParams", "cuGraphMemFreeNodeGetParams", "cuGraphNodeGetContainingGraph",
    "cuGraphChildGraphNodeGetGraph",
    "cuMemGetAllocationGranularity", "cuMemGetAllocationPropertiesFromHandle", "cuLogicalEndpointIdReserve",
    # batches and migration of what is allocated already
    "cuMemDiscardBatchAsync",
    # graphs themselves are host objects; their nodes that allocate are charged
    "cuGraphCreate", "cuGraphClone", "cuStreamEndCapture",
})  # fmt: skip
"""Reviewed: takes no device memory that the driver accounts to the caller."""

_HANDLES_OF_MEMORY = frozenset({
    "CUdeviceptr *", "CUdeviceptr_v1 *", "CUarray *", "CUmipmappedArray *", "CUmemGenericAllocationHandle *",
    "CUmemoryPool *", "CUcontext *", "CUexternalMemory *", "CUmodule *", "CUlibrary *", "CUgraphExec *", "CUgraph *",
    "CUgreenCtx *", "CUlogicalEndpointId *",
})  # fmt: skip
"""Types of the handles that allocating functions return."""

_LOOKS_LIKE_A_COPY = ("cuMemcpy", "cuMemset", "Prefetch", "Decompress", "CpyBatch")

_VERBS_OF_ALLOCATION = ("Alloc", "Create", "Import", "Open", "Map", "Load", "Instantiate", "Retain", "Attach", "Bind")


def class_of(base: str) -> str:
    """Return the class of a function by its base name."""
    classes = (("CHARGE", CHARGE), ("REFUND", REFUND), ("LAUNCH", LAUNCH), ("COPY", COPY), ("QUERY", QUERY))
    return next((name for name, members in classes if base in members), "PASS")


def unclassified_allocators(base_names: Sequence[tuple[str, Function]]) -> list[str]:
    """List unclassified functions with results or names that suggest an allocation."""
    known = CHARGE | REFUND | LAUNCH | COPY | QUERY | PASS_THOUGH_IT_HANDS_OUT_A_HANDLE
    return sorted({base for base, function in base_names if base not in known and _may_allocate(base, function)})


def unclassified_copies(base_names: Sequence[tuple[str, Function]]) -> list[str]:
    """List functions outside `COPY` with names that suggest a copy."""
    return sorted(
        {base for base, _ in base_names if base not in COPY and any(word in base for word in _LOOKS_LIKE_A_COPY)}
    )


def unknown_names(base_names: Sequence[tuple[str, Function]]) -> list[str]:
    """List classified names that are in no header: misspelt or removed."""
    listed = CHARGE | REFUND | LAUNCH | COPY | QUERY | PASS_THOUGH_IT_HANDS_OUT_A_HANDLE
    return sorted(listed - {base for base, _ in base_names})


def _may_allocate(base: str, function: Function) -> bool:
    gives_memory = any(parameter in _HANDLES_OF_MEMORY for parameter in function.parameter_types)
    return gives_memory or (base.startswith("cuMem") and any(verb in base for verb in _VERBS_OF_ALLOCATION))
