"""Client of a cluster's API server: typed calls with pgpu's own errors. No error message contains a token or a certificate."""

from pgpu.kubernetes.api.api_connection import connect, prepare_type
from pgpu.kubernetes.api.cluster import Change, Cluster, DryRun, ObjectList, SliceList, Watch
from pgpu.kubernetes.api.dynamic_client import DynamicClient, ObjectKind
from pgpu.kubernetes.api.resources import (
    AllocatedDevice,
    ClaimUser,
    Configuration,
    Node,
    ObjectName,
    ResourceClaim,
)

__all__ = [
    "AllocatedDevice",
    "Change",
    "ClaimUser",
    "Cluster",
    "Configuration",
    "DryRun",
    "DynamicClient",
    "Node",
    "ObjectKind",
    "ObjectList",
    "ObjectName",
    "ResourceClaim",
    "SliceList",
    "Watch",
    "connect",
    "prepare_type",
]
