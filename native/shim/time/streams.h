/* The kind of a stream, whether any stream captures, and whether an event recorded late into the legacy
 * default stream could delay other work.
 *
 * There an event is a barrier: it waits for the work of blocking streams before it, and their later work
 * waits for it. In a process without a blocking stream it delays nothing. Each thread's own default stream is
 * a blocking stream as well. */
#ifndef PGPU_SHIM_STREAMS_H
#define PGPU_SHIM_STREAMS_H

#include <stdbool.h>

#include "slice/slice.h"

enum pgpu_stream_kind { PGPU_STREAM_MADE, PGPU_STREAM_LEGACY, PGPU_STREAM_OF_THREAD };

static inline enum pgpu_stream_kind pgpu_streams_kind(CUstream stream, bool is_per_thread) {
    if (!pgpu_is_default_stream(stream)) return PGPU_STREAM_MADE;
    if (stream == NULL) return is_per_thread ? PGPU_STREAM_OF_THREAD : PGPU_STREAM_LEGACY;
    return stream == CU_STREAM_LEGACY ? PGPU_STREAM_LEGACY : PGPU_STREAM_OF_THREAD;
}

/* Whether the driver reports a blocking stream; true where it reports nothing. */
bool pgpu_streams_is_blocking(CUstream stream, bool is_per_thread);

/* Whether a blocking stream may exist. Once true it stays so, but for a forked child. */
bool pgpu_streams_any_blocks(void);
void pgpu_streams_set_blocking(void);

/* Whether no thread that read `false` above is still about to record a late event. */
bool pgpu_streams_are_settled(void);
void pgpu_streams_set_settled(void);

/* Captures that have begun and not ended, as far as the hooks have counted. */
extern unsigned pgpu_streams_captures __attribute__((visibility("hidden")));
static inline bool pgpu_streams_any_captures(void) {
    return __atomic_load_n(&pgpu_streams_captures, __ATOMIC_ACQUIRE) != 0;
}

/* Whether the driver reports that a stream captures; true where it reports an error. */
bool pgpu_streams_is_capturing(CUstream stream, bool is_per_thread);

void pgpu_streams_after_fork_in_child(void);

#endif
