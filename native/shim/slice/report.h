/* The shim's only output: lines on stderr, each once for each process, when CUDA (or, in the NVML shim, NVML)
 * is refused, and when an allocation waits for a larger slice or does not get it. */
#ifndef PGPU_SHIM_REPORT_H
#define PGPU_SHIM_REPORT_H

#include <stdbool.h>
#include <stdint.h>

/* Writes `pgpu: CUDA is refused here: WHY` or `... WHY (SUBJECT)`. `subject` may be NULL. */
void pgpu_report_refusal(const char *why, const char *subject);

/* Writes `pgpu: asked for 7.1 GiB with 4.6 GiB reserved by pgpu; waiting for 2.5 GiB`, or `...; 2.5 GiB more
 * are not free`. */
void pgpu_report_growth(uint64_t asked_bytes, uint64_t slice_bytes, bool waits);

#endif
