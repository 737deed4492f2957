/* Nodes beside kernels and copies: words of memory, conditions, and graphs as text. */
#include "cases.h"

#include <unistd.h>

static CUgraph new_graph(void) {
    CUgraph graph;
    OK(cuGraphCreate(&graph, 0));
    return graph;
}

static void launch(CUgraph graph) {
    CUgraphExec exec;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    OK(cuGraphExecDestroy(exec));
}

static uint64_t word_at(CUdeviceptr address) {
    uint64_t word;
    OK(cuMemcpyDtoH_v2(&word, address, sizeof(word)));
    return word;
}

static CUstreamBatchMemOpParams operation_on(CUstreamBatchMemOpType type, CUdeviceptr at, uint64_t value) {
    CUstreamBatchMemOpParams operation = {.operation = type};
    operation.writeValue.address = at;
    operation.writeValue.value64 = value;
    return operation;
}

static CUstreamBatchMemOpParams addition(CUdeviceptr at, uint64_t value) {
    CUstreamBatchMemOpParams operation = {.operation = CU_STREAM_MEM_OP_ATOMIC_REDUCTION};
    operation.atomicReduction.reductionOp = CU_STREAM_ATOMIC_REDUCTION_OP_ADD;
    operation.atomicReduction.dataType = CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_64;
    operation.atomicReduction.address = at;
    operation.atomicReduction.value = value;
    return operation;
}

static void a_stream_does_a_batch_of_operations_in_order(void) {
    test_begin();
    CUdeviceptr at = test_memory(64);
    CUstreamBatchMemOpParams operations[] = {operation_on(CU_STREAM_MEM_OP_WRITE_VALUE_64, at, 40),
                                             operation_on(CU_STREAM_MEM_OP_WAIT_VALUE_64, at, 40),
                                             addition(at, 2),
                                             {.operation = CU_STREAM_MEM_OP_BARRIER}};
    OK(cuStreamBatchMemOp_v2(NULL, 4, operations, 0));
    OK(cuCtxSynchronize());
    CHECK(word_at(at) == 42);
    operations[3].operation = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuStreamBatchMemOp_v2(NULL, 4, operations, 0));
    operations[3] = operation_on(CU_STREAM_MEM_OP_WRITE_VALUE_64, at + 1, 1);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp_v2(NULL, 4, operations, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp_v2(NULL, 257, operations, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp_v2(NULL, 1, NULL, 0));
    CHECK(word_at(at) == 42);
}

static void a_graph_holds_batches_that_can_be_changed(void) {
    test_begin();
    CUgraph graph = new_graph(), clone;
    CUgraphNode node;
    CUgraphExec exec;
    CUdeviceptr at = test_memory(64);
    CUstreamBatchMemOpParams operations[] = {operation_on(CU_STREAM_MEM_OP_WRITE_VALUE_64, at, 5),
                                             addition(at, 1)};
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch = {.count = 2, .paramArray = operations}, seen;
    OK(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &batch));
    operations[0].writeValue.value64 = 100; /* the node has its own copy */
    OK(cuGraphBatchMemOpNodeGetParams(node, &seen));
    CHECK(seen.count == 2 && seen.paramArray[0].writeValue.value64 == 5);
    OK(cuGraphClone(&clone, graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphExecBatchMemOpNodeSetParams(exec, node, &batch));
    batch.count = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphExecBatchMemOpNodeSetParams(exec, node, &batch));
    OK(cuGraphDestroy(graph));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    CHECK(word_at(at) == 101);
    launch(clone);
    CHECK(word_at(at) == 6);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddBatchMemOpNode(&node, clone, NULL, 0, NULL));
}

static void a_captured_word_becomes_a_batch_node(void) {
    test_begin();
    CUstream stream;
    CUgraph graph;
    CUgraphNode nodes[2];
    CUgraphNodeType type;
    size_t count = 2;
    CUdeviceptr at = test_memory(64);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuStreamWriteValue64_v2(stream, at, 9, 0));
    CUstreamBatchMemOpParams operations[] = {addition(at, 1), addition(at, 1)};
    OK(cuStreamBatchMemOp_v2(stream, 2, operations, 0));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetNodes(graph, nodes, &count));
    CHECK(count == 2);
    OK(cuGraphNodeGetType(nodes[0], &type));
    CHECK(type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    launch(graph);
    CHECK(word_at(at) == 11);
}

