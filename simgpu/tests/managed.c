/* Managed memory: queries return the advice that was given. */
#include "cases.h"

#define PAGE 65536ull

static CUdeviceptr managed(size_t bytes) {
    CUdeviceptr address;
    OK(cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL));
    return address;
}

static int asked(CUmem_range_attribute name, CUdeviceptr address, size_t bytes) {
    int value = 77;
    OK(cuMemRangeGetAttribute(&value, sizeof(value), name, address, bytes));
    return value;
}

static void advice_holds_for_the_pages_it_was_given_for(void) {
    test_begin();
    CUdeviceptr address = managed(4 * PAGE);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, 4 * PAGE) == 0);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, PAGE) == CU_DEVICE_INVALID);
    OK(cuMemAdvise(address + PAGE, 2 * PAGE, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address + PAGE, 2 * PAGE) == 1);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, 4 * PAGE) == 0);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address + 3 * PAGE, PAGE) == 0);
    OK(cuMemAdvise(address, 4 * PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 1));
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, 4 * PAGE) == 1);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, address, 1) == CU_MEM_LOCATION_TYPE_DEVICE);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, address, 1) == 1);
    OK(cuMemAdvise(address, PAGE, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU));
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, PAGE) == CU_DEVICE_CPU);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, 2 * PAGE) == CU_DEVICE_INVALID);
    OK(cuMemAdvise(address, 4 * PAGE, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 0));
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, address, 1) == CU_MEM_LOCATION_TYPE_NONE);
    OK(cuMemFree_v2(address));
}

static void those_who_use_memory_are_listed(void) {
    test_begin();
    int users[3];
    CUdeviceptr address = managed(2 * PAGE);
    OK(cuMemAdvise(address, 2 * PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY, 1));
    OK(cuMemAdvise(address, 2 * PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU));
    OK(cuMemRangeGetAttribute(users, sizeof(users), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, address, 2 * PAGE));
    CHECK(users[0] == CU_DEVICE_CPU && users[1] == 1 && users[2] == CU_DEVICE_INVALID);
    OK(cuMemAdvise(address, PAGE, CU_MEM_ADVISE_UNSET_ACCESSED_BY, 1));
    OK(cuMemRangeGetAttribute(users, sizeof(users), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, address, 2 * PAGE));
    CHECK(users[0] == CU_DEVICE_CPU && users[1] == CU_DEVICE_INVALID);
}

static void prefetching_is_remembered_one_by_one_and_in_batches(void) {
    test_begin();
    CUstream stream;
    CUdeviceptr address = managed(4 * PAGE), parts[] = {address, address + PAGE, address + 3 * PAGE};
    size_t sizes[] = {PAGE, 2 * PAGE, PAGE}, first[] = {0, 2};
    CUmemLocation to[] = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                          {.type = CU_MEM_LOCATION_TYPE_HOST}};
    CUmemLocation where[2];
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemPrefetchAsync(address, 4 * PAGE, 0, stream));
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 4 * PAGE) == 0);
    OK(cuMemPrefetchBatchAsync(parts, sizes, 3, to, first, 2, 0, stream));
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 3 * PAGE) == 1);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address + 3 * PAGE, PAGE) == CU_DEVICE_CPU);
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, address, 4 * PAGE) == CU_DEVICE_INVALID);
    OK(cuMemGetLocationInfo(address, 4 * PAGE, 3 * PAGE, PAGE, where));
    CHECK(where[0].type == CU_MEM_LOCATION_TYPE_DEVICE && where[0].id == 1);
    CHECK(where[1].type == CU_MEM_LOCATION_TYPE_HOST);
    OK(cuMemsetD8_v2(address, 7, 4 * PAGE));
    OK(cuMemDiscardBatchAsync(parts, sizes, 3, 0, stream));
    OK(cuMemDiscardAndPrefetchBatchAsync(parts, sizes, 3, to, first, 2, 0, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchBatchAsync(parts, sizes, 3, to, first, 2, 0, NULL));
    first[0] = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchBatchAsync(parts, sizes, 3, to, first, 2, 0, stream));
}

static void what_is_not_managed_has_no_attributes(void) {
    test_begin();
    int value;
    CUdeviceptr ordinary = test_memory(PAGE), address = managed(PAGE);
    void *data[] = {&value, &value};
    size_t sizes[] = {4, 4};
    CUmem_range_attribute names[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 99};
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, ordinary, PAGE));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, PAGE + 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemRangeGetAttribute(&value, 8, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, PAGE));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuMemRangeGetAttribute(NULL, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, PAGE));
    OK(cuMemRangeGetAttributes(data, sizes, names, 1, address, PAGE));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttributes(data, sizes, names, 2, address, PAGE));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync(ordinary, PAGE, 0, NULL));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuMemPrefetchAsync(address, PAGE, 5, NULL));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuMemAdvise(address, PAGE, CU_MEM_ADVISE_SET_ACCESSED_BY, 5));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAdvise(ordinary, PAGE, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
}

