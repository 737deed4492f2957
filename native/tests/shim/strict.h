/* Declarations that the parts of the strict driver share. */
#ifndef PGPU_TESTS_STRICT_H
#define PGPU_TESTS_STRICT_H

#include "cuda_abi.h"

/* The shim's cuStreamSynchronize: what another thread may call while this one is in the driver. */
CUresult strict_let_another_thread_synchronise(void) __attribute__((visibility("hidden")));

/* The events of a context that is gone may not be queried any more. */
void strict_end_events(void) __attribute__((visibility("hidden")));

#endif
