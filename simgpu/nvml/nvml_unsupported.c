/* Every other export of NVML: it exists, as in NVIDIA's library, and is not supported. A definition elsewhere
 * replaces the weak one here. */
#include "nvml_constants.h"

nvmlReturn_t sim_nvml_not_supported(void);

nvmlReturn_t sim_nvml_not_supported(void) {
    return NVML_ERROR_NOT_SUPPORTED;
}

#define NVML_FUNCTION(symbol)                                                                                \
    nvmlReturn_t symbol(void) __attribute__((weak, alias("sim_nvml_not_supported"), visibility("default")));
#include "nvml_functions.def"
