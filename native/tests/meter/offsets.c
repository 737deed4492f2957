/* Prints the numbers of meter_abi.h as `name value` lines, for the Python mirror's test. */
#include <stdio.h>

#include "meter_abi.h"

#define SAY(name, value) printf("%s %llu\n", name, (unsigned long long)(value))

int main(void) {
    SAY("METER_ABI", PGPU_METER_ABI);
    SAY("LIMIT_MAGIC", PGPU_LIMIT_MAGIC);
    SAY("USAGE_MAGIC", PGPU_USAGE_MAGIC);
    SAY("MAX_GPUS", PGPU_MAX_GPUS);
    SAY("MAX_SLOTS", PGPU_MAX_SLOTS);
    SAY("PATH_BYTES", PGPU_PATH_BYTES);
    SAY("LOCK_ALIVE", PGPU_LOCK_ALIVE);
    SAY("LOCK_HOLDING", PGPU_LOCK_HOLDING);
    SAY("LIMIT_BYTES", sizeof(struct pgpu_limit));
    SAY("LIMIT_GPU_AT", offsetof(struct pgpu_limit, gpu));
    SAY("LIMIT_GPU_BYTES", sizeof(struct pgpu_limit_gpu));
    SAY("_LIMIT_BYTES_AT", offsetof(struct pgpu_limit_gpu, limit_bytes));
    SAY("_OVERHEAD_BYTES_AT", offsetof(struct pgpu_limit_gpu, overhead_bytes));
    SAY("USAGE_GPU_AT", offsetof(struct pgpu_usage, gpu));
    SAY("USAGE_GPU_BYTES", sizeof(struct pgpu_usage_gpu));
    SAY("USAGE_SLOT_AT", offsetof(struct pgpu_usage, slot));
    SAY("USAGE_SLOT_BYTES", sizeof(struct pgpu_usage_slot));
    SAY("USAGE_ENTRY_AT", offsetof(struct pgpu_usage_slot, gpu));
    SAY("USAGE_ENTRY_BYTES", sizeof(struct pgpu_usage_entry));
    SAY("USAGE_BYTES", sizeof(struct pgpu_usage));
    return 0;
}
