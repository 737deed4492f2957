/* Streams, events, host functions, launches and the time that they take. */
#include "cases.h"

#include <pthread.h>
#include <semaphore.h>

#define MS 1000000ull

static void a_stream_takes_the_time_of_its_kernels(void) {
    test_begin();
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    uint64_t start_ns = test_now_ns();
    test_spin(stream, 200 * MS);
    test_spin(stream, 150 * MS);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    OK(cuStreamSynchronize(stream));
    CHECK(test_now_ns() - start_ns >= 350 * MS);
    OK(cuStreamQuery(stream));
    OK(cuStreamDestroy_v2(stream));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(stream));
}

static void events_measure_kernels(void) {
    test_begin();
    CUevent start, end;
    float milliseconds = 0;
    OK(cuEventCreate(&start, 0));
    OK(cuEventCreate(&end, 0));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime_v2(&milliseconds, start, end));
    OK(cuEventRecord(start, NULL));
    test_spin(NULL, 200 * MS);
    OK(cuEventRecord(end, NULL));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(end));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventElapsedTime_v2(&milliseconds, start, end));
    OK(cuEventSynchronize(end));
    OK(cuEventElapsedTime_v2(&milliseconds, start, end));
    CHECK(milliseconds >= 199.0f);
    OK(cuEventDestroy_v2(end));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(end));
}

static void a_stream_waits_for_another_ones_event(void) {
    test_begin();
    CUstream first, second;
    CUevent event;
    OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    test_spin(first, 200 * MS);
    OK(cuEventRecord(event, first));
    OK(cuStreamQuery(second));
    OK(cuStreamWaitEvent(second, event, 0));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
    OK(cuStreamSynchronize(second));
    OK(cuStreamQuery(first));
}

static void the_legacy_stream_keeps_step_with_blocking_streams(void) {
    test_begin();
    CUstream blocking, free_stream;
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING));
    test_spin(blocking, 150 * MS);
    test_spin(NULL, 1);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    OK(cuStreamQuery(free_stream));
    OK(cuStreamSynchronize(NULL));
    OK(cuStreamQuery(blocking));
}

static void the_per_thread_stream_stands_alone(void) {
    test_begin();
    unsigned long long legacy, own;
    CUfunction spin = test_function("spin");
    uint64_t ns = 150 * MS;
    void *arguments[] = {&ns};
    OK(cuStreamGetId(NULL, &legacy));
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &own));
    CHECK(legacy != own);
    OK(cuLaunchKernel_ptsz(spin, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery_ptsz(NULL));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2(NULL));
    OK(cuStreamSynchronize_ptsz(NULL));
}

static int order[4], order_count;
static sem_t gate;

static void wait_for_gate(void *unused) {
    (void)unused;
    sem_wait(&gate);
}

static void note(void *number) {
    order[order_count++] = (int)(intptr_t)number;
}

static void host_functions_run_in_order_with_copies(void) {
    test_begin();
    CUstream stream;
    static int host = 1, seen;
    CUdeviceptr address = test_memory(sizeof(host));
    OK(cuStreamCreate(&stream, 0));
    CHECK(sem_init(&gate, 0, 0) == 0);
    OK(cuLaunchHostFunc(stream, wait_for_gate, NULL));
    OK(cuLaunchHostFunc(stream, note, (void *)1));
    OK(cuMemcpyHtoDAsync_v2(address, &host, sizeof(host), stream));
    OK(cuLaunchHostFunc(stream, note, (void *)2));
    OK(cuMemcpyDtoHAsync_v2(&seen, address, sizeof(seen), stream));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    host = 2; /* the copy stands behind the first host function, so it reads this */
    sem_post(&gate);
    OK(cuStreamSynchronize(stream));
    CHECK(order_count == 2 && order[0] == 1 && order[1] == 2 && seen == 2);
}

static void notice(CUstream stream, CUresult status, void *seen) {
    *(CUstream *)seen = status == CUDA_SUCCESS ? stream : NULL;
}

static void a_callback_gets_its_stream(void) {
    test_begin();
    CUstream stream, seen = NULL;
    CUevent event;
    OK(cuStreamCreate(&stream, 0));
    OK(cuEventCreate(&event, 0));
    OK(cuStreamAddCallback(stream, notice, &seen, 0));
    OK(cuEventRecord(event, stream));
    OK(cuEventSynchronize(event));
    CHECK(seen == stream);
}

static void a_stream_waits_for_a_word_in_memory(void) {
    test_begin();
    CUstream waiting, writing;
    CUdeviceptr word = test_memory(4096);
    OK(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&writing, CU_STREAM_NON_BLOCKING));
    OK(cuStreamWaitValue32_v2(waiting, word, 5, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(waiting));
    OK(cuStreamWriteValue32_v2(writing, word, 5, 0));
    OK(cuStreamSynchronize(waiting));
}