static CUgraph *conditional(CUgraph graph, unsigned value, CUgraphConditionalNodeType type, unsigned size) {
    CUgraphConditionalHandle handle;
    CUgraphNode node;
    CUcontext context;
    OK(cuCtxGetCurrent(&context));
    OK(cuGraphConditionalHandleCreate(&handle, graph, context, value, CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    params.conditional = (CUDA_CONDITIONAL_NODE_PARAMS){handle, type, size, NULL, context};
    OK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
    CHECK(params.conditional.phGraph_out != NULL);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
    return params.conditional.phGraph_out;
}

static void add_to(CUgraph body, CUdeviceptr at, uint64_t value) {
    CUgraphNode node;
    CUstreamBatchMemOpParams operation = addition(at, value);
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch = {.count = 1, .paramArray = &operation};
    OK(cuGraphAddBatchMemOpNode(&node, body, NULL, 0, &batch));
}

static void a_condition_chooses_among_bodies(void) {
    test_begin();
    CUgraph graph = new_graph(), clone;
    CUdeviceptr at = test_memory(64);
    OK(cuMemsetD8_v2(at, 0, 64));
    CUgraph *taken = conditional(graph, 1, CU_GRAPH_COND_TYPE_IF, 2);
    add_to(taken[0], at, 1);
    add_to(taken[1], at, 10);
    add_to(conditional(graph, 0, CU_GRAPH_COND_TYPE_IF, 2)[1], at, 100);
    add_to(conditional(graph, 1, CU_GRAPH_COND_TYPE_WHILE, 1)[0], at, 1000);
    add_to(conditional(graph, 2, CU_GRAPH_COND_TYPE_SWITCH, 3)[2], at, 10000);
    add_to(conditional(graph, 7, CU_GRAPH_COND_TYPE_SWITCH, 1)[0], at, 100000);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(taken[0]));
    OK(cuGraphClone(&clone, graph));
    OK(cuGraphDestroy(graph));
    launch(clone);
    CHECK(word_at(at) == 11101);
    OK(cuGraphDestroy(clone));
}

static void a_conditional_node_without_a_good_handle_is_refused(void) {
    CUcontext context = test_begin();
    CUgraph graph = new_graph();
    CUgraphNode node;
    CUgraphConditionalHandle handle;
    size_t count = 0;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    params.conditional.size = 1;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
    OK(cuGraphConditionalHandleCreate(&handle, graph, context, 0, 0));
    params.conditional = (CUDA_CONDITIONAL_NODE_PARAMS){handle, CU_GRAPH_COND_TYPE_WHILE, 2, NULL, context};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphConditionalHandleCreate(NULL, graph, context, 0, 0));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphConditionalHandleCreate(&handle, NULL, context, 0, 0));
    OK(cuGraphGetNodes(graph, NULL, &count));
    CHECK(count == 0);
}

static void an_allocation_node_keeps_its_address_whatever_is_set(void) {
    test_begin();
    CUgraph graph = new_graph();
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
                                        .bytesize = 4096},
                               seen;
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &alloc));
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    EXPECT(CUDA_ERROR_NOT_SUPPORTED, cuGraphNodeSetParams(node, &params));
    OK(cuGraphMemAllocNodeGetParams(node, &seen));
    CHECK(seen.dptr == alloc.dptr && seen.bytesize == 4096);
}

static void a_graph_is_printed_as_dot(void) {
    test_begin();
    char path[] = "/dev/shm/simgpu-dot-XXXXXX", text[4096] = "";
    CUgraph graph = new_graph();
    CUgraphNode first, second;
    unsigned long long id, other;
    OK(cuGraphAddEmptyNode(&first, graph, NULL, 0));
    OK(cuGraphAddEmptyNode(&second, graph, &first, 1));
    OK(cuGraphNodeGetToolsId(first, &id));
    OK(cuGraphNodeGetToolsId(second, &other));
    CHECK(id != other);
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    OK(cuGraphDebugDotPrint(graph, path, CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
    CHECK(read(fd, text, sizeof(text) - 1) > 0);
    CHECK(strstr(text, "digraph") != NULL && strstr(text, "->") != NULL && strstr(text, "empty") != NULL);
    CHECK(unlink(path) == 0);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphDebugDotPrint(graph, NULL, 0));
    EXPECT(CUDA_ERROR_FILE_NOT_FOUND, cuGraphDebugDotPrint(graph, "/nowhere/at/all", 0));
}

CASES({"a_stream_does_a_batch_of_operations_in_order", a_stream_does_a_batch_of_operations_in_order},
      {"a_graph_holds_batches_that_can_be_changed", a_graph_holds_batches_that_can_be_changed},
      {"a_captured_word_becomes_a_batch_node", a_captured_word_becomes_a_batch_node},
      {"a_condition_chooses_among_bodies", a_condition_chooses_among_bodies},
      {"a_conditional_node_without_a_good_handle_is_refused",
       a_conditional_node_without_a_good_handle_is_refused},
      {"an_allocation_node_keeps_its_address_whatever_is_set",
       an_allocation_node_keeps_its_address_whatever_is_set},
      {"a_graph_is_printed_as_dot", a_graph_is_printed_as_dot});
