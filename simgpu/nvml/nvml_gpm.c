/* GPU performance metrics: what of a GPU was in use between two samples, from what the driver accounts.
 * Hopper and newer have them. */
#include <stdlib.h>

#include "nvml/nvml_state.h"

#define FIRST_MAJOR 9u /* compute capability of Hopper */

struct nvmlGpmSample_st {
    unsigned gpu;
    uint64_t at_ns; /* 0: nothing was sampled */
    uint64_t busy_ns;
    struct sim_usage usage;
};

static bool has_metrics(unsigned gpu) {
    return sim_nvml_gpu(gpu)->compute_major >= FIRST_MAJOR && sim_nvml.activity != NULL;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(support != NULL);
    if (support->version != 1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = has_metrics(gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    NVML_ENTER();
    NVML_REQUIRE(sample != NULL);
    *sample = calloc(1, sizeof(**sample));
    return *sample == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    NVML_ENTER();
    NVML_REQUIRE(sample != NULL);
    free(sample);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    NVML_ENTER_DEVICE(device, gpu);
    NVML_REQUIRE(sample != NULL);
    NVML_REQUIRE_NO_MIG(gpu);
    if (!has_metrics(gpu)) return NVML_ERROR_NOT_SUPPORTED;
    const struct sim_activity_gpu *activity = &sim_nvml.activity->gpu[gpu];
    uint64_t now_ns = sim_now_ns();
    *sample = (struct nvmlGpmSample_st){gpu, now_ns, sim_activity_busy_ns(activity, now_ns),
                                        sim_activity_usage(activity, now_ns)};
    return NVML_SUCCESS;
}

static double percent(double used_ns, double real_ns) {
    double share = used_ns / real_ns * 100;
    return share < 0 ? 0 : share > 100 ? 100 : share;
}

static nvmlReturn_t measure(nvmlGpmMetric_t *metric, const struct nvmlGpmSample_st *from,
                            const struct nvmlGpmSample_st *to) {
    double real_ns = (double)(to->at_ns - from->at_ns);
    switch (metric->metricId) {
    case NVML_GPM_METRIC_GRAPHICS_UTIL:
        return metric->value = percent((double)(to->busy_ns - from->busy_ns), real_ns), NVML_SUCCESS;
    case NVML_GPM_METRIC_SM_UTIL:
        return metric->value = percent(to->usage.sms_ns - from->usage.sms_ns, real_ns), NVML_SUCCESS;
    case NVML_GPM_METRIC_SM_OCCUPANCY:
        return metric->value = percent(to->usage.slots_ns - from->usage.slots_ns, real_ns), NVML_SUCCESS;
    case NVML_GPM_METRIC_DRAM_BW_UTIL:
        return metric->value = percent(to->usage.dram_ns - from->usage.dram_ns, real_ns), NVML_SUCCESS;
    case NVML_GPM_METRIC_FP32_UTIL:
        return metric->value = percent(to->usage.fp32_ns - from->usage.fp32_ns, real_ns), NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

/* Each metric carries its own answer. */
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *metrics) {
    NVML_ENTER();
    NVML_REQUIRE(metrics != NULL && metrics->sample1 != NULL && metrics->sample2 != NULL);
    if (metrics->version != 1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct nvmlGpmSample_st *from = metrics->sample1, *to = metrics->sample2;
    NVML_REQUIRE(from->at_ns != 0 && to->at_ns > from->at_ns && from->gpu == to->gpu);
    NVML_REQUIRE(metrics->numMetrics <= NVML_GPM_METRIC_MAX);
    for (unsigned i = 0; i < metrics->numMetrics; i++)
        metrics->metrics[i].nvmlReturn = measure(&metrics->metrics[i], from, to);
    return NVML_SUCCESS;
}
