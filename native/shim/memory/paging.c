#include "memory/paging.h"

#include <string.h>

#include "slice/charge.h"
#include "functions.h"
#include "slice/holdings.h"
#include "slice/report.h"

/* Rows begin at multiples of this on every GPU so far. */
#define PITCH_BYTES 512u

/* Before Pascal, and under Windows, all managed memory must fit on the device, and nothing may touch it while
 * a kernel runs. */
static bool can_page(CUdevice ordinal) {
    int can = 0;
    CUresult result =
        PGPU_REAL(cuDeviceGetAttribute)(&can, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, ordinal);
    return result == CUDA_SUCCESS && can != 0;
}

CUresult pgpu_paging_check(int device_count) {
    if (!pgpu_paging_is_on()) return CUDA_SUCCESS;
    for (CUdevice ordinal = 0; ordinal < device_count; ordinal++) {
        char name[96] = "";
        if (pgpu_slice_gpu_of(ordinal) == PGPU_NO_GPU || can_page(ordinal)) continue;
        PGPU_REAL(cuDeviceGetName)(name, sizeof(name) - 1, ordinal);
        pgpu_report_refusal("--oversubscribe needs a GPU that can move memory to the host while kernels run",
                            name);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    return CUDA_SUCCESS;
}

CUresult pgpu_paging_allocate(CUdeviceptr *pointer, size_t bytes, CUdevice ordinal) {
    CUresult result = PGPU_REAL(cuMemAllocManaged)(pointer, bytes, CU_MEM_ATTACH_GLOBAL);
    /* The advice makes copies place the memory on the device, like ordinary memory. It may be refused. */
    if (result == CUDA_SUCCESS)
        PGPU_REAL(cuMemAdvise)(*pointer, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, ordinal);
    return result;
}

CUresult pgpu_paging_allocate_pitch(CUdeviceptr *pointer, size_t *pitch_bytes, size_t width_bytes,
                                    size_t height, unsigned int element_bytes, CUdevice ordinal) {
    bool is_known_size = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
    if (pitch_bytes == NULL || width_bytes == 0 || height == 0 || !is_known_size)
        return CUDA_ERROR_INVALID_VALUE;
    size_t row_bytes = (width_bytes + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES, bytes;
    if (row_bytes < width_bytes || __builtin_mul_overflow(row_bytes, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = pgpu_paging_allocate(pointer, bytes, ordinal);
    if (result == CUDA_SUCCESS) *pitch_bytes = row_bytes;
    return result;
}

/* The attributes of a pointer into the middle of an allocation may be queried as well. */
static bool is_converted(CUdeviceptr address) {
    struct pgpu_holding row;
    CUdeviceptr base = 0;
    if (!pgpu_paging_is_on() || PGPU_REAL(cuMemGetAddressRange_v2)(&base, NULL, address) != CUDA_SUCCESS)
        return false;
    return pgpu_holdings_find(PGPU_KIND_MEMORY, base, &row) && row.is_converted;
}

/* Frameworks use these attributes to decide whether a pointer is device memory and whether the host can
 * dereference it. One byte of the boolean is written: only the driver can tell how wide the client's variable
 * is. */
static CUresult disguise(void *to, CUpointer_attribute name) {
    CUmemorytype device = CU_MEMORYTYPE_DEVICE;
    if (name == CU_POINTER_ATTRIBUTE_HOST_POINTER) return CUDA_ERROR_INVALID_VALUE;
    if (name == CU_POINTER_ATTRIBUTE_IS_MANAGED) *(unsigned char *)to = 0;
    if (name == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) memcpy(to, &device, sizeof(device));
    return CUDA_SUCCESS;
}

PGPU_EXPORT CUresult cuPointerGetAttribute(void *to, CUpointer_attribute name, CUdeviceptr address) {
    CUresult result = PGPU_REAL(cuPointerGetAttribute)(to, name, address);
    return result == CUDA_SUCCESS && is_converted(address) ? disguise(to, name) : result;
}

PGPU_EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *names, void **to,
                                            CUdeviceptr address) {
    CUresult result = PGPU_REAL(cuPointerGetAttributes)(count, names, to, address);
    if (result != CUDA_SUCCESS || !is_converted(address)) return result;
    for (unsigned int i = 0; i < count; i++)
        if (to[i] != NULL && disguise(to[i], names[i]) != CUDA_SUCCESS) memset(to[i], 0, sizeof(void *));
    return result;
}

/* By the slice's GPU: the count of holds at this process's last launch, plus 1; 0: it has not launched. */
static unsigned seen_holds[PGPU_MAX_PAGED_GPUS];

static bool was_held_meanwhile(int gpu, uint64_t word) {
    unsigned now = 1 + (unsigned)(word >> PGPU_COMPUTE_TIMES_HELD_SHIFT & PGPU_COMPUTE_TIMES_HELD_MASK);
    if (__atomic_load_n(&seen_holds[gpu], __ATOMIC_RELAXED) == now) return false;
    unsigned before = __atomic_exchange_n(&seen_holds[gpu], now, __ATOMIC_RELAXED);
    return before != 0 && before != now;
}

struct return_trip {
    int gpu;
    CUdevice ordinal;
    CUstream stream;
    bool is_per_thread;
};

/* Another thread may have freed the memory meanwhile: then the driver refuses, which is harmless. A charge
 * may be larger than its allocation. */
static bool prefetch(const struct pgpu_holding *row, void *context) {
    const struct return_trip *trip = context;
    size_t bytes = 0;
    if (row->gpu != PGPU_AS_PAGEABLE(trip->gpu) || row->pool != 0) return false;
    if (PGPU_REAL(cuMemGetAddressRange_v2)(NULL, &bytes, row->key) != CUDA_SUCCESS) return false;
    if (trip->is_per_thread)
        PGPU_REAL(cuMemPrefetchAsync_ptsz)(row->key, bytes, trip->ordinal, trip->stream);
    else
        PGPU_REAL(cuMemPrefetchAsync)(row->key, bytes, trip->ordinal, trip->stream);
    return false;
}

void pgpu_paging_prefetch_after_hold(int gpu, uint64_t word, CUstream stream, bool is_per_thread) {
    struct return_trip trip = {.gpu = gpu, .stream = stream, .is_per_thread = is_per_thread};
    if (!pgpu_paging_is_on() || !was_held_meanwhile(gpu, word)) return;
    if (PGPU_REAL(cuCtxGetDevice)(&trip.ordinal) != CUDA_SUCCESS) return;
    pgpu_holdings_visit(PGPU_KIND_MEMORY, prefetch, &trip);
}
