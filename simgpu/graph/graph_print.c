/* Graphs as DOT text. */
#include <errno.h>
#include <stdio.h>

#include "graph/graph.h"

static const char *name_of(CUgraphNodeType type) {
    static const char *const names[] = {
        "kernel",       "memcpy",       "memset",           "host",           "graph",     "empty",
        "event wait",   "event record", "semaphore signal", "semaphore wait", "mem alloc", "mem free",
        "batch mem op", "conditional"};
    return (size_t)type < sizeof(names) / sizeof(names[0]) ? names[type] : "unknown";
}

static void print_kernel(FILE *file, const CUDA_KERNEL_NODE_PARAMS *kernel) {
    fprintf(file, "\\n<<<(%u,%u,%u),(%u,%u,%u),%u>>>", kernel->gridDimX, kernel->gridDimY, kernel->gridDimZ,
            kernel->blockDimX, kernel->blockDimY, kernel->blockDimZ, kernel->sharedMemBytes);
}

static void print_node(FILE *file, CUgraphNode node, unsigned flags) {
    bool is_verbose = (flags & (unsigned)CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE) != 0;
    const unsigned kernels = CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS,
                   handles = CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES;
    fprintf(file, "\"graph_%u_node_%u\"[shape=\"record\" label=\"%u: %s", node->graph->id, node->id, node->id,
            name_of(node->params.type));
    if (node->params.type == CU_GRAPH_NODE_TYPE_KERNEL && (is_verbose || (flags & kernels) != 0))
        print_kernel(file, &node->params.kernel);
    if (is_verbose || (flags & handles) != 0) fprintf(file, "\\n%p", (void *)node);
    fputs("\"];\n", file);
}

static void print_graph(FILE *file, CUgraph graph, unsigned flags) {
    fprintf(file, "subgraph cluster_%u {\nlabel=\"graph_%u\"\n", graph->id, graph->id);
    for (unsigned i = 0; i < graph->nodes.count; i++)
        print_node(file, graph->nodes.node[i], flags);
    for (unsigned i = 0; i < graph->nodes.count; i++) {
        CUgraphNode node = graph->nodes.node[i];
        for (unsigned k = 0; k < node->needs.count; k++)
            fprintf(file, "\"graph_%u_node_%u\" -> \"graph_%u_node_%u\";\n", graph->id,
                    node->needs.node[k]->id, graph->id, node->id);
    }
    fputs("}\n", file);
    for (unsigned i = 0; i < graph->nodes.count; i++) {
        CUgraphNode node = graph->nodes.node[i];
        if (node->child != NULL) print_graph(file, node->child, flags);
        for (unsigned k = 0; node->bodies != NULL && k < node->params.conditional.size; k++)
            print_graph(file, node->bodies[k], flags);
    }
}

SIM_EXPORT CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags) {
    SIM_ENTER();
    if (path == NULL) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    if (!sim_is_graph(graph)) return CUDA_ERROR_INVALID_VALUE;
    FILE *file = fopen(path, "we");
    if (file == NULL) return errno == ENOENT ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_OPERATING_SYSTEM;
    fputs("digraph dot {\n", file);
    print_graph(file, graph, flags);
    fputs("}\n", file);
    bool is_written = ferror(file) == 0;
    is_written &= fclose(file) == 0;
    return is_written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
