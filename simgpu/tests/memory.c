/* Ordinary memory, pinned memory, copies, fills, arrays, pointers. */
#include "cases.h"

static void memory_comes_back_when_it_is_freed(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    CUdeviceptr address = test_memory(100 * MIB);
    CHECK(test_used_bytes() == before_bytes + 100 * MIB);
    OK(cuMemFree_v2(address));
    CHECK(test_used_bytes() == before_bytes);
}

static void a_full_device_refuses_and_stays_exact(void) {
    test_begin();
    CUdeviceptr address;
    size_t room_bytes = GPU_BYTES - test_used_bytes();
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&address, room_bytes + 1));
    address = test_memory(room_bytes);
    CHECK(test_used_bytes() == GPU_BYTES);
    CUdeviceptr none;
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&none, 1));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&none, SIZE_MAX));
    OK(cuMemFree_v2(address));
}

static void bad_arguments_are_refused(void) {
    CUdeviceptr address;
    size_t bytes;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc_v2(&address, 1));
    OK(cuInit(0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&address, 1));
    test_begin();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(NULL, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&address, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemGetInfo_v2(NULL, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(12345));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&address, &bytes, 10, 10, 3));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&address, 10, 77));
    OK(cuMemFree_v2(0));
}

static void a_second_free_is_refused(void) {
    test_begin();
    CUdeviceptr address = test_memory(MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(address + 512));
    OK(cuMemFree_v2(address));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(address));
}

static void copies_move_the_bytes(void) {
    test_begin();
    char from[1000], to[1000];
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (char)(i * 7);
    CUdeviceptr a = test_memory(4096), b = test_memory(4096);
    OK(cuMemcpyHtoD_v2(a + 8, from, sizeof(from)));
    OK(cuMemcpyDtoD_v2(b, a + 8, sizeof(from)));
    OK(cuMemcpyDtoH_v2(to, b, sizeof(to)));
    CHECK(memcmp(from, to, sizeof(from)) == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(a, from, 4097));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(0, from, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(to, 64, 1));
}

static void filling_with_zero_leaves_the_neighbours_alone(void) {
    test_begin();
    enum { BYTES = 3 * 4096 };
    static unsigned char seen[BYTES];
    CUdeviceptr address = test_memory(BYTES);
    OK(cuMemsetD8_v2(address, 0xAB, BYTES));
    OK(cuMemsetD8_v2(address + 100, 0, BYTES - 300));
    OK(cuMemcpyDtoH_v2(seen, address, BYTES));
    CHECK(seen[99] == 0xAB && seen[100] == 0 && seen[5000] == 0);
    CHECK(seen[BYTES - 201] == 0 && seen[BYTES - 200] == 0xAB);
    OK(cuMemsetD32_v2(address, 0x01020304, 4));
    OK(cuMemcpyDtoH_v2(seen, address, 16));
    CHECK(seen[0] == 4 && seen[15] == 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(address + 1, 0, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(address, 0, BYTES + 1));
}

static void rows_are_copied_with_their_pitch(void) {
    test_begin();
    CUdeviceptr address;
    size_t pitch;
    char from[3][5] = {"abcd", "efgh", "ijkl"}, to[3][5] = {{0}};
    OK(cuMemAllocPitch_v2(&address, &pitch, 5, 3, 4));
    CHECK(pitch >= 5 && pitch % 512 == 0);
    CUDA_MEMCPY2D there = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = from,
                           .srcPitch = 5,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = address,
                           .dstPitch = pitch,
                           .WidthInBytes = 5,
                           .Height = 3};
    OK(cuMemcpy2D_v2(&there));
    CUDA_MEMCPY2D back = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = address,
                          .srcPitch = pitch,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = to,
                          .dstPitch = 5,
                          .WidthInBytes = 5,
                          .Height = 3};
    OK(cuMemcpy2D_v2(&back));
    CHECK(memcmp(from, to, sizeof(from)) == 0);
    back.Height = 4;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&back));
}

