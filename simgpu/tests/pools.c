/* Stream-ordered pools and virtual memory management. */
#include "cases.h"

#include <unistd.h>

static uint64_t pool_word(CUmemoryPool pool, CUmemPool_attribute name) {
    uint64_t value = 0;
    OK(cuMemPoolGetAttribute(pool, name, &value));
    return value;
}

static void a_pool_gives_back_at_a_synchronisation(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    CUdeviceptr address;
    CUmemoryPool pool;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync(&address, 10 * MIB, NULL));
    CHECK(test_used_bytes() == before_bytes + 10 * MIB);
    OK(cuMemFreeAsync(address, NULL));
    CHECK(test_used_bytes() == before_bytes + 10 * MIB);
    CHECK(pool_word(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
    OK(cuStreamSynchronize(NULL));
    CHECK(test_used_bytes() == before_bytes);
    CHECK(pool_word(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 10 * MIB);
}

static void a_pool_keeps_its_threshold_until_it_is_trimmed(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    CUdeviceptr address;
    CUmemoryPool pool;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    uint64_t all_bytes = UINT64_MAX;
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all_bytes));
    OK(cuMemAllocFromPoolAsync(&address, 20 * MIB, pool, NULL));
    OK(cuMemFreeAsync(address, NULL));
    OK(cuStreamSynchronize(NULL));
    CHECK(test_used_bytes() == before_bytes + 20 * MIB);
    OK(cuMemPoolTrimTo(pool, 4 * MIB));
    CHECK(test_used_bytes() == before_bytes + 4 * MIB);
    OK(cuMemPoolDestroy(pool));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(pool));
    CHECK(test_used_bytes() == before_bytes);
}

static void frees_cross_between_the_interfaces(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    CUdeviceptr ordered, plain = test_memory(MIB);
    OK(cuMemAllocAsync(&ordered, MIB, NULL));
    OK(cuMemFree_v2(ordered));
    OK(cuMemFreeAsync(plain, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(plain, NULL));
    OK(cuCtxSynchronize());
    CHECK(test_used_bytes() == before_bytes);
}

static void a_destroyed_pool_goes_with_its_last_allocation(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    CUdeviceptr address;
    CUmemoryPool pool;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemAllocFromPoolAsync(&address, 2 * MIB, pool, NULL));
    OK(cuMemPoolDestroy(pool));
    CHECK(test_used_bytes() == before_bytes + 2 * MIB);
    OK(cuMemFree_v2(address));
    CHECK(test_used_bytes() == before_bytes);
}

static const CUmemAllocationProp on_device = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
static const CUmemAccessDesc read_write = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                           .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static void physical_memory_lives_until_its_last_holder_is_gone(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    OK(cuMemCreate(&handle, 64 * MIB, &on_device, 0));
    OK(cuMemAddressReserve(&address, 64 * MIB, 0, 0, 0));
    OK(cuMemMap(address, 64 * MIB, 0, handle, 0));
    OK(cuMemSetAccess(address, 64 * MIB, &read_write, 1));
    OK(cuMemRelease(handle));
    CHECK(test_used_bytes() == before_bytes + 64 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRelease(handle));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(address, 64 * MIB));
    OK(cuMemUnmap(address, 64 * MIB));
    CHECK(test_used_bytes() == before_bytes);
    OK(cuMemAddressFree(address, 64 * MIB));
}

static void one_memory_appears_at_two_addresses(void) {
    test_begin();
    CUmemGenericAllocationHandle handle;
    CUdeviceptr a, b;
    int in = 77, out = 0;
    OK(cuMemCreate(&handle, 2 * MIB, &on_device, 0));
    OK(cuMemAddressReserve(&a, 2 * MIB, 0, 0, 0));
    OK(cuMemAddressReserve(&b, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(a, 2 * MIB, 0, handle, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemMap(a, 2 * MIB, 0, handle, 0));
    OK(cuMemMap(b, 2 * MIB, 0, handle, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(a, &in, sizeof(in)));
    OK(cuMemSetAccess(a, 2 * MIB, &read_write, 1));
    OK(cuMemSetAccess(b, 2 * MIB, &read_write, 1));
    OK(cuMemcpyHtoD_v2(a, &in, sizeof(in)));
    OK(cuMemcpyDtoH_v2(&out, b, sizeof(out)));
    CHECK(out == 77);
}

static void physical_memory_is_charged_to_its_own_device(void) {
    test_begin_on(0);
    size_t before_bytes = test_used_bytes();
    CUmemAllocationProp elsewhere = on_device;
    CUmemGenericAllocationHandle handle;
    elsewhere.location.id = 1;
    OK(cuMemCreate(&handle, 8 * MIB, &elsewhere, 0));
    CHECK(test_used_bytes() == before_bytes);
    test_begin_on(1);
    CHECK(test_used_bytes() == CONTEXT_BYTES + 8 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, 8 * MIB + 1, &elsewhere, 0));
    elsewhere.location.id = 2;
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuMemCreate(&handle, 8 * MIB, &elsewhere, 0));
}

static void an_exported_handle_names_the_same_memory(void) {
    test_begin();
    CUmemAllocationProp shared = on_device;
    CUmemGenericAllocationHandle handle, imported;
    int fd = -1;
    size_t before_bytes = test_used_bytes();
    shared.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&handle, 2 * MIB, &shared, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CHECK(imported == handle && test_used_bytes() == before_bytes + 2 * MIB);
    OK(cuMemRelease(handle));
    OK(cuMemRelease(imported));
    CHECK(test_used_bytes() == before_bytes);
    close(fd);
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)0,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

CASES({"a_pool_gives_back_at_a_synchronisation", a_pool_gives_back_at_a_synchronisation},
      {"a_pool_keeps_its_threshold_until_it_is_trimmed", a_pool_keeps_its_threshold_until_it_is_trimmed},
      {"frees_cross_between_the_interfaces", frees_cross_between_the_interfaces},
      {"a_destroyed_pool_goes_with_its_last_allocation", a_destroyed_pool_goes_with_its_last_allocation},
      {"physical_memory_lives_until_its_last_holder_is_gone",
       physical_memory_lives_until_its_last_holder_is_gone},
      {"one_memory_appears_at_two_addresses", one_memory_appears_at_two_addresses},
      {"physical_memory_is_charged_to_its_own_device", physical_memory_is_charged_to_its_own_device},
      {"an_exported_handle_names_the_same_memory", an_exported_handle_names_the_same_memory});
