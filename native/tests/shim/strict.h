/* What the parts of the strict driver know of each other. */
#ifndef PGPU_TESTS_STRICT_H
#define PGPU_TESTS_STRICT_H

#include "cuda_abi.h"

/* The shim's cuStreamSynchronize: what another thread may call while this one is in the driver. */
CUresult strict_let_another_thread_synchronise(void) __attribute__((visibility("hidden")));

/* Nothing may be asked any more about the events of a context that is gone. */
void strict_end_events(void) __attribute__((visibility("hidden")));

#endif