static void arrays_are_charged_and_hold_data(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR shape = {
        .Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    OK(cuArrayCreate_v2(&array, &shape));
    CHECK(test_used_bytes() == before_bytes + 4 * MIB);
    int in = 42, out = 0;
    OK(cuMemcpyHtoA_v2(array, 8, &in, sizeof(in)));
    OK(cuMemcpyAtoH_v2(&out, array, 8, sizeof(out)));
    CHECK(out == 42);
    OK(cuArrayDestroy(array));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(array));
    CHECK(test_used_bytes() == before_bytes);
}

static void mipmaps_are_charged_level_by_level(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    CUmipmappedArray mipmap;
    CUarray level;
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    OK(cuMipmappedArrayCreate(&mipmap, &shape, 2));
    CHECK(test_used_bytes() == before_bytes + 5 * MIB);
    OK(cuMipmappedArrayGetLevel(&level, mipmap, 1));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(level));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&level, mipmap, 2));
    OK(cuMipmappedArrayDestroy(mipmap));
    CHECK(test_used_bytes() == before_bytes);
}

static void pinned_memory_costs_the_device_nothing(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    void *pinned;
    CUdeviceptr address;
    OK(cuMemHostAlloc(&pinned, 10 * MIB, CU_MEMHOSTALLOC_DEVICEMAP));
    CHECK(test_used_bytes() == before_bytes);
    OK(cuMemHostGetDevicePointer_v2(&address, pinned, 0));
    memset(pinned, 5, 10);
    CUmemorytype type = 0;
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    CHECK(type == CU_MEMORYTYPE_HOST);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(address));
    OK(cuMemFreeHost(pinned));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pinned));
    static char registered[8192];
    OK(cuMemHostRegister_v2(registered, sizeof(registered), 0));
    EXPECT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(registered + 1, 1, 0));
    OK(cuMemHostUnregister(registered));
    EXPECT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(registered));
}

static void a_pointer_tells_what_it_is(void) {
    CUcontext context = test_begin(), found = NULL;
    CUdeviceptr address = test_memory(MIB), base = 0;
    size_t bytes = 0;
    int ordinal = -1;
    OK(cuMemGetAddressRange_v2(&base, &bytes, address + 1000));
    CHECK(base == address && bytes == MIB);
    OK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_CONTEXT, address + 5));
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
    CHECK(found == context && ordinal == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_CONTEXT, 999));
    CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    CUmemorytype type = CU_MEMORYTYPE_ARRAY;
    void *answers[] = {&type, &ordinal};
    OK(cuPointerGetAttributes(2, names, answers, 999));
    CHECK((int)type == 0 && ordinal == CU_DEVICE_INVALID);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, 999));
}

static void many_allocations_are_told_apart(void) {
    test_begin();
    enum { COUNT = 20000 };
    static CUdeviceptr address[COUNT];
    size_t before_bytes = test_used_bytes();
    for (int i = 0; i < COUNT; i++)
        address[i] = test_memory(1024 + (size_t)i % 7 * 512);
    for (int i = 0; i < COUNT; i += 2)
        OK(cuMemFree_v2(address[i]));
    for (int i = 1; i < COUNT; i += 2) {
        CUdeviceptr base;
        OK(cuMemGetAddressRange_v2(&base, NULL, address[i] + 100));
        CHECK(base == address[i]);
        OK(cuMemFree_v2(address[i]));
    }
    CHECK(test_used_bytes() == before_bytes);
}

CASES({"memory_comes_back_when_it_is_freed", memory_comes_back_when_it_is_freed},
      {"a_full_device_refuses_and_stays_exact", a_full_device_refuses_and_stays_exact},
      {"bad_arguments_are_refused", bad_arguments_are_refused},
      {"a_second_free_is_refused", a_second_free_is_refused},
      {"copies_move_the_bytes", copies_move_the_bytes},
      {"filling_with_zero_leaves_the_neighbours_alone", filling_with_zero_leaves_the_neighbours_alone},
      {"rows_are_copied_with_their_pitch", rows_are_copied_with_their_pitch},
      {"arrays_are_charged_and_hold_data", arrays_are_charged_and_hold_data},
      {"mipmaps_are_charged_level_by_level", mipmaps_are_charged_level_by_level},
      {"pinned_memory_costs_the_device_nothing", pinned_memory_costs_the_device_nothing},
      {"a_pointer_tells_what_it_is", a_pointer_tells_what_it_is},
      {"many_allocations_are_told_apart", many_allocations_are_told_apart});
