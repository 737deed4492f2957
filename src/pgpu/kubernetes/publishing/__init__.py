"""What this node's GPUs are to the cluster: devices in ResourceSlices, kept as they should be.

What is said follows from the engine's offers and the GPUs' health alone; it is written again whenever it is not what
stands there. Refuses to publish shares where the API server would store them as whole GPUs.
"""

from pgpu.kubernetes.publishing.devices import DEFAULT_MEMORY_BYTES
from pgpu.kubernetes.publishing.features import ALL_FEATURES, Features
from pgpu.kubernetes.publishing.looking import Looking
from pgpu.kubernetes.publishing.order import next_order
from pgpu.kubernetes.publishing.pool import USUAL_KINDS, pool_slices
from pgpu.kubernetes.publishing.publisher import SUBJECT, Pace, Publisher

__all__ = [
    "ALL_FEATURES",
    "DEFAULT_MEMORY_BYTES",
    "SUBJECT",
    "USUAL_KINDS",
    "Features",
    "Looking",
    "Pace",
    "Publisher",
    "next_order",
    "pool_slices",
]
