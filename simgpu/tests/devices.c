/* Initialisation, devices, contexts, entry points, and what survives a process. */
#include "cases.h"

#include <sys/wait.h>
#include <unistd.h>

static void a_device_answers_as_configured(void) {
    int count = 0, major = 0, sms = 0;
    size_t bytes = 0;
    char name[64], bus[32];
    CUuuid uuid;
    CUdevice device = -1;
    EXPECT(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    CHECK(count == 2);
    OK(cuDeviceGetName(name, sizeof(name), 0));
    CHECK(strcmp(name, "Simulated GPU") == 0);
    OK(cuDeviceTotalMem_v2(&bytes, 0));
    CHECK(bytes == GPU_BYTES);
    OK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    OK(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    CHECK(major == 8 && sms == 10);
    OK(cuDeviceGetUuid_v2(&uuid, 1));
    CHECK((unsigned char)uuid.bytes[0] == 0x22 && (unsigned char)uuid.bytes[15] == 0x55);
    OK(cuDeviceGetPCIBusId(bus, sizeof(bus), 1));
    CHECK(strcmp(bus, "0000:02:00.0") == 0);
    OK(cuDeviceGetByPCIBusId(&device, bus));
    CHECK(device == 1);
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 2));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceTotalMem_v2(&bytes, -1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetName(NULL, 5, 0));
}

/* Prints the first byte of every visible GPU's UUID; the tests set CUDA_VISIBLE_DEVICES. */
static void print_visible(void) {
    int count = 0;
    CUuuid uuid;
    CUresult result = cuInit(0);
    if (result != CUDA_SUCCESS) printf("error %d", result);
    for (int i = 0; result == CUDA_SUCCESS && cuDeviceGetCount(&count) == CUDA_SUCCESS && i < count; i++) {
        OK(cuDeviceGetUuid_v2(&uuid, i));
        printf("%02x ", (unsigned char)uuid.bytes[0]);
    }
}

static void every_context_costs_memory(void) {
    CUcontext first = test_begin(), second;
    CHECK(test_used_bytes() == CONTEXT_BYTES);
    OK(cuCtxCreate_v2(&second, 0, 0));
    CHECK(test_used_bytes() == 2 * CONTEXT_BYTES);
    test_memory(MIB);
    OK(cuCtxDestroy_v2(second));
    OK(cuCtxSetCurrent(first));
    CHECK(test_used_bytes() == CONTEXT_BYTES);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(second));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(second));
}

static void the_primary_context_is_shared_and_counted_once(void) {
    CUcontext a, b;
    unsigned flags;
    int is_active = 1;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
    CHECK(is_active == 0);
    OK(cuDevicePrimaryCtxRetain(&a, 0));
    OK(cuDevicePrimaryCtxRetain(&b, 0));
    CHECK(a == b);
    OK(cuCtxSetCurrent(a));
    CHECK(test_used_bytes() == CONTEXT_BYTES);
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(a));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    CHECK(test_used_bytes() == CONTEXT_BYTES);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    EXPECT(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
    test_begin();
    CHECK(test_used_bytes() == CONTEXT_BYTES);
}

static void a_context_that_does_not_fit_is_refused(void) {
    test_begin();
    CUcontext none;
    size_t before_bytes = GPU_BYTES - CONTEXT_BYTES / 2;
    test_memory(before_bytes - test_used_bytes());
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate_v2(&none, 0, 0));
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuDevicePrimaryCtxRetain(&none, 0));
    CHECK(test_used_bytes() == before_bytes);
}

