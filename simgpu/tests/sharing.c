/* What processes share: memory by handle, and a device's time. The second process is forked before CUDA
 * starts. */
#include "cases.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MS 1000000ull

static int own_end;
static pid_t other;

/* Run `act` in another process, with a socket to talk to it. */
static void begin_other(void (*act)(void)) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    other = fork();
    own_end = other == 0 ? ends[1] : ends[0];
    close(other == 0 ? ends[0] : ends[1]);
    if (other != 0) return;
    act();
    _exit(0);
}

static void end_other(void) {
    int status = 1;
    close(own_end);
    CHECK(waitpid(other, &status, 0) == other && status == 0);
}

/* A message with a descriptor, or -1. */
static void tell(const void *data, size_t bytes, int fd) {
    struct iovec part = {.iov_base = (void *)data, .iov_len = bytes};
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    CHECK(sendmsg(own_end, &message, 0) == (ssize_t)bytes);
}

static int hear(void *data, size_t bytes) {
    int fd = -1;
    struct iovec part = {.iov_base = data, .iov_len = bytes};
    char control[CMSG_SPACE(sizeof(int))];
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    CHECK(recvmsg(own_end, &message, 0) == (ssize_t)bytes);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header != NULL) memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return fd;
}

static void open_and_answer(void) {
    CUipcMemHandle handle;
    CUdeviceptr address, again;
    char text[6];
    hear(&handle, sizeof(handle));
    test_begin();
    size_t before_bytes = test_used_bytes();
    OK(cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle_v2(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(again == address && test_used_bytes() == before_bytes);
    OK(cuMemcpyDtoH_v2(text, address + 5000, sizeof(text)));
    CHECK(strcmp(text, "there") == 0);
    OK(cuMemcpyHtoD_v2(address + 9000, "back!", 6));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(address));
    OK(cuIpcCloseMemHandle(address));
    OK(cuMemcpyDtoH_v2(text, address, 1));
    OK(cuIpcCloseMemHandle(address));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(address));
    tell("done", 5, -1);
}