static void bad_launches_are_refused(void) {
    test_begin();
    CUfunction spin = test_function("spin"), plain = test_function("plain");
    uint64_t ns = 1;
    void *arguments[] = {&ns};
    CUstream garbage = (CUstream)0x1234560;
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
    EXPECT(CUDA_ERROR_INVALID_HANDLE,
           cuLaunchKernel((CUfunction)&ns, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, garbage, arguments, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 0, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 1, 1, 1, 1025, 1, 1, 0, NULL, arguments, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 1 << 20, NULL, arguments, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    OK(cuLaunchKernel(plain, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    EXPECT(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
           cuLaunchCooperativeKernel(plain, 1 << 20, 1, 1, 1024, 1, 1, 0, NULL, NULL));
    OK(cuLaunchKernelEx(
        &(CUlaunchConfig){
            .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1},
        plain, NULL, NULL));
}

static void a_packed_argument_counts_too(void) {
    test_begin();
    uint64_t ns = 200 * MS;
    size_t bytes = sizeof(ns);
    void *extra[] = {(void *)CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT, &ns,
                     (void *)CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT, &bytes, CU_LAUNCH_PARAM_END};
    uint64_t start_ns = test_now_ns();
    OK(cuLaunchKernel(test_function("spin"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
    OK(cuCtxSynchronize());
    CHECK(test_now_ns() - start_ns >= 200 * MS);
}

static void modules_know_their_functions_and_variables(void) {
    test_begin();
    CUmodule module;
    CUfunction function;
    CUdeviceptr address;
    size_t bytes = 0, offset = 0;
    OK(cuModuleLoadData(&module, test_ptx));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "hidden"));
    OK(cuModuleGetFunction(&function, module, "shapes"));
    OK(cuFuncGetParamInfo(function, 1, &offset, &bytes));
    CHECK(offset == 8 && bytes == 8);
    OK(cuFuncGetParamInfo(function, 2, &offset, &bytes));
    CHECK(offset == 16 && bytes == 20);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(function, 3, &offset, &bytes));
    OK(cuModuleGetGlobal_v2(&address, &bytes, module, "table"));
    CHECK(bytes == 4096);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2(&address, &bytes, module, "chair"));
    EXPECT(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&module, "no ptx at all"));
    EXPECT(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, "\x01\x02\x03\x04"));
    EXPECT(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "/nowhere"));
    CUlibrary library;
    CUkernel kernel;
    OK(cuLibraryLoadData(&library, test_ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "plain"));
    OK(cuLaunchKernel((CUfunction)(void *)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuLibraryUnload(library));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuLibraryUnload(library));
}

static void *allocate_and_launch(void *context) {
    CUstream stream;
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, 0));
    for (int i = 0; i < 300; i++) {
        CUdeviceptr address = test_memory(4096), ordered;
        OK(cuMemAllocAsync(&ordered, 4096, stream));
        OK(cuMemsetD8Async(address, 1, 4096, stream));
        OK(cuMemFreeAsync(ordered, stream));
        OK(cuMemFree_v2(address));
        if (i % 50 == 0) OK(cuStreamSynchronize(stream));
    }
    OK(cuStreamDestroy_v2(stream));
    return NULL;
}

static void threads_share_a_context(void) {
    CUcontext context = test_begin();
    size_t before_bytes = test_used_bytes();
    pthread_t thread[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&thread[i], NULL, allocate_and_launch, context) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    OK(cuCtxSynchronize());
    CHECK(test_used_bytes() == before_bytes);
}

CASES({"a_stream_takes_the_time_of_its_kernels", a_stream_takes_the_time_of_its_kernels},
      {"events_measure_kernels", events_measure_kernels},
      {"a_stream_waits_for_another_ones_event", a_stream_waits_for_another_ones_event},
      {"the_legacy_stream_keeps_step_with_blocking_streams",
       the_legacy_stream_keeps_step_with_blocking_streams},
      {"the_per_thread_stream_stands_alone", the_per_thread_stream_stands_alone},
      {"host_functions_run_in_order_with_copies", host_functions_run_in_order_with_copies},
      {"a_callback_gets_its_stream", a_callback_gets_its_stream},
      {"a_stream_waits_for_a_word_in_memory", a_stream_waits_for_a_word_in_memory},
      {"bad_launches_are_refused", bad_launches_are_refused},
      {"a_packed_argument_counts_too", a_packed_argument_counts_too},
      {"modules_know_their_functions_and_variables", modules_know_their_functions_and_variables},
      {"threads_share_a_context", threads_share_a_context});
