#include "context/device_resource.h"

#include <string.h>

/* Lies in the padding of CUDA's struct, so that a struct made by the client is detected. */
struct mark {
    uint32_t magic;
    CUdevice device;
};

#define MAGIC 0x53484152u

struct CUdevResourceDesc_st {
    struct sim_head head;
    CUdevice device;
    CUdevResource share;
};

static struct sim_slab descriptions = SIM_SLAB(struct CUdevResourceDesc_st, 256, 1u << 12);

static unsigned alignment_of(CUdevice device) {
    return sim_gpu_of(device)->compute_major >= 9 ? 8 : 2;
}

static unsigned least_of(CUdevice device) {
    unsigned major = (unsigned)sim_gpu_of(device)->compute_major;
    return major >= 9 ? 8 : major == 8 ? 4 : 2;
}

static CUdevResource new_share(CUdevice device, unsigned count) {
    struct mark mark = {.magic = MAGIC, .device = device};
    CUdevResource share = {.type = count == 0 ? CU_DEV_RESOURCE_TYPE_INVALID : CU_DEV_RESOURCE_TYPE_SM};
    memcpy(share._internal_padding, &mark, sizeof(mark));
    share.sm.smCount = count;
    share.sm.minSmPartitionSize = least_of(device);
    share.sm.smCoscheduledAlignment = alignment_of(device);
    return share;
}

static CUresult check(const CUdevResource *share, CUdevice *device) {
    struct mark mark;
    if (share == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (share->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    memcpy(&mark, share->_internal_padding, sizeof(mark));
    if (mark.magic != MAGIC || !sim_is_device(mark.device)) return CUDA_ERROR_INVALID_VALUE;
    if (share->sm.smCount > sim_gpu_of(mark.device)->sm_count) return CUDA_ERROR_INVALID_VALUE;
    *device = mark.device;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *share, CUdevResourceType type) {
    SIM_ENTER();
    if (share == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!sim_is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *share = new_share(device, (unsigned)sim_gpu_of(device)->sm_count);
    return CUDA_SUCCESS;
}

static unsigned round_up(unsigned count, unsigned unit) {
    return (count + unit - 1) / unit * unit;
}

/* Multiprocessors in each group when at least `wanted` are requested. */
static unsigned group_size(CUdevice device, unsigned wanted, unsigned flags) {
    bool is_free = (flags & (unsigned)CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING) != 0;
    unsigned least = is_free ? 2 : least_of(device), unit = is_free ? 2 : alignment_of(device);
    return round_up(wanted < least ? least : wanted, unit);
}

static void put(CUdevResource *to, CUdevice device, unsigned count) {
    if (to != NULL) *to = new_share(device, count);
}

SIM_EXPORT CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned int *group_count,
                                                const CUdevResource *whole, CUdevResource *rest,
                                                unsigned int flags, unsigned int wanted) {
    SIM_ENTER();
    CUdevice device;
    const unsigned known =
        CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
    if (group_count == NULL || (flags & ~known) != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(whole, &device));
    if (wanted > whole->sm.smCount || (groups != NULL && *group_count == 0)) return CUDA_ERROR_INVALID_VALUE;
    unsigned total = whole->sm.smCount, size = group_size(device, wanted, flags), most = total / size;
    if (most == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    if (groups == NULL || *group_count > most) *group_count = most;
    for (unsigned i = 0; groups != NULL && i < *group_count; i++)
        groups[i] = new_share(device, size);
    put(rest, device, total - *group_count * size);
    return CUDA_SUCCESS;
}

/* Multiprocessors that a group gets of the rest; 0: the request cannot be met. */
static unsigned part(const CU_DEV_SM_RESOURCE_GROUP_PARAMS *wanted, CUdevice device, unsigned left) {
    unsigned unit = wanted->coscheduledSmCount == 0 ? alignment_of(device) : wanted->coscheduledSmCount;
    bool fills_up = (wanted->flags & (unsigned)CU_DEV_SM_RESOURCE_GROUP_BACKFILL) != 0;
    if (wanted->smCount == 0) return fills_up ? left : left / unit * unit;
    if (wanted->smCount > left || wanted->smCount < 2) return 0;
    return fills_up || wanted->smCount % unit == 0 ? wanted->smCount : 0;
}

static CUresult check_group(const CU_DEV_SM_RESOURCE_GROUP_PARAMS *wanted) {
    if ((wanted->flags & ~(unsigned)CU_DEV_SM_RESOURCE_GROUP_BACKFILL) != 0) return CUDA_ERROR_INVALID_VALUE;
    return wanted->coscheduledSmCount % 2 == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuDevSmResourceSplit(CUdevResource *groups, unsigned int group_count,
                                         const CUdevResource *whole, CUdevResource *rest, unsigned int flags,
                                         CU_DEV_SM_RESOURCE_GROUP_PARAMS *wanted) {
    SIM_ENTER();
    CUdevice device;
    if (group_count == 0 || wanted == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(check(whole, &device));
    unsigned left = whole->sm.smCount;
    for (unsigned i = 0; i < group_count; i++) {
        SIM_TRY(check_group(&wanted[i]));
        unsigned count = part(&wanted[i], device, left);
        if (count == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        left -= count;
        wanted[i].smCount = count;
        if (groups != NULL) groups[i] = new_share(device, count);
    }
    put(rest, device, left);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *description, CUdevResource *shares,
                                              unsigned int count) {
    SIM_ENTER();
    CUdevice device = 0, other;
    unsigned sum = 0;
    if (description == NULL || shares == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        SIM_TRY(check(&shares[i], &other));
        if (i > 0 && other != device) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        device = other;
        sum += shares[i].sm.smCount;
    }
    if (sum > sim_gpu_of(device)->sm_count) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    CUdevResourceDesc made = sim_new(&descriptions);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    made->device = device;
    made->share = new_share(device, sum);
    *description = made;
    return CUDA_SUCCESS;
}

CUresult sim_share_described(CUdevResourceDesc description, CUdevice device, CUdevResource *share) {
    if (description == NULL || !sim_is_live(&descriptions, description)) return CUDA_ERROR_INVALID_VALUE;
    if (description->device != device) return CUDA_ERROR_INVALID_DEVICE;
    *share = description->share;
    return CUDA_SUCCESS;
}
