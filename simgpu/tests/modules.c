/* What is loaded beside kernels: linked texts, texture references, and launches as CUDA 2 had them. */
#include "cases.h"

#include <unistd.h>

static const char first_text[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                                 ".global .texref picture;\n.global .surfref canvas;\n"
                                 ".visible .entry first(.param .u32 a) { ret; }";
static const char second_text[] = "// pgpu.cost second fixed_ns=20000000\n"
                                  ".version 7.0\n.target sm_50\n.address_size 64\n"
                                  ".visible .entry second() { ret; }\n";

static CUlinkState new_link(void) {
    CUlinkState link;
    OK(cuLinkCreate_v2(0, NULL, NULL, &link));
    return link;
}

static CUresult add(CUlinkState link, const char *text, size_t bytes) {
    return cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, (void *)text, bytes, "part", 0, NULL, NULL);
}

static void linked_texts_load_as_one_module(void) {
    test_begin();
    CUlinkState link = new_link();
    CUmodule module;
    CUfunction function;
    void *image;
    size_t bytes;
    char path[] = "/dev/shm/simgpu-ptx-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, second_text, sizeof(second_text) - 1) > 0);
    OK(add(link, first_text, sizeof(first_text) - 1)); /* without its zero */
    OK(cuLinkAddFile_v2(link, CU_JIT_INPUT_PTX, path, 0, NULL, NULL));
    CHECK(unlink(path) == 0);
    OK(cuLinkComplete(link, &image, &bytes));
    OK(cuModuleLoadData(&module, image));
    OK(cuLinkDestroy(link));
    OK(cuModuleGetFunction(&function, module, "first"));
    OK(cuModuleGetFunction(&function, module, "second"));
    uint64_t start_ns = test_now_ns();
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
    CHECK(test_now_ns() - start_ns >= 20000000u);
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLinkDestroy(link));
}

static void what_cannot_be_linked_is_refused_and_leaves_the_rest(void) {
    test_begin();
    CUlinkState link = new_link();
    void *image;
    size_t bytes;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLinkComplete(link, &image, &bytes));
    EXPECT(CUDA_ERROR_INVALID_PTX, add(link, "nonsense", 8));
    OK(add(link, second_text, sizeof(second_text)));
    EXPECT(CUDA_ERROR_NOT_SUPPORTED,
           cuLinkAddData_v2(link, CU_JIT_INPUT_LIBRARY, (void *)second_text, 9, "x", 0, NULL, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLinkAddData_v2(link, 99, (void *)second_text, 9, "x", 0, NULL, NULL));
    EXPECT(CUDA_ERROR_FILE_NOT_FOUND, cuLinkAddFile_v2(link, CU_JIT_INPUT_PTX, "/nowhere", 0, NULL, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLinkCreate_v2(1, NULL, NULL, &link));
    OK(cuLinkComplete(link, &image, &bytes));
    CHECK(strlen(image) + 1 == bytes && strstr(image, "nonsense") == NULL);
    EXPECT(CUDA_ERROR_INVALID_VALUE, add(link, second_text, sizeof(second_text)));
    OK(cuLinkDestroy(link));
}

static void texture_references_keep_what_they_are_told(void) {
    test_begin();
    CUmodule module;
    CUtexref texture, again, own;
    CUsurfref surface;
    CUarray array, seen;
    CUarray_format format;
    CUaddress_mode mode;
    CUdeviceptr address = test_memory(4096), bound;
    CUDA_ARRAY_DESCRIPTOR shape = {64, 64, CU_AD_FORMAT_UNSIGNED_INT8, 4};
    int channels;
    size_t offset;
    OK(cuModuleLoadData(&module, first_text));
    OK(cuModuleGetTexRef(&texture, module, "picture"));
    OK(cuModuleGetTexRef(&again, module, "picture"));
    CHECK(texture == again);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetTexRef(&again, module, "canvas"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefGetAddress_v2(&bound, texture));
    OK(cuTexRefSetAddress_v2(&offset, texture, address + 16, 64));
    OK(cuTexRefGetAddress_v2(&bound, texture));
    CHECK(offset == (address + 16) % 512 && bound == address + 16);
    OK(cuArrayCreate_v2(&array, &shape));
    OK(cuTexRefSetArray(texture, array, CU_TRSA_OVERRIDE_FORMAT));
    OK(cuTexRefGetArray(&seen, texture));
    OK(cuTexRefGetFormat(&format, &channels, texture));
    CHECK(seen == array && format == CU_AD_FORMAT_UNSIGNED_INT8 && channels == 4);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefGetAddress_v2(&bound, texture));
    OK(cuTexRefSetAddressMode(texture, 1, CU_TR_ADDRESS_MODE_MIRROR));
    OK(cuTexRefGetAddressMode(&mode, texture, 1));
    CHECK(mode == CU_TR_ADDRESS_MODE_MIRROR);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuTexRefSetAddressMode(texture, 3, mode));
    OK(cuModuleGetSurfRef(&surface, module, "canvas"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuSurfRefGetArray(&seen, surface));
    OK(cuSurfRefSetArray(surface, array, 0));
    OK(cuSurfRefGetArray(&seen, surface));
    OK(cuTexRefCreate(&own));
    OK(cuTexRefDestroy(own));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuTexRefDestroy(own));
    OK(cuModuleUnload(module));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuTexRefSetFlags(texture, 0));
}

