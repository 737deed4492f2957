"""A function as a Service of Knative Serving, which counts its calls, scales it, and holds calls while it starts. Pure.

Knative lets a pod's spec say only what it knows. As of August 2026 it knows no claims: they are not in its CRD's schema, and
its webhook refuses them, so whoever applies this asks first (source: `PodSpecMask` and `ResourceRequirementsMask` in Knative's
pkg/apis/serving/fieldmask.go, knative/serving#15332). It drains replicas itself, so there is no hook and no grace period here.
"""

from pgpu.kubernetes.deploy.object_names import Manifest, labels
from pgpu.kubernetes.deploy.pod_template import CLAIM, annotated, pod, scrape_annotations, whole_seconds
from pgpu.kubernetes.deploy.workload import Workload

API_VERSION = "serving.knative.dev/v1"
_SCALING = "autoscaling.knative.dev"
_MOST_AT_ONCE = 1000
"""Of `containerConcurrency`, unless an administrator allows more."""

_LONGEST_IDLE_SECONDS = 3600
"""Of `scale-to-zero-pod-retention-period`."""

_VISIBILITY = {"networking.knative.dev/visibility": "cluster-local"}
"""Without it Knative gives each Service a URL for callers outside of the cluster, and here nobody asks them for a token."""


def knative_service(workload: Workload, template_name: str | None) -> Manifest:
    """Return the Service of Knative.

    Args:
        workload: What runs.
        template_name: As of `deployment`.
    """
    about = annotated(workload)
    if not workload.is_public:
        about["labels"] |= _VISIBILITY
    return {
        "apiVersion": API_VERSION,
        "kind": "Service",
        "metadata": about,
        "spec": {
            "template": {
                "metadata": {"labels": labels(workload.name), "annotations": _annotations(workload)},
                "spec": _revision(workload, template_name),
            },
        },
    }


def _annotations(workload: Workload) -> dict[str, str]:
    scaling = workload.scaling
    idle_seconds = min(round(scaling.idle_seconds), _LONGEST_IDLE_SECONDS)
    return {
        f"{_SCALING}/min-scale": str(scaling.minimum),
        f"{_SCALING}/max-scale": str(scaling.maximum),
        f"{_SCALING}/scale-to-zero-pod-retention-period": f"{idle_seconds}s",
        "serving.knative.dev/progress-deadline": f"{whole_seconds(workload.startup_timeout_seconds)}s",
        **scrape_annotations(),
    }


def _revision(workload: Workload, template_name: str | None) -> Manifest:
    spec = pod(workload, None if template_name is None else CLAIM)
    if template_name is not None:
        spec["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": template_name}]
    return {
        "containerConcurrency": min(workload.calls_at_once, _MOST_AT_ONCE),
        "timeoutSeconds": whole_seconds(workload.timeout_seconds),
        **spec,
    }
