"""A node's GPUs as devices in ResourceSlices, kept up to date in the API server.

The content follows from the engine's offers and the GPUs' health alone, and is written again whenever the stored slices differ. Shares
are not published to an API server that would store them as whole GPUs.
"""

from pgpu.kubernetes.resource_slices.api_features import ALL_FEATURES, Features
from pgpu.kubernetes.resource_slices.pool_plan import PoolPlanner, next_order
from pgpu.kubernetes.resource_slices.publisher import SUBJECT, Pace, Publisher
from pgpu.kubernetes.resource_slices.resource_pool import DEFAULT_MEMORY_BYTES, USUAL_KINDS, pool_slices

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
