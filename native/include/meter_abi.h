/* The two files through which a slice's processes and the host see a slice: `limit` (written by the host
 * alone, read-only to the job) and `usage` (written by the job's processes; the host only reads it, with
 * pread).
 *
 * Fixed-width fields only, little-endian, version first. Every offset is asserted here and again from Python
 * (src/pgpu/enforcement/limit_file.py and meter.py). A reader of version N also reads version N-1. */
#ifndef PGPU_METER_ABI_H
#define PGPU_METER_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

/* 2: `compute` and `flags`. A library of version 1 refuses such a file instead of running without a share. */
#define PGPU_METER_ABI   2u
#define PGPU_LIMIT_MAGIC 0x54494d494c555047ull /* "GPULIMIT" */
#define PGPU_USAGE_MAGIC 0x4547415355555047ull /* "GPUUSAGE" */
#define PGPU_MAX_GPUS    16u
#define PGPU_MAX_SLOTS   1024u
#define PGPU_PATH_BYTES  256u

/* One GPU of a lease, in the job's order. Words marked `live` may change while the job runs: aligned 64-bit
 * stores. */
struct pgpu_limit_gpu {
    uint8_t uuid[16];        /* as cuDeviceGetUuid gives it */
    uint64_t limit_bytes;    /* live: the slice, contexts included */
    uint64_t context_bytes;  /* charged for each context before it is made */
    uint64_t overhead_bytes; /* live: what the driver holds beyond what is charged, from NVML */
    uint64_t is_instance;    /* 1: a MIG instance, whose UUID NVML writes as `MIG-` instead of `GPU-` */
    uint64_t compute; /* live: the share of the GPU's time, below; 0: time is neither shared nor measured */
    uint64_t resident_bytes; /* live: most of the slice that must stay on the device; counts only where the
                              * job oversubscribes */
    uint64_t growth_answer;  /* live: the host's answer to the usage file's `growth_wish`, below */
};
static_assert(offsetof(struct pgpu_limit_gpu, growth_answer) == 64, "layout");
static_assert(offsetof(struct pgpu_limit_gpu, resident_bytes) == 56, "layout");
static_assert(offsetof(struct pgpu_limit_gpu, compute) == 48, "layout");
static_assert(sizeof(struct pgpu_limit_gpu) == 72, "layout");

/* The word `compute`: one store changes all of it. */
#define PGPU_COMPUTE_SHARE_MASK 0xfffffull /* millionths of the GPU's time; 0: no share is guaranteed */
#define PGPU_COMPUTE_WEIGHT_SHIFT                                                                            \
    20u /* 16 bits: its weight in the division of time that is not guaranteed to any job */
#define PGPU_COMPUTE_WEIGHT_MASK 0xffffull
#define PGPU_COMPUTE_MEASURED    (1ull << 40) /* GPU time is measured and published on the board */
#define PGPU_COMPUTE_SHARED      (1ull << 41) /* launches wait for their share */
#define PGPU_COMPUTE_STRICT      (1ull << 42) /* never more than the share, even of a GPU that is idle */
/* Launches and copies wait while any of these is set; each is set and taken back by one holder alone. */
#define PGPU_COMPUTE_SUSPENDED (1ull << 43) /* a job of a higher priority has its place */
#define PGPU_COMPUTE_TURN      (1ull << 44) /* it is not its turn on a GPU that is oversubscribed */
#define PGPU_COMPUTE_TRIAL     (1ull << 45) /* others under MPS have the GPU for a moment */
#define PGPU_COMPUTE_HELD      (PGPU_COMPUTE_SUSPENDED | PGPU_COMPUTE_TURN | PGPU_COMPUTE_TRIAL)
/* How often the host began to hold the job, modulo 256: a process that launched nothing meanwhile detects the
 * hold by a changed value. */
#define PGPU_COMPUTE_TIMES_HELD_SHIFT 46u
#define PGPU_COMPUTE_TIMES_HELD_MASK  0xffull
/* 10 bits: what the jobs of this job's user have together, in thousandths of the GPU's time, while other
 * users have work for it; whatever boards claim, it is never less. 0: time is not divided between users. */
#define PGPU_COMPUTE_USER_SHIFT 54u
#define PGPU_COMPUTE_USER_MASK  0x3ffull

