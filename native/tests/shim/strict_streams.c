/* One stream that makes no progress until it is synchronised or queried (cuStreamQuery), and events that fail
 * if they are queried after their end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>

#include "strict.h"

#define MAX_EVENTS 64

static struct event {
    _Alignas(8) bool is_alive;
    bool is_over;
} events[MAX_EVENTS];
static bool are_gone;

CUresult strict_let_another_thread_synchronise(void) {
    CUresult (*synchronise)(CUstream) = (CUresult (*)(CUstream))dlsym(RTLD_DEFAULT, "cuStreamSynchronize");
    return synchronise(NULL);
}

void strict_end_events(void) {
    are_gone = true;
}

static struct event *known(CUevent handle) {
    struct event *event = (struct event *)handle;
    if (are_gone || !event->is_alive) abort();
    return event;
}

static void get_there(void) {
    for (int at = 0; at < MAX_EVENTS; at++)
        events[at].is_over = true;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    (void)pointer, (void)stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
    (void)stream;
    get_there();
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream) {
    (void)stream;
    get_there();
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    (void)flags;
    int at = 0;
    while (at < MAX_EVENTS && events[at].is_alive)
        at++;
    if (at == MAX_EVENTS) return CUDA_ERROR_OUT_OF_MEMORY;
    events[at] = (struct event){.is_alive = true};
    *event = (CUevent)&events[at];
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)stream;
    known(event)->is_over = false;
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
    return known(event)->is_over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
    known(event)->is_over = true;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
    known(event)->is_alive = false;
    return CUDA_SUCCESS;
}