static void contexts_stack_on_each_thread(void) {
    CUcontext a = test_begin(), b = test_begin(), seen;
    OK(cuCtxGetCurrent(&seen));
    CHECK(seen == b);
    OK(cuCtxPopCurrent_v2(&seen));
    CHECK(seen == b);
    OK(cuCtxGetCurrent(&seen));
    CHECK(seen == a);
    OK(cuCtxPopCurrent_v2(NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent_v2(&seen));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
    OK(cuCtxPushCurrent_v2(a));
    OK(cuCtxSynchronize());
}

static void *proc(const char *name, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    void *address = (void *)1;
    OK(cuGetProcAddress_v2(name, &address, version, flags, status));
    return address;
}

static void entry_points_are_chosen_by_version_and_stream(void) {
    CUdriverProcAddressQueryResult status;
    CHECK(proc("cuMemAlloc", 3020, 0, &status) == (void *)cuMemAlloc_v2 &&
          status == CU_GET_PROC_ADDRESS_SUCCESS);
    CHECK(proc("cuMemAlloc", 2000, 0, &status) != (void *)cuMemAlloc_v2 &&
          status == CU_GET_PROC_ADDRESS_SUCCESS);
    CHECK(proc("cuMemAlloc", 1000, 0, &status) == NULL &&
          status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK(proc("cuNothing", 12000, 0, &status) == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK(proc("cuCtxCreate", 11040, 0, &status) == (void *)cuCtxCreate_v3);
    CHECK(proc("cuCtxCreate", 12050, 0, &status) == (void *)cuCtxCreate_v4);
    CHECK(proc("cuLaunchKernel", 12000, 0, &status) == (void *)cuLaunchKernel);
    CHECK(proc("cuLaunchKernel", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status) ==
          (void *)cuLaunchKernel_ptsz);
    CHECK(proc("cuGetProcAddress", 11030, 0, &status) == (void *)cuGetProcAddress);
    CHECK(proc("cuGetProcAddress", 12000, 0, &status) == (void *)cuGetProcAddress_v2);
    /* Newer than the configured driver (CUDA 13.0). */
    CHECK(proc("cuLaunchHostFunc", 13020, 0, &status) == (void *)cuLaunchHostFunc);
    void *address;
    EXPECT(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNothing", &address, 12000, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2(NULL, &address, 12000, 0, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2("cuInit", &address, 12000, 64, NULL));
}

static void every_error_has_a_name_and_a_text(void) {
    const char *text = NULL;
#define CUDA_ERROR(name, value)                                                                              \
    OK(cuGetErrorName(name, &text));                                                                         \
    CHECK(strcmp(text, #name) == 0);                                                                         \
    OK(cuGetErrorString(name, &text));                                                                       \
    CHECK(*text != '\0');
#include "cuda_errors.def"
#undef CUDA_ERROR
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)-1, &text));
    CHECK(text == NULL);
}

static void a_forked_child_has_no_driver(void) {
    test_begin();
    pid_t child = fork();
    if (child == 0) {
        int count;
        bool is_refused = cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                          cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED &&
                          cuInit(0) == CUDA_ERROR_NOT_INITIALIZED;
        _exit(is_refused ? 0 : 1);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(cuCtxSynchronize());
}

/* Takes memory, reports it, and waits to be killed; with `held`, its forked child outlives it. */
static void hold(void) {
    test_begin();
    test_memory(100 * MIB);
    puts("holding");
    fflush(stdout);
    pause();
}

static void hold_with_a_child(void) {
    test_begin();
    test_memory(100 * MIB);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    printf("child %d\n", child);
    fflush(stdout);
    pause();
}

static void print_used(void) {
    test_begin();
    printf("%llu", (test_used_bytes() - CONTEXT_BYTES) / MIB);
}

static void what_is_not_simulated_says_so(void) {
    const void *table;
    CUuuid id = {{0}};
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuGetExportTable(&table, &id));
}

static void peers_are_enabled_once(void) {
    CUcontext second = test_begin_on(1), first = test_begin_on(0);
    int can = 0;
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    CHECK(can == 1);
    OK(cuCtxEnablePeerAccess(second, 0));
    EXPECT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(second, 0));
    OK(cuCtxDisablePeerAccess(second));
    EXPECT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(second));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(first, 0));
}

CASES({"a_device_answers_as_configured", a_device_answers_as_configured}, {"print_visible", print_visible},
      {"every_context_costs_memory", every_context_costs_memory},
      {"the_primary_context_is_shared_and_counted_once", the_primary_context_is_shared_and_counted_once},
      {"a_context_that_does_not_fit_is_refused", a_context_that_does_not_fit_is_refused},
      {"contexts_stack_on_each_thread", contexts_stack_on_each_thread},
      {"entry_points_are_chosen_by_version_and_stream", entry_points_are_chosen_by_version_and_stream},
      {"every_error_has_a_name_and_a_text", every_error_has_a_name_and_a_text},
      {"a_forked_child_has_no_driver", a_forked_child_has_no_driver}, {"hold", hold},
      {"hold_with_a_child", hold_with_a_child}, {"print_used", print_used},
      {"what_is_not_simulated_says_so", what_is_not_simulated_says_so},
      {"peers_are_enabled_once", peers_are_enabled_once});