static void another_process_opens_memory_by_its_handle(void) {
    CUipcMemHandle handle;
    CUdeviceptr none;
    char text[6], word[5];
    begin_other(open_and_answer);
    test_begin();
    CUdeviceptr address = test_memory(MIB);
    OK(cuMemcpyHtoD_v2(address + 5000, "there", 6));
    OK(cuIpcGetMemHandle(&handle, address));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT,
           cuIpcOpenMemHandle_v2(&none, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    tell(&handle, sizeof(handle), -1);
    hear(word, sizeof(word));
    end_other();
    OK(cuMemcpyDtoH_v2(text, address + 9000, sizeof(text)));
    CHECK(strcmp(text, "back!") == 0);
    OK(cuMemFree_v2(address));
    memset(&handle, 0, sizeof(handle));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuIpcOpenMemHandle_v2(&none, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

static const CUmemAllocationProp exportable = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                               .requestedHandleTypes =
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
static const CUmemAccessDesc read_write = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                           .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static CUdeviceptr mapped(CUmemGenericAllocationHandle handle) {
    CUdeviceptr address;
    OK(cuMemAddressReserve(&address, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(address, 2 * MIB, 0, handle, 0));
    OK(cuMemSetAccess(address, 2 * MIB, &read_write, 1));
    return address;
}

static void import_and_write(void) {
    CUmemGenericAllocationHandle handle;
    char word[5];
    int fd = hear(word, sizeof(word));
    test_begin();
    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(cuMemcpyHtoD_v2(mapped(handle), "hello", 6));
    tell("done", 5, -1);
}

static void another_process_maps_exported_physical_memory(void) {
    CUmemGenericAllocationHandle handle;
    int fd;
    char text[6], word[5];
    begin_other(import_and_write);
    test_begin();
    OK(cuMemCreate(&handle, 2 * MIB, &exportable, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    tell("take", 5, fd);
    hear(word, sizeof(word));
    end_other();
    OK(cuMemcpyDtoH_v2(text, mapped(handle), sizeof(text)));
    CHECK(strcmp(text, "hello") == 0);
}

static void import_pool_and_read(void) {
    CUmemPoolPtrExportData data;
    CUmemoryPool pool;
    CUdeviceptr address;
    char text[6];
    int fd = hear(&data, sizeof(data));
    test_begin();
    OK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolImportPointer(&address, pool, &data));
    OK(cuMemcpyDtoH_v2(text, address, sizeof(text)));
    CHECK(strcmp(text, "pool!") == 0);
    OK(cuMemFree_v2(address));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(address));
    tell("done", 5, -1);
}

static void another_process_imports_a_pool_and_its_memory(void) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemPoolPtrExportData data;
    CUmemoryPool pool;
    CUdeviceptr address;
    int fd;
    char word[5];
    begin_other(import_pool_and_read);
    test_begin();
    OK(cuMemPoolCreate(&pool, &properties));
    OK(cuMemAllocFromPoolAsync(&address, MIB, pool, NULL));
    OK(cuMemcpyHtoD_v2(address, "pool!", 6));
    OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolExportPointer(&data, address));
    tell(&data, sizeof(data), fd);
    hear(word, sizeof(word));
    end_other();
    OK(cuMemFree_v2(address));
}

static void memory_of_another_interface_is_charged_and_mapped(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    CUexternalMemory memory;
    CUdeviceptr address;
    int fd = (int)syscall(SYS_memfd_create, "other", 0);
    char text[4];
    CHECK(fd >= 0 && ftruncate(fd, 16 * MIB) == 0 && pwrite(fd, "abc", 4, 4096) == 4);
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC handle = {
        .type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .handle = {.fd = fd}, .size = 16 * MIB};
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {.offset = 4096, .size = 8192};
    OK(cuImportExternalMemory(&memory, &handle));
    CHECK(test_used_bytes() == before_bytes + 16 * MIB);
    OK(cuExternalMemoryGetMappedBuffer(&address, memory, &buffer));
    OK(cuMemcpyDtoH_v2(text, address, sizeof(text)));
    CHECK(strcmp(text, "abc") == 0);
    OK(cuMemFree_v2(address));
    OK(cuDestroyExternalMemory(memory));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuDestroyExternalMemory(memory));
    CHECK(test_used_bytes() == before_bytes);
}

static CUevent opened_event(CUipcEventHandle *handle) {
    CUevent event;
    hear(handle, sizeof(*handle));
    test_begin();
    OK(cuIpcOpenEventHandle(&event, *handle));
    return event;
}

static void wait_for_an_event_of_another(void) {
    CUipcEventHandle handle;
    CUstream stream;
    float ms;
    char word[5];
    CUevent event = opened_event(&handle);
    OK(cuEventQuery(event)); /* not recorded yet */
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime_v2(&ms, event, event));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle(&handle, event));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    tell("open", 5, -1);
    hear(word, sizeof(word));
    uint64_t start_ns = test_now_ns();
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    OK(cuStreamWaitEvent(stream, event, 0));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    OK(cuEventSynchronize(event));
    CHECK(test_now_ns() - start_ns >= 50 * MS);
    OK(cuStreamSynchronize(stream));
    OK(cuEventQuery(event));
    OK(cuEventDestroy_v2(event));
    tell("done", 5, -1);
}

static CUevent shared_event(CUipcEventHandle *handle) {
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuIpcGetEventHandle(handle, event));
    return event;
}

static void another_process_waits_for_an_event_by_its_handle(void) {
    CUipcEventHandle handle;
    CUevent local;
    char word[5];
    begin_other(wait_for_an_event_of_another);
    test_begin();
    CUevent event = shared_event(&handle);
    OK(cuEventCreate(&local, CU_EVENT_DISABLE_TIMING));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle(&handle, local));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuIpcGetEventHandle(NULL, event));
    tell(&handle, sizeof(handle), -1);
    hear(word, sizeof(word));
    for (int i = 0; i < 10; i++)
        test_spin(NULL, 10 * MS);
    OK(cuEventRecord(event, NULL));
    tell("told", 5, -1);
    hear(word, sizeof(word));
    OK(cuEventQuery(event));
    OK(cuEventDestroy_v2(event));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuIpcOpenEventHandle(&local, handle));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&local, CU_EVENT_INTERPROCESS));
    end_other();
}