static void a_launch_of_cuda_2_takes_its_shape_and_arguments(void) {
    test_begin();
    CUfunction spin = test_function("spin");
    uint64_t ns = 30000000;
    OK(cuFuncSetBlockShape(spin, 32, 1, 1));
    OK(cuFuncSetSharedSize(spin, 1024));
    OK(cuParamSetSize(spin, sizeof(ns)));
    OK(cuParamSetv(spin, 0, &ns, sizeof(ns)));
    uint64_t start_ns = test_now_ns();
    OK(cuLaunchGrid(spin, 2, 2));
    OK(cuCtxSynchronize());
    CHECK(test_now_ns() - start_ns >= ns);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchGrid(spin, 0, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuParamSetv(spin, -1, &ns, sizeof(ns)));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuParamSetv(spin, 4095, &ns, sizeof(ns)));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape(spin, 0, 1, 1));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuParamSeti(NULL, 0, 1));
}

static int attribute(CUdevice_attribute name) {
    int value;
    OK(cuDeviceGetAttribute(&value, name, 0));
    return value;
}

static void what_an_older_gpu_lacks_its_attributes_say(void) {
    test_begin();
    CUmulticastObjectProp team = {.numDevices = 1, .size = 2 * MIB};
    CUmemGenericAllocationHandle object;
    CUtensorMap map;
    cuuint64_t length = 64;
    cuuint32_t box = 64, step = 1;
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) == 0);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMulticastCreate(&object, &team));
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED) == 0);
    EXPECT(CUDA_ERROR_NOT_SUPPORTED,
           cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, (void *)(uintptr_t)4096, &length,
                                  NULL, &box, &step, 0, 0, 0, 0));
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED) == 0);
    CUarrayMapInfo part = {0};
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuMemMapArrayAsync(&part, 1, NULL));
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED) == 0);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED) == 1);
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES) == 0);
}

static const char large_text[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                                 ".visible .global .align 4 .b8 table[104857600];\n"
                                 ".visible .entry large() { ret; }\n";

static void variables_of_a_module_take_memory_when_it_is_loaded(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    CUmodule modules[10];
    for (int i = 0; i < 9; i++)
        OK(cuModuleLoadData(&modules[i], large_text));
    CHECK(test_used_bytes() == before_bytes + 900 * MIB);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuModuleLoadData(&modules[9], large_text));
    for (int i = 0; i < 9; i++)
        OK(cuModuleUnload(modules[i]));
    CHECK(test_used_bytes() == before_bytes);
}

static void a_library_takes_memory_when_it_is_used(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    CUlibrary library;
    CUkernel kernel;
    OK(cuLibraryLoadData(&library, large_text, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "large"));
    CHECK(test_used_bytes() == before_bytes);
    OK(cuLaunchKernel((CUfunction)(void *)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CHECK(test_used_bytes() == before_bytes + 100 * MIB);
    OK(cuLibraryUnload(library));
    CHECK(test_used_bytes() == before_bytes);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    OK(cuLibraryLoadData(&library, large_text, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(test_used_bytes() == before_bytes + 100 * MIB);
}

CASES({"variables_of_a_module_take_memory_when_it_is_loaded",
       variables_of_a_module_take_memory_when_it_is_loaded},
      {"a_library_takes_memory_when_it_is_used", a_library_takes_memory_when_it_is_used},
      {"linked_texts_load_as_one_module", linked_texts_load_as_one_module},
      {"what_cannot_be_linked_is_refused_and_leaves_the_rest",
       what_cannot_be_linked_is_refused_and_leaves_the_rest},
      {"texture_references_keep_what_they_are_told", texture_references_keep_what_they_are_told},
      {"a_launch_of_cuda_2_takes_its_shape_and_arguments", a_launch_of_cuda_2_takes_its_shape_and_arguments},
      {"what_an_older_gpu_lacks_its_attributes_say", what_an_older_gpu_lacks_its_attributes_say});
