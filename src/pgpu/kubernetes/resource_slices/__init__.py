"""What this node's GPUs are to the cluster: devices in ResourceSlices, kept as they should be.

What is said follows from the engine's offers and the GPUs' health alone; it is written again whenever it is not what
stands there. Refuses to publish shares where the API server would store them as whole GPUs.
"""

from pgpu.kubernetes.resource_slices.api_features import ALL_FEATURES, Features
from pgpu.kubernetes.resource_slices.gpu_order import next_order
from pgpu.kubernetes.resource_slices.pool_plan import PoolPlanner
from pgpu.kubernetes.resource_slices.publisher import SUBJECT, Pace, Publisher
from pgpu.kubernetes.resource_slices.resource_pool import USUAL_KINDS, pool_slices
from pgpu.kubernetes.resource_slices.slice_devices import DEFAULT_MEMORY_BYTES

__all__ = [
    "ALL_FEATURES",
    "DEFAULT_MEMORY_BYTES",
    "SUBJECT",
    "USUAL_KINDS",
    "Features",
    "Pace",
    "PoolPlanner",
    "Publisher",
    "next_order",
    "pool_slices",
]
