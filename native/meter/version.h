/* The layouts that are supported: this library's own and the one before it.
 *
 * A new version only gives meaning to words that were `reserved`, and zero in such a word means what the
 * version before did. So a file of version N-1 is read as it is, and no other code depends on the version. */
#ifndef PGPU_METER_VERSION_H
#define PGPU_METER_VERSION_H

#include "meter.h"

static inline enum pgpu_meter_status pgpu_version_check(uint32_t abi) {
    if (abi > PGPU_METER_ABI) return PGPU_METER_NEWER;
    return abi == 0 || abi + 1 < PGPU_METER_ABI ? PGPU_METER_GARBLED : PGPU_METER_OK;
}

#endif
