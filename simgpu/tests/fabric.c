/* What GPUs of compute capability 9 bring: teams of devices, shares of one, and maps of tensors. */
#include "cases.h"

#define GRANULE (2 * MIB)

static const CUmemAccessDesc read_write = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                           .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static CUmemGenericAllocationHandle physical_on(int device) {
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    OK(cuMemCreate(&handle, GRANULE, &properties, 0));
    return handle;
}

static CUdeviceptr mapped(CUmemGenericAllocationHandle handle) {
    CUdeviceptr address;
    OK(cuMemAddressReserve(&address, GRANULE, 0, 0, 0));
    OK(cuMemMap(address, GRANULE, 0, handle, 0));
    OK(cuMemSetAccess(address, GRANULE, &read_write, 1));
    return address;
}

static void a_team_shows_the_memory_that_is_bound_to_it(void) {
    test_begin();
    CUmulticastObjectProp properties = {.numDevices = 2, .size = GRANULE};
    CUmemGenericAllocationHandle team, first = physical_on(0), second = physical_on(1);
    size_t bytes;
    char text[6];
    OK(cuMulticastGetGranularity(&bytes, &properties, CU_MULTICAST_GRANULARITY_MINIMUM));
    CHECK(bytes == GRANULE);
    OK(cuMulticastCreate(&team, &properties));
    OK(cuMulticastAddDevice(team, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice(team, 0));
    EXPECT(CUDA_ERROR_NOT_PERMITTED, cuMulticastBindMem(team, 0, first, 0, GRANULE, 0));
    OK(cuMulticastAddDevice(team, 1));
    CUdeviceptr address = mapped(team), plain = mapped(first);
    OK(cuMemcpyHtoD_v2(plain, "bound", 6));
    OK(cuMulticastBindAddr(team, 0, plain, GRANULE, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMulticastBindMem(team, 0, first, 0, GRANULE, 0));
    OK(cuMulticastBindMem_v2(team, 1, 0, second, 0, GRANULE, 0));
    OK(cuMemcpyDtoH_v2(text, address, 6));
    CHECK(strcmp(text, "bound") == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMulticastUnbind(team, 0, 0, 2 * GRANULE));
    OK(cuMulticastUnbind(team, 0, 0, GRANULE));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMulticastUnbind(team, 0, 0, GRANULE));
}

static void memory_bound_to_a_team_stays_until_the_team_ends(void) {
    test_begin();
    CUmulticastObjectProp properties = {.numDevices = 1, .size = GRANULE};
    CUmemGenericAllocationHandle team;
    size_t before_bytes = test_used_bytes();
    OK(cuMulticastCreate(&team, &properties));
    CHECK(test_used_bytes() == before_bytes);
    OK(cuMulticastAddDevice(team, 0));
    CUmemGenericAllocationHandle memory = physical_on(0);
    OK(cuMulticastBindMem(team, 0, memory, 0, GRANULE, 0));
    OK(cuMemRelease(memory));
    CHECK(test_used_bytes() == before_bytes + GRANULE);
    OK(cuMemRelease(team));
    CHECK(test_used_bytes() == before_bytes);
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMulticastCreate(&team, &properties));
    properties = (CUmulticastObjectProp){.numDevices = 3, .size = GRANULE};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMulticastCreate(&team, &properties));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMulticastCreate(&team, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMulticastAddDevice(memory, 0));
}

static CUgreenCtx green_of(unsigned count, CUdevResource *share) {
    CUdevResource whole, rest;
    CUdevResourceDesc description;
    CUgreenCtx green;
    unsigned groups = 1;
    OK(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevSmResourceSplitByCount(share, &groups, &whole, &rest, 0, count));
    CHECK(groups == 1 && share->sm.smCount + rest.sm.smCount == whole.sm.smCount);
    OK(cuDevResourceGenerateDesc(&description, share, 1));
    OK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
}

