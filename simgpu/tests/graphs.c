/* Graphs, built and captured. */
#include "cases.h"

#define MS 1000000ull

static CUgraphExec instantiated(CUgraph graph) {
    CUgraphExec exec;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static size_t node_count(CUgraph graph) {
    size_t count = 0;
    OK(cuGraphGetNodes(graph, NULL, &count));
    return count;
}

static void a_captured_graph_does_its_work_when_launched(void) {
    test_begin();
    CUstream stream;
    CUgraph graph;
    CUstreamCaptureStatus status;
    unsigned char seen = 0;
    CUdeviceptr address = test_memory(4096);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuMemsetD8Async(address, 9, 4096, stream));
    test_spin(stream, 20 * MS);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuMemcpyDtoH_v2(&seen, address, 1));
    CHECK(seen == 0 && node_count(graph) == 2);
    CUgraphExec exec = instantiated(graph);
    OK(cuGraphDestroy(graph));
    uint64_t start_ns = test_now_ns();
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(test_now_ns() - start_ns >= 40 * MS);
    OK(cuMemcpyDtoH_v2(&seen, address, 1));
    CHECK(seen == 9);
    OK(cuGraphExecDestroy(exec));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, stream));
}

static void streams_join_a_capture_through_events(void) {
    test_begin();
    CUstream first, second;
    CUevent fork, join;
    CUgraph graph;
    OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamBeginCapture_v2(first, CU_STREAM_CAPTURE_MODE_RELAXED));
    test_spin(first, 1);
    OK(cuEventRecord(fork, first));
    OK(cuStreamWaitEvent(second, fork, 0));
    test_spin(second, 1);
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(fork));
    OK(cuEventRecord(join, second));
    OK(cuStreamWaitEvent(first, join, 0));
    test_spin(first, 1);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(second, &graph));
    OK(cuStreamEndCapture(first, &graph));
    CUgraphNode from[8], to[8];
    size_t count = 8;
    OK(cuGraphGetEdges(graph, from, to, &count));
    CHECK(node_count(graph) == 3 && count == 3);
    OK(cuStreamQuery(second));
}

static void a_capture_that_is_not_joined_or_is_spoilt_fails(void) {
    test_begin();
    CUstream first, second;
    CUevent fork;
    CUgraph graph;
    OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamBeginCapture_v2(first, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuEventRecord(fork, first));
    OK(cuStreamWaitEvent(second, fork, 0));
    test_spin(second, 1);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(first, &graph));
    CHECK(graph == NULL);
    OK(cuStreamBeginCapture_v2(first, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(first));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(first, &graph));
    OK(cuStreamSynchronize(first));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
           cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
}

static int calls;

static void call(void *unused) {
    (void)unused;
    calls++;
}

static void a_built_graph_runs_in_the_order_of_its_edges(void) {
    test_begin();
    CUgraph graph;
    CUgraphNode copy, host, fill;
    static unsigned char seen;
    CUdeviceptr address = test_memory(4096);
    CUDA_MEMSET_NODE_PARAMS memset = {.dst = address, .value = 3, .elementSize = 1, .width = 16, .height = 1};
    CUDA_MEMCPY3D shape = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = address,
                           .dstMemoryType = CU_MEMORYTYPE_HOST,
                           .dstHost = &seen,
                           .WidthInBytes = 1,
                           .Height = 1,
                           .Depth = 1};
    CUDA_HOST_NODE_PARAMS_v1 function = {.fn = call};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemcpyNode(&copy, graph, NULL, 0, &shape, NULL));
    OK(cuGraphAddMemsetNode(&fill, graph, NULL, 0, &memset, NULL));
    OK(cuGraphAddHostNode(&host, graph, &copy, 1, &function));
    OK(cuGraphAddDependencies(graph, &fill, &copy, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(graph, &host, &fill, 1));
    CUgraphExec exec = instantiated(graph);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    CHECK(seen == 3 && calls == 1);
    memset.value = 4;
    OK(cuGraphExecMemsetNodeSetParams(exec, fill, &memset, NULL));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    CHECK(seen == 4 && calls == 2);
}

static void a_graph_updates_only_to_its_own_shape(void) {
    test_begin();
    CUgraph graph, same, other;
    CUgraphNode node;
    CUgraphExecUpdateResultInfo info;
    CUDA_KERNEL_NODE_PARAMS_v1 kernel = {.func = test_function("plain"),
                                         .gridDimX = 1,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = 1,
                                         .blockDimY = 1,
                                         .blockDimZ = 1};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode(&node, graph, NULL, 0, &kernel));
    OK(cuGraphClone(&same, graph));
    OK(cuGraphCreate(&other, 0));
    OK(cuGraphAddEmptyNode(&node, other, NULL, 0));
    CUgraphExec exec = instantiated(graph);
    OK(cuGraphExecUpdate_v2(exec, same, &info));
    EXPECT(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, other, &info));
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
}

static void a_child_graph_runs_in_its_place(void) {
    test_begin();
    CUgraph graph, child;
    CUgraphNode node;
    CUDA_HOST_NODE_PARAMS_v1 function = {.fn = call};
    OK(cuGraphCreate(&child, 0));
    OK(cuGraphAddHostNode(&node, child, NULL, 0, &function));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddChildGraphNode(&node, graph, NULL, 0, child));
    OK(cuGraphDestroy(child));
    OK(cuGraphChildGraphNodeGetGraph(node, &child));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(child));
    OK(cuGraphLaunch(instantiated(graph), NULL));
    OK(cuCtxSynchronize());
    CHECK(calls == 1);
}

