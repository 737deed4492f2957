/* The list of NVML functions that the NVML shim changes. Every other export is a tail jump to the real
 * library. Functions that set something (nvmlDeviceSet…) are not changed: the driver checks the caller's
 * rights. */
#ifndef PGPU_SHIM_NVML_HOOKS_H
#define PGPU_SHIM_NVML_HOOKS_H

/* nvml_resolve */
#define PGPU_HOOKED_nvmlErrorString                   PGPU_YES
#define PGPU_HOOKED_nvmlInit                          PGPU_YES
#define PGPU_HOOKED_nvmlInitWithFlags                 PGPU_YES
#define PGPU_HOOKED_nvmlInit_v2                       PGPU_YES
#define PGPU_HOOKED_nvmlSystemGetCudaDriverVersion    PGPU_YES
#define PGPU_HOOKED_nvmlSystemGetCudaDriverVersion_v2 PGPU_YES
/* nvml_devices */
#define PGPU_HOOKED_nvmlDeviceGetCount                  PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetCount_v2               PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetHandleByIndex          PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetHandleByIndex_v2       PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetHandleByPciBusId       PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetHandleByPciBusId_v2    PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetHandleBySerial         PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetHandleByUUID           PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetHandleByUUIDV          PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetIndex                  PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetMigDeviceHandleByIndex PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetTopologyNearestGpus    PGPU_YES
#define PGPU_HOOKED_nvmlSystemGetTopologyGpuSet         PGPU_YES
/* nvml_memory_info */
#define PGPU_HOOKED_nvmlDeviceGetMemoryInfo    PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetMemoryInfo_v2 PGPU_YES
/* nvml_process_lists */
#define PGPU_HOOKED_nvmlDeviceGetAccountingPids                PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetComputeRunningProcesses       PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetComputeRunningProcesses_v2    PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetComputeRunningProcesses_v3    PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetGraphicsRunningProcesses      PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetGraphicsRunningProcesses_v2   PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetGraphicsRunningProcesses_v3   PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetMPSComputeRunningProcesses    PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetMPSComputeRunningProcesses_v2 PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetMPSComputeRunningProcesses_v3 PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetProcessUtilization            PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetProcessesUtilizationInfo      PGPU_YES
#define PGPU_HOOKED_nvmlDeviceGetRunningProcessDetailList      PGPU_YES

/* PGPU_IF_HOOKED(nvmlInit, this, that): `this` for a function of the list. PGPU_YES shifts the arguments by
 * one. */
#define PGPU_YES                            ~,
#define PGPU_IF_HOOKED(function, yes, no)   PGPU_CHOOSE_(PGPU_HOOKED_##function, yes, no)
#define PGPU_CHOOSE_(probe, yes, no)        PGPU_THIRD_(probe yes, no, ~)
#define PGPU_THIRD_(...)                    PGPU_SECOND_OF_(__VA_ARGS__)
#define PGPU_SECOND_OF_(first, second, ...) second

#endif
