/* NVML's calls about the machine rather than a GPU: versions, errors, names of processes. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvml/nvml_state.h"

#define PROCESS_NAME_BYTES 1024

static const struct {
    nvmlReturn_t code;
    const char *text;
} errors[] = {
    {NVML_SUCCESS, "Success"},
    {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
    {NVML_ERROR_NOT_FOUND, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "Timeout"},
    {NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
    {NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
    {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
    {NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
    {NVML_ERROR_OPERATING_SYSTEM, "The operating system has blocked the request"},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
    {NVML_ERROR_IN_USE, "In use by another client"},
    {NVML_ERROR_MEMORY, "Insufficient Memory"},
    {NVML_ERROR_NO_DATA, "No data"},
    {NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, "The requested vGPU operation is not available with ECC"},
    {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
    {NVML_ERROR_FREQ_NOT_SUPPORTED, "Frequency is not supported"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
    {NVML_ERROR_DEPRECATED, "Deprecated"},
    {NVML_ERROR_NOT_READY, "Not ready"},
    {NVML_ERROR_GPU_NOT_FOUND, "GPU not found"},
    {NVML_ERROR_INVALID_STATE, "Invalid state"},
};

const char *nvmlErrorString(nvmlReturn_t result) {
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].code == result) return errors[i].text;
    return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    NVML_ENTER();
    return sim_nvml_copy(version, length, sim_nvml.config.driver_version);
}

/* CUDA's major version, then the driver's. */
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    NVML_ENTER();
    char text[NVML_SYSTEM_NVML_VERSION_BUFFER_SIZE];
    snprintf(text, sizeof(text), "%u.%s", (unsigned)(sim_nvml.config.cuda_version / 1000),
             sim_nvml.config.driver_version);
    return sim_nvml_copy(version, length, text);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    NVML_ENTER();
    NVML_REQUIRE(version != NULL);
    *version = (int)sim_nvml.config.cuda_version;
    return NVML_SUCCESS;
}

/* The old form answers without initialisation too. */
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    if (sim_nvml_references() > 0) return nvmlSystemGetCudaDriverVersion_v2(version);
    nvmlReturn_t result = nvmlInit_v2();
    if (result != NVML_SUCCESS) return result;
    result = nvmlSystemGetCudaDriverVersion_v2(version);
    nvmlShutdown();
    return result;
}

nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length) {
    NVML_ENTER();
    NVML_REQUIRE(info != NULL);
    if (info->version != NVML_STRUCT_VERSION(nvmlSystemDriverBranchInfo_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    char text[64];
    snprintf(text, sizeof(text), "r%d_00", atoi(sim_nvml.config.driver_version));
    return sim_nvml_copy(info->branch, length < sizeof(info->branch) ? length : sizeof(info->branch), text);
}

nvmlReturn_t nvmlSystemGetHicVersion(unsigned int *count, nvmlHwbcEntry_t *entries) {
    (void)entries;
    NVML_ENTER();
    NVML_REQUIRE(count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlUnitGetCount(unsigned int *count) {
    NVML_ENTER();
    NVML_REQUIRE(count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}

static bool read_first_argument(unsigned pid, const char *file, char name[PROCESS_NAME_BYTES]) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/%u/%s", pid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t length = read(fd, name, PROCESS_NAME_BYTES - 1);
    close(fd);
    if (length <= 0) return false;
    name[length] = '\0';
    name[strcspn(name, "\n")] = '\0';
    return name[0] != '\0';
}

/* A name longer than the buffer is cut, as NVIDIA's is. */
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    NVML_ENTER();
    NVML_REQUIRE(name != NULL && length > 0);
    char found[PROCESS_NAME_BYTES];
    if (!read_first_argument(pid, "cmdline", found) && !read_first_argument(pid, "comm", found))
        return NVML_ERROR_NOT_FOUND;
    snprintf(name, length, "%s", found);
    return NVML_SUCCESS;
}