/* The word `flags` of the header; fixed while the job runs. */
#define PGPU_LIMIT_OVERSUBSCRIBES (1u << 0) /* ordinary allocations become managed ones */
#define PGPU_LIMIT_TRACES                                                                                    \
    (1u << 1) /* what the job does is written down behind the usage file's slots: trace_abi.h */
#define PGPU_LIMIT_GROWS (1u << 2) /* pgpu chose the slice's size: what does not fit is wished for */

/* A slice that grows. A process that needs more sets `growth_wish` of the usage file, and writes to its
 * `growth_bell` by pwrite, which inotify reports to the host. The host stores a larger `limit_bytes` first
 * and then `growth_answer`. Both words have a sequence number in their highest bits; an answer is for all
 * wishes up to its number. */
#define PGPU_GROWTH_SEQUENCE_SHIFT 40u
#define PGPU_GROWTH_SEQUENCE_MASK  0xffffffull
/* Of the wish: what the total is to become, in pages of 4 KiB; 0: nothing any more. */
#define PGPU_GROWTH_PAGE_BYTES 4096ull
#define PGPU_GROWTH_PAGES_MASK 0xffffffffffull
/* Of the answer; the bits between verdict and sequence number change each second while it is WAIT. */
#define PGPU_GROWTH_VERDICT_MASK 0xffull
#define PGPU_GROWTH_GRANTED      1u
#define PGPU_GROWTH_WAIT         2u
#define PGPU_GROWTH_REFUSED      3u

struct pgpu_limit {
    uint64_t magic;
    uint32_t abi;
    uint32_t gpu_count;
    uint64_t wait_for_memory_ns; /* how long an allocation inside the slice may wait for the device */
    uint32_t requires_read_only; /* 1: refuse CUDA unless this file lies on a read-only mount */
    uint32_t flags;              /* PGPU_LIMIT_… */
    char job_id[32];
    char real_cuda_path[PGPU_PATH_BYTES]; /* the driver behind the shim, as the job sees it */
    char real_nvml_path[PGPU_PATH_BYTES];
    char usage_path[PGPU_PATH_BYTES]; /* as the job sees it */
    uint64_t reserved[7];
    uint64_t carve_out; /* preferred shared memory of every kernel of a traced job, in percent, plus 1; 0: its
                           own */
    struct pgpu_limit_gpu gpu[PGPU_MAX_GPUS];
};
static_assert(offsetof(struct pgpu_limit, job_id) == 32, "layout");
static_assert(offsetof(struct pgpu_limit, real_cuda_path) == 64, "layout");
static_assert(offsetof(struct pgpu_limit, carve_out) == 888, "layout");
static_assert(offsetof(struct pgpu_limit, gpu) == 896, "layout");
static_assert(sizeof(struct pgpu_limit) == 2048, "layout");

/* Bytes of the usage file on which locks lie, one for each slot; far past its end, so they cover no data. */
#define PGPU_LOCK_ALIVE   0x40000000ll /* A(i): the address space that claimed slot i lives */
#define PGPU_LOCK_HOLDING 0x40010000ll /* B(i): a process may still hold its driver descriptors */

/* The tag of a total: which slot's which operation changed it last. */
#define PGPU_TAG_SEQ_BITS 48u
#define PGPU_TAG_SEQ_MASK ((1ull << PGPU_TAG_SEQ_BITS) - 1u)

/* Where a job oversubscribes it has at most so many GPUs, and entry PGPU_RESIDENT_ENTRY(i) of the usage file
 * counts what of GPU i's total the driver cannot move to the host. */
#define PGPU_MAX_PAGED_GPUS      8u
#define PGPU_RESIDENT_ENTRY(gpu) ((gpu) + PGPU_MAX_PAGED_GPUS)