static void a_green_context_is_the_primary_one_with_a_share(void) {
    CUdevResource share, seen;
    CUcontext context, primary;
    CUstream stream;
    CUgreenCtx found;
    CUdeviceptr address;
    CUevent event;
    unsigned flags;
    int is_active;
    OK(cuInit(0));
    CUgreenCtx green = green_of(1, &share);
    CHECK(share.sm.smCount == 8);
    OK(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
    CHECK(is_active);
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxFromGreenCtx(&context, green));
    OK(cuCtxSetCurrent(context));
    CHECK(test_used_bytes() == CONTEXT_BYTES);
    OK(cuMemAlloc_v2(&address, MIB));
    CUfunction function = test_function("plain");
    OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(&stream, green, 0, 0));
    OK(cuStreamGetGreenCtx(stream, &found));
    OK(cuStreamGetDevResource(stream, &seen, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(found == green && seen.sm.smCount == 8);
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    OK(cuGreenCtxRecordEvent(green, event));
    OK(cuGreenCtxWaitEvent(green, event));
    OK(cuCtxSetCurrent(primary));
    OK(cuGreenCtxDestroy(green));
    EXPECT(CUDA_ERROR_STREAM_DETACHED, cuStreamSynchronize(stream));
    OK(cuStreamDestroy_v2(stream));
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuMemFree_v2(address));
    OK(cuEventSynchronize(event));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxDestroy(green));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
    CHECK(!is_active);
}

static void shares_keep_the_sizes_that_hardware_has(void) {
    test_begin();
    CUdevResource whole, groups[4], rest;
    CUdevResourceDesc description;
    CU_DEV_SM_RESOURCE_GROUP_PARAMS wanted[2] = {{.smCount = 6, .coscheduledSmCount = 2},
                                                 {.coscheduledSmCount = 2}};
    unsigned count = 4;
    OK(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(whole.sm.smCount == 10 && whole.sm.smCoscheduledAlignment == 8);
    OK(cuDevSmResourceSplitByCount(NULL, &count, &whole, NULL,
                                   CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, 3));
    CHECK(count == 2);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(NULL, &count, &whole, NULL, 0, 11));
    EXPECT(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
           cuDevSmResourceSplitByCount(NULL, &count, &whole, NULL, 0, 9));
    OK(cuDevSmResourceSplit(groups, 2, &whole, &rest, 0, wanted));
    CHECK(groups[0].sm.smCount == 6 && groups[1].sm.smCount == 4 && wanted[1].smCount == 4);
    EXPECT(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDevResourceGenerateDesc(&description, &rest, 1));
    OK(cuDevResourceGenerateDesc(&description, groups, 2));
    memset(&whole, 0, sizeof(whole));
    whole.type = CU_DEV_RESOURCE_TYPE_SM;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDevResourceGenerateDesc(&description, &whole, 1));
    EXPECT(CUDA_ERROR_INVALID_RESOURCE_TYPE,
           cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_WORKQUEUE));
}

static CUresult tiled(CUtensorMap *map, CUdeviceptr address, cuuint64_t stride, cuuint32_t row) {
    cuuint64_t dimensions[] = {64, 64};
    cuuint32_t box[] = {row, 8}, steps[] = {1, 1};
    return cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, (void *)(uintptr_t)address,
                                  dimensions, &stride, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static void a_tensor_map_is_encoded_or_refused_as_documented(void) {
    test_begin();
    CUtensorMap map, other;
    CUdeviceptr address = test_memory(MIB);
    OK(tiled(&map, address, 128, 32));
    OK(tiled(&other, address + 16, 128, 32));
    CHECK(memcmp(&map, &other, sizeof(map)) != 0);
    OK(cuTensorMapReplaceAddress(&map, (void *)(uintptr_t)(address + 16)));
    CHECK(memcmp(&map, &other, sizeof(map)) == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, tiled(&map, address + 8, 128, 32));
    EXPECT(CUDA_ERROR_INVALID_VALUE, tiled(&map, address, 130, 32));
    EXPECT(CUDA_ERROR_INVALID_VALUE, tiled(&map, address, 128, 4));
    EXPECT(CUDA_ERROR_INVALID_VALUE, tiled(&map, address, 128, 64));
    EXPECT(CUDA_ERROR_INVALID_VALUE, tiled(&map, address, 128, 257));
    EXPECT(CUDA_ERROR_INVALID_VALUE, tiled(NULL, address, 128, 32));
    memset(&map, 0, sizeof(map));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTensorMapReplaceAddress(&map, (void *)(uintptr_t)address));
}

