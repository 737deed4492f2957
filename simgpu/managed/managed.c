/* Managed memory: advice about it, and queries. */
#include <string.h>
#include <sys/mman.h>

#include "stream/capture.h"
#include "managed/advice.h"
#include "managed/residency.h"
#include "stream/stream.h"
#include "stream/work.h"

static bool is_host(CUmemLocationType type) {
    return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

static CUresult check_location(const CUmemLocation *location) {
    if (is_host(location->type)) return CUDA_SUCCESS;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    return sim_is_device(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUmemLocation location_of(CUdevice device) {
    bool is_cpu = device == CU_DEVICE_CPU;
    return (CUmemLocation){.type = is_cpu ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                           .id = is_cpu ? 0 : device};
}

/* What of a span moves over the bus so that it lies there. */
static uint64_t moved_bytes(const struct sim_range *range, size_t bytes, const CUmemLocation *location) {
    if (range->paged_bytes == 0) return 0;
    bool is_here =
        location->type == CU_MEM_LOCATION_TYPE_DEVICE && sim_driver.gpu_of_device[location->id] == range->gpu;
    return is_here ? sim_residency_move_in(range->gpu, bytes) : sim_residency_move_out(range->gpu, bytes);
}

/* Where it lies counts at once; the way there takes its time in the stream. */
static CUresult move(CUstream stream, uint64_t bytes) {
    struct sim_work work = {.kind = SIM_WORK_MOVE, .moved_bytes = bytes};
    return bytes == 0 || !sim_driver.has_backing ? CUDA_SUCCESS : sim_submit(stream, &work);
}

static CUresult send(CUdeviceptr address, size_t bytes, const CUmemLocation *location, uint64_t *moved) {
    struct sim_range *range = sim_managed_at(address, bytes);
    if (range == NULL) return CUDA_ERROR_INVALID_VALUE;
    *moved += moved_bytes(range, bytes, location);
    struct sim_advice *hint = sim_advices_split(range, address, bytes);
    if (hint == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    for (; hint != NULL && hint->start < address + bytes; hint = hint->next)
        hint->prefetched = *location;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location,
                                          unsigned int flags, CUstream named) {
    SIM_ENTER();
    CUstream stream;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check_location(&location));
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_TRY(sim_capture_forbids(stream));
    uint64_t moved = 0;
    sim_lock();
    CUresult result = send(address, bytes, &location, &moved);
    sim_unlock();
    return result == CUDA_SUCCESS ? move(stream, moved) : result;
}

SIM_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
    return cuMemPrefetchAsync_v2(address, bytes, location_of(device), 0, stream);
}

static void note(struct sim_advice *hint, CUmem_advise advice, const CUmemLocation *location) {
    bool is_set = advice == CU_MEM_ADVISE_SET_ACCESSED_BY;
    uint32_t device = is_host(location->type) ? 0 : 1u << location->id;
    switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        hint->is_read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        hint->preferred = *location;
        break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        hint->preferred = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_NONE};
        break;
    default:
        hint->used_by = is_set ? hint->used_by | device : hint->used_by & ~device;
        if (device == 0) hint->is_used_by_host = is_set;
    }
}

/* Only these use the location. */
static bool names_location(CUmem_advise advice) {
    return advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
           advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
}

SIM_EXPORT CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                                   CUmemLocation location) {
    SIM_ENTER();
    if (advice <= 0 || (unsigned)advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY) return CUDA_ERROR_INVALID_VALUE;
    if (names_location(advice)) SIM_TRY(check_location(&location));
    SIM_LOCKED();
    struct sim_range *range = sim_managed_at(address, bytes);
    if (range == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct sim_advice *hint = sim_advices_split(range, address, bytes);
    if (hint == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    for (; hint != NULL && hint->start < address + bytes; hint = hint->next)
        note(hint, advice, &location);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
    return cuMemAdvise_v2(address, bytes, advice, location_of(device));
}

/* What holds for every page of a span: differing locations become none, users are those of all. */
static struct sim_advice common(const struct sim_range *range, uintptr_t start, size_t bytes) {
    const struct sim_advice *hint = sim_advice_at(range, start);
    if (hint == NULL) return (struct sim_advice){0};
    struct sim_advice all = *hint;
    for (hint = hint->next; hint != NULL && hint->start < start + bytes; hint = hint->next) {
        all.is_read_mostly &= hint->is_read_mostly;
        all.is_used_by_host &= hint->is_used_by_host;
        all.used_by &= hint->used_by;
        if (memcmp(&all.preferred, &hint->preferred, sizeof(all.preferred)) != 0)
            all.preferred = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_NONE};
        if (memcmp(&all.prefetched, &hint->prefetched, sizeof(all.prefetched)) != 0)
            all.prefetched = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_NONE};
    }
    return all;
}

