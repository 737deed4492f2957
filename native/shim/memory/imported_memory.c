/* Memory of other processes and of other interfaces. It lives as long as this process has it open, even if
 * its creator frees it, so every process that opens it is charged. */
#include "slice/charge.h"
#include "functions.h"
#include "slice/holdings.h"
#include "slice/slice.h"

static struct pgpu_holding row_of(uint64_t key, enum pgpu_kind kind, const struct pgpu_charge *charge,
                                  const struct pgpu_place *place) {
    struct pgpu_holding row = {.key = key,
                               .bytes = charge->bytes,
                               .context = (uint64_t)place->context,
                               .count = 1,
                               .kind = (uint8_t)kind,
                               .gpu = (int8_t)place->gpu};
    return row;
}

PGPU_EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                            const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *wanted) {
    struct pgpu_charge charge;
    struct pgpu_place place;
    CUresult result = pgpu_slice_current(&place);
    if (result != CUDA_SUCCESS || wanted == NULL) return PGPU_REAL(cuImportExternalMemory)(memory, wanted);
    result = pgpu_charge_begin(&charge, place.gpu, pgpu_slice_granule(wanted->size));
    if (result != CUDA_SUCCESS) return result;
    pgpu_slice_forbid_checkpoint();
    do
        result = PGPU_REAL(cuImportExternalMemory)(memory, wanted);
    while (pgpu_charge_should_retry(&charge, result));
    if (result != CUDA_SUCCESS) return result;
    struct pgpu_holding row = row_of((uint64_t)*memory, PGPU_KIND_EXTERNAL, &charge, &place);
    pgpu_holdings_put(&row);
    return result;
}

PGPU_EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    struct pgpu_holding row;
    bool is_known = pgpu_holdings_take(PGPU_KIND_EXTERNAL, (uint64_t)memory, &row);
    CUresult result = PGPU_REAL(cuDestroyExternalMemory)(memory);
    if (is_known && result == CUDA_SUCCESS) pgpu_charge_refund(row.gpu, row.bytes);
    if (is_known && result != CUDA_SUCCESS) pgpu_holdings_put(&row);
    return result;
}

/* The size of foreign memory is available only once it is open. */
static CUresult charge_opened(CUdeviceptr pointer, struct pgpu_charge *charge, struct pgpu_place *place) {
    size_t bytes = 0;
    CUdeviceptr base;
    CUresult result = pgpu_slice_current(place);
    if (result == CUDA_SUCCESS) result = PGPU_REAL(cuMemGetAddressRange_v2)(&base, &bytes, pointer);
    return result == CUDA_SUCCESS ? pgpu_charge_begin(charge, place->gpu, pgpu_slice_granule(bytes)) : result;
}

/* The driver gives the same address again when a process opens the same memory again. */
static CUresult finish_open(CUdeviceptr *pointer) {
    struct pgpu_charge charge;
    struct pgpu_place place;
    if (pgpu_holdings_count(PGPU_KIND_EXTERNAL, *pointer, +1, NULL) > 0) return CUDA_SUCCESS;
    CUresult result = charge_opened(*pointer, &charge, &place);
    if (result != CUDA_SUCCESS) {
        PGPU_REAL(cuIpcCloseMemHandle)(*pointer);
        return result;
    }
    struct pgpu_holding row = row_of(*pointer, PGPU_KIND_EXTERNAL, &charge, &place);
    pgpu_holdings_put(&row);
    return result;
}

PGPU_EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    pgpu_slice_forbid_checkpoint();
    return PGPU_REAL(cuIpcGetMemHandle)(handle, pointer);
}

PGPU_EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    pgpu_slice_forbid_checkpoint();
    CUresult result = PGPU_REAL(cuIpcOpenMemHandle_v2)(pointer, handle, flags);
    return result == CUDA_SUCCESS ? finish_open(pointer) : result;
}

PGPU_EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags) {
    pgpu_slice_forbid_checkpoint();
    CUresult result = PGPU_REAL(cuIpcOpenMemHandle)(pointer, handle, flags);
    return result == CUDA_SUCCESS ? finish_open(pointer) : result;
}

PGPU_EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    struct pgpu_holding row;
    CUresult result = PGPU_REAL(cuIpcCloseMemHandle)(pointer);
    if (result == CUDA_SUCCESS && pgpu_holdings_count(PGPU_KIND_EXTERNAL, pointer, -1, &row) == 0)
        pgpu_charge_refund(row.gpu, row.bytes);
    return result;
}

PGPU_EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool,
                                            CUmemPoolPtrExportData *exported) {
    struct pgpu_charge charge;
    struct pgpu_place place;
    pgpu_slice_forbid_checkpoint();
    CUresult result = PGPU_REAL(cuMemPoolImportPointer)(pointer, pool, exported);
    if (result != CUDA_SUCCESS) return result;
    result = charge_opened(*pointer, &charge, &place);
    if (result != CUDA_SUCCESS) {
        PGPU_REAL(cuMemFree_v2)(*pointer);
        return result;
    }
    struct pgpu_holding row = row_of(*pointer, PGPU_KIND_MEMORY, &charge, &place);
    pgpu_holdings_put(&row);
    return result;
}

PGPU_EXPORT CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool,
                                                      CUmemAllocationHandleType type,
                                                      unsigned long long flags) {
    pgpu_slice_forbid_checkpoint();
    return PGPU_REAL(cuMemPoolExportToShareableHandle)(shareable, pool, type, flags);
}