static void copies_with_attributes_move_bytes_in_shape(void) {
    test_begin();
    CUarray array;
    CUstream stream;
    CUDA_ARRAY_DESCRIPTOR shape = {8, 4, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    CUdeviceptr from = test_memory(4096), to = test_memory(4096);
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    uint32_t words[32], seen[32];
    for (uint32_t i = 0; i < 32; i++)
        words[i] = i;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuArrayCreate_v2(&array, &shape));
    OK(cuMemcpyHtoD_v2(from, words, sizeof(words)));
    CUDA_MEMCPY3D_BATCH_OP copies[2] = {
        {.src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = from},
         .dst = {.type = CU_MEMCPY_OPERAND_TYPE_ARRAY, .op.array.array = array},
         .extent = {8, 4, 1},
         .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM},
        {.src = {.type = CU_MEMCPY_OPERAND_TYPE_ARRAY, .op.array = {array, {0, 1, 0}}},
         .dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = to},
         .extent = {8, 2, 1},
         .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}};
    OK(cuMemcpy3DBatchAsync_v2(2, copies, 0, stream));
    OK(cuMemcpyDtoH_v2(seen, to, 64));
    CHECK(seen[0] == 8 && seen[15] == 23);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync_v2(2, copies, 0, NULL));
    copies[1].extent.width = 0;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DWithAttributesAsync(&copies[1], 0, stream));
    OK(cuMemcpyWithAttributesAsync(to, from, 64, &attributes, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyWithAttributesAsync(to, from, 64, NULL, stream));
    OK(cuMemcpyDtoH_v2(seen, to, 64));
    CHECK(seen[0] == 0 && seen[15] == 15);
}

static CUlogicalEndpointId endpoint_of(size_t bytes) {
    CUlogicalEndpointId id;
    CUlogicalEndpointProp properties = {.type = CU_LOGICAL_ENDPOINT_TYPE_UNICAST, .size = bytes};
    int is_ready = 0;
    OK(cuLogicalEndpointIdReserve(&id, 1));
    OK(cuLogicalEndpointCreate(id, &properties));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLogicalEndpointBindMem(id, 0, 0, physical_on(0), 0, GRANULE, 0));
    OK(cuLogicalEndpointQuery(id, 1, &is_ready));
    CHECK(is_ready == 1);
    return id;
}

static void memory_bound_to_an_endpoint_stays_until_it_is_unbound_or_the_endpoint_ends(void) {
    test_begin();
    CUlogicalEndpointId id = endpoint_of(4 * GRANULE);
    size_t before_bytes = test_used_bytes();
    CUmemGenericAllocationHandle first = physical_on(0), second = physical_on(0), third = physical_on(0);
    OK(cuLogicalEndpointBindMem(id, 0, 0, first, 0, GRANULE, 0));
    OK(cuLogicalEndpointBindMem(id, 0, GRANULE, second, 0, GRANULE, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLogicalEndpointBindMem(id, 0, GRANULE, third, 0, GRANULE, 0));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuLogicalEndpointBindMem(id, 1, 0, physical_on(1), 0, GRANULE, 0));
    OK(cuLogicalEndpointBindAddr(id, 0, 2 * GRANULE, (void *)mapped(third), GRANULE, 0));
    OK(cuMemRelease(first));
    OK(cuMemRelease(second));
    CHECK(test_used_bytes() == before_bytes + 3 * GRANULE);
    OK(cuLogicalEndpointUnbind(id, 0, 0, 2 * GRANULE));
    CHECK(test_used_bytes() == before_bytes + GRANULE);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLogicalEndpointUnbind(id, 0, 0, 2 * GRANULE));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLogicalEndpointIdRelease(id, 1));
    OK(cuLogicalEndpointDestroy(id));
    OK(cuLogicalEndpointIdRelease(id, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLogicalEndpointDestroy(id));
}

CASES({"memory_bound_to_an_endpoint_stays_until_it_is_unbound_or_the_endpoint_ends",
       memory_bound_to_an_endpoint_stays_until_it_is_unbound_or_the_endpoint_ends},
      {"a_team_shows_the_memory_that_is_bound_to_it", a_team_shows_the_memory_that_is_bound_to_it},
      {"memory_bound_to_a_team_stays_until_the_team_ends", memory_bound_to_a_team_stays_until_the_team_ends},
      {"a_green_context_is_the_primary_one_with_a_share", a_green_context_is_the_primary_one_with_a_share},
      {"shares_keep_the_sizes_that_hardware_has", shares_keep_the_sizes_that_hardware_has},
      {"a_tensor_map_is_encoded_or_refused_as_documented", a_tensor_map_is_encoded_or_refused_as_documented},
      {"copies_with_attributes_move_bytes_in_shape", copies_with_attributes_move_bytes_in_shape});
