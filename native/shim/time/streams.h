/* What kind of stream a launch goes into, whether some stream captures, and whether an event that comes late
 * into the legacy default stream could hold anybody up.
 *
 * There an event is a barrier: it waits for what blocking streams were given before, and they for it. Without
 * a blocking stream in this process it is none. Each thread's own default stream is a blocking one, too. */
#ifndef PGPU_SHIM_STREAMS_H
#define PGPU_SHIM_STREAMS_H

#include <stdbool.h>

#include "cuda_abi.h"

enum pgpu_stream_kind { PGPU_STREAM_MADE, PGPU_STREAM_LEGACY, PGPU_STREAM_OF_THREAD };

/* The handles 0, 1 and 2 stand for default streams, of whichever context is current. */
static inline bool pgpu_streams_is_default(CUstream stream) {
    return (uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD;
}
static inline enum pgpu_stream_kind pgpu_streams_kind(CUstream stream, bool is_per_thread) {
    if (!pgpu_streams_is_default(stream)) return PGPU_STREAM_MADE;
    if (stream == NULL) return is_per_thread ? PGPU_STREAM_OF_THREAD : PGPU_STREAM_LEGACY;
    return stream == CU_STREAM_LEGACY ? PGPU_STREAM_LEGACY : PGPU_STREAM_OF_THREAD;
}

/* Work for a stream is on its way: it may be the first of a blocking one, of which nobody has told. */
void pgpu_streams_note_use(CUstream stream, bool is_per_thread);

/* Whether a blocking stream may have been made. Once true it stays so. */
bool pgpu_streams_any_blocks(void);

/* Captures that have begun and, as far as is known, not ended. */
extern unsigned pgpu_streams_captures __attribute__((visibility("hidden")));
static inline bool pgpu_streams_any_captures(void) {
    return __atomic_load_n(&pgpu_streams_captures, __ATOMIC_ACQUIRE) != 0;
}

/* Whether a stream captures, as the driver says; where it cannot say, yes. */
bool pgpu_streams_is_capturing(CUstream stream, bool is_per_thread);

void pgpu_streams_after_fork_in_child(void);

#endif
