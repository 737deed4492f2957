/* Names and texts of error codes. */
#include <ctype.h>
#include <string.h>

#include "driver/driver.h"

#define TEXT_BYTES 64

static const struct known {
    CUresult code;
    const char *name;
} codes[] = {
#define CUDA_ERROR(name, value) {value, #name},
#include "cuda_errors.def"
#undef CUDA_ERROR
};

#define CODE_COUNT (sizeof(codes) / sizeof(codes[0]))

/* What programs print, and users search for. The text of every other code is its name in plain words. */
static const struct known texts[] = {
    {CUDA_SUCCESS, "no error"},
    {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"},
    {CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"},
    {CUDA_ERROR_FILE_NOT_FOUND, "file not found"},
    {CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"},
    {CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"},
    {CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"},
    {CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"},
    {CUDA_ERROR_NOT_PERMITTED, "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"},
    {CUDA_ERROR_UNKNOWN, "unknown error"},
};

static char plain_words[CODE_COUNT][TEXT_BYTES];
static pthread_once_t words_once = PTHREAD_ONCE_INIT;

static void write_words(char *to, const char *name) {
    const char *from = strncmp(name, "CUDA_ERROR_", 11) == 0 ? name + 11 : name;
    for (size_t i = 0; i < TEXT_BYTES - 1 && from[i] != '\0'; i++)
        to[i] = from[i] == '_' ? ' ' : (char)tolower((unsigned char)from[i]);
}

static void write_all_words(void) {
    for (size_t i = 0; i < CODE_COUNT; i++)
        write_words(plain_words[i], codes[i].name);
}

static size_t index_of(CUresult code) {
    size_t i = 0;
    while (i < CODE_COUNT && codes[i].code != code)
        i++;
    return i;
}

SIM_EXPORT CUresult cuGetErrorName(CUresult code, const char **name) {
    if (name == NULL) return CUDA_ERROR_INVALID_VALUE;
    size_t index = index_of(code);
    *name = index < CODE_COUNT ? codes[index].name : NULL;
    return index < CODE_COUNT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static const char *text_of(size_t index) {
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (texts[i].code == codes[index].code) return texts[i].name;
    pthread_once(&words_once, write_all_words);
    return plain_words[index];
}

SIM_EXPORT CUresult cuGetErrorString(CUresult code, const char **text) {
    if (text == NULL) return CUDA_ERROR_INVALID_VALUE;
    size_t index = index_of(code);
    *text = index < CODE_COUNT ? text_of(index) : NULL;
    return index < CODE_COUNT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
