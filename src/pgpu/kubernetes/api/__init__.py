"""Client of a cluster's API server: typed calls with pgpu's own errors. No error message contains a token or a certificate."""

from pgpu.kubernetes.api.api_connection import connect, prepare_type
from pgpu.kubernetes.api.cluster import ClusterClient, DryRun, ObjectList, ObjectWatch, SliceList, WatchEvent
from pgpu.kubernetes.api.dynamic_client import DynamicClient, ObjectKind
from pgpu.kubernetes.api.resources import (
    AllocatedDevice,
    ClaimUser,
    Configuration,
    Node,
    ObjectName,
    PodLifecycle,
    ResourceClaim,
)

__all__ = [
    "AllocatedDevice",
    "ClaimUser",
    "ClusterClient",
    "Configuration",
    "DryRun",
    "DynamicClient",
    "Node",
    "ObjectKind",
    "ObjectList",
    "ObjectName",
    "ObjectWatch",
    "PodLifecycle",
    "ResourceClaim",
    "SliceList",
    "WatchEvent",
    "connect",
    "prepare_type",
]
