/* The two files through which a slice's processes and the host see a slice: `limit` (written by the host alone,
 * read-only to the job) and `usage` (written by the job's processes; the host only reads it, with pread).
 *
 * Fixed-width fields only, little-endian, version first. Every offset is asserted here and again from Python
 * (src/pgpu/enforcement/meter.py). A reader of version N also reads version N-1. */
#ifndef PGPU_METER_ABI_H
#define PGPU_METER_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define PGPU_METER_ABI 1u
#define PGPU_LIMIT_MAGIC 0x54494d494c555047ull /* "GPULIMIT" */
#define PGPU_USAGE_MAGIC 0x4547415355555047ull /* "GPUUSAGE" */
#define PGPU_MAX_GPUS 16u
#define PGPU_MAX_SLOTS 1024u
#define PGPU_PATH_BYTES 256u

/* One GPU of a lease, in the job's order. Words marked `live` may change while the job runs: aligned 64-bit stores. */
struct pgpu_limit_gpu {
    uint8_t uuid[16];        /* as cuDeviceGetUuid gives it */
    uint64_t limit_bytes;    /* live: the slice, contexts included */
    uint64_t context_bytes;  /* charged for each context before it is made */
    uint64_t overhead_bytes; /* live: what the driver holds beyond what is charged, from NVML */
    uint64_t reserved[4];
};
static_assert(sizeof(struct pgpu_limit_gpu) == 72, "layout");

struct pgpu_limit {
    uint64_t magic;
    uint32_t abi;
    uint32_t gpu_count;
    uint64_t wait_for_memory_ns; /* how long an allocation inside the slice may wait for the device */
    uint32_t requires_read_only; /* 1: refuse CUDA unless this file lies on a read-only mount */
    uint32_t reserved0;
    char job_id[32];
    char real_cuda_path[PGPU_PATH_BYTES]; /* the driver behind the shim, as the job sees it */
    char real_nvml_path[PGPU_PATH_BYTES];
    char usage_path[PGPU_PATH_BYTES]; /* as the job sees it */
    uint64_t reserved[8];
    struct pgpu_limit_gpu gpu[PGPU_MAX_GPUS];
};
static_assert(offsetof(struct pgpu_limit, job_id) == 32, "layout");
static_assert(offsetof(struct pgpu_limit, real_cuda_path) == 64, "layout");
static_assert(offsetof(struct pgpu_limit, gpu) == 896, "layout");
static_assert(sizeof(struct pgpu_limit) == 2048, "layout");

#endif