static const char text[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                           ".visible .global .attribute(.managed) .align 4 .b8 shared[65536];\n"
                           ".visible .global .align 4 .b8 plain[16];\n";

static void a_managed_variable_is_managed_memory(void) {
    test_begin();
    CUmodule module;
    CUdeviceptr address;
    size_t bytes;
    int is_managed = 0;
    OK(cuModuleLoadData(&module, text));
    OK(cuModuleGetGlobal_v2(&address, &bytes, module, "shared"));
    CHECK(bytes == PAGE);
    OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
    CHECK(is_managed == 1);
    OK(cuMemAdvise(address, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    CHECK(asked(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, address, bytes) == 1);
    OK(cuModuleGetGlobal_v2(&address, &bytes, module, "plain"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAdvise(address, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
}

static CUmemoryPool pool_at(CUmemLocationType type) {
    CUmemoryPool pool = NULL;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED, .location = {.type = type}};
    OK(cuMemPoolCreate(&pool, &properties));
    return pool;
}

static void a_managed_pool_hands_out_managed_memory(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    CUmemoryPool pool = pool_at(CU_MEM_LOCATION_TYPE_HOST);
    CUdeviceptr address;
    int is_managed = 0;
    OK(cuMemAllocFromPoolAsync(&address, 64 * PAGE, pool, NULL));
    OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
    CHECK(is_managed == 1 && test_used_bytes() == before_bytes);
    *(int *)address = 7;
    OK(cuMemPrefetchAsync(address, 64 * PAGE, 0, NULL));
    OK(cuMemFreeAsync(address, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolDestroy(pool));
    CHECK(test_used_bytes() == before_bytes);
}

static void a_managed_pool_has_no_size_and_cannot_be_shared(void) {
    test_begin();
    CUmemoryPool pool;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED};
    properties.maxSize = PAGE;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &properties));
    properties.maxSize = 0;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &properties));
    properties = (CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &properties));
}

static void each_place_has_a_pool_for_each_kind_of_memory(void) {
    test_begin();
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    CUmemoryPool pinned, managed_one, now, own = pool_at(CU_MEM_LOCATION_TYPE_HOST);
    OK(cuMemGetDefaultMemPool(&pinned, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
    OK(cuMemGetDefaultMemPool(&managed_one, &host, CU_MEM_ALLOCATION_TYPE_MANAGED));
    CHECK(pinned != managed_one);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_PINNED, own));
    OK(cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_MANAGED, own));
    OK(cuMemGetMemPool(&now, &host, CU_MEM_ALLOCATION_TYPE_MANAGED));
    CHECK(now == own);
    OK(cuMemPoolDestroy(own));
    OK(cuMemGetMemPool(&now, &host, CU_MEM_ALLOCATION_TYPE_MANAGED));
    CHECK(now == managed_one);
}

/* Their pace is one, or less by what is rounded: what is left of the last nanosecond must end, too. */
static void kernels_end_whatever_of_their_memory_is_rounded(void) {
    test_begin();
    CUdeviceptr address = managed(1023 * PAGE);
    OK(cuMemPrefetchAsync(address, 1023 * PAGE, 0, NULL));
    for (uint64_t i = 0; i < 100; i++) {
        test_spin(NULL, 1000003 + 40009 * i);
        OK(cuCtxSynchronize());
    }
    OK(cuMemFree_v2(address));
}

CASES({"a_managed_variable_is_managed_memory", a_managed_variable_is_managed_memory},
      {"a_managed_pool_hands_out_managed_memory", a_managed_pool_hands_out_managed_memory},
      {"a_managed_pool_has_no_size_and_cannot_be_shared", a_managed_pool_has_no_size_and_cannot_be_shared},
      {"each_place_has_a_pool_for_each_kind_of_memory", each_place_has_a_pool_for_each_kind_of_memory},
      {"advice_holds_for_the_pages_it_was_given_for", advice_holds_for_the_pages_it_was_given_for},
      {"those_who_use_memory_are_listed", those_who_use_memory_are_listed},
      {"prefetching_is_remembered_one_by_one_and_in_batches",
       prefetching_is_remembered_one_by_one_and_in_batches},
      {"kernels_end_whatever_of_their_memory_is_rounded", kernels_end_whatever_of_their_memory_is_rounded},
      {"what_is_not_managed_has_no_attributes", what_is_not_managed_has_no_attributes});
