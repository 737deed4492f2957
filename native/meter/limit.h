/* A job's limit file, found and checked. The host writes it and it is only read here; no environment variable
 * changes it. */
#ifndef PGPU_METER_LIMIT_H
#define PGPU_METER_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "meter_abi.h"

enum pgpu_limit_status {
    PGPU_LIMIT_OK,
    PGPU_LIMIT_MISSING,    /* neither /.pgpu/limit nor one beside the library */
    PGPU_LIMIT_UNREADABLE, /* it is there and cannot be opened or mapped */
    PGPU_LIMIT_GARBLED,
    PGPU_LIMIT_NEWER,
    PGPU_LIMIT_WRITABLE, /* it requires a read-only mount and lies on a writable one */
};

/* A phrase for a message, such as "the limit file is garbled". */
const char *pgpu_limit_explain(enum pgpu_limit_status status);

/* Find the limit file and map it for good: /.pgpu/limit, else `limit` beside the library that holds
 * `own_code`. */
enum pgpu_limit_status pgpu_limit_open(const void *own_code, const struct pgpu_limit **limit);

/* As above, for a path given by the caller. */
enum pgpu_limit_status pgpu_limit_open_at(const char *path, const struct pgpu_limit **limit);

/* The slice of GPU `index` now, less what the driver holds beyond what is charged. It may change at any time.
 */
uint64_t pgpu_limit_bytes(const struct pgpu_limit *limit, unsigned index);

/* The slice's whole size, as the job is shown it. */
uint64_t pgpu_limit_shown_bytes(const struct pgpu_limit *limit, unsigned index);
uint64_t pgpu_limit_overhead_bytes(const struct pgpu_limit *limit, unsigned index);

/* Whether ordinary memory is made such that the driver may move it to the host. */
static inline bool pgpu_limit_oversubscribes(const struct pgpu_limit *limit) {
    return (limit->flags & PGPU_LIMIT_OVERSUBSCRIBES) != 0;
}

/* Whether the host may make the slice larger when a process wishes for it. */
static inline bool pgpu_limit_grows(const struct pgpu_limit *limit) {
    return (limit->flags & PGPU_LIMIT_GROWS) != 0;
}

/* How much of the slice may be memory that stays on the device, where the job oversubscribes; less the
 * overhead. */
uint64_t pgpu_limit_resident_bytes(const struct pgpu_limit *limit, unsigned index);

/* The index of a GPU in the limit file, or -1: a GPU that is not in the lease. */
int pgpu_limit_index_of(const struct pgpu_limit *limit, const uint8_t uuid[16]);

#endif
