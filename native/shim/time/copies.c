/* Copies and fills on their way to the driver: held while their job is held, and traced. Those within one
 * device's memory are done by kernels and are charged to the share. Copies between the host or another device
 * and this one are done by copy engines, beside the kernels of other jobs, and are not charged. */
#include "functions.h"
#include "time/gate.h"

/* For a missing description the driver returns its own error. */
#define pgpu_bytes_of_plane(copy) ((copy) == NULL ? 0 : (copy)->WidthInBytes * (copy)->Height)
#define pgpu_bytes_of_box(copy)   ((copy) == NULL ? 0 : (copy)->WidthInBytes * (copy)->Height * (copy)->Depth)

/* The device of one end of a copy; NO_DEVICE for host memory. The driver does not report the device of an
 * array: it counts as the other end's. */
#define NO_DEVICE  (-1)
#define ANY_DEVICE (-2)

static int device_of(CUdeviceptr address) {
    CUmemorytype kind = CU_MEMORYTYPE_HOST;
    int device = NO_DEVICE;
    if (PGPU_REAL(cuPointerGetAttribute)(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS ||
        kind != CU_MEMORYTYPE_DEVICE)
        return NO_DEVICE;
    PGPU_REAL(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    return device;
}

static int device_of_end(CUmemorytype kind, CUdeviceptr address) {
    if (kind == CU_MEMORYTYPE_ARRAY) return ANY_DEVICE;
    return kind == CU_MEMORYTYPE_HOST ? NO_DEVICE : device_of(address);
}

static bool are_one(int one, int other) {
    if (one == NO_DEVICE || other == NO_DEVICE) return false;
    return one == other || one == ANY_DEVICE || other == ANY_DEVICE;
}

static bool is_within(CUdeviceptr to, CUdeviceptr from) {
    return are_one(device_of(to), device_of(from));
}

/* One copy within the device is enough. */
static bool is_any_within(const CUdeviceptr *to, const CUdeviceptr *from, size_t count) {
    for (size_t at = 0; to != NULL && from != NULL && at < count; at++)
        if (is_within(to[at], from[at])) return true;
    return false;
}

#define is_shape_within(copy)                                                                                \
    ((copy) != NULL && are_one(device_of_end((copy)->dstMemoryType, (copy)->dstDevice),                      \
                               device_of_end((copy)->srcMemoryType, (copy)->srcDevice)))

static int device_of_operand(const CUmemcpy3DOperand *operand) {
    return operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? ANY_DEVICE : device_of(operand->op.ptr.ptr);
}

static bool is_any_operation_within(const CUDA_MEMCPY3D_BATCH_OP *operation, size_t count) {
    for (size_t at = 0; operation != NULL && at < count; at++)
        if (are_one(device_of_operand(&operation[at].dst), device_of_operand(&operation[at].src)))
            return true;
    return false;
}

#define CUDA_COPY(symbol, direction, takes_share, of_thread, in_stream, size, parameters, arguments)         \
    PGPU_EXPORT CUresult symbol parameters {                                                                 \
        if (pgpu_gate_is_open()) return PGPU_REAL(symbol) arguments;                                         \
        struct pgpu_work work = {.command = {.kind = PGPU_TRACE_COPY,                                        \
                                             .stream = in_stream,                                            \
                                             .is_per_thread = of_thread,                                     \
                                             .bytes = size,                                                  \
                                             .detail = PGPU_TRACE_##direction},                              \
                                 .is_within = takes_share};                                                  \
        CUresult result = pgpu_gate_before(&work);                                                           \
        if (result == CUDA_SUCCESS) result = PGPU_REAL(symbol) arguments;                                    \
        pgpu_gate_after(&work, result);                                                                      \
        return result;                                                                                       \
    }
#include "cuda_copies.def"
