/* Attributes of streams: kept and answered. */
#include "stream/stream.h"

#define COUNT (sizeof(((CUstream)0)->attribute) / sizeof(CUstreamAttrValue))

SIM_EXPORT CUresult cuStreamGetAttribute(CUstream named, CUstreamAttrID name, CUstreamAttrValue *value) {
    SIM_ENTER();
    CUstream stream;
    if (value == NULL || (unsigned)name >= COUNT) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_LOCKED();
    *value = stream->attribute[name];
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamSetAttribute(CUstream named, CUstreamAttrID name,
                                         const CUstreamAttrValue *value) {
    SIM_ENTER();
    CUstream stream;
    if (value == NULL || (unsigned)name >= COUNT) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(sim_stream_of(named, &stream));
    SIM_LOCKED();
    stream->attribute[name] = *value;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult cuStreamCopyAttributes(CUstream to_named, CUstream from_named) {
    SIM_ENTER();
    CUstream to, from;
    SIM_TRY(sim_stream_of(to_named, &to));
    SIM_TRY(sim_stream_of(from_named, &from));
    SIM_LOCKED();
    for (size_t i = 0; i < COUNT; i++)
        to->attribute[i] = from->attribute[i];
    return CUDA_SUCCESS;
}
