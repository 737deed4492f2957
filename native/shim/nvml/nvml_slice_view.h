/* The slice's meter as the NVML shim reads it: from outside, without a slot, so that a monitoring tool in the
 * job has no cost for the job. */
#ifndef PGPU_SHIM_NVML_SLICE_VIEW_H
#define PGPU_SHIM_NVML_SLICE_VIEW_H

#include "reader.h"

/* What the slice's processes hold now; NULL: the usage file cannot be read. */
struct pgpu_reader_view *pgpu_nvml_new_view(void);
void pgpu_nvml_delete_view(struct pgpu_reader_view *view);

/* Whether a PID, as this process sees it, is of the slice. */
bool pgpu_nvml_is_of_slice(const struct pgpu_reader_view *view, unsigned pid);

#endif