static void a_graph_allocates_when_it_runs(void) {
    test_begin();
    size_t before_bytes = test_used_bytes();
    uint64_t used_bytes = 1;
    CUgraph graph;
    CUgraphNode alloc, fill, free_node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                       .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
                                         .bytesize = 100 * MIB};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &params));
    CHECK(params.dptr != 0);
    CUDA_MEMSET_NODE_PARAMS memset = {
        .dst = params.dptr, .value = 1, .elementSize = 1, .width = 16, .height = 1};
    OK(cuGraphAddMemsetNode(&fill, graph, &alloc, 1, &memset, NULL));
    OK(cuGraphAddMemFreeNode(&free_node, graph, &fill, 1, params.dptr));
    CUgraphExec exec = instantiated(graph);
    CHECK(test_used_bytes() == before_bytes);
    for (int i = 0; i < 3; i++)
        OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used_bytes));
    CHECK(used_bytes == 0 && test_used_bytes() == before_bytes + 100 * MIB);
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used_bytes));
    CHECK(used_bytes == 100 * MIB);
    OK(cuDeviceGraphMemTrim(0));
    CHECK(test_used_bytes() == before_bytes);
    CUdeviceptr all = test_memory(GPU_BYTES - before_bytes - 50 * MIB);
    EXPECT(CUDA_ERROR_OUT_OF_MEMORY, cuGraphLaunch(exec, NULL));
    OK(cuMemFree_v2(all));
}

static void memory_that_a_graph_leaves_is_freed_by_the_client(void) {
    test_begin();
    CUstream stream;
    CUgraph graph;
    CUdeviceptr address;
    size_t before_bytes = test_used_bytes();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAllocAsync(&address, 10 * MIB, stream));
    OK(cuMemsetD8Async(address, 1, 16, stream));
    OK(cuStreamEndCapture(stream, &graph));
    CUgraphExec exec = instantiated(graph);
    OK(cuGraphLaunch(exec, stream));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, stream));
    CHECK(test_used_bytes() == before_bytes + 10 * MIB);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuMemFree_v2(address));
    OK(cuDeviceGraphMemTrim(0));
    CHECK(test_used_bytes() == before_bytes);
}

static void a_user_object_dies_with_its_last_reference(void) {
    test_begin();
    CUuserObject object;
    CUgraph graph;
    OK(cuGraphCreate(&graph, 0));
    OK(cuUserObjectCreate(&object, NULL, call, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    OK(cuGraphRetainUserObject(graph, object, 1, 0));
    OK(cuUserObjectRelease(object, 1));
    CHECK(calls == 0);
    OK(cuGraphDestroy(graph));
    CHECK(calls == 1);
}

static void the_legacy_stream_cannot_be_used_while_a_blocking_stream_captures(void) {
    static char host[64];
    CUstream blocking;
    CUdeviceptr device;
    CUevent event;
    CUgraph graph;
    CUstreamCaptureStatus status;
    test_begin();
    OK(cuStreamCreate(&blocking, 0));
    OK(cuMemAlloc_v2(&device, sizeof(host)));
    OK(cuEventCreate(&event, 0));
    OK(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
    OK(cuStreamEndCapture(blocking, &graph)); /* a query spoils nothing */
    OK(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuEventRecord(event, NULL));
    OK(cuStreamIsCapturing(blocking, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
    OK(cuEventRecord(event, NULL));
    OK(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemcpyHtoD_v2(device, host, sizeof(host)));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
    OK(cuMemcpyHtoD_v2(device, host, sizeof(host)));
}

static void the_legacy_stream_knows_nothing_of_what_does_not_wait_for_it(void) {
    CUstream other;
    CUevent event;
    CUgraph graph;
    test_begin();
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, 0));
    OK(cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuEventRecord(event, NULL));
    OK(cuStreamEndCapture(other, &graph));
}

CASES({"a_captured_graph_does_its_work_when_launched", a_captured_graph_does_its_work_when_launched},
      {"streams_join_a_capture_through_events", streams_join_a_capture_through_events},
      {"a_capture_that_is_not_joined_or_is_spoilt_fails", a_capture_that_is_not_joined_or_is_spoilt_fails},
      {"the_legacy_stream_cannot_be_used_while_a_blocking_stream_captures",
       the_legacy_stream_cannot_be_used_while_a_blocking_stream_captures},
      {"the_legacy_stream_knows_nothing_of_what_does_not_wait_for_it",
       the_legacy_stream_knows_nothing_of_what_does_not_wait_for_it},
      {"a_built_graph_runs_in_the_order_of_its_edges", a_built_graph_runs_in_the_order_of_its_edges},
      {"a_graph_updates_only_to_its_own_shape", a_graph_updates_only_to_its_own_shape},
      {"a_child_graph_runs_in_its_place", a_child_graph_runs_in_its_place},
      {"a_graph_allocates_when_it_runs", a_graph_allocates_when_it_runs},
      {"memory_that_a_graph_leaves_is_freed_by_the_client",
       memory_that_a_graph_leaves_is_freed_by_the_client},
      {"a_user_object_dies_with_its_last_reference", a_user_object_dies_with_its_last_reference});
