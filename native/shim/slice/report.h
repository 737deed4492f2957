/* The shim's only output: one line on stderr, once for each process, when CUDA (or, in the NVML shim, NVML)
 * is refused. */
#ifndef PGPU_SHIM_REPORT_H
#define PGPU_SHIM_REPORT_H

/* Writes `pgpu: CUDA is refused here: WHY` or `... WHY (SUBJECT)`. `subject` may be NULL. */
void pgpu_report_refusal(const char *why, const char *subject);

#endif