static void record_an_event_of_another(void) {
    CUipcEventHandle handle;
    char word[5];
    CUevent event = opened_event(&handle);
    test_spin(NULL, 60 * MS);
    OK(cuEventRecord(event, NULL));
    tell("told", 5, -1);
    hear(word, sizeof(word));
}

static void an_event_that_another_process_records_is_waited_for_here(void) {
    CUipcEventHandle handle;
    char word[5];
    begin_other(record_an_event_of_another);
    test_begin();
    CUevent event = shared_event(&handle);
    tell(&handle, sizeof(handle), -1);
    hear(word, sizeof(word));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    OK(cuStreamWaitEvent(NULL, event, 0));
    OK(cuCtxSynchronize());
    OK(cuEventQuery(event));
    tell("done", 5, -1);
    end_other();
}

static void wait_until_told(void *unused) {
    char word[5];
    (void)unused;
    hear(word, sizeof(word));
}

static void record_behind_a_host_function(void) {
    CUipcEventHandle handle;
    CUevent event = opened_event(&handle);
    OK(cuLaunchHostFunc(NULL, wait_until_told, NULL));
    OK(cuEventRecord(event, NULL));
    tell("told", 5, -1);
    OK(cuCtxSynchronize());
    OK(cuLaunchHostFunc(NULL, wait_until_told, NULL));
    OK(cuEventRecord(event, NULL));
    tell("more", 5, -1);
    OK(cuCtxSynchronize());
}

/* The second recording never comes, since its recorder dies. */
static void a_recording_behind_a_host_function_or_a_death_is_seen_too(void) {
    CUipcEventHandle handle;
    CUstream stream;
    char word[5];
    begin_other(record_behind_a_host_function);
    test_begin();
    CUevent event = shared_event(&handle);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    tell(&handle, sizeof(handle), -1);
    hear(word, sizeof(word));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    OK(cuStreamWaitEvent(stream, event, 0));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
    tell("free", 5, -1);
    OK(cuStreamSynchronize(stream));
    hear(word, sizeof(word));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    CHECK(kill(other, SIGKILL) == 0);
    OK(cuEventSynchronize(event));
}

static void spin_beside(void) {
    char word[5];
    test_begin();
    tell("here", 5, -1);
    hear(word, sizeof(word));
    for (int i = 0; i < 20; i++)
        test_spin(NULL, 10 * MS);
    OK(cuCtxSynchronize());
}

static void two_busy_processes_share_the_device(void) {
    char word[5];
    begin_other(spin_beside);
    test_begin();
    test_spin(NULL, 1);
    OK(cuCtxSynchronize());
    hear(word, sizeof(word));
    uint64_t start_ns = test_now_ns();
    tell("spin", 5, -1);
    for (int i = 0; i < 20; i++)
        test_spin(NULL, 10 * MS);
    OK(cuCtxSynchronize());
    /* Alone it takes 200 ms; the other begins and ends a little later. */
    CHECK(test_now_ns() - start_ns >= 250 * MS);
    end_other();
    CHECK(test_now_ns() - start_ns >= 320 * MS);
}

CASES({"another_process_opens_memory_by_its_handle", another_process_opens_memory_by_its_handle},
      {"another_process_maps_exported_physical_memory", another_process_maps_exported_physical_memory},
      {"another_process_imports_a_pool_and_its_memory", another_process_imports_a_pool_and_its_memory},
      {"memory_of_another_interface_is_charged_and_mapped",
       memory_of_another_interface_is_charged_and_mapped},
      {"another_process_waits_for_an_event_by_its_handle", another_process_waits_for_an_event_by_its_handle},
      {"an_event_that_another_process_records_is_waited_for_here",
       an_event_that_another_process_records_is_waited_for_here},
      {"a_recording_behind_a_host_function_or_a_death_is_seen_too",
       a_recording_behind_a_host_function_or_a_death_is_seen_too},
      {"two_busy_processes_share_the_device", two_busy_processes_share_the_device});