/* One GPU of the slice. `total` and `tag` change together, by one 16-byte compare-and-swap. */
struct pgpu_usage_gpu {
    uint64_t total_bytes; /* reserved by all slots together */
    uint64_t tag;         /* slot << 48 | seq */
    uint64_t peak_bytes;  /* largest total; may lag behind it after a kill */
    uint64_t refusals;    /* reservations refused for the limit */
    uint64_t reaped_ns;   /* when a dead process's bytes were taken back last, by CLOCK_MONOTONIC; 0: never */
    uint64_t
        attempted_bytes; /* largest total that a refused reservation would have made; 0: none was refused */
    uint64_t device_refusals; /* allocations inside the limit that failed because the device was full */
    uint64_t growth_wish;     /* see PGPU_LIMIT_GROWS; changed by compare-and-swap */
};
static_assert(offsetof(struct pgpu_usage_gpu, growth_wish) == 56, "layout");
static_assert(offsetof(struct pgpu_usage_gpu, tag) == 8, "layout");
static_assert(offsetof(struct pgpu_usage_gpu, peak_bytes) == 16, "layout");
static_assert(offsetof(struct pgpu_usage_gpu, refusals) == 24, "layout");
static_assert(offsetof(struct pgpu_usage_gpu, reaped_ns) == 32, "layout");
static_assert(offsetof(struct pgpu_usage_gpu, attempted_bytes) == 40, "layout");
static_assert(offsetof(struct pgpu_usage_gpu, device_refusals) == 48, "layout");
static_assert(sizeof(struct pgpu_usage_gpu) == 64, "layout");

/* One slot on one GPU; it holds used_bytes[settled & 1]. Changed by the holder of A(i) alone, except `done`.
 */
struct pgpu_usage_entry {
    uint64_t used_bytes[2];
    uint64_t delta_bytes; /* of operation `seq`, two's complement */
    uint64_t seq;         /* operation begun; never reset */
    uint64_t settled;     /* operation finished */
    uint64_t done;        /* newest operation that has reached the total; any process may raise it */
};
static_assert(offsetof(struct pgpu_usage_entry, delta_bytes) == 16, "layout");
static_assert(offsetof(struct pgpu_usage_entry, done) == 40, "layout");
static_assert(sizeof(struct pgpu_usage_entry) == 48, "layout");

struct pgpu_usage_slot {
    uint32_t pid; /* in its own PID namespace; 0 if the slot was never claimed */
    uint32_t
        stays; /* 1: it has had memory that drivers cannot checkpoint, managed or shared with a process */
    uint64_t start_time_ticks; /* field 22 of /proc/PID/stat; 0 if it could not be read */
    uint64_t pid_namespace;    /* inode of /proc/PID/ns/pid; 0 if it could not be read */
    uint64_t in_flight; /* bit i of the lowest 16: work of this process may be in flight on GPU i, or is about
                         * to be; above them, how often it began */
    uint64_t in_flight_until_ns; /* when all of it should be done, by CLOCK_MONOTONIC */
    uint64_t sizes_itself; /* 1: it took half or more of the memory that it was shown before it held any */
    uint64_t in_flight_since_ns; /* when what is in flight was launched, as far as the board's queued_ns lacks
                                    it */
    uint64_t reserved;
    struct pgpu_usage_entry gpu[PGPU_MAX_GPUS];
};
static_assert(offsetof(struct pgpu_usage_slot, sizes_itself) == 40, "layout");
static_assert(offsetof(struct pgpu_usage_slot, stays) == 4, "layout");
static_assert(offsetof(struct pgpu_usage_slot, in_flight_since_ns) == 48, "layout");
static_assert(offsetof(struct pgpu_usage_slot, start_time_ticks) == 8, "layout");
static_assert(offsetof(struct pgpu_usage_slot, in_flight) == 24, "layout");
static_assert(offsetof(struct pgpu_usage_slot, in_flight_until_ns) == 32, "layout");
static_assert(offsetof(struct pgpu_usage_slot, gpu) == 64, "layout");
static_assert(sizeof(struct pgpu_usage_slot) == 832, "layout");

/* All zero is a valid beginning, so an empty file of any owner may be grown and used. */
struct pgpu_usage {
    uint64_t magic;
    uint32_t abi;
    uint32_t slots_touched; /* no slot from here on was ever claimed */
    uint64_t growth_bell;   /* its value has no meaning */
    uint64_t reserved[5];
    struct pgpu_usage_gpu gpu[PGPU_MAX_GPUS];
    uint8_t reserved_to_page[4096 - 64 - 64 * PGPU_MAX_GPUS];
    struct pgpu_usage_slot slot[PGPU_MAX_SLOTS];
};
static_assert(offsetof(struct pgpu_usage, slots_touched) == 12, "layout");
static_assert(offsetof(struct pgpu_usage, growth_bell) == 16, "layout");
static_assert(offsetof(struct pgpu_usage, gpu) == 64, "layout");
static_assert(offsetof(struct pgpu_usage, slot) == 4096, "layout");
static_assert(sizeof(struct pgpu_usage) == 4096 + 832 * 1024, "layout");

#endif