/* As the attributes of CUDA 8 name a place. */
static int device_of(const CUmemLocation *location) {
    if (is_host(location->type)) return CU_DEVICE_CPU;
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id : CU_DEVICE_INVALID;
}

static void write_users(const struct sim_advice *hint, int *users, size_t count) {
    size_t found = 0;
    if (hint->is_used_by_host) users[found++] = CU_DEVICE_CPU;
    for (int device = 0; device < sim_driver.device_count && found < count; device++)
        if ((hint->used_by & (1u << device)) != 0) users[found++] = device;
    while (found < count)
        users[found++] = CU_DEVICE_INVALID;
}

static CUresult answer(const struct sim_advice *hint, CUmem_range_attribute name, int *to, size_t bytes) {
    if (to == NULL || bytes == 0 || bytes % sizeof(int) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (name != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY && bytes != sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
    switch (name) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        return *to = hint->is_read_mostly, CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        return *to = device_of(&hint->preferred), CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        return write_users(hint, to, bytes / sizeof(int)), CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        return *to = device_of(&hint->prefetched), CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
        return *to = (int)hint->preferred.type, CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
        return *to = hint->preferred.id, CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
        return *to = (int)hint->prefetched.type, CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
        return *to = hint->prefetched.id, CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_EXPORT CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, CUmem_range_attribute *names,
                                            size_t count, CUdeviceptr address, size_t bytes) {
    SIM_ENTER();
    if (data == NULL || sizes == NULL || names == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    const struct sim_range *range = sim_managed_at(address, bytes);
    if (range == NULL) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_advice all = common(range, address, bytes);
    for (size_t i = 0; i < count; i++)
        SIM_TRY(answer(&all, names[i], data[i], sizes[i]));
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemRangeGetAttribute(void *data, size_t size, CUmem_range_attribute name,
                                           CUdeviceptr address, size_t bytes) {
    return cuMemRangeGetAttributes(&data, &size, &name, 1, address, bytes);
}

/* Where a page is: where it was sent, else with the host if it was ever written. */
static CUmemLocation place_of(const struct sim_range *range, uintptr_t page) {
    const struct sim_advice *hint = sim_advice_at(range, page);
    unsigned char is_resident = 0;
    if (hint != NULL && hint->prefetched.type != CU_MEM_LOCATION_TYPE_NONE) return hint->prefetched;
    bool is_known = mincore((void *)(page & ~(uintptr_t)4095), 1, &is_resident) == 0;
    bool is_there = is_known && (is_resident & 1) != 0;
    return (CUmemLocation){.type = is_there ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_NONE};
}

#define MAX_PLACES 66 /* none, the host, and every device by number */

static unsigned vote_of(const CUmemLocation *location) {
    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) return 2 + ((unsigned)location->id & 63);
    return is_host(location->type);
}

/* The most common place among the sampled pages. */
static CUmemLocation summary(const struct sim_range *range, uintptr_t start, size_t bytes, size_t step) {
    unsigned votes[MAX_PLACES] = {0}, best = 0;
    CUmemLocation winner = {.type = CU_MEM_LOCATION_TYPE_NONE};
    for (size_t at = 0; at < bytes; at += step) {
        CUmemLocation place = place_of(range, start + at);
        unsigned count = ++votes[vote_of(&place)];
        if (count > best) winner = place;
        if (count > best) best = count;
    }
    return winner;
}

SIM_EXPORT CUresult cuMemGetLocationInfo(CUdeviceptr address, size_t bytes, size_t summary_bytes,
                                         size_t sample_bytes, CUmemLocation *locations) {
    SIM_ENTER();
    if (locations == NULL || summary_bytes == 0 || summary_bytes > bytes || sample_bytes > summary_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    size_t step = sample_bytes == 0 ? 65536 : sample_bytes;
    SIM_LOCKED();
    const struct sim_range *range = sim_managed_at(address, bytes);
    if (range == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (size_t at = 0; at < bytes; at += summary_bytes) {
        size_t left = bytes - at;
        *locations++ = summary(range, address + at, left < summary_bytes ? left : summary_bytes, step);
    }
    return CUDA_SUCCESS;
}

/* Batches name a location for the operations from an index on. */
static CUresult check_batch(const CUdeviceptr *addresses, const size_t *sizes, size_t count,
                            unsigned long long flags, CUstream named) {
    CUstream stream;
    bool is_legacy = named == CU_STREAM_LEGACY || (named == NULL && !sim_is_per_thread_call);
    if (addresses == NULL || sizes == NULL || count == 0 || flags != 0 || is_legacy)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    for (size_t i = 0; i < count; i++)
        if (sim_managed_at(addresses[i], sizes[i]) == NULL) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult check_locations(const CUmemLocation *locations, const size_t *first, size_t location_count,
                                size_t count) {
    if (locations == NULL || first == NULL || location_count == 0 || location_count > count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < location_count; i++) {
        SIM_TRY(check_location(&locations[i]));
        bool is_in_order = i == 0 ? first[0] == 0 : first[i] > first[i - 1];
        if (!is_in_order || first[i] >= count) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult send_all(const CUdeviceptr *addresses, const size_t *sizes, size_t count,
                         const CUmemLocation *locations, const size_t *first, size_t location_count,
                         uint64_t *moved) {
    for (size_t i = 0, at = 0; i < count; i++) {
        while (at + 1 < location_count && first[at + 1] <= i)
            at++;
        SIM_TRY(send(addresses[i], sizes[i], &locations[at], moved));
    }
    return CUDA_SUCCESS;
}

static CUresult check_and_send_all(const CUdeviceptr *addresses, const size_t *sizes, size_t count,
                                   const CUmemLocation *locations, const size_t *first, size_t location_count,
                                   unsigned long long flags, CUstream stream, uint64_t *moved) {
    SIM_LOCKED();
    SIM_TRY(check_batch(addresses, sizes, count, flags, stream));
    SIM_TRY(check_locations(locations, first, location_count, count));
    return send_all(addresses, sizes, count, locations, first, location_count, moved);
}

SIM_EXPORT CUresult cuMemPrefetchBatchAsync(CUdeviceptr *addresses, size_t *sizes, size_t count,
                                            CUmemLocation *locations, size_t *first, size_t location_count,
                                            unsigned long long flags, CUstream named) {
    SIM_ENTER();
    CUstream stream;
    uint64_t moved = 0;
    SIM_TRY(
        check_and_send_all(addresses, sizes, count, locations, first, location_count, flags, named, &moved));
    SIM_TRY(sim_stream_of(named, &stream));
    return move(stream, moved);
}

/* What is discarded reads as anything; here as zero, which costs no memory. */
SIM_EXPORT CUresult cuMemDiscardBatchAsync(CUdeviceptr *addresses, size_t *sizes, size_t count,
                                           unsigned long long flags, CUstream stream) {
    SIM_ENTER();
    SIM_LOCKED();
    SIM_TRY(check_batch(addresses, sizes, count, flags, stream));
    for (size_t i = 0; i < count && sim_driver.has_backing; i++)
        sim_backing_zero(addresses[i], sizes[i]);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *addresses, size_t *sizes, size_t count,
                                                      CUmemLocation *locations, size_t *first,
                                                      size_t location_count, unsigned long long flags,
                                                      CUstream stream) {
    SIM_ENTER();
    SIM_TRY(cuMemDiscardBatchAsync(addresses, sizes, count, flags, stream));
    return cuMemPrefetchBatchAsync(addresses, sizes, count, locations, first, location_count, flags, stream);
}
