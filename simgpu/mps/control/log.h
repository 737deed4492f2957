/* control.log and server.log, in the form that NVIDIA documents. */
#ifndef MPS_LOG_H
#define MPS_LOG_H

#include <stdbool.h>

/* Open NAME in CUDA_MPS_LOG_DIRECTORY, which is made where it is missing; `role` is `Control` or
 * `HttpTransport`. */
bool mps_log_open(const char *name, const char *role);
void mps_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
