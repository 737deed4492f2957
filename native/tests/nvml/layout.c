/* Prints size and offsets of NVML's types, as our own declarations have them or, compiled with
 * PGPU_NVML_HEADER, as NVIDIA's header has them: the two must print the same. */
#include <stddef.h>
#include <stdio.h>

#ifdef PGPU_NVML_HEADER
#include <nvml.h>
#else
#include "nvml_abi.h"
#endif

#define TYPE(type) printf(#type " %zu\n", sizeof(type))
#define FIELD(type, field)                                                                                   \
    printf(#type "." #field " %zu %zu\n", offsetof(type, field), sizeof(((type *)0)->field))

int main(void) {
    TYPE(nvmlPciInfoExt_v1_t);
    FIELD(nvmlPciInfoExt_v1_t, version);
    FIELD(nvmlPciInfoExt_v1_t, domain);
    FIELD(nvmlPciInfoExt_v1_t, bus);
    FIELD(nvmlPciInfoExt_v1_t, device);
    FIELD(nvmlPciInfoExt_v1_t, pciDeviceId);
    FIELD(nvmlPciInfoExt_v1_t, pciSubSystemId);
    FIELD(nvmlPciInfoExt_v1_t, baseClass);
    FIELD(nvmlPciInfoExt_v1_t, subClass);
    FIELD(nvmlPciInfoExt_v1_t, busId);
    TYPE(nvmlPciInfo_t);
    FIELD(nvmlPciInfo_t, busIdLegacy);
    FIELD(nvmlPciInfo_t, domain);
    FIELD(nvmlPciInfo_t, bus);
    FIELD(nvmlPciInfo_t, device);
    FIELD(nvmlPciInfo_t, pciDeviceId);
    FIELD(nvmlPciInfo_t, pciSubSystemId);
    FIELD(nvmlPciInfo_t, busId);
    TYPE(nvmlUtilization_t);
    FIELD(nvmlUtilization_t, gpu);
    FIELD(nvmlUtilization_t, memory);
    TYPE(nvmlMemory_t);
    FIELD(nvmlMemory_t, total);
    FIELD(nvmlMemory_t, free);
    FIELD(nvmlMemory_t, used);
    TYPE(nvmlMemory_v2_t);
    FIELD(nvmlMemory_v2_t, version);
    FIELD(nvmlMemory_v2_t, total);
    FIELD(nvmlMemory_v2_t, reserved);
    FIELD(nvmlMemory_v2_t, free);
    FIELD(nvmlMemory_v2_t, used);
    TYPE(nvmlBAR1Memory_t);
    FIELD(nvmlBAR1Memory_t, bar1Total);
    FIELD(nvmlBAR1Memory_t, bar1Free);
    FIELD(nvmlBAR1Memory_t, bar1Used);
    TYPE(nvmlProcessInfo_v1_t);
    FIELD(nvmlProcessInfo_v1_t, pid);
    FIELD(nvmlProcessInfo_v1_t, usedGpuMemory);
    TYPE(nvmlProcessInfo_v2_t);
    FIELD(nvmlProcessInfo_v2_t, pid);
    FIELD(nvmlProcessInfo_v2_t, usedGpuMemory);
    FIELD(nvmlProcessInfo_v2_t, gpuInstanceId);
    FIELD(nvmlProcessInfo_v2_t, computeInstanceId);
    TYPE(nvmlProcessDetail_v1_t);
    FIELD(nvmlProcessDetail_v1_t, pid);
    FIELD(nvmlProcessDetail_v1_t, usedGpuMemory);
    FIELD(nvmlProcessDetail_v1_t, gpuInstanceId);
    FIELD(nvmlProcessDetail_v1_t, computeInstanceId);
    FIELD(nvmlProcessDetail_v1_t, usedGpuCcProtectedMemory);
    TYPE(nvmlProcessDetailList_v1_t);
    FIELD(nvmlProcessDetailList_v1_t, version);
    FIELD(nvmlProcessDetailList_v1_t, mode);
    FIELD(nvmlProcessDetailList_v1_t, numProcArrayEntries);
    FIELD(nvmlProcessDetailList_v1_t, procArray);
    TYPE(nvmlProcessUtilizationSample_t);
    FIELD(nvmlProcessUtilizationSample_t, pid);
    FIELD(nvmlProcessUtilizationSample_t, timeStamp);
    FIELD(nvmlProcessUtilizationSample_t, smUtil);
    FIELD(nvmlProcessUtilizationSample_t, memUtil);
    FIELD(nvmlProcessUtilizationSample_t, encUtil);
    FIELD(nvmlProcessUtilizationSample_t, decUtil);
    TYPE(nvmlProcessUtilizationInfo_v1_t);
    FIELD(nvmlProcessUtilizationInfo_v1_t, timeStamp);
    FIELD(nvmlProcessUtilizationInfo_v1_t, pid);
    FIELD(nvmlProcessUtilizationInfo_v1_t, smUtil);
    FIELD(nvmlProcessUtilizationInfo_v1_t, memUtil);
    FIELD(nvmlProcessUtilizationInfo_v1_t, encUtil);
    FIELD(nvmlProcessUtilizationInfo_v1_t, decUtil);
    FIELD(nvmlProcessUtilizationInfo_v1_t, jpgUtil);
    FIELD(nvmlProcessUtilizationInfo_v1_t, ofaUtil);
    TYPE(nvmlProcessesUtilizationInfo_v1_t);
    FIELD(nvmlProcessesUtilizationInfo_v1_t, version);
    FIELD(nvmlProcessesUtilizationInfo_v1_t, processSamplesCount);
    FIELD(nvmlProcessesUtilizationInfo_v1_t, lastSeenTimeStamp);
    FIELD(nvmlProcessesUtilizationInfo_v1_t, procUtilArray);
    TYPE(nvmlValue_t);
    FIELD(nvmlValue_t, dVal);
    FIELD(nvmlValue_t, siVal);
    FIELD(nvmlValue_t, uiVal);
    FIELD(nvmlValue_t, ulVal);
    FIELD(nvmlValue_t, ullVal);
    FIELD(nvmlValue_t, sllVal);
    FIELD(nvmlValue_t, usVal);
    TYPE(nvmlSample_t);
    FIELD(nvmlSample_t, timeStamp);
    FIELD(nvmlSample_t, sampleValue);
    TYPE(nvmlFieldValue_t);
    FIELD(nvmlFieldValue_t, fieldId);
    FIELD(nvmlFieldValue_t, scopeId);
    FIELD(nvmlFieldValue_t, timestamp);
    FIELD(nvmlFieldValue_t, latencyUsec);
    FIELD(nvmlFieldValue_t, valueType);
    FIELD(nvmlFieldValue_t, nvmlReturn);
    FIELD(nvmlFieldValue_t, value);
    TYPE(nvmlUUIDValue_t);
    FIELD(nvmlUUIDValue_t, str);
    FIELD(nvmlUUIDValue_t, bytes);
    TYPE(nvmlUUID_v1_t);
    FIELD(nvmlUUID_v1_t, version);
    FIELD(nvmlUUID_v1_t, type);
    FIELD(nvmlUUID_v1_t, value);
    TYPE(nvmlTemperature_v1_t);
    FIELD(nvmlTemperature_v1_t, version);
    FIELD(nvmlTemperature_v1_t, sensorType);
    FIELD(nvmlTemperature_v1_t, temperature);
    TYPE(nvmlSystemDriverBranchInfo_v1_t);
    FIELD(nvmlSystemDriverBranchInfo_v1_t, version);
    FIELD(nvmlSystemDriverBranchInfo_v1_t, branch);
    TYPE(nvmlViolationTime_t);
    FIELD(nvmlViolationTime_t, referenceTime);
    FIELD(nvmlViolationTime_t, violationTime);
    TYPE(nvmlHwbcEntry_t);
    FIELD(nvmlHwbcEntry_t, hwbcId);
    FIELD(nvmlHwbcEntry_t, firmwareVersion);
    TYPE(nvmlGpmMetric_t);
    FIELD(nvmlGpmMetric_t, value);
    FIELD(nvmlGpmMetric_t, metricInfo);
    TYPE(nvmlGpmMetricsGet_t);
    FIELD(nvmlGpmMetricsGet_t, sample1);
    FIELD(nvmlGpmMetricsGet_t, metrics);
    TYPE(nvmlGpmSupport_t);
    FIELD(nvmlGpmSupport_t, isSupportedDevice);
    return 0;
}
