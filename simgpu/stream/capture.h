/* Stream capture: while a stream captures, its work becomes nodes of a graph instead of being done. */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "stream/work.h"

/* The error of a call that may not be made on a capturing stream; it spoils the capture. */
CUresult sim_capture_forbids(CUstream stream);
/* The error of work in the legacy stream while a blocking stream of its context captures: it would wait for
 * the captured work. It spoils the capture. Under sim_lock. */
CUresult sim_capture_forbids_legacy(CUstream stream);
/* Add a node after what the stream did last. Under sim_lock. */
CUresult sim_capture_add(CUstream stream, const struct sim_work *work);
/* As above, described as a client would. */
CUresult sim_capture_add_described(CUstream stream, const CUgraphNodeParams *params);
/* Forget the capture of a stream that is being destroyed. Under sim_lock. */
void sim_capture_abandon(CUstream stream);
/* Add an allocation node; its address is set at once. Under sim_lock. */
CUresult sim_capture_allocate(CUstream stream, CUmemoryPool pool, size_t bytes, CUdeviceptr *address);
/* Remember where a stream stands, make another stand after that too, and forget it. */
CUresult sim_capture_record(CUstream stream, CUevent event);
void sim_capture_leave_event(CUevent event);
CUresult sim_capture_await(CUstream stream, CUevent event);

#endif
