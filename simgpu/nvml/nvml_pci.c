/* Where a GPU sits on the PCI bus, in every version of NVML's structure, and its link. */
#include <stdio.h>
#include <string.h>

#include "nvml/nvml_state.h"

#define NVIDIA_VENDOR_ID   0x10deu
#define DISPLAY_CONTROLLER 3u
#define LINK_WIDTH         16u

static void fill(const struct sim_gpu *gpu, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof(*pci));
    sscanf(gpu->pci_bus_id, "%x:%x:%x.", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xffu,
             pci->device & 0xffu);
    snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.0", pci->domain & 0xffffu,
             pci->bus & 0xffu, pci->device & 0xffu);
    pci->pciDeviceId = (unsigned)gpu->pci_device_id << 16 | NVIDIA_VENDOR_ID;
    pci->pciSubSystemId = pci->pciDeviceId;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(pci != NULL);
    fill(sim_nvml_gpu(gpu), pci);
    return NVML_SUCCESS;
}

/* The structure of the first two versions is shorter than the type that the prototype names. */
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(pci != NULL);
    nvmlPciInfo_t found;
    fill(sim_nvml_gpu(gpu), &found);
    pgpu_nvml_pci_info_v2 older = {0};
    memcpy(&older, &found, offsetof(pgpu_nvml_pci_info_v2, reserved));
    memcpy(pci, &older, sizeof(older));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return nvmlDeviceGetPciInfo_v2(device, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *pci) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(pci != NULL);
    if (pci->version != NVML_STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlPciInfo_t found;
    fill(sim_nvml_gpu(gpu), &found);
    *pci = (nvmlPciInfoExt_v1_t){.version = pci->version,
                                 .domain = found.domain,
                                 .bus = found.bus,
                                 .device = found.device,
                                 .pciDeviceId = found.pciDeviceId,
                                 .pciSubSystemId = found.pciSubSystemId,
                                 .baseClass = DISPLAY_CONTROLLER};
    memcpy(pci->busId, found.busId, sizeof(pci->busId));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(generation != NULL);
    *generation = (unsigned)sim_nvml_gpu(gpu)->pcie_generation;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation) {
    return nvmlDeviceGetMaxPcieLinkGeneration(device, generation);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation) {
    return nvmlDeviceGetMaxPcieLinkGeneration(device, generation);
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *lanes) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(lanes != NULL);
    *lanes = LINK_WIDTH;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *lanes) {
    return nvmlDeviceGetMaxPcieLinkWidth(device, lanes);
}

/* 2.5 GT/s in generation 1, 5 in 2, doubling from 8 in 3. */
nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned int *speed_mbps) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(speed_mbps != NULL);
    unsigned generation = (unsigned)sim_nvml_gpu(gpu)->pcie_generation;
    *speed_mbps = generation >= 3 ? 8000u << (generation - 3) : 2500u * generation;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned int *speed) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(speed != NULL);
    *speed = (unsigned)sim_nvml_gpu(gpu)->pcie_generation;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *count) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                         unsigned int *kib_per_second) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(kib_per_second != NULL && counter < NVML_PCIE_UTIL_COUNT);
    *kib_per_second = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBusType(nvmlDevice_t device, nvmlBusType_t *type) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(type != NULL);
    *type = NVML_BUS_TYPE_PCIE;
    return NVML_SUCCESS;
}
